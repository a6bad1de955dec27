//! Programs that connect by address: a client that comes before the server listens is started again.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::{LIMIT, Stage, each_rule_hit};
use crate::cli::says;
use ferroce_harness::dialogues;
use ferroce_harness::exchange::{Meeting, until_heard};
use ferroce_harness::job::{Ended, Job};
use ferroce_harness::report::Checks;

const HOST: &str = "127.0.0.1";
/// The arguments of rping's server and of its client, which compares every octet.
pub(super) const RPING: [&str; 2] = ["-s -C 20", "-c -C 20 -V"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    Roce,
    Iwarp,
}

/// Programs that end well all the same: a name, the program, the arguments and the rules of the server and of the client. rping's client and
/// rstream's `-T v` compare every octet.
const GOES_WELL: [(&str, &str, [&str; 2], [&str; 2]); 3] = [
    (
        "rping by way of slow answers",
        "rping",
        RPING,
        [
            "delay=2ms if op=ack,dir=tx; drop if dir=rx,nth=every/15",
            "delay=2ms if op=ack,dir=tx; drop if dir=rx,nth=every/15",
        ],
    ),
    (
        "rstream through a bottleneck",
        "rstream",
        ["-S 65536 -C 50", "-S 65536 -C 50"],
        [
            "rate=500mbit queue=64k if dir=tx; drop 1% if dir=rx",
            "rate=500mbit queue=64k if dir=tx; drop 1% if dir=rx",
        ],
    ),
    (
        "rstream compares data that were lost, late and doubled",
        "rstream",
        ["-T v -S 65536 -C 100", "-T v -S 65536 -C 100"],
        ["drop 1%; dup 1% if dir=rx", "seed=2; drop 1% if dir=rx; reorder 1% by=3 if dir=tx"],
    ),
];

/// An rping that fails, and the peer that is told of it.
struct Failure {
    /// Of the server and of the client.
    rules: [&'static str; 2],
    /// The exit status and words of the end that fails: the server, or the client.
    server_fails: bool,
    code: i32,
    says: &'static str,
    /// The words of the other end, which ends well; `None` for a server whose client never comes.
    told: Option<&'static str>,
}

const FAILS: [Failure; 4] = [
    Failure {
        rules: ["", "wc=RETRY_EXC_ERR if qp=0,msg=10"],
        server_fails: false,
        code: 255,
        says: "cq completion failed status 12",
        told: Some("server DISCONNECT EVENT"),
    },
    Failure {
        rules: ["nak=access if op=send,nth=4", ""],
        server_fails: false,
        code: 255,
        says: "cq completion failed status 10",
        told: Some("server DISCONNECT EVENT"),
    },
    Failure {
        rules: ["", "nak=operation if op=read,nth=3"],
        server_fails: true,
        code: 255,
        says: "cq completion failed status 11",
        told: Some("client DISCONNECT EVENT"),
    },
    Failure {
        rules: ["", "fail=ENOMEM if verb=reg_mr,dev=fr0,nth=2"],
        server_fails: false,
        code: 12,
        says: "rping_setup_buffers failed: 12",
        told: None,
    },
];

/// On iWARP, where TCP repeats what is lost, FPDUs can be late, wrong or the last of their connection.
const LATE_FPDUS: [&str; 2] =
    ["delay=2ms if op=send,nth=every/4", "delay=2ms~1ms if op=readresp,nth=every/3; seed=3"];

/// See [`LATE_FPDUS`].
const IWARP_FAILS: [Failure; 3] = [
    Failure {
        rules: ["", "cut if dir=tx,op=send,nth=5"],
        server_fails: false,
        code: 0,
        says: "wait for",
        told: Some("server DISCONNECT EVENT"),
    },
    Failure {
        rules: ["corrupt if op=write,nth=3", ""],
        server_fails: false,
        code: 0,
        says: "wait for RDMA_WRITE_COMPLETE",
        told: Some("server DISCONNECT EVENT"),
    },
    Failure {
        rules: ["", "fail=ENOMEM if verb=reg_mr,dev=iw0,nth=2"],
        server_fails: false,
        code: 12,
        says: "rping_setup_buffers failed: 12",
        told: None,
    },
];

impl Stage<'_> {
    pub(super) fn by_address(&self, checks: &mut Checks) {
        for (name, program, args, rules) in GOES_WELL {
            checks.check(name, self.meets(name, program, args, rules));
        }
        for failure in FAILS {
            let name = format!("rping {:?} fails", failure.rules);
            checks.check(&name, self.meeting_fails(&name, &failure, Transport::Roce));
        }
        let on_iwarp = self.on_iwarp(checks);
        checks.check("a link of iWARP for faults", on_iwarp);
        checks.check("rping's hits are the same twice", self.meeting_repeats());
    }

    /// The same by TCP, on a link that stands only for these checks.
    fn on_iwarp(&self, checks: &mut Checks) -> Result<()> {
        says(self.bed, "link add iw0 type siw netdev lo --no-persist", 0, "")?;
        let late = self.meets_over(Transport::Iwarp, "late FPDUs", "rping", RPING, LATE_FPDUS);
        checks.check("rping by way of late FPDUs", late);
        for failure in IWARP_FAILS {
            let name = format!("rping {:?} fails on iWARP", failure.rules);
            checks.check(&name, self.meeting_fails(&name, &failure, Transport::Iwarp));
        }
        says(self.bed, "link delete iw0 --no-persist", 0, "").map(drop)
    }

    /// Both ends of a program of librdmacm: the server's command, then the client's.
    pub(super) fn both(
        &self,
        transport: Transport,
        program: &str,
        args: [&str; 2],
        rules: [&str; 2],
    ) -> [Command; 2] {
        let port = self.bed.port();
        let end = |server: bool, args: &str, rules: &str| {
            let mut command = self.command(rules, program);
            if transport == Transport::Iwarp {
                command.env("FERROCE_TRANSPORT", "iwarp");
            }
            let host: &[&str] = match (program, server) {
                ("rping", _) => &["-a", HOST],
                (_, true) => &[],
                (_, false) => &["-s", HOST],
            };
            command.args(host).args(["-p", &port.to_string()]).args(args.split(' '));
            command
        };
        [end(true, args[0], rules[0]), end(false, args[1], rules[1])]
    }

    /// Both ends succeed, and each rule hits.
    pub(super) fn meets(&self, name: &str, program: &str, args: [&str; 2], rules: [&str; 2]) -> Result<()> {
        self.meets_over(Transport::Roce, name, program, args, rules)
    }

    fn meets_over(
        &self,
        transport: Transport,
        name: &str,
        program: &str,
        args: [&str; 2],
        rules: [&str; 2],
    ) -> Result<()> {
        let [server, client] = self.both(transport, program, args, rules);
        let judge = |client: &Ended, server: &Ended| {
            each_rule_hit(rules[0], server)?;
            each_rule_hit(rules[1], client)
        };
        let meeting = Meeting {
            name: format!("faults {name}"),
            server,
            client,
            patience: None,
            judge: &judge,
            endless: false,
            limit: LIMIT,
        };
        let mut checks = Checks::default();
        meeting.run(&self.bed.logs, &mut checks)?.context("an end failed (above)")?;
        Ok(())
    }

    /// One end fails as wanted, the other one ends well, and each rule hits.
    fn meeting_fails(&self, name: &str, failure: &Failure, transport: Transport) -> Result<()> {
        let [server, client] = self.both(transport, "rping", RPING, failure.rules);
        let server = Job::start(server, &self.bed.logs.path(&format!("{name} server")), LIMIT)?;
        let client = until_heard(name, &client, LIMIT, &self.bed.logs)?;
        if failure.told.is_none() {
            server.signal(Signal::SIGTERM);
        }
        let server = server.wait()?;
        let (fails, told) = if failure.server_fails { (&server, &client) } else { (&client, &server) };
        let both = || format!("{}\n{}", client.describe(), server.describe());
        let code = fails.status.and_then(|status| status.code());
        let Failure { code: wanted, says, .. } = failure;
        ensure!(
            code == Some(*wanted) && fails.output.contains(says),
            "wanted exit {wanted} and {says:?}\n{}",
            both()
        );
        if let Some(words) = failure.told {
            let ends_well =
                told.ok() || dialogues::fails_at_its_end(told) || dialogues::forgets_the_end(told);
            ensure!(ends_well && told.output.contains(words), "wanted a good end and {words:?}\n{}", both());
        }
        for (rules, end) in failure.rules.into_iter().zip([&server, &client]) {
            each_rule_hit(rules, end)?;
        }
        Ok(())
    }

    /// Two runs with one seed have the same hits at both ends.
    fn meeting_repeats(&self) -> Result<()> {
        let run = |run: &str| {
            let rules = ["server", "client"].map(|end| {
                let log = self.log(&format!("{run} rping {end}"));
                // Requests of the first pass are the same in each run; acknowledgements and what is sent again are not.
                format!("seed=5; drop 10% if dir=tx,op=send|write|read,iter=1; delay=1ms if dir=rx,op=send,iter=1,nth=every/4; log={log}")
            });
            self.meets("rping that repeats", "rping", RPING, [&rules[0], &rules[1]])?;
            Ok::<_, anyhow::Error>([
                self.logged(&format!("{run} rping server"))?,
                self.logged(&format!("{run} rping client"))?,
            ])
        };
        let (first, second) = (run("first")?, run("second")?);
        ensure!(first.iter().all(|hits| hits.len() > 8), "few hits: {first:?}");
        ensure!(first == second, "{first:?}\n{second:?}");
        Ok(())
    }
}
