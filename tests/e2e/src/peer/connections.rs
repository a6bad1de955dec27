//! Connections between ferroce and the kernel's rxe.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::{Interop, Side, seconds};
use ferroce_harness::cc;
use ferroce_harness::dialogues::{Amount, Dialogue, dialogues, perftests, rsockets, transports};
use ferroce_harness::exchange::Meeting;
use ferroce_harness::job::{Ended, Job};
use ferroce_harness::report::Checks;

const LIMIT: Duration = seconds(100);
/// Until a peer hears that a program was killed.
const NOTICED: Duration = seconds(5);
/// A REQ that nobody answers is repeated 15 times, every 4.6 s by us and every 6.1 s by Linux 6.1.
const GIVING_UP: Duration = seconds(190);
/// Where the probe is in the guest.
const IN_GUEST: &str = "/tmp/cmprobe";

/// Ends the probe in the guest, which has no pkill.
const KILL: &str = "for p in /proc/[0-9]*; do [ \"$(cat $p/comm 2>/dev/null)\" = cmprobe ] && kill -9 ${p#/proc/}; done; true";

const DIRECTIONS: [(Side, Side); 2] = [(Side::Kernel, Side::Ours), (Side::Ours, Side::Kernel)];

/// Where an end is reached by connection management, which finds its device by that.
const fn host(side: Side, ipv6: bool) -> &'static str {
    match (side, ipv6) {
        (Side::Ours, false) => "10.77.0.1",
        (Side::Ours, true) => "fd77::1",
        (_, false) => "10.77.0.2",
        (_, true) => "fd77::2",
    }
}

impl Interop<'_> {
    /// Debian's programs in both directions, and how connections end.
    pub(super) fn connections(&self, checks: &mut Checks, all: bool) -> Result<()> {
        let probe = cc::debians("cmprobe", self.programs)?;
        self.guest.push(&probe, IN_GUEST)?;
        let ends = Ends { interop: self, probe };
        let (messages, connections) = if all { (20, 100) } else { (5, 20) };
        for ipv6 in [false, true] {
            for (server, client) in DIRECTIONS {
                let amount = Amount { all, messages, connections };
                let mut list = dialogues(amount);
                // Linux has no port space of IPoIB on RoCE.
                list.retain(|dialogue| !dialogue.server.1.starts_with("-p 2 "));
                list.extend(rsockets(amount).into_iter().filter(is_mastered));
                if !ipv6 {
                    list.extend(transports(&["r"])); // never XRC, whose opcodes may crash that kernel
                    list.extend(perftests(all, 20));
                }
                if ipv6 && !all {
                    list.truncate(1);
                }
                for dialogue in list {
                    checks.twice(&self.repeats, |checks| {
                        ends.dialogue(checks, &dialogue, server, client, ipv6)
                    })?;
                }
                let endings = [("accept", "part"), ("part", "wait"), ("reject", "rejected")];
                for (passive, active) in endings.into_iter().filter(|_| all || !ipv6) {
                    ends.probes(checks, (server, passive), (client, active), ipv6, LIMIT)?;
                }
                ends.check(
                    checks,
                    &format!("{} refuses {}, IPv6 {ipv6}", server.name(), client.name()),
                    || ends.refused(server, client, ipv6),
                )?;
                let victims = if all { 2 } else { usize::from(!ipv6) };
                for victim in [server, client].into_iter().take(victims) {
                    ends.check(
                        checks,
                        &format!("kill -9 at {}, {} was asked, IPv6 {ipv6}", victim.name(), server.name()),
                        || ends.killed(server, client, victim, ipv6),
                    )?;
                }
            }
        }
        self.guest.inside("ip route replace 239.0.0.0/8 dev eth0")?;
        for (receiver, sender) in DIRECTIONS {
            let name = format!("{} hears mckey of {}", receiver.name(), sender.name());
            ends.check(checks, &name, || ends.mckey(receiver, sender))?;
        }
        if all {
            ends.loss(checks)?;
            for (server, client) in DIRECTIONS {
                checks.check(
                    &format!("{} never answers {}", server.name(), client.name()),
                    ends.unanswered(server, client),
                );
            }
        }
        Ok(())
    }
}

/// Dialogues of rsockets that the kernel's rxe masters: udpong ends in ENOENT on rxe at both ends, and riostream now and then
/// in EINVAL.
fn is_mastered(dialogue: &Dialogue) -> bool {
    dialogue.client.0 == "rstream" && dialogue.is_even()
}

struct Ends<'a> {
    interop: &'a Interop<'a>,
    probe: PathBuf,
}

impl Ends<'_> {
    /// A check of both ends. A command of the guest may end with 255 and no word: the status of ssh, whose connection broke.
    fn check(&self, checks: &mut Checks, name: &str, body: impl Fn() -> Result<()>) -> Result<()> {
        checks.twice(&self.interop.repeats, |checks| {
            checks.check(name, body());
            Ok(())
        })
    }

    fn port(&self) -> u16 {
        self.interop.next_port.replace(self.interop.next_port.get() + 1)
    }

    fn dialogue(
        &self,
        checks: &mut Checks,
        dialogue: &Dialogue,
        server: Side,
        client: Side,
        ipv6: bool,
    ) -> Result<()> {
        let port = self.port();
        let end = |side, end: &(&'static str, String)| {
            let words = Dialogue::words(end, host(server, ipv6), port);
            self.interop.command(side, &words, None, LIMIT)
        };
        let meeting = Meeting {
            name: format!(
                "{} server, {} client: {} {}",
                server.name(),
                client.name(),
                dialogue.name(),
                if ipv6 { "IPv6" } else { "IPv4" }
            ),
            server: end(server, &dialogue.server),
            client: end(client, &dialogue.client),
            patience: dialogue.patience(),
            judge: &|client, server| dialogue.judge(client, server),
            endless: dialogue.is_endless(),
            limit: LIMIT,
        };
        meeting.run(&self.interop.logs, checks)?;
        Ok(())
    }

    /// The probe at one end.
    fn probe(&self, side: Side, args: &str, limit: Duration) -> std::process::Command {
        let words = std::iter::once(IN_GUEST).chain(args.split_whitespace()).map(str::to_owned);
        self.interop.command(side, &words.collect::<Vec<_>>(), Some(&self.probe), limit)
    }

    fn start(&self, name: &str, side: Side, args: &str, limit: Duration) -> Result<Job> {
        let log = self.interop.logs.path(&format!("{name} {}", side.name()));
        Job::start(self.probe(side, args, limit), &log, limit)
    }

    fn probes(
        &self,
        checks: &mut Checks,
        (server, passive): (Side, &str),
        (client, active): (Side, &str),
        ipv6: bool,
        limit: Duration,
    ) -> Result<Option<(Ended, Ended)>> {
        let address = format!("{} {}", host(server, ipv6), self.port());
        let meeting = Meeting {
            name: format!("cmprobe {address}: {passive}, {active}"),
            server: self.probe(server, &format!("server {address} {passive}"), limit),
            client: self.probe(client, &format!("client {address} {active}"), limit),
            patience: None,
            judge: &|_, _| Ok(()),
            endless: passive == "ignore",
            limit,
        };
        meeting.run(&self.interop.logs, checks)
    }

    /// Within a second, as the client measures it. At our end somebody else listens, so that there is a stack.
    fn refused(&self, server: Side, client: Side, ipv6: bool) -> Result<()> {
        let host = host(server, ipv6);
        let elsewhere = format!("server {host} {} accept", self.port());
        let other = self.start("refused", server, &elsewhere, LIMIT)?;
        std::thread::sleep(Duration::from_millis(500));
        let asks = format!("client {host} {} refused", self.port());
        let ended = self.start("refused", client, &asks, LIMIT)?.wait()?;
        other.signal(Signal::SIGTERM);
        other.wait()?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(())
    }

    /// The other end hears of it soon, although it only waits.
    fn killed(&self, server: Side, client: Side, victim: Side, ipv6: bool) -> Result<()> {
        let address = format!("{} {}", host(server, ipv6), self.port());
        let name = format!("killed at {}", victim.name());
        let mut passive = self.start(&name, server, &format!("server {address} accept"), LIMIT)?;
        let asks = format!("client {address} wait");
        let mut active = self.start(&name, client, &asks, LIMIT)?;
        let deadline = Instant::now() + LIMIT;
        while !(active.output().contains("connected\n") && passive.output().contains("connected\n")) {
            ensure!(Instant::now() < deadline && !passive.ended(), "{}", passive.wait()?.describe());
            if active.ended() {
                ensure!(active.output().contains("REJECTED 8 "), "{}", active.wait()?.describe());
                active = self.start(&name, client, &asks, LIMIT)?;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let (gone, other) = if victim == server { (passive, active) } else { (active, passive) };
        match victim {
            Side::Ours => gone.signal(Signal::SIGKILL),
            _ => drop(self.interop.guest.inside(KILL)?),
        }
        let killed = Instant::now();
        let other = other.wait()?;
        ensure!(other.ok(), "{}", other.describe());
        ensure!(killed.elapsed() < NOTICED, "noticed after {:?}", killed.elapsed());
        Ok(())
    }

    /// IPv4 alone: Linux joins no IPv6 groups for RoCE.
    fn mckey(&self, receiver: Side, sender: Side) -> Result<()> {
        let start = |side: Side, more: &str| {
            let lines = if side == Side::Ours { "stdbuf -oL" } else { "" };
            let words = format!("{lines} mckey -m 239.1.2.4 -b {} -C 20 -S 500 {more}", host(side, false));
            let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
            let log = self.interop.logs.path(&format!("mckey at {}, {} sends", side.name(), sender.name()));
            Job::start(self.interop.command(side, &words, None, LIMIT), &log, LIMIT)
        };
        let mut hears = start(receiver, "")?;
        // In the guest there is no stdbuf, so that mckey says nothing before its end.
        let deadline = Instant::now() + if receiver == Side::Ours { LIMIT } else { seconds(3) };
        while !hears.output().contains("joined") && !hears.ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let says = start(sender, "-s")?.wait()?;
        let hears = hears.wait()?;
        for end in [&hears, &says] {
            let whole =
                end.output.contains("data transfers complete") && end.output.contains("return status 0");
            ensure!(end.ok() && whole, "receiver: {}\nsender: {}", hears.describe(), says.describe());
        }
        Ok(())
    }

    /// Packets of the kernel are lost, duplicated, delayed and reordered. Only programs that wait for the end take part: Linux does
    /// not repeat the DREQ of one that is gone, so that its peer would wait for ever.
    fn loss(&self, checks: &mut Checks) -> Result<()> {
        let faults = "loss 15% duplicate 10% delay 10ms reorder 20% 50%";
        self.interop.guest.inside(&format!("tc qdisc add dev eth0 root netem {faults}"))?;
        for (server, client) in DIRECTIONS {
            for (passive, active) in [("accept", "part"), ("part", "wait")] {
                for ipv6 in [false, true] {
                    self.probes(checks, (server, passive), (client, active), ipv6, LIMIT)?;
                }
            }
            let list = dialogues(Amount { all: false, messages: 5, connections: 20 });
            for dialogue in list.iter().filter(|dialogue| dialogue.is_endless()) {
                self.dialogue(checks, dialogue, server, client, false)?;
            }
        }
        self.interop.guest.inside("tc qdisc del dev eth0 root").map(drop)
    }

    /// A program that neither accepts nor rejects: the CM's timers end it.
    fn unanswered(&self, server: Side, client: Side) -> Result<()> {
        let mut checks = Checks::default();
        let tried =
            self.probes(&mut checks, (server, "ignore"), (client, "unreachable"), false, GIVING_UP)?;
        let (client, _) = tried.context("the client was not told that nobody answers (above)")?;
        ensure!(client.elapsed > seconds(60), "given up after {:?}", client.elapsed);
        Ok(())
    }
}
