//! Programs and brokers that die, stop or never rest.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};

use super::{Bed, pingpong};
use ferroce_harness::cc;
use ferroce_harness::exchange::{Exchange, listening};
use ferroce_harness::job;
use ferroce_harness::netns;
use ferroce_harness::report::Checks;

/// The programs ask for timeout 14 and retry_cnt 7.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const RETRIES: u32 = 7;
/// For starting and ending processes on a busy machine.
const SLACK: Duration = Duration::from_secs(1);

/// Each of them leaves the others undisturbed.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    checks.check("kill -9 of the peer", peer_killed(bed));
    checks.check("kill -9 of the broker", broker_killed(bed, if bed.all { 6 } else { 3 }));
    checks.check("a program stopped for three timeouts", stopped(bed));
    checks.check("churn", churn(bed));
    Ok(())
}

/// A peer that vanishes is noticed between (1 + retry_cnt)·T and four times that, and everything is flushed.
/// The client always has WRITEs under way: one that only waits for an answer could wait for ever, on a card too.
fn peer_killed(bed: &Bed) -> Result<()> {
    let program = cc::ours("vbench", &bed.dist, &bed.programs)?.display().to_string();
    let port = bed.port();
    let end = |host: Option<&str>| {
        let mut command = bed.ours(&program);
        command.args(["-d", "fr0", "-t", &port.to_string(), "write", "4096", "100000000"]).args(host);
        command
    };
    let exchange = Exchange {
        name: "kill -9 of the peer".to_owned(),
        server: end(None),
        client: end(Some("127.0.0.1")),
        ready: Box::new(move || listening(port)),
        limit: Duration::from_secs(30),
    };
    let mut running = exchange.start(&bed.logs)?;
    std::thread::sleep(Duration::from_millis(500));
    running.server.signal(Signal::SIGKILL);
    let killed = Instant::now();
    let client = running.client.take().context("the server was never ready")?.wait()?;
    let took = killed.elapsed();
    ensure!(client.status.is_some_and(|s| s.code() == Some(1)), "{}", client.describe());
    ensure!(client.output.contains("transport retry counter exceeded"), "{}", client.describe());
    let whole = TIMEOUT * (1 + RETRIES);
    // The timer of the oldest packet ran already when the peer was killed.
    ensure!(took >= whole / 2 && took <= whole * 4 + SLACK, "noticed after {took:?}, {whole:?} is expected");
    Ok(())
}

/// Exchanges under way go on, one ends, a new one starts with a new broker.
fn broker_killed(bed: &Bed, pairs: usize) -> Result<()> {
    let mut under_way = Vec::new();
    for i in 0..pairs {
        let text = format!("-g {} -s 4000 -n {} -c", i % 2, 20_000 * (i + 1));
        under_way.push(pingpong::exchange(bed, &text).start(&bed.logs)?);
    }
    std::thread::sleep(Duration::from_millis(300));
    let brokers = netns::brokers();
    ensure!(brokers.len() == 1, "brokers in this network namespace: {brokers:?}");
    for broker in &brokers {
        kill(*broker, Signal::SIGKILL)?;
    }
    std::thread::sleep(Duration::from_millis(200));
    let mut checks = Checks::default();
    let late = pingpong::exchange(bed, "-g 0 -s 4000 -n 2000 -c").run(&bed.logs, &mut checks)?;
    ensure!(late.is_some(), "an exchange that started after the broker's death failed (above)");
    for running in under_way {
        running.finish(&mut checks)?;
    }
    ensure!(checks.good(), "exchanges under way were disturbed (above)");
    let new = netns::brokers();
    ensure!(new.len() == 1 && new != brokers, "brokers afterwards: {new:?}");
    Ok(())
}

/// SIGSTOP for longer than a timeout, shorter than all retries: nothing is lost.
fn stopped(bed: &Bed) -> Result<()> {
    let running = pingpong::exchange(bed, "-g 1 -s 2000 -n 30000 -c").start(&bed.logs)?;
    std::thread::sleep(Duration::from_millis(200));
    running.server.signal(Signal::SIGSTOP);
    std::thread::sleep(TIMEOUT * 3);
    running.server.signal(Signal::SIGCONT);
    let mut checks = Checks::default();
    ensure!(running.finish(&mut checks)?.is_some(), "the exchange failed (above)");
    Ok(())
}

fn churn(bed: &Bed) -> Result<()> {
    let program = cc::ours("churn", &bed.dist, &bed.programs)?.display().to_string();
    let mut command = bed.ours(&program);
    command.args(["-d", "fr0", if bed.all { "10000" } else { "1000" }]);
    let ended = job::run(command, &bed.logs.path("churn"), Duration::from_secs(100))?;
    ensure!(ended.ok(), "{}", ended.describe());
    Ok(())
}
