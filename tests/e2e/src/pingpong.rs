//! `ibv_rc_pingpong` and its siblings for UC, UD, shared receive queues and XRC, Debian's own, between two processes.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::Bed;
use ferroce_harness::dist;
use ferroce_harness::exchange::{Exchange, listening};
use ferroce_harness::report::Checks;

const LIMIT: Duration = Duration::from_secs(60);
const RC: &str = "ibv_rc_pingpong";
const UC: &str = "ibv_uc_pingpong";
const UD: &str = "ibv_ud_pingpong";
const SRQ: &str = "ibv_srq_pingpong";
const XRC: &str = "ibv_xsrq_pingpong";

/// `-c` checks every received byte; without `-e` both ends poll.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let mut cases: Vec<Vec<String>> = Vec::new();
    let mut case = |text: &str| cases.push(text.split_whitespace().map(str::to_owned).collect());
    let (many, sizes): (u32, &[u32]) = if bed.all {
        (10_000, &[1, 2, 63, 64, 255, 1024, 1025, 4096, 4097, 65_536, 262_144, 1_048_576])
    } else {
        (1000, &[1, 1024, 4097, 65_536, 1_048_576])
    };
    for gid in [0, 1] {
        for size in sizes {
            let count = if *size > 65_536 { many / 20 } else { many };
            case(&format!("-g {gid} -s {size} -n {count} -c"));
            if bed.all || *size == 1024 || *size == 65_536 {
                case(&format!("-g {gid} -s {size} -n {count} -c -e"));
            }
        }
        for mtu in [256, 512, 1024, 2048, 4096] {
            case(&format!("-g {gid} -s 10000 -n {} -m {mtu} -c", many / 5));
        }
    }
    case(&format!("-g 0 -n {many} -N -c")); // the ibv_wr_* way of posting
    case("-g 0 -n 10000");
    case("-g 0 -n 10000 -e");
    case("-g 0 -n 10000 -r 1"); // one receive at a time: RNR NAKs and retries
    for args in &cases {
        pair(bed, RC, "", args, plain).run(&bed.logs, checks)?;
    }
    unreliable(bed, checks)?;
    shared(bed, checks)?;
    in_rust(bed, checks)?;
    one_core(bed, checks)?;
    eight(bed, checks)
}

/// The command as it is.
fn plain(program: &str) -> Command {
    Command::new(program)
}

/// One exchange with these arguments on both ends.
pub fn exchange(bed: &Bed, text: &str) -> Exchange<'static> {
    let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    pair(bed, RC, "", &args, plain)
}

fn pair(
    bed: &Bed,
    program: &str,
    note: &str,
    args: &[String],
    wrap: fn(&str) -> Command,
) -> Exchange<'static> {
    let port = bed.port();
    let end = |host: Option<&str>| {
        let ours = bed.ours(program);
        let mut command = wrap(&ours.get_program().to_string_lossy());
        command.args(ours.get_args()).args(["-d", "fr0", "-p", &port.to_string()]).args(args).args(host);
        for (key, value) in ours.get_envs() {
            command.env(key, value.unwrap_or_default());
        }
        command
    };
    Exchange {
        name: format!("{program} {}{note}", args.join(" ")),
        server: end(None),
        client: end(Some("127.0.0.1")),
        ready: Box::new(move || listening(port)),
        limit: LIMIT,
    }
}

/// Several queue pairs of each end on a shared receive queue; XRC's program has no other option than `-e`.
fn shared(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let mut cases: Vec<(&str, String)> = Vec::new();
    let many = if bed.all { 10_000 } else { 1000 };
    for gid in [0, 1] {
        for (size, queue_pairs) in [(1, 1), (1024, 16), (4097, 4), (65_536, 8)] {
            cases.push((SRQ, format!("-g {gid} -s {size} -q {queue_pairs} -r 256 -n {many} -c")));
            cases.push((XRC, format!("-g {gid} -s {size} -n {many}")));
        }
        for mtu in [256, 4096] {
            cases.push((SRQ, format!("-g {gid} -s 10000 -n {} -m {mtu} -c", many / 5)));
            cases.push((XRC, format!("-g {gid} -s 10000 -n {} -m {mtu}", many / 5)));
        }
        cases.push((SRQ, format!("-g {gid} -n {many} -e")));
        cases.push((SRQ, format!("-g {gid} -n {many} -q 2 -r 2"))); // RNR NAKs
        cases.push((XRC, format!("-g {gid} -n {many} -e")));
    }
    for (program, text) in &cases {
        let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        pair(bed, program, "", &args, plain).run(&bed.logs, checks)?;
    }
    Ok(())
}

/// Nothing is sent again on these services: messages stay below what a receive buffer holds, so that none is lost while
/// the other end is not on a core.
fn unreliable(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let mut cases: Vec<(&str, String)> = Vec::new();
    let many = if bed.all { 10_000 } else { 1000 };
    for gid in [0, 1] {
        for size in [1, 1024, 4097, 65_536] {
            cases.push((UC, format!("-g {gid} -s {size} -n {many} -c")));
        }
        for mtu in [256, 512, 1024, 2048, 4096] {
            cases.push((UC, format!("-g {gid} -s 10000 -n {} -m {mtu} -c", many / 5)));
        }
        cases.push((UC, format!("-g {gid} -n {many} -e")));
        for size in [1, 1023, 2048] {
            cases.push((UD, format!("-g {gid} -s {size} -n {many} -c")));
        }
        cases.push((UD, format!("-g {gid} -n {many} -e")));
    }
    for (program, text) in &cases {
        let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        pair(bed, program, "", &args, plain).run(&bed.logs, checks)?;
    }
    Ok(())
}

/// Our examples in Rust at one end, at the other, and at both.
fn in_rust(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let texts = [
        (RC, "-g 0 -c"),
        (RC, "-g 1 -c -e -s 65536 -m 4096"),
        (RC, "-g 0 -s 1 -n 2000"),
        (UC, "-g 0 -c"),
        (UC, "-g 1 -c -e -s 65536 -m 4096"),
        (UD, "-g 0 -c -s 2048"),
        (UD, "-g 1 -c -e -s 1000"),
    ];
    for (program, text) in texts {
        let example = program.trim_start_matches("ibv_");
        let rust = dist::example(example);
        for (server, client) in [(true, false), (false, true), (true, true)] {
            let port = bed.port();
            let end = |in_rust: bool, host: Option<&str>| {
                let mut command = if in_rust { Command::new(&rust) } else { bed.ours(program) };
                command.env("FERROCE_DAEMON", bed.dist.bin("ferroced"));
                command.args(["-d", "fr0", "-p", &port.to_string()]).args(text.split(' ')).args(host);
                command
            };
            let which = |in_rust: bool| if in_rust { "Rust" } else { "C" };
            let exchange = Exchange {
                name: format!("{example} {text}: {} server, {} client", which(server), which(client)),
                server: end(server, None),
                client: end(client, Some("127.0.0.1")),
                ready: Box::new(move || listening(port)),
                limit: LIMIT,
            };
            exchange.run(&bed.logs, checks)?;
        }
    }
    Ok(())
}

/// Both ends on one core: they must yield to each other.
fn one_core(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let taskset = |program: &str| {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(program);
        command
    };
    for text in ["-g 0 -s 1024 -n 1000 -c", "-g 0 -s 1024 -n 1000 -c -e"] {
        let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        pair(bed, RC, " on one core", &args, taskset).run(&bed.logs, checks)?;
    }
    Ok(())
}

/// Eight servers and eight clients at once, on the one UDP port.
fn eight(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let mut running = Vec::new();
    for i in 0..8 {
        let text = format!("-g {} -s 5000 -n 500 -c{}", i % 2, if i % 4 < 2 { " -e" } else { "" });
        let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        running.push(pair(bed, RC, &format!(" (pair {i} of 8)"), &args, plain).start(&bed.logs)?);
    }
    for pair in running {
        pair.finish(checks)?;
    }
    Ok(())
}
