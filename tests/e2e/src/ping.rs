//! `ferroce ping HOST` and `ferroce doctor HOST` between two network namespaces: each obstacle is named.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::Bed;
use ferroce_harness::iwarp::net::Namespace;
use ferroce_harness::job::{self, Ended, Job};
use ferroce_harness::netns;
use ferroce_harness::place::Place;
use ferroce_harness::report::Checks;

const LIMIT: Duration = Duration::from_secs(60);
const TRIES: usize = 10;
const HOST: &str = "10.80.0.2";

/// Obstacles: a name, whether the rule is at the far end, its hook, the rule, and the words of the finding.
const FILTERS: [(&str, bool, &str, &str, &str); 5] = [
    ("a filter that drops", true, "input", "udp dport 4791 drop", "UDP port 4791 is silent"),
    (
        "a filter that rejects",
        true,
        "input",
        "udp dport 4791 reject with icmp type admin-prohibited",
        "a packet filter at 10.80.0.2 rejects",
    ),
    ("a filter that drops everything", true, "input", "drop", "nothing comes back"),
    ("a filter here", false, "output", "udp dport 4791 drop", "a packet filter at 10.80.0.1 rejects"),
    (
        "a translated address",
        false,
        "prerouting",
        "udp dport 4791 ip saddr set 10.80.0.7",
        "that ferroced refused arrived meanwhile",
    ),
];

/// Without RoCE there, with it, with an end that does the operations, and with obstacles on the way.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let place = match Place::cut(&bed.programs) {
        Ok(place) => place,
        Err(why) => {
            checks.skip("ping", &format!("no second namespace behind a veth here: {why:#}"));
            return Ok(());
        }
    };
    let wire = Wire { bed, place };
    // The kernel would leave out errors of ICMP after some pings.
    wire.sh(true, "echo 0 > /proc/sys/net/ipv4/icmp_ratelimit")?;
    checks.check("no link here", wire.says("ping 10.80.0.2", 1, &["error    route", "ferroce link add"]));
    wire.must(false, "link add fr1 type roce netdev va --no-persist")?;
    let nobody = wire.says("ping 10.80.0.2", 1, &["nobody there has UDP port 4791", "payload arrive"]);
    checks.check("no RoCE there", nobody);
    checks.check("no host", wire.says("ping 10.80.0.9", 1, &["no host answers at 10.80.0.9"]));
    checks.check("no such name", wire.says("ping nonesuch.invalid", 1, &["has no address"]));
    wire.must(true, "link add fr1 type roce netdev vb --no-persist")?;
    let answers =
        ["ok       answer", "10 of 10 requests", "with 4096 octets of payload arrive", "were not tried"];
    checks.check("RoCE there", wire.says_at_last("ping 10.80.0.2", &answers));
    checks.check("every operation", operations(&wire));
    checks.check("small MTU there", small_mtu(&wire));
    if bed.programs.find("nft").is_none() {
        checks.skip("packet filters", "there is no nft");
    } else {
        for (what, far, hook, rule, part) in FILTERS {
            checks.check(what, filtered(&wire, far, hook, rule, part));
        }
    }
    checks.check("a router and hop_limit 1", routed(&wire));
    checks.check("RoCE there again", wire.says_at_last("doctor 10.80.0.2", &["ok       answer", "10 of 10"]));
    for far in [true, false] {
        wire.must(far, "link del fr1 --no-persist")?;
    }
    Ok(())
}

struct Wire<'a> {
    bed: &'a Bed,
    place: Place,
}

impl Wire<'_> {
    /// `ferroce` at the far end or at ours.
    fn command(&self, far: bool, words: &str) -> Command {
        let mut command = self.place.command(far);
        command.arg(self.bed.dist.bin("ferroce")).args(words.split(' '));
        command
    }

    fn run(&self, far: bool, words: &str) -> Result<Ended> {
        job::run(self.command(far, words), &self.bed.logs.path(&format!("ping {far} {words}")), LIMIT)
    }

    fn must(&self, far: bool, words: &str) -> Result<()> {
        let ended = self.run(far, words)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(())
    }

    fn says(&self, words: &str, code: i32, parts: &[&str]) -> Result<()> {
        let ended = self.run(false, words)?;
        ensure!(
            ended.status.and_then(|s| s.code()) == Some(code),
            "wanted exit {code}: {}",
            ended.describe()
        );
        for part in parts {
            ensure!(ended.output.contains(part), "wanted '{part}': {}", ended.describe());
        }
        Ok(())
    }

    /// As [`Self::says`] with success, in one of some tries: on a busy machine not all answers are in time.
    fn says_at_last(&self, words: &str, parts: &[&str]) -> Result<()> {
        (1..TRIES)
            .find_map(|_| self.says(words, 0, parts).ok())
            .map_or_else(|| self.says(words, 0, parts), Ok)
    }

    /// A command of the shell, with the folders of administrators' programs.
    fn sh(&self, far: bool, script: &str) -> Result<()> {
        let mut command = self.place.command(far);
        command.args(["sh", "-c", &format!("PATH=$PATH:/usr/sbin:/sbin; {script}")]);
        let output = command.output()?;
        ensure!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }
}

/// The far end is a router to a host beyond. With hop_limit 1 no packet comes there. The hop limit is the link's or the
/// route's, as in Linux, whatever the program says: `ibv_rc_pingpong` says 1.
fn routed(wire: &Wire<'_>) -> Result<()> {
    let Some(pingpong) = wire.bed.programs.find("ibv_rc_pingpong") else { return Ok(()) };
    let beyond = Namespace::new(&wire.bed.programs)?;
    wire.sh(true, &format!("ip link add r0 type veth peer name r1 netns {}", beyond.pid()))?;
    wire.sh(
        true,
        "ip link set r0 up; ip addr add 10.81.0.1/24 dev r0; echo 1 > /proc/sys/net/ipv4/ip_forward",
    )?;
    for line in ["ip link set r1 up", "ip addr add 10.81.0.2/24 dev r1", "ip route add default via 10.81.0.1"]
    {
        beyond.run(line)?;
    }
    wire.sh(false, "ip route add 10.81.0.0/24 via 10.80.0.2")?;
    let ferroce = wire.bed.dist.bin("ferroce");
    let run = |mut command: Command, words: &[&str]| {
        command.arg(&ferroce).args(words);
        job::run(command, &wire.bed.logs.path(&format!("routed {}", words.join(" "))), LIMIT)
    };
    let link =
        run(beyond.command(), &["link", "add", "fr1", "type", "roce", "netdev", "r1", "--no-persist"])?;
    ensure!(link.ok(), "{}", link.describe());
    let pingpong = pingpong.display().to_string();
    let words = ["run", "--no-sysfs", "--", &pingpong, "-d", "fr1", "-g", "1"];
    let mut server = beyond.command();
    server.arg(&ferroce).args(words);
    let mut server = Job::start(server, &wire.bed.logs.path("routed server"), LIMIT)?;
    netns::until("the server listens", || beyond.listens(18515) || server.ended())?;
    wire.must(false, "link set fr1 ttl 1 --no-persist")?;
    let client = run(wire.place.command(false), &[&words[..], &["10.81.0.2"]].concat());
    wire.must(false, "link set fr1 ttl -1 --no-persist")?;
    let client = client?;
    let hint = "the peer never answered, and hop_limit is 1: no router passes such packets on";
    ensure!(!client.ok() && client.output.contains(hint), "{}", client.describe());
    server.signal(Signal::SIGTERM);
    server.wait()?;
    Ok(())
}

/// The far end answers until it is interrupted, two pings in turn.
fn operations(wire: &Wire<'_>) -> Result<()> {
    let mut serve =
        Job::start(wire.command(true, "ping --serve"), &wire.bed.logs.path("ping --serve"), LIMIT)?;
    netns::until("the far end answers", || serve.output().contains("answers") || serve.ended())?;
    for _ in 0..2 {
        let ended = wire.run(false, "-j ping 10.80.0.2")?;
        ensure!(ended.ok(), "{}", ended.describe());
        let findings: Value = serde_json::from_str(&ended.output)?;
        let findings = findings.as_array().context("no array")?;
        let text =
            |finding: &Value, key| finding.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (last, others) = findings.split_last().context("no findings")?;
        let all = others.len() == 11 && others.iter().all(|finding| text(finding, "state") == "ok");
        // How often packets were sent again depends on the machine.
        ensure!(all && text(last, "check") == "way", "{}", ended.describe());
        ensure!(!text(last, "found").starts_with("0 packets"), "{}", ended.describe());
    }
    ensure!(!serve.ended(), "it ended: {}", serve.output());
    serve.signal(Signal::SIGINT);
    netns::until("the far end ends", || serve.ended())
}

/// A veth drops a frame that is larger than the other side's MTU, and nobody tells.
fn small_mtu(wire: &Wire<'_>) -> Result<()> {
    wire.sh(true, "ip link set vb mtu 1500")?;
    let lost = ["with 4096 octets of payload are lost without an error; those with 1024 arrive", "mtu 1024"];
    let said = wire.says("ping 10.80.0.2", 1, &lost);
    wire.sh(true, "ip link set vb mtu 4200")?;
    said
}

/// A ping with one rule of the packet filter.
fn filtered(wire: &Wire<'_>, far: bool, hook: &str, rule: &str, part: &str) -> Result<()> {
    let chain = format!("add chain inet ping c {{ type filter hook {hook} priority 0; }}");
    wire.sh(far, &format!("nft 'add table inet ping; {chain}; add rule inet ping c {rule}'"))?;
    let said = wire.says(&format!("ping {HOST}"), 1, &["error    ", part]);
    wire.sh(far, "nft delete table inet ping")?;
    said
}
