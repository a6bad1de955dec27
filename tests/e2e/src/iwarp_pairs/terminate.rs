//! The Terminate message for each error of an initiator, as it is on the wire and as tshark reads it.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Pair;
use crate::iwarp_wire as wire;
use ferroce_harness::iwarp::drive::Ends;
use ferroce_harness::job::{self, Job};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// The initiator.
const SCRIPT: &str = "tests/e2e/src/iwarp_pairs/terminate.py";
const LIMIT: Duration = Duration::from_secs(60);

/// Layer, type and code for each error, in the order of the script (RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044 section 8).
const WANTED: [(&str, [u8; 3]); 12] = [
    ("a WRITE to an unknown tag", [1, 1, 0]),
    ("a READ of an unknown tag", [0, 1, 0]),
    ("a SEND longer than the receive", [1, 2, 5]),
    ("a SEND whose MSN is not the next", [1, 2, 3]),
    ("a SEND on queue 5", [1, 2, 1]),
    ("a SEND that begins at offset 8", [1, 2, 4]),
    ("an untagged segment of another DDP version", [1, 2, 6]),
    ("a tagged segment of another DDP version", [1, 1, 4]),
    ("another RDMAP version", [0, 2, 5]),
    ("opcode 15", [0, 2, 6]),
    ("a length below that of a header", [2, 0, 3]),
    // With CRC alone.
    ("a wrong CRC", [2, 0, 2]),
];

/// rping's server answers the errors of a script.
pub(super) fn check(pair: &Pair<'_>, crc: bool, checks: &mut Checks) -> Result<()> {
    let name = format!("Terminate messages, CRC {crc}");
    let programs = &pair.bed.programs;
    let Some(python) = programs.find("python3") else {
        checks.skip(&name, "python3 is not here");
        return Ok(());
    };
    let wanted = WANTED.get(..WANTED.len() - usize::from(!crc)).unwrap_or(&WANTED);
    let port = pair.port();
    let mut outcome = Ok(());
    let front = || pair.net.front(true);
    let title = format!("iwarp-terminate-crc-{crc}");
    let captured = wire::capture(&front, programs, &pair.bed.logs, &title, "lo", &mut || {
        outcome = errors(pair, &python, port, crc, wanted);
        Ok(())
    });
    checks.check(&name, outcome);
    match captured? {
        Ok(file) => {
            // tshark reads one of these fields in each message, by its layer and type.
            const CODES: [&str; 4] =
                ["errcode_rdma", "errcode_ddp_tagged", "errcode_ddp_untagged", "errcode_llp"];
            let mut fields = vec![
                "-T".to_owned(),
                "fields".to_owned(),
                "-e".to_owned(),
                "iwarp_rdma.term_layer".to_owned(),
            ];
            fields.extend(CODES.iter().flat_map(|code| ["-e".to_owned(), format!("iwarp_rdma.term_{code}")]));
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            let filter = format!("tcp.srcport == {port} && iwarp_rdma.terminate");
            let read = wire::tshark(programs, &file, &filter, &fields)?;
            checks.check(&format!("{name}, as tshark reads them"), same(&read, wanted));
            let bad = format!("tcp.srcport == {port} && _ws.malformed");
            let bad = wire::tshark(programs, &file, &bad, &[])?;
            let good = if bad.is_empty() { Ok(()) } else { Err(bad) };
            checks.check(&format!("{name}: nothing malformed"), good);
        }
        Err(why) => checks.skip(&title, &why),
    }
    Ok(())
}

/// Runs both ends, and compares what the script saw.
fn errors(
    pair: &Pair<'_>,
    python: &std::path::Path,
    port: u16,
    crc: bool,
    wanted: &[(&str, [u8; 3])],
) -> Result<()> {
    let address = pair.bound(false);
    let line = ["rping", "-s", "-P", "-a", &address, "-p", &port.to_string()].map(str::to_owned);
    let log = pair.bed.logs.path(&format!("terminate crc {crc} rping"));
    let mut server = Job::start(pair.command(true, &line)?, &log, LIMIT)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !pair.listens(port) {
        ensure!(Instant::now() < deadline && !server.ended(), "{}", server.wait()?.describe());
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut command = Command::new(python);
    command.arg(tree::root().join(SCRIPT)).args([&address, &port.to_string()]);
    command.arg(if crc { "crc" } else { "plain" });
    let ended = job::run(command, &pair.bed.logs.path(&format!("terminate crc {crc}")), LIMIT)?;
    ensure!(!server.ended(), "the server ended: {}", server.wait()?.describe());
    server.signal(nix::sys::signal::Signal::SIGKILL);
    server.wait()?;
    ensure!(ended.ok(), "{}", ended.describe());
    let lines =
        wanted.iter().map(|(name, [layer, kind, code])| format!("{name}: {layer} {kind} {code:02x}\n"));
    let lines: String = lines.collect();
    ensure!(ended.output == lines, "{}\nwanted:\n{lines}", ended.output);
    Ok(())
}

/// Compares tshark's layers and codes, a line for each message, with the wanted ones.
fn same(read: &str, wanted: &[(&str, [u8; 3])]) -> Result<()> {
    let number = |text: &str| {
        let hex = text.strip_prefix("0x").map(|hex| u8::from_str_radix(hex, 16));
        hex.unwrap_or_else(|| text.parse()).with_context(|| format!("no number: {text}"))
    };
    let messages = read.lines().map(|line| {
        let mut columns = line.split('\t').filter(|column| !column.is_empty());
        let mut next = || number(columns.next().context("a column is missing")?);
        Ok([next()?, next()?])
    });
    let messages: Vec<[u8; 2]> = messages.collect::<Result<_>>().with_context(|| read.to_owned())?;
    let wanted: Vec<[u8; 2]> = wanted.iter().map(|(_, [layer, _, code])| [*layer, *code]).collect();
    ensure!(messages == wanted, "layers and codes {messages:02x?}, wanted {wanted:02x?}");
    Ok(())
}
