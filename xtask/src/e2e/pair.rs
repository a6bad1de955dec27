//! A server and a client: both must end with status 0 in time, and leave nothing running.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Bed;
use crate::job::{Ended, Job};
use crate::report::Checks;

/// One exchange between two programs.
pub struct Pair {
    /// What is tried, for messages and log names.
    pub name: String,
    /// Started first.
    pub server: Command,
    /// Started when the server listens.
    pub client: Command,
    /// The TCP port at which the server waits for the client.
    pub port: u16,
    /// For each of the two.
    pub limit: Duration,
}

impl Pair {
    /// Starts both; the caller waits for them (so that several pairs can run at once).
    pub fn start(self, bed: &Bed) -> Result<Running> {
        let server = Job::start(self.server, &bed.log(&format!("{} server", self.name)), self.limit)?;
        let mut running = Running { name: self.name, server, client: None };
        if wait_listening(&mut running.server, self.port, Duration::from_secs(10)) {
            let log = bed.log(&format!("{} client", running.name));
            running.client = Some(Job::start(self.client, &log, self.limit)?);
        }
        Ok(running)
    }
}

/// A pair under way.
pub struct Running {
    name: String,
    server: Job,
    client: Option<Job>,
}

impl Running {
    /// Waits for both ends and judges; the client's and server's ends when both are good.
    pub fn finish(self, checks: &mut Checks) -> Result<Option<(Ended, Ended)>> {
        let Some(client) = self.client else {
            self.server.signal(nix::sys::signal::Signal::SIGTERM);
            let server = self.server.wait()?;
            checks.fail(&self.name, &format!("the server never listened\n{}", server.describe()));
            return Ok(None);
        };
        let client = client.wait()?;
        if !client.ok() {
            // A server whose client is gone may wait for ever.
            std::thread::sleep(Duration::from_millis(300));
            self.server.signal(nix::sys::signal::Signal::SIGTERM);
        }
        let server = self.server.wait()?;
        if client.ok() && server.ok() {
            checks.pass();
            Ok(Some((client, server)))
        } else {
            let text = format!("client: {}\nserver: {}", client.describe(), server.describe());
            checks.fail(&self.name, &text);
            Ok(None)
        }
    }
}

/// Runs one pair to its end.
pub fn run_pair(bed: &Bed, checks: &mut Checks, pair: Pair) -> Result<Option<(Ended, Ended)>> {
    pair.start(bed)?.finish(checks)
}

/// Waits until somebody in this namespace listens at `port`; false when the server ended or time is up.
fn wait_listening(server: &mut Job, port: u16, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if listening(port) {
            return true;
        }
        if server.ended() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

fn listening(port: u16) -> bool {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().any(|file| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| is_listener(line, port))
    })
}

/// A line of /proc/net/tcp: `sl local:port remote:port state …`, state 0A is LISTEN.
fn is_listener(line: &str, port: u16) -> bool {
    let mut columns = line.split_whitespace().skip(1);
    let (Some(local), Some(_), Some(state)) = (columns.next(), columns.next(), columns.next()) else {
        return false;
    };
    let local = local.rsplit_once(':').and_then(|(_, p)| u16::from_str_radix(p, 16).ok());
    state == "0A" && local == Some(port)
}

#[cfg(test)]
mod tests {
    use super::is_listener;

    #[test]
    fn a_listener_is_told_from_a_connection() {
        let listen = "   0: 00000000:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 1";
        let established =
            "   0: 0100007F:4E20 0100007F:9999 01 00000000:00000000 00:00000000 00000000  0 0 1";
        assert!(is_listener(listen, 20_000));
        assert!(!is_listener(listen, 20_001));
        assert!(!is_listener(established, 20_000));
        assert!(!is_listener("  sl  local_address rem_address   st", 20_000));
    }
}
