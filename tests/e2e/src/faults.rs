//! `ferroce run --fault` and `ferroce fault`: unmodified programs whose packets, calls and processes meet the faults of rules, with the outcome that their man
//! pages promise; and hits that repeat.

mod by_address;
mod checked;
mod mads;
mod running;
mod sweep;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;

use super::Bed;
use ferroce_harness::exchange::{Exchange, listening};
use ferroce_harness::job::{self, Ended};
use ferroce_harness::report::Checks;

const LIMIT: Duration = Duration::from_secs(30);
/// The arguments of Debian's pingpong: every octet is checked.
const PINGPONG: &str = "-g 0 -s 4000 -m 1024 -n 200 -c";

/// Packets first, then calls and processes, then the hits.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let stage = Stage { bed };
    for (program, args, server, client) in GOES_WELL {
        let name = format!("{program} {args} [{server}] [{client}]");
        checks.check(&name, stage.goes_well(program, args, server, client));
    }
    for (server, client, says) in FAILS {
        checks.check(
            &format!("pingpong [{server}] [{client}] says {says:?}"),
            stage.fails(server, client, says),
        );
    }
    stage.by_address(checks);
    stage.mads(checks);
    stage.checked(checks)?;
    for datapath in ["auto", "udp"] {
        checks.check(&format!("marked packets and CNPs, datapath {datapath}"), stage.marks(datapath));
    }
    for at in ["completion", "received"] {
        checks.check(&format!("kill=self at={at}"), stage.killed(at));
    }
    checks.check("kill=broker", stage.goes_well("ibv_rc_pingpong", PINGPONG, "", "kill=broker if at=rts"));
    checks.check("the same hits twice, and by the log", stage.repeats());
    checks.check("rules that cannot be read", stage.refuses());
    checks.check("rules in TOML", stage.toml());
    checks.check("ferroce fault apply, show and clear while programs run", stage.while_running());
    stage.sweeps(checks);
    Ok(())
}

/// Programs that end well all the same: program, arguments, the rules of the server and of the client.
const GOES_WELL: [(&str, &str, &str, &str); 8] = [
    ("ibv_rc_pingpong", PINGPONG, "drop 5% if op=send", "drop 5% if dir=tx,op=send"),
    (
        "ibv_rc_pingpong",
        PINGPONG,
        "burst(2%,30%) if op=send; dup 5%",
        "seed=2; corrupt 3% if op=send; reorder 5% by=2 if op=send",
    ),
    ("ibv_rc_pingpong", PINGPONG, "rnr=5ms if op=send,nth=20", "nak=psn if op=send,nth=30"),
    (
        "ibv_rc_pingpong",
        PINGPONG,
        "",
        "tail: drop if op=send,pos=last,count=3; delay=1ms~500us if op=send,nth=every/50",
    ),
    ("ibv_rc_pingpong", PINGPONG, "cut if op=send,time=0s..100ms", "hold if dir=tx,op=send,time=0s..20ms"),
    ("ib_write_bw", "-F -s 65536 -n 400", "drop 0.5%; dup 0.5%", "drop 0.5% if dir=tx; reorder 0.5%"),
    (
        "ib_read_bw",
        "-F -s 65536 -n 100",
        "",
        "third: drop if op=readresp,msg=1,nth=3; drop 0.2% if op=readresp",
    ),
    (
        "ib_send_bw",
        "-F -s 4096 -n 400 -q 4",
        "drop 1%",
        "corrupt 1% at=icrc if dir=tx; stall=2ms if verb=create_qp",
    ),
];

/// Rules of server and client of a pingpong whose client then fails with these words.
const FAILS: [(&str, &str, &str); 8] = [
    ("", "fail=ENOMEM if verb=reg_mr", "Couldn't register MR"),
    ("", "fail=EINVAL if verb=create_qp,nth=1", "Couldn't create QP"),
    ("", "fail=EMFILE if verb=create_cq", "Couldn't create CQ"),
    ("", "wc=RETRY_EXC_ERR if qp=0,msg=10", "transport retry counter exceeded"),
    ("", "wc=REM_OP_ERR if msg=3", "remote operation error"),
    ("nak=access if op=send,nth=20", "", "remote access error"),
    ("nak=request if op=send,nth=20", "", "remote invalid request error"),
    ("", "cut if dir=tx,op=send,psn=50..", "transport retry counter exceeded"),
];

/// A program with rules says at its end what they did, and each of them hit; one without rules says nothing.
fn each_rule_hit(rules: &str, end: &Ended) -> Result<()> {
    let told = end.output.contains("ferroce: faults of process");
    ensure!(told != rules.is_empty(), "{}", end.describe());
    ensure!(rules.is_empty() || !end.output.contains("  never hit"), "a rule never hit\n{}", end.describe());
    Ok(())
}

struct Stage<'a> {
    bed: &'a Bed,
}

impl Stage<'_> {
    /// `ferroce run --fault RULES -- PROGRAM`; without rules `ferroce run -- PROGRAM`.
    fn command(&self, rules: &str, program: &str) -> Command {
        let mut command = Command::new(self.bed.dist.bin("ferroce"));
        let program = self.bed.programs.find(program).unwrap_or_else(|| PathBuf::from(program));
        command.arg("run");
        if !rules.is_empty() {
            command.args(["--fault", rules]);
        }
        command.arg("--").arg(program);
        if let Some(dirs) = self.bed.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        command
    }

    fn exchange(&self, program: &str, args: &str, server: &str, client: &str) -> Exchange<'static> {
        let port = self.bed.port();
        let end = |rules: &str, host: Option<&str>| {
            let mut command = self.command(rules, program);
            command.args(["-d", "fr0", "-p", &port.to_string()]).args(args.split(' ')).args(host);
            command
        };
        Exchange {
            name: format!("faults {program} {port}"),
            server: end(server, None),
            client: end(client, Some("127.0.0.1")),
            ready: Box::new(move || listening(port)),
            limit: LIMIT,
        }
    }

    /// Both ends succeed, and each end with rules says what they did.
    fn goes_well(&self, program: &str, args: &str, server: &str, client: &str) -> Result<()> {
        self.ends_well(self.exchange(program, args, server, client), server, client)
    }

    /// Packets come marked, and the rule for the CNPs that answer them hits at the other end.
    fn marks(&self, datapath: &str) -> Result<()> {
        let (server, client) = ("ce 20% if dir=rx,op=write", "dup if dir=rx,op=cnp");
        let mut exchange = self.exchange("ib_write_bw", "-F -s 65536 -n 200", server, client);
        for end in [&mut exchange.server, &mut exchange.client] {
            end.env("FERROCE_CONGESTION", "ecn").env("FERROCE_DATAPATH", datapath);
        }
        self.ends_well(exchange, server, client)
    }

    fn ends_well(&self, exchange: Exchange<'_>, server: &str, client: &str) -> Result<()> {
        let mut checks = Checks::default();
        let ended = exchange.run(&self.bed.logs, &mut checks)?;
        let (client_end, server_end) = ended.context("an end failed (above)")?;
        ensure!(checks.good(), "an end failed (above)");
        each_rule_hit(server, &server_end)?;
        each_rule_hit(client, &client_end)
    }

    /// The client fails with these words.
    fn fails(&self, server: &str, client: &str, says: &str) -> Result<()> {
        let mut running = self.exchange("ibv_rc_pingpong", PINGPONG, server, client).start(&self.bed.logs)?;
        let client = running.client.take().context("the server was never ready")?.wait()?;
        running.server.signal(Signal::SIGTERM);
        running.server.wait()?;
        ensure!(client.status.is_some_and(|status| status.code() == Some(1)), "{}", client.describe());
        ensure!(client.output.contains(says), "{}", client.describe());
        Ok(())
    }

    /// The client dies by the signal, after it has said why.
    fn killed(&self, at: &str) -> Result<()> {
        let rules = format!("last: kill=self if at={at},nth=20");
        let mut running = self.exchange("ibv_rc_pingpong", PINGPONG, "", &rules).start(&self.bed.logs)?;
        let client = running.client.take().context("the server was never ready")?.wait()?;
        running.server.signal(Signal::SIGTERM);
        running.server.wait()?;
        ensure!(client.status.is_some_and(|status| status.signal() == Some(9)), "{}", client.describe());
        ensure!(client.output.contains("1 hits, 1 matched: last"), "{}", client.describe());
        Ok(())
    }

    /// Two runs with one seed have the same hits, and so has a run by the log of the first.
    fn repeats(&self) -> Result<()> {
        let rules = "seed=7; drop 5% if dir=tx,op=send,iter=1; b: dup 3% if dir=tx,op=send,iter=1";
        let first = self.hits("first", |log| format!("{rules}; log={log}"), &[])?;
        let second = self.hits("second", |log| format!("{rules}; log={log}"), &[])?;
        ensure!(first.len() > 20, "few hits: {first:?}");
        ensure!(first == second, "{first:?}\n{second:?}");
        let log = self.log("first");
        let replayed = self.hits("replayed", |log| format!("log={log}"), &["--fault-file", &log])?;
        ensure!(first == replayed, "{first:?}\n{replayed:?}");
        Ok(())
    }

    fn log(&self, name: &str) -> String {
        self.bed.logs.path(&format!("faults hits {name}")).with_extension("hits").display().to_string()
    }

    /// The hits of a pingpong's client, without the names of rules.
    fn hits(&self, name: &str, rules: impl Fn(&str) -> String, options: &[&str]) -> Result<Vec<String>> {
        let log = self.log(name);
        let mut exchange = self.exchange("ibv_rc_pingpong", PINGPONG, "", "");
        let rest: Vec<_> = exchange.client.get_args().skip(1).map(ToOwned::to_owned).collect();
        let mut client = Command::new(exchange.client.get_program());
        client.arg("run").args(options).args(["--fault", &rules(&log)]).args(rest);
        client.envs(exchange.client.get_envs().filter_map(|(key, value)| Some((key, value?))));
        exchange.client = client;
        let mut checks = Checks::default();
        exchange.run(&self.bed.logs, &mut checks)?;
        ensure!(checks.good(), "an end failed (above)");
        self.logged(name)
    }

    /// The hits in a log, without the names of rules.
    fn logged(&self, name: &str) -> Result<Vec<String>> {
        let log = self.log(name);
        let text = fs::read_to_string(&log).with_context(|| log.clone())?;
        let lines = text.lines().filter(|line| !line.starts_with("seed="));
        Ok(lines.map(|line| line.split(" #").next().unwrap_or_default().to_owned()).collect())
    }

    fn run(&self, name: &str, command: Command) -> Result<Ended> {
        job::run(command, &self.bed.logs.path(&format!("faults {name}")), LIMIT)
    }

    /// Wrong rules end `ferroce run` before the program starts; in the environment they keep a program from opening a device.
    fn refuses(&self) -> Result<()> {
        let ended = self.run("refused", self.command("seed=7; dorp 1%", "ibv_devinfo"))?;
        ensure!(
            ended.status.is_some_and(|status| status.code() == Some(2) || status.code() == Some(1)),
            "{}",
            ended.describe()
        );
        ensure!(ended.output.contains("character 9, at \"dorp\""), "{}", ended.describe());
        let mut command = self.command("", "ibv_devinfo");
        command.args(["-d", "fr0"]).env("FERROCE_FAULT", "drop if op=akc");
        let ended = self.run("refused by the environment", command)?;
        ensure!(!ended.ok() && ended.output.contains("FERROCE_FAULT: line 1"), "{}", ended.describe());
        Ok(())
    }

    fn toml(&self) -> Result<()> {
        let path = self.bed.logs.path("faults rules").with_extension("toml");
        fs::write(
            &path,
            "seed = 3\n[[fault]]\nname = \"early\"\ndo = \"drop\"\nif = { op = \"send\", psn = [4, 8], iter = 1 }\n",
        )?;
        let mut exchange = self.exchange("ibv_rc_pingpong", PINGPONG, "", "");
        let rest: Vec<_> = exchange.client.get_args().skip(1).map(ToOwned::to_owned).collect();
        let mut client = Command::new(exchange.client.get_program());
        client.arg("run").arg("--fault-file").arg(&path).args(rest);
        client.envs(exchange.client.get_envs().filter_map(|(key, value)| Some((key, value?))));
        exchange.client = client;
        let mut checks = Checks::default();
        let (client, _) = exchange.run(&self.bed.logs, &mut checks)?.context("an end failed (above)")?;
        // Both directions have a fourth and an eighth packet.
        ensure!(checks.good() && client.output.contains("4 hits, 4 matched: early"), "{}", client.describe());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_never_hits_fails_the_check() {
        let hit = "ferroce: faults of process 7, seed 1\n  3 hits, 9 matched: drop 1%\n";
        let missed = format!("{hit}  never hit, 0 matched: dup if op=cnp\n");
        for (rules, output, good) in [
            ("drop 1%", hit, true),
            ("drop 1%; dup if op=cnp", &*missed, false),
            ("drop 1%", "", false),
            ("", "", true),
            ("", hit, false),
        ] {
            let end = Ended {
                line: String::new(),
                status: None,
                output: output.to_owned(),
                elapsed: Duration::ZERO,
            };
            assert_eq!(each_rule_hit(rules, &end).is_ok(), good, "{rules}: {output}");
        }
    }
}
