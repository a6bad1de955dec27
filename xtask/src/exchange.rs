//! A server and a client: both must end with status 0 in time, and leave nothing running.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::expected;
use crate::job::{Ended, Job};
use crate::report::Checks;

/// One exchange between two programs.
pub struct Exchange<'a> {
    /// What is tried, for messages and log names.
    pub name: String,
    /// Started first.
    pub server: Command,
    /// Started when the server is ready.
    pub client: Command,
    /// Whether the server waits for the client by now; asked until it says yes.
    pub ready: Box<dyn Fn() -> bool + 'a>,
    /// For each of the two.
    pub limit: Duration,
}

/// A folder of logs, one file a program.
#[derive(Clone)]
pub struct Logs(pub PathBuf);

impl Logs {
    /// The log of a program; the name may hold anything.
    pub fn path(&self, name: &str) -> PathBuf {
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        self.0.join(plain).with_extension("log")
    }
}

impl Exchange<'_> {
    /// Starts both; the caller waits for them (so that several can run at once).
    pub fn start(self, logs: &Logs) -> Result<Running> {
        let server = Job::start(self.server, &logs.path(&format!("{} server", self.name)), self.limit)?;
        let mut running = Running { name: self.name, server, client: None };
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if (self.ready)() {
                let log = logs.path(&format!("{} client", running.name));
                running.client = Some(Job::start(self.client, &log, self.limit)?);
                break;
            }
            if running.server.ended() {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(running)
    }

    /// Runs it to its end; the client's and the server's ends when both are good.
    pub fn run(self, logs: &Logs, checks: &mut Checks) -> Result<Option<(Ended, Ended)>> {
        self.start(logs)?.finish(checks)
    }
}

/// An exchange under way.
pub struct Running {
    name: String,
    /// The server.
    pub server: Job,
    /// None when the server was never ready.
    pub client: Option<Job>,
}

impl Running {
    /// Waits for both ends and judges.
    pub fn finish(mut self, checks: &mut Checks) -> Result<Option<(Ended, Ended)>> {
        let Some(client) = self.client.take() else {
            self.server.signal(Signal::SIGTERM);
            let server = self.server.wait()?;
            checks.fail(&self.name, &format!("the server was never ready\n{}", server.describe()));
            return Ok(None);
        };
        let client = client.wait()?;
        if !client.ok() {
            // A server whose client is gone may wait for ever; it gets a moment to end by itself.
            let moment = Instant::now() + Duration::from_secs(1);
            while !self.server.ended() && Instant::now() < moment {
                std::thread::sleep(Duration::from_millis(20));
            }
            self.server.signal(Signal::SIGTERM);
        }
        let server = self.server.wait()?;
        match (client.ok() && server.ok(), expected::reason(&self.name)) {
            (true, None) => {
                checks.pass();
                return Ok(Some((client, server)));
            }
            (true, Some(_)) => {
                checks.fail(&self.name, "passes, so its line in tests/interop/expected-failures.txt must go");
            }
            (false, Some(reason)) => checks.skip(&self.name, reason),
            (false, None) => {
                let text = format!("client: {}\nserver: {}", client.describe(), server.describe());
                checks.fail(&self.name, &text);
            }
        }
        Ok(None)
    }
}

/// Does anybody in this network namespace listen at the TCP port?
pub fn listening(port: u16) -> bool {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .iter()
        .any(|file| has_listener(&std::fs::read_to_string(file).unwrap_or_default(), port))
}

/// Whether the text of /proc/net/tcp or tcp6 names a listener at `port`.
pub fn has_listener(text: &str, port: u16) -> bool {
    text.lines().any(|line| is_listener(line, port))
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
    use super::*;

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

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn judge(server: &str, client: &str, ready: bool) -> (crate::report::Count, bool) {
        let logs = Logs(std::env::temp_dir().join(format!("xtask-exchange-{}", std::process::id())));
        let mut checks = Checks::default();
        let exchange = Exchange {
            name: format!("{server} {client}"),
            server: shell(server),
            client: shell(client),
            ready: Box::new(move || ready),
            limit: Duration::from_millis(300),
        };
        let both = exchange.run(&logs, &mut checks).is_ok_and(|ends| ends.is_some());
        (checks.count(), both)
    }

    #[test]
    fn both_ends_must_be_good() {
        for (server, client, ready, good) in [
            ("exit 0", "exit 0", true, true),
            ("exit 1", "exit 0", true, false),
            ("exit 0", "exit 3", true, false),
            ("sleep 5", "exit 0", true, false),
            ("exit 0", "sleep 5", true, false),
            ("exit 1", "exit 0", false, false),
        ] {
            let (count, both) = judge(server, client, ready);
            assert_eq!(
                (count.passed, count.failed, both),
                (u32::from(good), u32::from(!good), good),
                "{server}/{client}"
            );
        }
    }
}
