//! A server and a client: both must end with status 0 in time, and leave nothing running.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::dialogues;
use crate::expected;
use crate::job::{Ended, Job};
use crate::report::Checks;

/// One exchange between two programs.
pub struct Exchange<'a> {
    /// The name of the exchange, for messages and logs.
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
    pub fn finish(self, checks: &mut Checks) -> Result<Option<(Ended, Ended)>> {
        self.judge(false, &|_, _| Ok(()), checks)
    }

    /// The same with a judge of their output. A server that is `endless` is told to end once the client has.
    pub fn judge(
        mut self,
        endless: bool,
        judge: &Judge<'_>,
        checks: &mut Checks,
    ) -> Result<Option<(Ended, Ended)>> {
        let Some(client) = self.client.take() else {
            self.server.signal(Signal::SIGTERM);
            let server = self.server.wait()?;
            checks.fail(&self.name, &format!("the server was never ready\n{}", server.describe()));
            return Ok(None);
        };
        let client = client.wait()?;
        if endless {
            self.server.signal(Signal::SIGTERM);
        }
        finish(&self.name, self.server, client, endless, judge, checks)
    }
}

/// Whether the client's and the server's output is what it should be.
pub type Judge<'a> = dyn Fn(&Ended, &Ended) -> Result<()> + 'a;

/// Waits for the server of a client that has ended, and judges both.
fn finish(
    name: &str,
    mut server: Job,
    client: Ended,
    endless: bool,
    judge: &Judge<'_>,
    checks: &mut Checks,
) -> Result<Option<(Ended, Ended)>> {
    let good = |end: &Ended| end.ok() || dialogues::fails_at_its_end(end);
    if !good(&client) {
        // A server whose client is gone may wait for ever; it gets a moment to end by itself.
        let moment = Instant::now() + Duration::from_secs(1);
        while !server.ended() && Instant::now() < moment {
            std::thread::sleep(Duration::from_millis(20));
        }
        server.signal(Signal::SIGTERM);
    }
    let server = server.wait()?;
    let ok = good(&client) && (good(&server) || endless);
    let judged = if ok { judge(&client, &server) } else { Ok(()) };
    match (ok && judged.is_ok(), expected::reason(name)) {
        (true, None) => {
            checks.pass();
            return Ok(Some((client, server)));
        }
        (true, Some(_)) => {
            checks.fail(name, "passes, so its line in tests/interop/expected-failures.txt must go");
        }
        (false, Some(reason)) => checks.skip(name, reason),
        (false, None) => {
            let why = judged.err().map(|why| format!("{why}\n")).unwrap_or_default();
            // The end that is to blame comes first: a reader may see no more than the first lines.
            let mut ends = [("client", &client), ("server", &server)];
            ends.sort_by_key(|(_, end)| end.ok());
            let [first, second] = ends.map(|(which, end)| format!("{which}: {}", end.describe()));
            checks.fail(name, &format!("{why}{first}\n{second}"));
        }
    }
    Ok(None)
}

/// Two programs that meet by connection management. Nothing outside of a server shows that it listens by now, so a
/// client that is refused because nobody does is started again.
pub struct Meeting<'a> {
    /// The name of the exchange, for messages and logs.
    pub name: String,
    /// Started first.
    pub server: Command,
    /// Started until it is heard.
    pub client: Command,
    /// For a client that asks many times at once, and might be heard in part: it starts so much after the server, and both
    /// start again if that was too early.
    pub patience: Option<Duration>,
    /// Asked when both ended well.
    pub judge: &'a Judge<'a>,
    /// The server serves until it is told to end, which then is a good end.
    pub endless: bool,
    /// For each of the two.
    pub limit: Duration,
}

impl Meeting<'_> {
    /// Runs it to its end; the client's and the server's ends when both are good.
    pub fn run(self, logs: &Logs, checks: &mut Checks) -> Result<Option<(Ended, Ended)>> {
        let mut tries = 1..=10;
        let mut patience = self.patience;
        let mut client_command = again(&self.client);
        loop {
            let log = logs.path(&format!("{} server", self.name));
            let server = Job::start(again(&self.server), &log, self.limit)?;
            let client = match patience {
                None => until_heard(&self.name, &client_command, self.limit, logs)?,
                Some(pause) => {
                    std::thread::sleep(pause);
                    let log = logs.path(&format!("{} client", self.name));
                    Job::start(again(&client_command), &log, self.limit)?.wait()?
                }
            };
            let early = patience.is_some() && is_unheard(&client.output);
            let half = HALF_HEARD.iter().any(|words| client.output.contains(words));
            if (early || half)
                && let Some(number) = tries.next()
            {
                patience = patience.map(|pause| pause * 2);
                if half {
                    // An emulated server is half ready each time for a client that is quick: if the client is
                    // ferroce's, each of its requests waits a little longer.
                    client_command.env("FERROCE_FAULT", format!("delay={}ms if op=req,dir=tx", 10 * number));
                }
                server.signal(Signal::SIGTERM);
                server.wait()?;
                continue;
            }
            if self.endless {
                server.signal(Signal::SIGTERM);
            }
            return finish(&self.name, server, client, self.endless, self.judge, checks);
        }
    }
}

/// Signs of a client that came while the server was half ready: both ends must start again.
///
/// perftest's ends connect twice, and a client whose second connection comes before the server listens for it has used up
/// the first: REJ reason 8, and for datagrams SIDR status 1. riostream's server asks for its table of mappings only after
/// `rlisten`, so a connection that comes in between has no room for a mapping.
const HALF_HEARD: [&str; 3] = [
    "RDMA_CM_EVENT_REJECTED; error: 8.",
    "RDMA_CM_EVENT_UNREACHABLE; error: 1.",
    "riomap: Cannot allocate memory",
];

/// The end of the first client that was not refused for want of a listener, or of the last one after 20 seconds.
pub fn until_heard(name: &str, client: &Command, limit: Duration, logs: &Logs) -> Result<Ended> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let ended = Job::start(again(client), &logs.path(&format!("{name} client")), limit)?.wait()?;
        if !is_unheard(&ended.output) || Instant::now() > deadline {
            return Ok(ended);
        }
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// The same command once more.
fn again(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    for (key, value) in command.get_envs() {
        copy.env(key, value.unwrap_or_default());
    }
    if let Some(dir) = command.get_current_dir() {
        copy.current_dir(dir);
    }
    copy
}

/// Whether a program says that nobody listens, as each of Debian's puts it: REJ reason 8, SIDR status 1.
fn is_unheard(output: &str) -> bool {
    const WORDS: [&str; 8] = [
        // An rsocket's asynchronous connection that failed, whatever the reason.
        "rpoll: Operation now in progress",
        "Unexpected CM event bl blka 8",
        "REJECTED 8 ",
        "REJECTED, error 8",
        "REJECTED, error: 8",
        "REJECTED, status: 8",
        "UNREACHABLE, error: 1",
        "Connection refused",
    ];
    WORDS.iter().any(|words| output.contains(words))
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
    fn a_client_that_is_not_heard_comes_again() {
        let dir = std::env::temp_dir().join(format!("xtask-meeting-{}", std::process::id()));
        let logs = Logs(dir.clone());
        let mut client = shell(
            "case $(ls $DIR | grep -c try) in
                0) touch $DIR/try1; echo 'rdma_connect: Connection refused'; exit 1;;
                1) touch $DIR/try2; echo 'event: RDMA_CM_EVENT_REJECTED, error: 8';;
                *) echo 'event: RDMA_CM_EVENT_REJECTED, error: 28'; exit 7;;
            esac",
        );
        client.env("DIR", &dir);
        let ended = until_heard("unheard", &client, Duration::from_secs(9), &logs).unwrap();
        assert_eq!(ended.status.and_then(|status| status.code()), Some(7), "{}", ended.output);
        std::fs::remove_dir_all(dir).ok();
    }

    /// The second client waits before its requests, which gives the server time.
    #[test]
    fn a_client_that_is_too_quick_for_its_server_comes_slower() {
        let logs = Logs(std::env::temp_dir().join(format!("xtask-quick-{}", std::process::id())));
        let mut checks = Checks::default();
        let quick = "echo 'RDMA_CM_EVENT_REJECTED; error: 8.'; exit 1";
        let meeting = Meeting {
            name: "quick".to_owned(),
            server: shell("exec sleep 20"),
            client: shell(&format!(
                "[ \"$FERROCE_FAULT\" = 'delay=10ms if op=req,dir=tx' ] || {{ {quick}; }}"
            )),
            patience: None,
            judge: &|_, _| Ok(()),
            endless: true,
            limit: Duration::from_secs(9),
        };
        assert!(meeting.run(&logs, &mut checks).unwrap().is_some());
        std::fs::remove_dir_all(logs.0).ok();
    }

    #[test]
    fn an_endless_server_is_told_to_end_and_the_judge_is_asked() {
        let logs = Logs(std::env::temp_dir().join(format!("xtask-endless-{}", std::process::id())));
        for (word, good) in [("fine", true), ("other", false)] {
            let mut checks = Checks::aside("in a test:");
            let exchange = Exchange {
                name: format!("endless {word}"),
                server: shell("sleep 20"),
                client: shell("echo fine"),
                ready: Box::new(|| true),
                limit: Duration::from_secs(9),
            };
            let judge = |client: &Ended, _: &Ended| {
                anyhow::ensure!(client.output.contains(word), "not said");
                Ok(())
            };
            let ends = exchange.start(&logs).unwrap().judge(true, &judge, &mut checks).unwrap();
            assert_eq!((ends.is_some(), checks.good()), (good, good), "{word}");
        }
        std::fs::remove_dir_all(logs.0).ok();
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
