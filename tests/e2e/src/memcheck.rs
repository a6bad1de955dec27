//! Debian's programs under valgrind: nothing invalid, nothing lost, with the suppressions that the distribution brings.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Bed;
use ferroce_harness::cc;
use ferroce_harness::exchange::{Exchange, Meeting, listening};
use ferroce_harness::job;
use ferroce_harness::report::Checks;

/// Under valgrind a round trip takes some milliseconds.
const LIMIT: Duration = Duration::from_secs(120);

/// Both ends of a pingpong and of rping; and a program that loses a block, which must be reported.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    if bed.programs.find("valgrind").is_none() {
        checks.skip("memcheck", "valgrind is not installed");
        return Ok(());
    }
    let port = bed.port();
    let end = |host: Option<&str>| {
        let mut command = watched(bed, "ibv_rc_pingpong", &[]);
        command.args(["-d", "fr0", "-g", "0", "-n", "100", "-c", "-p", &port.to_string()]).args(host);
        command
    };
    let pingpong = Exchange {
        name: "memcheck ibv_rc_pingpong".to_owned(),
        server: end(None),
        client: end(Some("127.0.0.1")),
        ready: Box::new(move || listening(port)),
        limit: LIMIT,
    };
    pingpong.run(&bed.logs, checks)?;
    let port = bed.port().to_string();
    let end = |role: &str| {
        // Its main thread exits while another one is asleep, whose stack is then "possibly lost".
        let mut command =
            watched(bed, "rping", &["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
        command.args([role, "-a", "127.0.0.1", "-C", "10", "-p", &port]);
        command
    };
    let rping = Meeting {
        name: "memcheck rping".to_owned(),
        server: end("-s"),
        client: end("-c"),
        patience: None,
        judge: &|_, _| Ok(()),
        endless: false,
        limit: LIMIT,
    };
    rping.run(&bed.logs, checks)?;
    checks.check("a lost list is reported", lost(bed));
    Ok(())
}

/// `ferroce run -- valgrind … PROGRAM`, whose exit status is 1 if memcheck has anything to report.
fn watched(bed: &Bed, program: &str, options: &[&str]) -> Command {
    let mut command = bed.ours("valgrind");
    command.args(["--quiet", "--leak-check=full", "--error-exitcode=1"]).args(options);
    command.arg(format!("--suppressions={}", bed.dist.suppressions().display()));
    command.arg(bed.programs.find(program).unwrap_or_else(|| program.into()));
    command
}

/// The suppressions hide nothing that a program loses.
fn lost(bed: &Bed) -> Result<()> {
    let program = cc::ours("lost", &bed.dist, &bed.programs)?;
    let command = watched(bed, &program.display().to_string(), &[]);
    let ended = job::run(command, &bed.logs.path("memcheck lost"), LIMIT)?;
    let told = ended.output.contains("definitely lost") && ended.output.contains("ibv_get_device_list");
    ensure!(told && ended.status.is_some_and(|s| s.code() == Some(1)), "{}", ended.describe());
    Ok(())
}
