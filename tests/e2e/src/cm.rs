//! Connections by address: Debian's programs of librdmacm, both ends on ferroce over lo, by nobody; and how connections
//! fail and end.

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::geteuid;

use super::Bed;
use super::nobody::Nobody;
use super::pyverbs::{NOBODY, has_nobody};
use ferroce_harness::cc;
use ferroce_harness::dialogues::{Amount, Dialogue, Wanted, dialogues, perftests, rsockets, transports};
use ferroce_harness::exchange::{Meeting, until_heard};
use ferroce_harness::job::Job;
use ferroce_harness::netns;
use ferroce_harness::report::Checks;

/// For one end.
const LIMIT: Duration = Duration::from_secs(60);
/// A dead program's peers hear of it when its broker has seen it end.
const NOTICED: Duration = Duration::from_secs(2);
/// How long a host that does not answer is asked, with the resolution of the CM's timers and some slack: 16 requests,
/// 4.6 s apart.
const GIVEN_UP: std::ops::Range<u64> = 60..100;

/// The addresses of lo.
const HOSTS: [&str; 2] = ["127.0.0.1", "::1"];

struct Stage<'a> {
    bed: &'a Bed,
    nobody: Nobody<'a>,
    probe: PathBuf,
}

/// Programs first, then what goes wrong.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let nobody = Nobody::new(bed, "ferroce-cm")?;
    let probe = nobody.program(&cc::debians("cmprobe", &bed.programs)?)?;
    let stage = Stage { bed, nobody, probe };
    let (messages, connections) = if bed.all { (200, 1000) } else { (10, 100) };
    let amount = Amount { all: true, messages, connections };
    for host in HOSTS {
        for dialogue in dialogues(amount).into_iter().chain(rsockets(amount)) {
            stage.dialogue(checks, &dialogue, host)?;
        }
        stage.preloaded(checks, host)?;
        stage.probes(checks, host)?;
        checks.check(&format!("50 clients of rping -P at {host}"), stage.persistent(host));
        for victim in ["server", "client"] {
            checks.check(&format!("kill -9 of the {victim} at {host}"), stage.killed(host, victim));
        }
        checks.check(&format!("kill -9 of the broker, connections at {host}"), stage.broker_killed(host));
    }
    for dialogue in transports(&["r", "x"]).into_iter().chain(perftests(bed.all, 500)) {
        stage.dialogue(checks, &dialogue, HOSTS[0])?;
    }
    checks.check("rcopy", stage.copied());
    stage.multicast(checks)?;
    if bed.all {
        checks.check("a host without a stack", stage.unreachable());
    }
    Ok(())
}

impl Stage<'_> {
    /// `PROGRAM ARGS` by nobody.
    fn command(&self, program: &Path, args: &str) -> Command {
        let mut command = self.nobody.command(program);
        command.args(args.split_whitespace());
        command
    }

    fn debians(&self, program: &str) -> Result<PathBuf> {
        let found = self.bed.programs.find(program).with_context(|| format!("{program} is missing"))?;
        if self.bed.programs.unpacked.is_some() { self.nobody.program(&found) } else { Ok(found) }
    }

    fn dialogue(&self, checks: &mut Checks, dialogue: &Dialogue, host: &str) -> Result<()> {
        let port = self.bed.port();
        let command = |end: &(&'static str, String)| {
            let words = Dialogue::words(end, host, port);
            let mut command = self.nobody.command(&self.debians(&words[0])?);
            command.args(&words[1..]);
            Ok::<_, anyhow::Error>(command)
        };
        let meeting = Meeting {
            name: format!("{host}: {}", dialogue.name()),
            server: command(&dialogue.server)?,
            client: command(&dialogue.client)?,
            patience: dialogue.patience(),
            judge: &|client, server| dialogue.judge(client, server),
            endless: dialogue.is_endless(),
            limit: LIMIT,
        };
        let ends = meeting.run(&self.bed.logs, checks)?;
        if let (Some((client, _)), Wanted::Times, true) = (ends, dialogue.wanted, self.bed.all) {
            let table =
                client.output.lines().filter(|line| line.contains(" : ") || line.contains("us / conn"));
            table.for_each(|line| checks.note(format!("{host} {}", line.trim())));
        }
        Ok(())
    }

    /// rstream with ordinary sockets, which Debian's librspreload makes rsockets; with its support for fork as well, where
    /// the server's child gets the connection.
    fn preloaded(&self, checks: &mut Checks, host: &str) -> Result<()> {
        let preload = format!("/usr/lib/{}-linux-gnu/rsocket/librspreload.so", std::env::consts::ARCH);
        let preload = self.bed.programs.find(&preload).context("librspreload.so is missing")?;
        let preload =
            if self.bed.programs.unpacked.is_some() { self.nobody.program(&preload)? } else { preload };
        let (env, rstream) = (self.debians("env")?, self.debians("rstream")?);
        // Its servers that fork take turns by a semaphore, which stays behind, for the user alone who came first.
        let turns = Path::new("/dev/shm/sem.rsocket_fork");
        let user = if has_nobody() { NOBODY } else { geteuid().as_raw() };
        let others = turns.metadata().is_ok_and(|found| found.uid() != user);
        if !others {
            // A server that was killed in its turn keeps it for ever.
            std::fs::remove_file(turns).ok();
        }
        for (safe, server, client) in
            [("0", "-T s", "-T s"), ("0", "-T s -T b", "-T s -T a"), ("1", "-T f", "-T s")]
        {
            if safe == "1" && others {
                checks.skip(
                    "librspreload, fork",
                    "somebody's semaphore is in the way: /dev/shm/sem.rsocket_fork",
                );
                continue;
            }
            let port = self.bed.port();
            let end = |args: &str| {
                let mut command = self.nobody.command(&env);
                command.arg(format!("LD_PRELOAD={}", preload.display()));
                command.arg(format!("RDMAV_FORK_SAFE={safe}")).arg(&rstream);
                command.args(format!("{args} {host} -p {port} -C 10 -I 10 -S 30000").split_whitespace());
                command
            };
            let meeting = Meeting {
                name: format!("librspreload at {host}: fork {safe}, rstream {server}, {client}"),
                server: end(&format!("{server} -b")),
                client: end(&format!("{client} -s")),
                patience: None,
                judge: &|client, _| {
                    ensure!(client.output.contains("custom "), "no result is printed");
                    Ok(())
                },
                endless: false,
                limit: LIMIT,
            };
            meeting.run(&self.bed.logs, checks)?;
        }
        if !others {
            std::fs::remove_file(turns).ok();
        }
        Ok(())
    }

    /// A file by rcopy, which is the same then.
    fn copied(&self) -> Result<()> {
        let (program, port) = (self.debians("rcopy")?, self.bed.port());
        let from = self.debians("rstream")?;
        let to = self.nobody.runtime().join("copy");
        let server = self.start("rcopy server", &program, &format!("-p {port}"))?;
        let client = format!("{} {}:{} -p {port}", from.display(), HOSTS[0], to.display());
        let ended = until_heard("rcopy", &self.command(&program, &client), LIMIT, &self.bed.logs)?;
        server.signal(Signal::SIGTERM);
        let server = server.wait()?;
        ensure!(ended.ok(), "{}\nserver: {}", ended.describe(), server.describe());
        ensure!(std::fs::read(&from)? == std::fs::read(&to)?, "the copy differs");
        Ok(())
    }

    fn start(&self, name: &str, program: &Path, args: &str) -> Result<Job> {
        Job::start(self.command(program, args), &self.bed.logs.path(name), LIMIT)
    }

    /// Either end parts first, rejections, and nobody who listens, with private data as long as it may be.
    fn probes(&self, checks: &mut Checks, host: &str) -> Result<()> {
        for (server, client) in [("accept", "part"), ("part", "wait"), ("reject", "rejected")] {
            let port = self.bed.port();
            let end =
                |role: &str, how: &str| self.command(&self.probe, &format!("{role} {host} {port} {how}"));
            let meeting = Meeting {
                name: format!("cmprobe at {host}: {server}, {client}"),
                server: end("server", server),
                client: end("client", client),
                patience: None,
                judge: &|_, _| Ok(()),
                endless: false,
                limit: LIMIT,
            };
            meeting.run(&self.bed.logs, checks)?;
        }
        for how in ["refused", "unresolved"] {
            let port = self.bed.port();
            let nobody = if host.contains(':') { "2001:db8::77" } else { "192.0.2.77" };
            let to = if how == "refused" { host } else { nobody };
            let name = format!("cmprobe to {to}: {how}");
            let ended = self.start(&name, &self.probe, &format!("client {to} {port} {how}"))?.wait()?;
            let result = if ended.ok() { Ok(()) } else { Err(ended.describe()) };
            checks.check(&name, result);
        }
        Ok(())
    }

    /// Fifty clients of one server, up to ten at a time. The next one asks when the one before it was heard: rping before
    /// rdma-core 61 confuses requests that come while it looks at one (its commit 6f8e0056e), on any stack.
    fn persistent(&self, host: &str) -> Result<()> {
        let (program, port) = (self.debians("rping")?, self.bed.port());
        let name = format!("rping -P at {host}");
        let common = format!("-S 1000 -a {host} -p {port}");
        let server = self.start(&format!("{name} server"), &program, &format!("-s -P {common}"))?;
        let first = self.command(&program, &format!("-c -V -C 1 {common}"));
        let first = until_heard(&name, &first, LIMIT, &self.bed.logs)?;
        ensure!(first.ok(), "{}", first.describe());
        // So that its pings are seen as they come.
        let lines = self.debians("stdbuf")?;
        let client = format!("-oL {} -c -v -V -C 300 {common}", program.display());
        let mut running = VecDeque::new();
        let finish = |client: Job| {
            let ended = client.wait()?;
            ensure!(ended.ok(), "{}\nserver: {}", ended.describe(), server.output());
            Ok(())
        };
        for number in 0..50 {
            let mut client = self.start(&format!("{name} client {number}"), &lines, &client)?;
            let deadline = Instant::now() + LIMIT;
            while !client.output().contains("ping data") && !client.ended() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            running.push_back(client);
            if running.len() == 10 {
                running.pop_front().map_or(Ok(()), finish)?;
            }
        }
        running.into_iter().try_for_each(finish)?;
        server.signal(Signal::SIGTERM);
        let ended = server.wait()?;
        let errors = ended.output.lines().filter(|line| line.contains("error") || line.contains("Invalid"));
        ensure!(errors.count() == 0, "{}", ended.describe());
        Ok(())
    }

    /// A connection that both ends keep, until one of them is gone.
    fn connected(&self, host: &str, what: &str) -> Result<(Job, Job)> {
        let port = self.bed.port();
        let start = |role: &str, how: &str| {
            let name = format!("{what} at {host} {role}");
            self.start(&name, &self.probe, &format!("{role} {host} {port} {how}"))
        };
        let mut server = start("server", "accept")?;
        let deadline = Instant::now() + LIMIT;
        let mut client = start("client", "wait")?;
        while !(client.output().contains("connected\n") && server.output().contains("connected\n")) {
            ensure!(Instant::now() < deadline && !server.ended(), "{}", server.wait()?.describe());
            if client.ended() {
                ensure!(client.output().contains("REJECTED 8"), "{}", client.wait()?.describe());
                client = start("client", "wait")?;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok((server, client))
    }

    /// The other end hears of it soon, although it only waits.
    fn killed(&self, host: &str, victim: &str) -> Result<()> {
        let (server, client) = self.connected(host, &format!("killed {victim}"))?;
        let (victim, other) = if victim == "server" { (server, client) } else { (client, server) };
        victim.signal(Signal::SIGKILL);
        let killed = Instant::now();
        let other = other.wait()?;
        ensure!(other.ok(), "{}", other.describe());
        ensure!(killed.elapsed() < NOTICED, "noticed after {:?}", killed.elapsed());
        Ok(())
    }

    /// Connections stay: one carries data all the time, another is ended by the next broker, and new ones are made.
    fn broker_killed(&self, host: &str) -> Result<()> {
        let (server, client) = self.connected(host, "killed broker")?;
        let (rping, port) = (self.debians("rping")?, self.bed.port());
        let name = format!("rping under way at {host}");
        let args = format!("-C 5000 -S 1000 -a {host} -p {port}");
        let pings = self.start(&format!("{name} server"), &rping, &format!("-s {args}"))?;
        let pinged = std::thread::scope(|scope| {
            let run = self.command(&rping, &format!("-c -V {args}"));
            let pinged = scope.spawn(move || until_heard(&name, &run, LIMIT, &self.bed.logs));
            std::thread::sleep(Duration::from_millis(400));
            let brokers = netns::brokers();
            ensure!(brokers.len() == 1, "brokers in this network namespace: {brokers:?}");
            for broker in brokers {
                kill(broker, Signal::SIGKILL)?;
            }
            let (other_server, other_client) = self.connected(host, "after the broker")?;
            other_client.signal(Signal::SIGKILL);
            let ended = other_server.wait()?;
            ensure!(ended.ok(), "{}", ended.describe());
            pinged.join().ok().context("the client of rping panicked")?
        })?;
        ensure!(pinged.ok(), "{}", pinged.describe());
        let pings = pings.wait()?;
        ensure!(pings.ok(), "{}", pings.describe());
        client.signal(Signal::SIGKILL);
        let ended = server.wait()?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(())
    }

    /// mckey at both ends of a group; the sender starts when the receiver has joined.
    fn multicast(&self, checks: &mut Checks) -> Result<()> {
        let routed = netns::route_ipv6_groups(&self.bed.programs)?;
        for (host, group) in HOSTS.into_iter().zip(["239.1.2.3", "ff15::1:2:3"]) {
            let name = format!("mckey to {group} at {host}");
            if host.contains(':') && !routed {
                checks.skip(&name, netns::UNROUTED);
                continue;
            }
            checks.check(&name, self.mckey(&name, host, group));
        }
        Ok(())
    }

    fn mckey(&self, name: &str, host: &str, group: &str) -> Result<()> {
        let (program, lines) = (self.debians("mckey")?, self.debians("stdbuf")?);
        let args = format!("-oL {} -m {group} -b {host} -c 2 -C 20 -S 500", program.display());
        let mut receiver = self.start(&format!("{name} receiver"), &lines, &args)?;
        let deadline = Instant::now() + LIMIT;
        while receiver.output().matches("joined").count() < 2
            && !receiver.ended()
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let sender = self.start(&format!("{name} sender"), &lines, &format!("{args} -s"))?.wait()?;
        let receiver = receiver.wait()?;
        for end in [&receiver, &sender] {
            let whole =
                end.output.contains("data transfers complete") && end.output.contains("return status 0");
            ensure!(end.ok() && whole, "receiver: {}\nsender: {}", receiver.describe(), sender.describe());
        }
        Ok(())
    }

    /// UNREACHABLE when the CM's timers say so. No socket of ours is bound to that address of lo.
    fn unreachable(&self) -> Result<()> {
        let args = format!("client 127.9.9.9 {} unreachable", self.bed.port());
        let limit = Duration::from_secs(GIVEN_UP.end + 20);
        let log = self.bed.logs.path("a host without a stack");
        let ended = Job::start(self.command(&self.probe, &args), &log, limit)?.wait()?;
        ensure!(ended.ok(), "{}", ended.describe());
        ensure!(GIVEN_UP.contains(&ended.elapsed.as_secs()), "given up after {:?}", ended.elapsed);
        Ok(())
    }
}
