//! The peer's probe with ferroce at both ends: every operation of RC, UC and UD, and every error it can provoke.

use std::time::Duration;

use anyhow::Result;

use super::Bed;
use crate::probe;
use ferroce_harness::exchange::{Exchange, listening};
use ferroce_harness::report::Checks;

/// Each scenario over IPv4 with path MTU 1024, and a few (all with `--all`) over IPv6 with other MTUs.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let program = probe::build(&bed.dist, &bed.programs)?;
    let program = program.display().to_string();
    for (gid, mtu) in [(0, 1024), (1, 4096), (0, 256), (1, 512), (1, 2048)] {
        let full = bed.all || (gid, mtu) == (0, 1024);
        for scenario in probe::RC {
            if full || ["send", "write", "read"].contains(scenario) {
                exchange(bed, &program, scenario, gid, mtu).run(&bed.logs, checks)?;
            }
        }
        for scenario in probe::UNRELIABLE {
            exchange(bed, &program, scenario, gid, mtu).run(&bed.logs, checks)?;
        }
    }
    Ok(())
}

/// One scenario.
pub fn exchange(bed: &Bed, program: &str, scenario: &str, gid: u8, mtu: u32) -> Exchange<'static> {
    let port = bed.port();
    let end = |host: Option<&str>| {
        let mut command = bed.ours(program);
        command.args(["-d", "fr0", "-g", &gid.to_string(), "-m", &mtu.to_string(), "-t", &port.to_string()]);
        command.arg(scenario).args(host);
        command
    };
    Exchange {
        name: format!("vprobe {scenario} -g {gid} -m {mtu}"),
        server: end(None),
        client: end(Some("127.0.0.1")),
        ready: Box::new(move || listening(port)),
        limit: Duration::from_secs(40),
    }
}
