//! `ferroce explain`: of programs that run, that ended, that were killed, and of files.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::Bed;
use ferroce_harness::cc;
use ferroce_harness::job::{self, Ended};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// How long a condition may take to come true, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// On `fr0`.
pub fn check(bed: &Bed, checks: &mut Checks) {
    checks.check("explain a program that ended", ended(bed));
    match bed.programs.find("rping") {
        Some(_) => checks.check("explain a program that runs, that was killed, and a file", killed(bed)),
        None => checks.skip("explain a program that runs", "rping is not here"),
    }
    checks.check("explain something else", refusals(bed));
}

fn explain(bed: &Bed, words: &[&str]) -> Result<Ended> {
    let mut command = Command::new(bed.dist.bin("ferroce"));
    command.arg("explain").args(words);
    job::run(command, &bed.logs.path("explain"), PATIENCE)
}

fn stories(bed: &Bed, words: &[&str]) -> Result<Vec<Value>> {
    let said = explain(bed, &[&["-j"], words].concat())?;
    ensure!(said.ok(), "{}", said.describe());
    serde_json::from_str(&said.output).with_context(|| said.output.clone())
}

/// The events of a story, one after the other.
fn events(story: &Value) -> Vec<&str> {
    let events = story["events"].as_array().map_or(&[][..], Vec::as_slice);
    events.iter().filter_map(|event| event["what"].as_str()).collect()
}

/// The work requests of `failures.c` fail in ten ways.
fn ended(bed: &Bed) -> Result<()> {
    let source = tree::root().join("crates/ferroce-dropin/tests/c/failures.c");
    let program = cc::compile(&source, &bed.dist, &bed.programs)?;
    let run = job::run(bed.ours(&program.display().to_string()), &bed.logs.path("failures"), PATIENCE)?;
    ensure!(run.ok(), "{}", run.describe());
    // The library has named the process.
    let pid = run.output.split("`ferroce explain ").nth(1).and_then(|rest| rest.split('`').next());
    let pid = pid.with_context(|| run.output.clone())?;
    let mut told = Vec::new();
    super::parts::wait("the recording of the program that ended", || {
        // Until ferroced has seen the end, the program is among those that run, or nowhere.
        let said = explain(bed, &["-j", pid])?;
        told = serde_json::from_str(&said.output).unwrap_or_default();
        Ok(told.iter().any(|story: &Value| story["ended"] == true))
    })?;
    let of = |status: &str, opcode: &str| {
        let is = |failure: &Value| failure["status"] == status && failure["opcode"] == opcode;
        let found = told.iter().find(|story| is(&story["failures"][0]));
        found.with_context(|| format!("no {opcode} with {status}: {told:?}"))
    };
    let refused = of("IBV_WC_REM_ACCESS_ERR", "RDMA_WRITE")?;
    ensure!(
        refused["ended"] == true && refused["program"] == "failures" && refused["device"] == "fr0",
        "{refused}"
    );
    let happened = events(refused).join("\n");
    let order = [
        "to RTS",
        "posted RDMA_WRITE, wr_id 7",
        "-> WriteOnly PSN 1193046",
        "<- Acknowledge PSN 1193046",
        "completed: IBV_WC_REM_ACCESS_ERR",
    ];
    let places: Option<Vec<usize>> = order.iter().map(|part| happened.find(part)).collect();
    ensure!(places.as_ref().is_some_and(|places| places.is_sorted()), "{happened}");
    ensure!(happened.contains("NAK: RemoteAccessError"), "{happened}");
    let rnr = of("IBV_WC_RNR_RETRY_EXC_ERR", "SEND")?;
    ensure!(rnr["peer"].as_str().is_some_and(|peer| peer.contains("no receive WQE")), "{rnr}");
    let silent = of("IBV_WC_RETRY_EXC_ERR", "SEND")?;
    let says = |part: &str| events(silent).iter().any(|what| what.starts_with(part));
    ensure!(says("the ACK timeout is over") && says("the same again"), "{silent}");
    of("IBV_WC_LOC_LEN_ERR", "RECV")?;
    let behind = of("IBV_WC_LOC_PROT_ERR", "RDMA_READ")?;
    ensure!(behind["flushed"] == true && events(behind).contains(&"to RTS"), "{behind}");
    let text = explain(bed, &[pid])?;
    for part in
        ["(PID ", ", ended)", "rule: IBTA C9-88", "cure: check rkey and remote_addr", "  peer: failures"]
    {
        ensure!(text.ok() && text.output.contains(part), "no {part:?}: {}", text.describe());
    }
    Ok(())
}

/// Two ends of rping whose connection goes on until the server is killed: the client's requests then fail.
fn killed(bed: &Bed) -> Result<()> {
    let (server, client) = super::parts::rping(bed)?;
    let mut pids = Vec::new();
    super::parts::wait("two queue pairs that have sent", || {
        let all = stories(bed, &["--all"])?;
        let live = all.iter().filter(|story| story["ended"] == false && story["program"] == "rping");
        let both: Vec<&Value> =
            live.filter(|story| events(story).iter().any(|what| what.contains("->"))).collect();
        pids = both.iter().filter_map(|story| story["pid"].as_u64()).collect();
        Ok(pids.len() == 2)
    })?;
    let (server_pid, client_pid) = (server.id(), client.id());
    ensure!(pids.contains(&server_pid.into()) && pids.contains(&client_pid.into()), "{pids:?}");
    let all = stories(bed, &["--all", &client_pid.to_string()])?;
    ensure!(
        all.len() == 1 && all[0]["waits"].is_string() && all[0]["failures"] == Value::Array(vec![]),
        "{all:?}"
    );
    ensure!(
        all[0]["peer"].as_str().is_some_and(|peer| peer.contains(&format!("PID {server_pid}"))),
        "{all:?}"
    );
    // Nothing failed.
    ensure!(stories(bed, &[&client_pid.to_string()])?.is_empty(), "a failure in {all:?}");

    let file = bed.logs.path("recording");
    let _ = fs::remove_file(&file);
    let name = file.display().to_string();
    let saved = explain(bed, &["--save", &name, &client_pid.to_string()])?;
    ensure!(saved.ok(), "{}", saved.describe());
    let again = explain(bed, &["--save", &name, &client_pid.to_string()])?;
    ensure!(!again.ok() && again.output.contains("cannot make"), "{}", again.describe());
    let read = stories(bed, &["--all", &name])?;
    fs::remove_file(&file)?;
    ensure!(read.len() == 1 && read[0]["pid"] == client_pid && read[0]["lqpn"] == all[0]["lqpn"], "{read:?}");

    server.signal(Signal::SIGKILL);
    super::parts::wait("the recording of the killed program", || {
        let told = stories(bed, &["--all", &server_pid.to_string()])?;
        Ok(told
            .iter()
            .any(|story| story["ended"] == true && events(story).iter().any(|what| what.contains("<- "))))
    })?;
    drop((server, client));
    Ok(())
}

fn refusals(bed: &Bed) -> Result<()> {
    for (words, code, part) in [
        (&["4000000000"][..], 1, "is no program on ferroce that runs"),
        (&["/nonexistent"], 1, "is no process id, and cannot be read"),
        (&["/proc/self/exe"], 1, "has no recording of this version"),
        (&["--save", "/dev/null/x"], 2, "required"),
        (&["--save", "/dev/null/x", "4000000000"], 1, "needs the process id of a program"),
    ] {
        let said = explain(bed, words)?;
        let status = said.status.and_then(|status| status.code());
        ensure!(status == Some(code) && said.output.contains(part), "{words:?}: {}", said.describe());
    }
    Ok(())
}
