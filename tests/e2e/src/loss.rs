//! Loss, duplication, reordering and bursts on real sockets, by `FERROCE_FAULT`: every octet arrives all the same.

use std::time::Duration;

use anyhow::Result;

use super::Bed;
use ferroce_harness::cc;
use ferroce_harness::exchange::{Exchange, listening};
use ferroce_harness::report::Checks;

const FAULTS: [&str; 3] = [
    "seed=1; drop 1% if dir=rx",
    "seed=2; drop 5% if dir=rx; dup 2% if dir=rx; reorder 5% if dir=rx",
    "seed=3; burst(5%,33%) if dir=rx; dup 1% if dir=rx; reorder 2% if dir=rx",
];

/// Programs whose two ends part by TCP: one that ends on its last ACK, as ibv_rc_pingpong does, leaves a peer that
/// lost that ACK with nobody to ask, on a card too.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    if !bed.all {
        checks.skip("loss", "minutes long: with --all only");
        return Ok(());
    }
    let vbench = cc::ours("vbench", &bed.dist, &bed.programs)?.display().to_string();
    for fault in FAULTS {
        for words in [
            "VBENCH -g 0 send-poll 4096 500",
            "VBENCH -g 1 -m 1024 send-event 20000 200",
            "VBENCH -g 0 send-poll 1048576 20",
            "VBENCH -g 0 write 65536 1000",
            "VBENCH -g 1 -m 256 write 20000 300",
            "VBENCH -g 0 send-event 64 2000",
            "ib_read_bw -F -s 65536 -n 300",
            "ib_write_bw -F -s 8192 -n 2000 -q 8",
        ] {
            let words = words.replace("VBENCH", &vbench);
            exchange(bed, fault, &words).run(&bed.logs, checks)?;
        }
    }
    Ok(())
}

fn exchange(bed: &Bed, fault: &str, words: &str) -> Exchange<'static> {
    let port = bed.port();
    let mut words = words.split(' ');
    let program = words.next().unwrap_or_default();
    let flag = if program.ends_with("vbench") { "-t" } else { "-p" };
    let rest: Vec<&str> = words.collect();
    let end = |host: Option<&str>| {
        let mut command = bed.on(&bed.dist, program);
        command.env("FERROCE_FAULT", fault);
        command.args(["-d", "fr0", flag, &port.to_string()]).args(&rest).args(host);
        command
    };
    let name = program.rsplit('/').next().unwrap_or_default();
    Exchange {
        name: format!("{name} {} with {fault}", rest.join(" ")),
        server: end(None),
        client: end(Some("127.0.0.1")),
        ready: Box::new(move || listening(port)),
        limit: Duration::from_secs(100),
    }
}
