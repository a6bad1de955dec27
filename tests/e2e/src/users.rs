//! Programs of several users by one `ferroced --system`, and hundreds of them at once.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Bed;
use super::copy::{Broker, PublicCopy};
use super::pyverbs::{NOBODY, has_nobody};
use ferroce_harness::exchange::listening;
use ferroce_harness::job::{self, Ended, Job};
use ferroce_harness::netns;
use ferroce_harness::report::Checks;

/// A second user without a name or a privilege.
const OTHER: u32 = NOBODY - 1;
/// A group of nobody's.
const GROUP: u32 = 4791;
const LIMIT: Duration = Duration::from_secs(90);
/// Pairs of programs at once: with the broker's 254 members there would be room for 127.
const PAIRS: usize = 150;

/// All of it.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    if !has_nobody() || !nix::unistd::geteuid().is_root() {
        checks.skip("users", "needs root: a process that may become two other users");
        return Ok(());
    }
    netns::end_broker();
    let users = Users { bed, copy: PublicCopy::new(bed, "ferroce-users")? };
    let broker = users.broker(&["--mode", "0666"])?;
    for (first, second) in [(NOBODY, OTHER), (0, OTHER), (NOBODY, 0), (NOBODY, NOBODY)] {
        for words in ["rc_pingpong", "rc_pingpong -e", "uc_pingpong", "ud_pingpong", "srq_pingpong"] {
            checks.check(
                &format!("uid {first} and uid {second}: {words}"),
                users.exchange(first, second, words),
            );
        }
    }
    for address in ["127.0.0.1", "::1"] {
        checks.check(&format!("rping by two users, {address}"), users.rping(address));
    }
    checks.check("other users administrate nothing", users.administration());
    let next = users.next_broker(broker);
    checks.check("the users' programs live on with the next broker", next.as_ref().map(drop));
    checks.check("300 programs of two users at once, beside six busy ones", users.beside_busy_ones());
    drop(next);
    checks.check("mode 0660 and a group", users.group());
    checks.check("300 programs of one user, whose broker they start", users.many(None));
    Ok(())
}

struct Users<'a> {
    bed: &'a Bed,
    copy: PublicCopy<'a>,
}

impl Drop for Users<'_> {
    fn drop(&mut self) {
        netns::end_broker();
    }
}

impl Users<'_> {
    /// Starts `ferroced --system` and waits until it answers.
    fn broker(&self, words: &[&str]) -> Result<Broker> {
        let log = std::fs::File::create(self.bed.logs.path("ferroced --system"))?;
        let mut command = Command::new(self.copy.bin("ferroced"));
        command.arg("--system").args(words).env("FERROCE_RUNTIME_DIR", self.copy.runtime("run", 0)?);
        Broker::start(command, log, || Ok(self.run(0, &[], "ferroce", &["status"])?.output))
    }

    /// A program of a user, with no_new_privs, and with these groups beside its own.
    fn command(&self, uid: u32, groups: &[u32], program: &str) -> Result<Command> {
        let mut front = Command::new("env");
        front.arg("--");
        let mut command = self.copy.as_user(front, uid, groups, program)?;
        // A broker that one of them starts has a folder of its own.
        command
            .env("FERROCE_RUNTIME_DIR", self.copy.root.join(format!("run-{uid}")))
            .env("FERROCE_IDLE", "2");
        Ok(command)
    }

    fn run(&self, uid: u32, groups: &[u32], program: &str, words: &[&str]) -> Result<Ended> {
        let mut command = self.command(uid, groups, program)?;
        command.args(words);
        job::run(command, &self.bed.logs.path(&format!("uid {uid} {program}")), LIMIT)
    }

    fn start(&self, uid: u32, name: &str, program: &str, words: &[&str]) -> Result<Job> {
        let mut command = self.command(uid, &[], program)?;
        command.args(words);
        Job::start(command, &self.bed.logs.path(name), LIMIT)
    }

    /// One of Debian's pingpongs, which compare what they receive.
    fn exchange(&self, first: u32, second: u32, words: &str) -> Result<()> {
        let port = self.bed.port();
        let text = port.to_string();
        let mut words = words.split(' ');
        let program = format!("ibv_{}", words.next().unwrap_or_default());
        let mut all = vec!["-d", "fr0", "-g", "0", "-n", "200", "-p", &text];
        // The checking flag of this one is its own.
        all.extend((program != "ibv_srq_pingpong").then_some("-c"));
        all.extend(words);
        let name = format!("{program} {first} {second}");
        let mut server = self.start(first, &format!("{name} server"), &program, &all)?;
        netns::until("the server listens", || listening(port) || server.ended())?;
        all.push("127.0.0.1");
        let client = self.start(second, &format!("{name} client"), &program, &all)?;
        good(&client.wait()?)?;
        good(&server.wait()?)
    }

    fn rping(&self, address: &str) -> Result<()> {
        let mut server =
            self.start(NOBODY, "rping server", "rping", &["-s", "-a", address, "-C", "20", "-V"])?;
        // It says nothing when it listens.
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let client = self.run(OTHER, &[], "rping", &["-c", "-a", address, "-C", "20", "-v", "-V"])?;
            if client.output.matches("ping data").count() == 20 {
                break;
            }
            ensure!(Instant::now() < deadline && !server.ended(), "{}", client.describe());
        }
        good(&server.wait()?)
    }

    /// Links, the broker's end and the objects of others are not for every user.
    fn administration(&self) -> Result<()> {
        let words = ["-s", "-a", "127.0.0.1", "-C", "1"];
        let server = self.start(NOBODY, "rping of nobody", "rping", &words)?;
        let listens = |uid| -> Result<bool> {
            let ended = self.run(uid, &[], "ferroce", &["resource", "show", "cm_id"])?;
            good(&ended)?;
            Ok(ended.output.contains("LISTEN"))
        };
        netns::until("root sees the listener", || listens(0).unwrap_or(false))?;
        ensure!(listens(NOBODY)?, "its user sees it");
        ensure!(!listens(OTHER)?, "another user sees it");
        let status = self.run(OTHER, &[], "ferroce", &["status"])?;
        ensure!(!status.output.contains("rping"), "{}", status.describe());
        for words in [
            &["link", "add", "fr7", "type", "roce", "netdev", "lo"][..],
            &["link", "set", "fr0", "crc", "off"],
            &["stop", "--force"],
        ] {
            let ended = self.run(OTHER, &[], "ferroce", words)?;
            ensure!(!ended.ok() && ended.output.contains("only root"), "{}", ended.describe());
        }
        server.signal(nix::sys::signal::Signal::SIGTERM);
        let _ = server.wait()?;
        Ok(())
    }

    /// kill -9 of the broker under an exchange of two users; the administrator's next one continues.
    fn next_broker(&self, broker: Broker) -> Result<Broker> {
        let port = self.bed.port();
        let text = port.to_string();
        let words = ["-d", "fr0", "-g", "0", "-c", "-n", "40000", "-p", &text];
        let mut server = self.start(NOBODY, "the next broker: server", "ibv_rc_pingpong", &words)?;
        netns::until("the server listens", || listening(port) || server.ended())?;
        let client = self.start(
            OTHER,
            "the next broker: client",
            "ibv_rc_pingpong",
            &[&words[..], &["127.0.0.1"]].concat(),
        )?;
        std::thread::sleep(Duration::from_millis(500));
        ensure!(!server.ended(), "the exchange is over before the broker is killed");
        drop(broker);
        let next = self.broker(&["--mode", "0666"])?;
        good(&client.wait()?)?;
        good(&server.wait()?)?;
        Ok(next)
    }

    /// Pairs of programs, all alive at the same time. Without users: of nobody, with a broker that they start.
    fn many(&self, users: Option<(u32, u32)>) -> Result<()> {
        let (first, second) = users.unwrap_or((NOBODY, NOBODY));
        let ports: Vec<u16> = (0..PAIRS).map(|_| self.bed.port()).collect();
        let words = |port: u16| -> Vec<String> {
            let text = format!("-d fr0 -g 0 -c -s 1024 -n 50 -p {port}");
            text.split(' ').map(str::to_owned).collect()
        };
        let start = |uid, port: u16, host: Option<&str>| -> Result<Job> {
            let words = words(port);
            let all: Vec<&str> = words.iter().map(String::as_str).chain(host).collect();
            let end = if host.is_some() { "client" } else { "server" };
            self.start(uid, &format!("many/{port} {end}"), "ibv_rc_pingpong", &all)
        };
        let mut servers = ports.iter().map(|port| start(first, *port, None)).collect::<Result<Vec<_>>>()?;
        netns::until("all servers listen", || {
            ports.iter().all(|port| listening(*port)) || servers.iter_mut().any(Job::ended)
        })?;
        let clients =
            ports.iter().map(|port| start(second, *port, Some("127.0.0.1"))).collect::<Result<Vec<_>>>()?;
        for job in clients.into_iter().chain(servers) {
            good(&job.wait()?)?;
        }
        Ok(())
    }

    /// The broker carries the packets between two users. A broker that waits for a processor delays them for longer
    /// than all retries of ibv_rc_pingpong take.
    fn beside_busy_ones(&self) -> Result<()> {
        let busy = |number: u32| {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]);
            Job::start(command, &self.bed.logs.path(&format!("many/busy {number}")), LIMIT)
        };
        // Their drop ends them.
        let _busy = (0..6).map(busy).collect::<Result<Vec<_>>>()?;
        self.many(Some((NOBODY, OTHER)))
    }

    /// Members of the group are served, others get a sentence.
    fn group(&self) -> Result<()> {
        let _broker = self.broker(&["--mode", "0660", "--group", &GROUP.to_string()])?;
        let devices = |groups: &[u32]| self.run(NOBODY, groups, "ibv_devinfo", &["-d", "fr0"]);
        let refused = devices(&[])?;
        ensure!(!refused.ok() && refused.output.contains("the group 4791 alone"), "{}", refused.describe());
        good(&devices(&[GROUP])?)
    }
}

fn good(ended: &Ended) -> Result<()> {
    ensure!(ended.ok(), "{}", ended.describe());
    Ok(())
}
