//! Rules for management datagrams, which the broker applies: connections are made all the same, or fail when the retries are over.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use super::by_address::RPING;
use super::{LIMIT, Stage, each_rule_hit};
use ferroce_harness::exchange::until_heard;
use ferroce_harness::job::Job;
use ferroce_harness::report::Checks;

/// Sixteen requests, 4.8 s apart, and some slack.
const GIVEN_UP: Duration = Duration::from_secs(110);

/// Rules of rping's server and client, which end well all the same. A message is repeated after some seconds.
const GOES_WELL: [[&str; 2]; 9] = [
    ["", "drop if op=req,count=1"],
    ["drop if op=rep,count=1", ""],
    ["", "drop if op=rep,dir=rx,iter=1"],
    ["", "drop if op=rtu,count=1"],
    ["", "corrupt icrc=bad if op=dreq,count=1"],
    ["dup if op=req; again: dup if op=rep", "dup if op=req; dup if op=dreq"],
    ["delay=50ms if op=mad", "delay=50ms~20ms if op=mad"],
    ["corrupt icrc=ok at=31/0 if op=rtu,dir=rx,count=1", "cut if op=mad,dir=tx,nth=1"],
    // Rules that name no management datagram leave connection management alone.
    ["drop if op=send,psn=0,iter=1", "drop 20% if dir=tx,iter=1; dup if op=ack,count=3"],
];

/// Rules that kill the broker. rping ends well: the next broker takes the connection over, and applies the rules to its first message.
const TAKEN_OVER: [[&str; 2]; 3] = [
    ["kill=broker if at=established", ""],
    ["", "kill=broker if at=established"],
    [
        "kill=broker if at=established; late: delay=20ms if op=dreq,dir=rx",
        "late: delay=20ms if op=dreq,dir=tx",
    ],
];

impl Stage<'_> {
    pub(super) fn mads(&self, checks: &mut Checks) {
        let [server, client] = self.rping(["", "lost: drop if op=req,dir=tx"]);
        // It takes more than a minute, in which the others run.
        let lost = self.lost(server, client);
        for rules in GOES_WELL {
            let name = format!("rping {rules:?}");
            checks.check(&name, self.meets(&name, "rping", RPING, rules));
        }
        checks.check("management datagrams of one seed meet the same twice", self.mads_repeat());
        checks.check("ferroce fault for management datagrams", self.mads_while_running());
        let lost = lost.and_then(|[server, client]| unreachable(&server, client));
        checks.check("rping whose requests are all lost", lost);
        // Last, because a broker serves all programs.
        for rules in TAKEN_OVER {
            let name = format!("rping {rules:?}");
            checks.check(&name, self.meets(&name, "rping", RPING, rules));
        }
    }

    fn rping(&self, rules: [&str; 2]) -> [Command; 2] {
        self.both(super::by_address::Transport::Roce, "rping", RPING, rules)
    }

    fn lost(&self, server: Command, client: Command) -> Result<[Job; 2]> {
        let start = |command, end| {
            Job::start(command, &self.bed.logs.path(&format!("faults lost requests {end}")), GIVEN_UP)
        };
        Ok([start(server, "server")?, start(client, "client")?])
    }

    /// Two runs with one seed have the same hits, with the same spread of delays.
    fn mads_repeat(&self) -> Result<()> {
        let run = |run: &str| {
            let log = |end: &str| self.log(&format!("{run} mads {end}"));
            let rules = ["op=rep|rtu", "op=rep|rtu; b: delay=10ms~10ms if op=dreq,dir=tx,iter=1"];
            let [server, client] = [("server", rules[0]), ("client", rules[1])].map(|(end, terms)| {
                let (op, more) = terms.split_once(';').unwrap_or((terms, ""));
                format!("seed=6; delay=10ms~10ms + dup 50% if {op},iter=1;{more}; log={}", log(end))
            });
            self.meets("rping whose management datagrams repeat", "rping", RPING, [&server, &client])?;
            Ok::<_, anyhow::Error>([
                self.logged(&format!("{run} mads server"))?,
                self.logged(&format!("{run} mads client"))?,
            ])
        };
        let (first, second) = (run("first")?, run("second")?);
        ensure!(first[0].len() >= 2 && first[1].len() >= 3, "few hits: {first:?}");
        ensure!(first == second, "{first:?}\n{second:?}");
        ensure!(first[1].iter().any(|hit| hit.contains(" if dir=tx,conn=0,op=rtu,iter=1")), "{first:?}");
        Ok(())
    }

    /// A server that runs gets a rule, whose hit is shown.
    fn mads_while_running(&self) -> Result<()> {
        let [mut server, client] = self.rping(["", ""]);
        server.arg("-P");
        let server = Job::start(server, &self.bed.logs.path("faults mads while running server"), GIVEN_UP)?;
        let pid = server.id().to_string();
        let applied = self.apply_and_connect(&pid, &client);
        server.signal(Signal::SIGTERM);
        server.wait()?;
        applied
    }

    fn apply_and_connect(&self, pid: &str, client: &Command) -> Result<()> {
        // The first client shows that the server listens.
        let first = until_heard("faults mads while running", client, LIMIT, &self.bed.logs)?;
        ensure!(first.ok(), "{}", first.describe());
        let applied =
            self.fault(&["apply", "--pid", pid, "rep: drop if op=rep,iter=1; drop if op=lap"], 0)?;
        ensure!(
            applied.output.contains("\n  rep: drop if op=rep,iter=1\n")
                && !applied.output.contains("never hit"),
            "{}",
            applied.describe()
        );
        let second = until_heard("faults mads while running", client, LIMIT, &self.bed.logs)?;
        ensure!(second.ok(), "{}", second.describe());
        for order in ["show", "clear"] {
            let shown = self.fault(&[order, "--pid", pid], 0)?;
            let told = shown.output.contains("  1 hits, 1 matched: rep: drop if op=rep,iter=1\n")
                && shown.output.contains("  never hit, 0 matched: drop if op=lap\n");
            ensure!(told, "{}", shown.describe());
        }
        let begin = Instant::now();
        let third = until_heard("faults mads while running", client, LIMIT, &self.bed.logs)?;
        ensure!(third.ok() && begin.elapsed() < LIMIT, "{}", third.describe());
        Ok(())
    }
}

/// The client ends by itself with the event of a peer that does not answer.
fn unreachable(server: &Job, client: Job) -> Result<()> {
    let client = client.wait();
    server.signal(Signal::SIGTERM);
    let client = client?;
    let says = client.output.contains("RDMA_CM_EVENT_UNREACHABLE") && client.output.contains("-110");
    let ends = client.status.is_some_and(|status| status.code().is_some_and(|code| code != 0));
    ensure!(says && ends, "{}", client.describe());
    each_rule_hit("lost", &client)?;
    ensure!(
        client.output.contains("  16 hits, 16 matched: lost: drop if op=req,dir=tx"),
        "{}",
        client.describe()
    );
    Ok(())
}
