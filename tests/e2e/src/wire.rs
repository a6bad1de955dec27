//! A capture of our own packets, checked by tshark and by an independent ICRC.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::{Bed, pingpong, vprobe as stage};
use crate::probe;
use ferroce_harness::exchange::Meeting;
use ferroce_harness::job::{self, Job};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// Captures on lo, with segmentation offload off: loopback never cuts a batch, and a capture would show it as
/// one datagram of many packets.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let (file, capture) = match capture(bed, "wire")? {
        Ok(started) => started,
        Err(why) => {
            checks.skip("wire", &why);
            return Ok(());
        }
    };
    exchanges(bed, checks)?;
    std::thread::sleep(Duration::from_millis(500));
    capture.signal(Signal::SIGINT);
    capture.wait()?;
    let packets = filter(bed, &file, "infiniband")?.lines().count();
    checks.note(format!("{packets} packets captured"));
    checks.check("tshark", tshark(bed, packets, &file));
    checks.check("tshark: connections", connections(bed, &file));
    checks.check("an independent ICRC", icrc(bed, &tree::reference("icrc.py"), &file));
    Ok(())
}

/// Captures RoCE packets on lo to a file; a sentence if that cannot be had here. It ends by SIGINT.
pub(super) fn capture(bed: &Bed, name: &str) -> Result<Result<(PathBuf, Job), String>> {
    let Some(dumpcap) = bed.programs.find("dumpcap") else {
        return Ok(Err("dumpcap is not here".to_owned()));
    };
    let file = bed.logs.0.join(format!("{name}.pcap"));
    std::fs::remove_file(&file).ok();
    let mut command = Command::new(dumpcap);
    command.args(["-q", "-P", "-i", "lo", "-f", "udp port 4791", "-w"]).arg(&file);
    let mut capture =
        Job::start(command, &bed.logs.path(&format!("{name} dumpcap")), Duration::from_secs(120))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    // The file's header is written when the capture runs.
    while std::fs::metadata(&file).map_or(0, |m| m.len()) < 24 {
        if capture.ended() || Instant::now() > deadline {
            return Ok(Err(format!("no capture here: {}", capture.output().trim())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Ok((file, capture)))
}

fn exchanges(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let uncut = |mut exchange: ferroce_harness::exchange::Exchange<'static>| {
        for end in [&mut exchange.server, &mut exchange.client] {
            end.envs(BY_UDP);
        }
        exchange.name.push_str(" (captured)");
        exchange
    };
    let program = probe::build(&bed.dist, &bed.programs)?.display().to_string();
    for gid in [0, 1] {
        for scenario in ["send", "send_imm", "write", "write_imm", "read", "atomic", "bad_rkey_write", "rnr"]
        {
            uncut(stage::exchange(bed, &program, scenario, gid, 1024)).run(&bed.logs, checks)?;
        }
    }
    for text in ["-g 0 -n 50 -s 10000 -c", "-g 1 -n 50 -s 10000 -m 4096 -c"] {
        uncut(pingpong::exchange(bed, text)).run(&bed.logs, checks)?;
    }
    for (host, port) in CONNECTIONS {
        let end = |role: &str| {
            let mut command = bed.ours("rping");
            let args = format!("{role} -v -C 5 -S 5000 -a {host} -p {port}");
            command.args(args.split_whitespace()).envs(BY_UDP);
            command
        };
        let meeting = Meeting {
            name: format!("rping at {host} (captured)"),
            server: end("-s"),
            client: end("-c -V"),
            patience: None,
            judge: &|_, _| Ok(()),
            endless: false,
            limit: Duration::from_secs(60),
        };
        meeting.run(&bed.logs, checks)?;
    }
    Ok(())
}

/// Programs of one host exchange data by shared memory otherwise, and only connection management is captured.
const BY_UDP: [(&str, &str); 2] = [("FERROCE_DATAPATH", "udp"), ("FERROCE_GSO", "off")];
/// Opcodes that the exchanges cannot do without: SEND only, WRITE only, READ request, READ response only, ACK, atomic ACK,
/// one of the atomics, and UD SEND only of connection management (IBTA table 38).
const OPCODES: [&str; 8] = ["4", "10", "12", "16", "17", "18", "20", "100"];
/// Where rping connects to.
const CONNECTIONS: [(&str, u16); 2] = [("127.0.0.1", 29_001), ("::1", 29_002)];
/// REQ, REP, RTU, DREQ, DREP.
const MESSAGES: [&str; 5] = ["0x0010", "0x0013", "0x0014", "0x0015", "0x0016"];

/// The CM's messages of each connection of `CONNECTIONS`, as tshark reads them: their order, the service, the addresses in
/// the private data, and that the REP is about the REQ.
fn connections(bed: &Bed, file: &Path) -> Result<()> {
    const FIELDS: [&str; 9] = [
        "infiniband.mad.transactionid",
        "infiniband.mad.attributeid",
        "infiniband.cm.req.serviceid",
        "infiniband.cm.req.ip_cm.sip4",
        "infiniband.cm.req.ip_cm.dip4",
        "infiniband.cm.req.ip_cm.sip6",
        "infiniband.cm.req.ip_cm.dip6",
        "infiniband.cm.req",
        "infiniband.cm.rep.remotecommid",
    ];
    let mut options = vec!["-T", "fields", "-E", "separator=,"];
    options.extend(FIELDS.iter().flat_map(|field| ["-e", field]));
    let text = tshark_with(bed, file, "infiniband.mad.mgmtclass == 0x07", &options)?;
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    ensure!(rows.iter().all(|row| row.len() == FIELDS.len()), "{text}");
    for (host, port) in CONNECTIONS {
        let service = format!("0x{:016x}", 0x0106_0000 + u64::from(port));
        // A client that came before its server was refused: the last one counts.
        let req =
            rows.iter().rev().find(|row| row[2] == service).with_context(|| format!("no REQ to {host}"))?;
        let addresses = if host.contains(':') { &req[5..7] } else { &req[3..5] };
        ensure!(addresses == [host, host], "private data: {req:?}");
        let of_it: Vec<_> = rows.iter().filter(|row| row[0] == req[0]).collect();
        let messages: Vec<_> = of_it.iter().map(|row| row[1]).collect();
        ensure!(messages == MESSAGES, "{host}: {messages:?}\n{text}");
        ensure!(of_it[1][8] == req[7], "the REP is about {}, not {}", of_it[1][8], req[7]);
    }
    Ok(())
}

/// The packets that a display filter leaves.
fn filter(bed: &Bed, file: &Path, filter: &str) -> Result<String> {
    tshark_with(bed, file, filter, &[])
}

pub(super) fn tshark_with(bed: &Bed, file: &Path, filter: &str, options: &[&str]) -> Result<String> {
    let mut command = Command::new(bed.programs.find("tshark").context("tshark is missing")?);
    // Its guess that a payload is RPC over RDMA makes empty ones "malformed", those of a card as well.
    command.args(["--disable-protocol", "rpcordma", "-r"]).arg(file).args(["-Y", filter]).args(options);
    if let Some(dirs) = bed.programs.libraries() {
        command.env("LD_LIBRARY_PATH", dirs);
    }
    let output = command.output()?;
    ensure!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn tshark(bed: &Bed, packets: usize, file: &Path) -> Result<()> {
    ensure!(packets > 0, "tshark sees no RoCE packet");
    let bad = filter(bed, file, "_ws.malformed || _ws.expert.severity >= \"Error\"")?;
    ensure!(bad.is_empty(), "malformed:\n{bad}");
    let foreign = filter(bed, file, "udp.port == 4791 && !infiniband")?;
    ensure!(foreign.is_empty(), "no RoCE at all:\n{foreign}");
    let opcodes = ["-T", "fields", "-e", "infiniband.bth.opcode"];
    let seen = tshark_with(bed, file, "infiniband", &opcodes)?;
    for opcode in OPCODES {
        ensure!(seen.lines().any(|line| line == opcode), "no packet of opcode {opcode} was captured");
    }
    Ok(())
}

fn icrc(bed: &Bed, second: &Path, file: &Path) -> Result<()> {
    let mut command = Command::new(bed.programs.find("python3").context("python3 is missing")?);
    command.arg(second).arg(file);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success() && text.contains("icrc_bad=0"), "{}: {text}", job::line(&command));
    Ok(())
}
