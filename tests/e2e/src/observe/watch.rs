//! Numbers of running programs for people and monitoring: `ferroce metrics`, `ferroce statistic --watch`,
//! `ferroce top`.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::tcgetattr;
use nix::unistd::Pid;
use serde_json::Value;

use super::parts::{PATIENCE, ferroce, rping, wait};
use crate::Bed;
use ferroce_harness::debian::OPENMETRICS_PARSER;
use ferroce_harness::job::{self, Job};
use ferroce_harness::report::Checks;

/// Beside two ends of rping.
pub(super) fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    if bed.programs.find("rping").is_none() {
        checks.skip("metrics", "rping is not here");
        return Ok(());
    }
    let ends = rping(bed)?;
    wait("traffic of two programs", || {
        let text = ferroce(bed, "metrics")?.output;
        Ok(samples(&text, "ferroce_program_sent_pkts_total").iter().filter(|(_, value)| *value > 0.0).count()
            == 2)
    })?;
    match bed.programs.find(OPENMETRICS_PARSER) {
        Some(parser) => checks.check("metrics, read by Prometheus's parser", parsed(bed, &parser)),
        None => checks.skip("metrics, read by Prometheus's parser", "python3-prometheus-client is not here"),
    }
    checks.check("metrics over TCP and a Unix socket", served(bed));
    checks.check("statistic --watch", rates(bed));
    checks.check("top in plain tables", plain_top(bed));
    checks.check("top on a terminal", terminal_top(bed));
    drop(ends);
    Ok(())
}

/// The labels and values of a metric.
fn samples<'a>(text: &'a str, metric: &str) -> Vec<(&'a str, f64)> {
    let sample = |line: &'a str| {
        let (labels, value) = line.strip_prefix(metric)?.strip_prefix('{')?.rsplit_once("} ")?;
        Some((labels, value.parse().ok()?))
    };
    text.lines().filter_map(sample).collect()
}

/// A parser that is not ours reads the text, and finds what it is about.
fn parsed(bed: &Bed, parser: &std::path::Path) -> Result<()> {
    const SCRIPT: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = {f.name: f for f in text_string_to_metric_families(sys.stdin.read())}
sent = families['ferroce_program_sent_bytes']
assert (sent.type, sent.unit) == ('counter', 'bytes'), sent
programs = {s.labels['comm'] for s in sent.samples if s.labels['device'] == 'fr0' and s.value > 0}
assert programs == {'rping'}, programs
assert all(f.documentation for f in families.values())
print(len(families), 'families')
";
    let text = ferroce(bed, "metrics")?;
    ensure!(text.ok(), "{}", text.describe());
    let file = bed.logs.path("metrics");
    std::fs::write(&file, &text.output)?;
    let mut command = Command::new("sh");
    command.args(["-c", "python3 -c \"$0\" < \"$1\"", SCRIPT]).arg(&file);
    command.env("PYTHONPATH", parser.ancestors().nth(3).unwrap_or(parser));
    let ended = job::run(command, &bed.logs.path("metrics parsed"), PATIENCE)?;
    ensure!(ended.ok() && ended.output.contains("families"), "{}", ended.describe());
    Ok(())
}

/// The answer to a request, as far as it comes.
fn ask(mut to: impl Read + Write, request: &str) -> Result<String> {
    to.write_all(request.as_bytes())?;
    let mut answer = String::new();
    to.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Bad requests get their answer, and end nothing; a signal ends the server and removes its socket.
fn served(bed: &Bed) -> Result<()> {
    const GET: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let start = |address: &str, name: &str| {
        let mut command = Command::new(bed.dist.bin("ferroce"));
        command.args(["metrics", "--listen", address]);
        Job::start(command, &bed.logs.path(name), PATIENCE * 2)
    };
    let server = start("0", "metrics over TCP")?;
    wait("the server", || Ok(server.output().contains("/metrics\n")))?;
    let said = server.output();
    let address =
        said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).context("no address")?;
    let tcp = || TcpStream::connect(address).context("connect");
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405"),
        ("GET /other HTTP/1.1\r\n\r\n", "HTTP/1.1 404"),
        ("\u{16}\u{3}\r\n\r\n", "HTTP/1.1 400"),
        (GET, "HTTP/1.1 200"),
    ] {
        let answer = ask(tcp()?, request)?;
        ensure!(answer.starts_with(status), "{request:?}: {answer}");
    }
    // Clients that send nothing do not hold up the others.
    let silent = [tcp()?, tcp()?];
    let answer = ask(tcp()?, GET)?;
    ensure!(answer.ends_with("# EOF\n") && answer.contains("application/openmetrics-text"), "{answer}");
    drop(silent);
    server.signal(Signal::SIGTERM);
    let ended = server.wait()?;
    ensure!(ended.ok(), "{}", ended.describe());

    let path = std::env::temp_dir().join(format!("ferroce-metrics-{}", std::process::id()));
    let name = path.to_str().context("a path that is no text")?;
    let server = start(name, "metrics over a Unix socket")?;
    wait("the server", || Ok(server.output().contains("metrics are at")))?;
    let answer = ask(UnixStream::connect(&path)?, GET)?;
    ensure!(answer.ends_with("# EOF\n"), "{answer}");
    let second = ferroce(bed, &format!("metrics --listen {name}"))?;
    ensure!(!second.ok() && second.output.contains("another process listens"), "{}", second.describe());
    server.signal(Signal::SIGINT);
    let ended = server.wait()?;
    ensure!(ended.ok() && !path.exists(), "{}", ended.describe());
    Ok(())
}

/// Rates come until the reader has enough, or until a signal.
fn rates(bed: &Bed) -> Result<()> {
    for words in [
        "-j statistic --watch 0.2",
        "-j statistic show link fr0/1 --watch 0.2",
        "-j statistic qp --watch 0.2",
    ] {
        let mut command = Command::new(bed.dist.bin("ferroce"));
        command.args(words.split(' '));
        let looks = Job::start(command, &bed.logs.path(words), PATIENCE * 2)?;
        let whole =
            || looks.output().lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
        wait("three looks at traffic", || {
            let looks: Vec<Value> = whole();
            let sends = |look: &Value| look[0]["sent_pkts"].as_f64().is_some_and(|rate| rate > 0.0);
            Ok(looks.iter().filter(|look| sends(look)).count() >= 3)
        })
        .with_context(|| looks.output())?;
        looks.signal(Signal::SIGINT);
        let ended = looks.wait()?;
        ensure!(ended.status.is_some_and(|status| !status.success()), "{}", ended.describe());
    }
    let mut piped = Command::new("sh");
    let script = "\"$0\" statistic --watch 0.05 | head -n 2";
    piped.args(["-c", script]).arg(bed.dist.bin("ferroce"));
    let ended = job::run(piped, &bed.logs.path("statistic --watch, piped"), PATIENCE)?;
    ensure!(ended.ok() && ended.output.lines().count() == 2, "{}", ended.describe());
    Ok(())
}

/// Without a terminal, a table for each look: the two programs, with what they send.
fn plain_top(bed: &Bed) -> Result<()> {
    let ended = ferroce(bed, "top -n 2 --every 0.3")?;
    ensure!(ended.ok(), "{}", ended.describe());
    let tables: Vec<&str> = ended.output.split("\n\n").collect();
    ensure!(
        tables.len() == 2 && tables.iter().all(|table| table.contains("OUT-MB/s")),
        "{}",
        ended.describe()
    );
    let programs = tables[1].lines().filter(|line| line.split_whitespace().nth(1) == Some("rping"));
    ensure!(programs.count() == 2, "{}", ended.describe());
    let busy = |row: &&Value| {
        let above = |key: &str| row[key].as_f64().is_some_and(|value| value > 0.0);
        row["comm"] == "rping" && row["qp"] == 1 && above("sent_pkts") && above("rcvd_octets") && above("cpu")
    };
    wait("a look with traffic of both ends", || {
        let json = ferroce(bed, "-j top -n 1 --every 0.5")?;
        let rows: Vec<Value> = serde_json::from_str(&json.output).with_context(|| json.output.clone())?;
        Ok(rows.iter().filter(busy).count() == 2)
    })
}

/// The screen draws, follows keys, leaves the terminal as it was, and ends; by a key and by a signal.
fn terminal_top(bed: &Bed) -> Result<()> {
    for by_signal in [false, true] {
        let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None)?;
        let before = tcgetattr(&slave)?;
        let end = || slave.try_clone().map(Stdio::from);
        let mut command = Command::new(bed.dist.bin("ferroce"));
        command.args(["top", "--every", "0.2"]).env("TERM", "xterm");
        command.stdin(end()?).stdout(end()?).stderr(end()?);
        let mut child = Running(command.spawn()?);
        let screen = Arc::new(Mutex::new(String::new()));
        let (shown, mut reader) = (Arc::clone(&screen), File::from(master.try_clone()?));
        // Ends when no process has the terminal open any more.
        std::thread::spawn(move || {
            let mut octets = [0; 4096];
            while let Ok(more @ 1..) = reader.read(&mut octets) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&octets[..more]));
            }
        });
        let has = |part: &str| screen.lock().unwrap().contains(part);
        let see = |part: &str| wait(part, || Ok(has(part))).with_context(|| screen.lock().unwrap().clone());
        let mut keys = File::from(master);
        see("rping")?;
        see("OUT-MB/s")?;
        ensure!(!has("LQPN") && tcgetattr(&slave)?.local_flags != before.local_flags, "not in raw mode");
        keys.write_all(b"\x1b[B\r")?;
        see("LQPN")?;
        see("RTS")?;
        match by_signal {
            true => kill(Pid::from_raw(child.0.id().try_into()?), Signal::SIGTERM)?,
            false => keys.write_all(b"q")?,
        }
        wait("the end", || Ok(child.0.try_wait()?.is_some()))?;
        let status = child.0.wait()?;
        ensure!(status.code() == Some(if by_signal { 128 + 15 } else { 0 }), "{status}");
        // The terminal has its first screen again.
        see("\x1b[?1049l")?;
        let after = tcgetattr(&slave)?;
        ensure!(after.local_flags == before.local_flags, "the terminal is not as it was");
    }
    Ok(())
}

/// A child that does not outlive the check.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
