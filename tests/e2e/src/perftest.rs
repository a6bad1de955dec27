//! perftest's programs, Debian's own, between two processes.

use std::time::Duration;

use anyhow::Result;

use super::Bed;
use ferroce_harness::exchange::{Exchange, listening};
use ferroce_harness::report::Checks;

const PROGRAMS: [&str; 6] =
    ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat"];
/// Both of perftest's atomic programs do both kinds.
const ATOMICS: [&str; 2] = ["FETCH_AND_ADD", "CMP_AND_SWAP"];
const LIMIT: Duration = Duration::from_secs(150);

/// Every program with all sizes; a few (with `--all`, each) with the other flags.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    for program in PROGRAMS {
        let bandwidth = program.ends_with("_bw");
        let iterations = if bed.all { 1000 } else { 40 };
        one(bed, checks, program, &format!("-a -n {iterations}"))?;
        one(bed, checks, program, "-s 8 -n 1000 -x 1")?;
        let quick_too = program == "ib_write_bw" || program == "ib_send_bw";
        if bandwidth && (bed.all || quick_too) {
            one(bed, checks, program, "-s 65536 -n 1000 -q 8")?;
            one(bed, checks, program, "-s 65536 -n 1000 -b")?;
        }
        if bed.all || program == "ib_write_bw" || program == "ib_send_lat" {
            one(bed, checks, program, "-s 4096 -D 1")?;
        }
        // Sleeping on completion events exists where the end that waits gets completions.
        if (bed.all || program.starts_with("ib_send")) && !program.starts_with("ib_write") {
            one(bed, checks, program, "-s 4096 -n 1000 -e")?;
        }
        if !program.starts_with("ib_read") && (bed.all || !bandwidth) {
            one(bed, checks, program, "-s 64 -n 1000 -I 64")?;
        }
        if bed.all && bandwidth {
            one(bed, checks, program, "-s 1024 -n 4800 -l 16 -m 1024")?;
            one(bed, checks, program, "-s 1048576 -n 500 -q 8 -b -x 1")?;
            one(bed, checks, program, "-s 64 -n 5000 --use_old_post_send")?;
        }
    }
    for kind in ATOMICS {
        for text in ["-n 1000", "-n 1000 -x 1", "-n 1000 -q 8", "-n 1000 -o 1", "-n 1000 -e"] {
            one(bed, checks, "ib_atomic_bw", &format!("-A {kind} {text}"))?;
        }
        for text in ["-n 1000", "-n 1000 -x 1", "-n 1000 -e"] {
            one(bed, checks, "ib_atomic_lat", &format!("-A {kind} {text}"))?;
        }
    }
    // Its packets arrive one by one, and it waits for ever if the peer's answer comes before the ACK of its message.
    with(
        bed,
        checks,
        "ib_send_lat",
        "-s 4096 -n 5000 -e",
        &[("FERROCE_DATAPATH", "udp"), ("FERROCE_GSO", "off")],
    )?;
    unreliable(bed, checks)?;
    shared(bed, checks)
}

/// Shared receive queues, and XRC, which has them always.
fn shared(bed: &Bed, checks: &mut Checks) -> Result<()> {
    in_turn(
        bed,
        checks,
        &[
            ("ib_send_bw", "--use-srq -s 65536 -n 1000 -q 8"),
            ("ib_send_bw", "--use-srq -s 4096 -n 1000 -b"),
            ("ib_send_lat", "--use-srq -s 64 -n 1000"),
            ("ib_send_lat", "--use-srq -c UD -s 64 -n 1000"),
            ("ib_send_bw", "-c XRC -a -n 40"),
            ("ib_send_bw", "-c XRC -s 65536 -n 1000 -q 4"),
            ("ib_send_bw", "-c XRC -s 4096 -n 1000 -b"),
            ("ib_send_lat", "-c XRC -s 64 -n 1000 -e"),
            ("ib_write_bw", "-c XRC -a -n 40"),
            ("ib_write_lat", "-c XRC -s 64 -n 1000"),
            ("ib_read_bw", "-c XRC -s 65536 -n 1000"),
            ("ib_read_lat", "-c XRC -s 64 -n 1000"),
            ("ib_atomic_bw", "-c XRC -n 1000"),
        ],
    )
}

/// UC and UD have no flow control, and a receiver of perftest waits for ever for a message that was lost: bandwidth of sends
/// is measured over a time, not a number of messages.
fn unreliable(bed: &Bed, checks: &mut Checks) -> Result<()> {
    in_turn(
        bed,
        checks,
        &[
            ("ib_send_lat", "-c UC -s 8 -n 1000"),
            ("ib_send_lat", "-c UC -s 16384 -n 200 -e"),
            ("ib_send_lat", "-c UD -s 8 -n 1000"),
            ("ib_send_lat", "-c UD -s 1024 -n 1000 -e"),
            ("ib_write_lat", "-c UC -s 8 -n 1000"),
            ("ib_write_bw", "-c UC -a -n 40"),
            ("ib_write_bw", "-c UC -s 65536 -n 1000 -q 4"),
            ("ib_send_bw", "-c UC -s 65536 -D 1"),
            ("ib_send_bw", "-c UD -s 1024 -D 1"),
            ("ib_send_bw", "-c UD -s 64 -D 1 -I 64"),
        ],
    )
}

/// Runs the rows from one of the two GIDs in turn; with `--all`, each row from both.
fn in_turn(bed: &Bed, checks: &mut Checks, rows: &[(&str, &str)]) -> Result<()> {
    for (number, (program, text)) in rows.iter().enumerate() {
        for gid in (0..2).filter(|gid| bed.all || number % 2 == *gid) {
            one(bed, checks, program, &format!("{text} -x {gid}"))?;
        }
    }
    Ok(())
}

fn one(bed: &Bed, checks: &mut Checks, program: &str, text: &str) -> Result<()> {
    with(bed, checks, program, text, &[])
}

/// The same with variables of the environment.
fn with(bed: &Bed, checks: &mut Checks, program: &str, text: &str, variables: &[(&str, &str)]) -> Result<()> {
    let port = bed.port();
    let end = |host: Option<&str>| {
        let mut command = bed.ours(program);
        command.envs(variables.iter().copied());
        command.args(["-d", "fr0", "-F", "-p", &port.to_string()]).args(text.split_whitespace()).args(host);
        command
    };
    let exchange = Exchange {
        name: format!("{program} {text}{}", if variables.is_empty() { "" } else { ", packets one by one" }),
        server: end(None),
        client: end(Some("127.0.0.1")),
        ready: Box::new(move || listening(port)),
        limit: LIMIT,
    };
    if let Some((client, _)) = exchange.run(&bed.logs, checks)?
        && bed.all
        && let Some(row) =
            client.output.lines().rev().find(|l| l.trim().starts_with(|c: char| c.is_ascii_digit()))
    {
        checks.note(format!("{program} {text}: {}", row.split_whitespace().collect::<Vec<_>>().join("  ")));
    }
    Ok(())
}
