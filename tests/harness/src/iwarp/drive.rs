//! Runs rows of the table, and the ways in which connections fail and end, between any two ends.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::programs::{self, Row};
use crate::dialogues::Dialogue;
use crate::exchange::{Exchange, Logs, Running};
use crate::job::{Ended, Job};
use crate::report::Checks;

/// Time limit of one program, by which a hang is known. `ib_write_bw -a` moves 838 MB, and an emulated siw sends 7 to 10 MB
/// a second.
pub const LIMIT: Duration = Duration::from_secs(300);
/// Until a program notices that its peer was killed.
const NOTICED: Duration = Duration::from_secs(20);
/// Until a client is told that nobody listens. The emulated guest needs a part of it to start the program.
const REFUSED: Duration = Duration::from_secs(5);
/// The first word of a command that stands for `tests/programs/cmprobe.c`.
pub const PROBE: &str = "cmprobe";

/// Two ends, and the way from one to the other.
pub trait Ends {
    /// For messages and the names of logs.
    fn name(&self) -> String;
    /// The server's address, as its own end binds to it.
    fn bound(&self, ipv6: bool) -> String;
    /// The server's address, as the client connects to it.
    fn host(&self, ipv6: bool) -> String {
        self.bound(ipv6)
    }
    /// A program at one end.
    fn command(&self, server: bool, words: &[String]) -> Result<Command>;
    /// Whether the server listens at the TCP port. iWARP's ports are ports of TCP.
    fn listens(&self, port: u16) -> bool;
    /// Ends the program of one end by SIGKILL; its command line begins with `line`.
    fn kill(&self, server: bool, job: &Job, line: &str) -> Result<()>;
    /// A port that no earlier exchange used.
    fn port(&self) -> u16;
    fn logs(&self) -> &Logs;
}

/// The name of an address family.
pub fn family(ipv6: bool) -> &'static str {
    if ipv6 { "IPv6" } else { "IPv4" }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// How often a row starts whose client was too early.
pub const TRIES: u32 = 6;
/// The message of perftest, which connects twice, if its second connection comes before the server listens for it. The first
/// connection is used up then, and both ends must start again.
pub const TOO_EARLY: &str = "RDMA_CM_EVENT_REJECTED; error: -111.";

/// One row: both ends end with status 0, and their output is as it should be.
pub fn row(ends: &dyn Ends, row: &Row, ipv6: bool, checks: &mut Checks) -> Result<()> {
    let judge = |client: &Ended, server: &Ended| row.dialogue.judge(client, server);
    for _ in 1..TRIES {
        let mut tried = Checks::aside("tried:");
        let endless = row.dialogue.is_endless();
        if started(ends, row, ipv6)?.judge(endless, &judge, &mut tried)?.is_some() {
            checks.pass();
            return Ok(());
        }
        let log = ends.logs().path(&format!("{} client", name_of(ends, row, ipv6)));
        if !std::fs::read_to_string(log).is_ok_and(|said| said.contains(TOO_EARLY)) {
            break;
        }
    }
    checks.fail(&name_of(ends, row, ipv6), "as tried above");
    Ok(())
}

fn name_of(ends: &dyn Ends, row: &Row, ipv6: bool) -> String {
    format!("{}: {} {}", ends.name(), row.name, family(ipv6))
}

/// Whether rping gets through. Where it does not, every further row would wait for its time limit; the check then fails, and
/// `checks` says that the others are not tried.
pub fn connects(ends: &dyn Ends, checks: &mut Checks) -> Result<bool> {
    let Some(first) = programs::sample(false).into_iter().next() else { return Ok(false) };
    let mut tried = Checks::default();
    row(ends, &first, false, &mut tried)?;
    if !tried.good() {
        checks.fail(&ends.name(), "rping does not get through (above)");
        checks.skip(&ends.name(), "the other rows are not tried where rping does not get through");
    }
    Ok(tried.good())
}

/// A row whose client may instead fail with `refusal`, as it does on siw. The words for a note.
pub fn row_or_refusal(ends: &dyn Ends, row: &Row, refusal: &str) -> Result<String> {
    let running = started(ends, row, false)?;
    let server = running.server;
    let Some(client) = running.client else {
        return Ok(format!("{}: the server was never ready", row.name));
    };
    let client = client.wait()?;
    server.signal(nix::sys::signal::Signal::SIGTERM);
    let server = server.wait()?;
    let refused = client.output.contains(refusal) || server.output.contains(refusal);
    ensure!(client.ok() || refused, "client: {}\nserver: {}", client.describe(), server.describe());
    Ok(format!("{} {}", row.name, if client.ok() { "runs" } else { "is refused, as on siw" }))
}

fn started(ends: &dyn Ends, row: &Row, ipv6: bool) -> Result<Running> {
    let port = ends.port();
    let exchange = Exchange {
        name: name_of(ends, row, ipv6),
        server: ends.command(true, &Dialogue::words(&row.dialogue.server, &ends.bound(ipv6), port))?,
        client: ends.command(false, &Dialogue::words(&row.dialogue.client, &ends.host(ipv6), port))?,
        ready: Box::new(move || ends.listens(port)),
        limit: LIMIT,
    };
    exchange.start(ends.logs())
}

/// Either end disconnects first, a request is rejected, and nobody listens; with private data.
pub fn endings(ends: &dyn Ends, ipv6: bool, checks: &mut Checks) {
    for (passive, active) in [("accept", "part"), ("part", "wait"), ("reject", "rejected")] {
        let name = format!("{}: cmprobe {passive}, {active} {}", ends.name(), family(ipv6));
        checks.check(&name, ending(ends, (passive, active), ipv6));
    }
    let name = format!("{}: nobody listens {}", ends.name(), family(ipv6));
    checks.check(&name, refused(ends, ipv6));
}

fn ending(ends: &dyn Ends, (passive, active): (&str, &str), ipv6: bool) -> Result<()> {
    let (server, client) = probes(ends, passive, active, ipv6)?;
    let client = client.wait()?;
    let server = server.wait()?;
    let both = format!("client: {}\nserver: {}", client.describe(), server.describe());
    if passive == "reject" {
        // The probe compares the private data, and then misses InfiniBand's reason 28: iWARP's status is -ECONNRESET.
        let rejected = client.output.contains("RDMA_CM_EVENT_REJECTED -104 ")
            && client.output.contains("a rejection by the consumer is reason 28");
        ensure!(rejected && server.ok(), "{both}");
        return Ok(());
    }
    ensure!(client.ok() && server.ok(), "{both}");
    Ok(())
}

/// On siw rdma_connect itself fails; elsewhere an event may tell the same. Either comes at once.
fn refused(ends: &dyn Ends, ipv6: bool) -> Result<()> {
    let line = format!("{PROBE} client {} {} refused", ends.host(ipv6), ends.port());
    let ended = start(ends, false, &line, "nobody listens")?.wait()?;
    ensure!(ended.elapsed < REFUSED, "told after {:?}", ended.elapsed);
    let told = ["rdma_connect: Connection refused", "RDMA_CM_EVENT_REJECTED -111 "];
    ensure!(told.iter().any(|words| ended.output.contains(words)), "{}", ended.describe());
    Ok(())
}

/// The probe at both ends; the client starts when the server listens.
fn probes(ends: &dyn Ends, passive: &str, active: &str, ipv6: bool) -> Result<(Job, Job)> {
    let port = ends.port();
    let server = format!("{PROBE} server {} {port} {passive}", ends.bound(ipv6));
    let client = format!("{PROBE} client {} {port} {active}", ends.host(ipv6));
    both(ends, (&server, &client), port, &format!("cmprobe {passive} {active}"))
}

fn both(ends: &dyn Ends, lines: (&str, &str), port: u16, name: &str) -> Result<(Job, Job)> {
    let mut server = start(ends, true, lines.0, &format!("{name} server"))?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !ends.listens(port) {
        ensure!(Instant::now() < deadline && !server.ended(), "{}", server.wait()?.describe());
        std::thread::sleep(Duration::from_millis(10));
    }
    let client = start(ends, false, lines.1, &format!("{name} client"))?;
    Ok((server, client))
}

fn start(ends: &dyn Ends, server: bool, line: &str, name: &str) -> Result<Job> {
    let log = ends.logs().path(&format!("{} {name}", ends.name()));
    Job::start(ends.command(server, &words(line))?, &log, LIMIT)
}

/// An idle connection whose end `victim_is_server` names is killed: the other end receives DISCONNECTED soon.
pub fn killed_idle(ends: &dyn Ends, victim_is_server: bool, ipv6: bool) -> Result<()> {
    let (mut server, mut client) = probes(ends, "accept", "wait", ipv6)?;
    let deadline = Instant::now() + LIMIT;
    while !(client.output().contains("connected\n") && server.output().contains("connected\n")) {
        ensure!(!server.ended(), "{}", server.wait()?.describe());
        ensure!(!client.ended() && Instant::now() < deadline, "{}", client.wait()?.describe());
        std::thread::sleep(Duration::from_millis(20));
    }
    let line = if victim_is_server { "cmprobe server" } else { "cmprobe client" };
    let (victim, other) = if victim_is_server { (server, client) } else { (client, server) };
    let other = noticed(ends, victim_is_server, victim, line, other)?;
    ensure!(other.ok(), "{}", other.describe());
    Ok(())
}

/// The same while rping's Writes, Reads and Sends are under way: the other end reports a flush or a disconnect, and exits.
pub fn killed_busy(ends: &dyn Ends, victim_is_server: bool, ipv6: bool) -> Result<()> {
    const ENDS: [&str; 3] = ["DISCONNECT EVENT", "cq completion failed status 5", "WR_FLUSH"];
    let port = ends.port();
    let server = format!("rping -s -S 60000 -a {} -p {port}", ends.bound(ipv6));
    let client = format!("rping -c -V -S 60000 -a {} -p {port}", ends.host(ipv6));
    let (mut server, mut client) = both(ends, (&server, &client), port, "rping killed")?;
    std::thread::sleep(Duration::from_millis(1500));
    ensure!(!server.ended() && !client.ended(), "rping ended by itself: {}", client.output());
    let line = if victim_is_server { "rping -s" } else { "rping -c" };
    let (victim, other) = if victim_is_server { (server, client) } else { (client, server) };
    let other = noticed(ends, victim_is_server, victim, line, other)?;
    ensure!(ENDS.iter().any(|words| other.output.contains(words)), "{}", other.describe());
    Ok(())
}

/// Kills one end; the end of the other, which comes in time.
fn noticed(
    ends: &dyn Ends,
    victim_is_server: bool,
    victim: Job,
    line: &str,
    mut other: Job,
) -> Result<Ended> {
    ends.kill(victim_is_server, &victim, line)?;
    let killed = Instant::now();
    while !other.ended() && killed.elapsed() < NOTICED {
        std::thread::sleep(Duration::from_millis(10));
    }
    let in_time = other.ended();
    if !in_time {
        other.signal(nix::sys::signal::Signal::SIGTERM);
    }
    let other = other.wait()?;
    drop(victim);
    ensure!(in_time, "not noticed within {NOTICED:?}: {}", other.describe());
    Ok(other)
}
