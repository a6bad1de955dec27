//! An administrator's session on a veth of this network namespace: links come and go, addresses and states are followed,
//! programs hear of it, and outputs are those of the tools that people know.

use std::collections::BTreeSet;
mod classes;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Bed;
use super::cli::{ip, restart, says};
use ferroce_harness::job::{self, Job};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// How long a change may take to be seen, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(20);

/// On a veth pair `s0`, `s1`, which goes afterwards.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let made = ip(bed, "link add s0 type veth peer name s1")
        .and_then(|()| ip(bed, "addr add 10.82.0.1/24 dev s0"))
        .and_then(|()| ip(bed, "link set s0 up"))
        .and_then(|()| ip(bed, "link set s1 up"));
    if let Err(error) = made {
        checks.skip("links", &format!("no veth here: {error:#}"));
        return Ok(());
    }
    says(bed, "link add rxe0 type rxe netdev s0", 0, "")?;
    let reference = std::fs::read_to_string(tree::reference("rdma_link.txt"))?;
    checks.check("formats of rdma(8)", formats(bed, &reference));
    checks.check("a session that a program watches", session(bed));
    for kind in ["macvlan", "vlan"] {
        match ip(bed, &above(kind)) {
            Ok(()) => checks.check(&format!("a {kind} above a link"), upper(bed)),
            Err(error) => checks.skip(kind, &format!("{error:#}; in the guest's kernel instead")),
        }
    }
    checks.check("settings", settings(bed));
    let done = others(bed, checks);
    checks.check("links on netdevs of other kinds", done);
    for (words, code, part) in REFUSALS {
        checks.check(
            &format!("ferroce {words}"),
            says(bed, words, *code, part).and_then(|said| one_sentence(&said)),
        );
    }
    checks.check("nothing of what was refused is there", untouched(bed));
    classes::check(bed, checks)?;
    checks.check("the netdev goes, and the device with it", goes(bed));
    restart()
}

/// `ip` words that make `u0` above `s0`.
fn above(kind: &str) -> String {
    let more = if kind == "vlan" { " id 5" } else { "" };
    format!("link add link s0 name u0 type {kind}{more}")
}

/// Waits until `ferroce WORDS` prints what is wanted.
pub(super) fn until(bed: &Bed, words: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let text = says(bed, words, 0, "")?;
        if wanted(&text) {
            return Ok(text);
        }
        ensure!(Instant::now() < deadline, "ferroce {words} still says\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A script by its own name.
fn script(bed: &Bed, line: &str) -> Result<String> {
    let mut words = line.split(' ');
    let mut command = Command::new(bed.dist.bin(words.next().unwrap_or_default()));
    command.args(words);
    let ended = job::run(command, &bed.logs.path(line), LIMIT)?;
    ensure!(ended.ok(), "{}", ended.describe());
    Ok(ended.output)
}

/// The output of a command in the text of the reference.
fn output_in(reference: &str, command: &str) -> Result<String> {
    let lines = reference.lines().skip_while(|line| *line != command).skip(1);
    let body: Vec<&str> = lines.take_while(|line| !line.starts_with("$ ") && !line.is_empty()).collect();
    ensure!(!body.is_empty(), "the reference has no '{command}'");
    Ok(body.join("\n"))
}

fn formats(bed: &Bed, reference: &str) -> Result<()> {
    // Until duplicate detection is over there is one GID less, which has no part in this.
    for (theirs, ours) in [("rdma link show", "link show rxe0"), ("rdma -d link show", "-d link show rxe0")] {
        let said = says(bed, ours, 0, "")?;
        let known = output_in(reference, &format!("$ {theirs}"))?;
        let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let (mut known, mut said) = (words(&known), words(&said));
        for (place, _) in
            known.clone().iter().enumerate().filter(|(_, word)| *word == "netdev" || *word == "netdev_index")
        {
            // Of another host.
            known.get_mut(place + 1).map(String::clear);
            said.get_mut(place + 1).map(String::clear);
        }
        ensure!(said == known, "{ours} says {said:?}, {theirs} {known:?}");
    }
    let keys = |text: &str| -> Result<Vec<String>> {
        let all: Vec<&str> = text.split('"').collect();
        let pairs = all.windows(2).filter(|pair| pair[1].trim_start().starts_with(':'));
        Ok(pairs.map(|pair| pair[0].to_owned()).collect())
    };
    let known = output_in(reference, "$ rdma -d -j -p link show")?;
    let said = says(bed, "-d -j -p link show rxe0", 0, "")?;
    ensure!(keys(&said)? == keys(&known)?, "keys of {said} and {known}");
    let json: Value = serde_json::from_str(&said)?;
    ensure!(json.pointer("/0/state") == Some(&"ACTIVE".into()), "{said}");
    let known = output_in(reference, "$ rdma -d dev show")?;
    let said = says(bed, "-d dev show rxe0", 0, "node_type ca")?;
    let labels = |text: &str| -> BTreeSet<String> {
        ["node_type", "node_guid", "sys_image_guid", "adaptive-moderation", "caps:"]
            .iter()
            .filter(|label| text.contains(**label))
            .map(|label| (*label).to_owned())
            .collect()
    };
    ensure!(labels(&known).is_subset(&labels(&said)), "{said}\n{known}");
    let said = says(bed, "system show", 0, "")?;
    ensure!(said == "netns exclusive copy-on-fork on\n", "{said}");
    let lines = script(bed, "ibdev2netdev")?;
    ensure!(lines.starts_with("rxe0 port 1 ==> s0 (Up)\n"), "{lines}");
    Ok(())
}

/// Waits until a watcher has told of an event so many times.
fn hears(watch: &mut Job, event: &str, times: usize) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while watch.output().matches(event).count() < times {
        ensure!(!watch.ended(), "the watcher ended: {}", watch.output());
        ensure!(Instant::now() < deadline, "{times} times {event} wanted:\n{}", watch.output());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Addresses, MTU and carrier change while `ibv_asyncwatch` watches; it hears of each, and of the end.
fn session(bed: &Bed) -> Result<()> {
    let mut command = bed.ours("stdbuf");
    command.arg("-oL").arg(bed.programs.find("ibv_asyncwatch").context("ibv_asyncwatch is missing")?);
    command.args(["-d", "rxe0"]);
    let mut watch = Job::start(command, &bed.logs.path("asyncwatch"), Duration::from_secs(120))?;
    hears(&mut watch, "async event FD", 1)?;
    let has = |address: &str| format!(" gid {address} type RoCE v2 netdev s0\n");
    ip(bed, "addr add 10.82.0.7/24 dev s0")?;
    let text = until(bed, "gid show rxe0", |text| text.contains(&has("::ffff:10.82.0.7")))?;
    ensure!(text.contains("index 1 gid ::ffff:10.82.0.1 "), "IPv4 is not at index 1:\n{text}");
    let index = |text: &str| -> Option<String> {
        let line = text.lines().find(|line| line.contains("::ffff:10.82.0.7"))?;
        line.split(' ').nth(3).map(str::to_owned)
    };
    let first = index(&text);
    hears(&mut watch, "IBV_EVENT_GID_CHANGE", 1)?;
    ip(bed, "addr del 10.82.0.7/24 dev s0")?;
    until(bed, "gid show rxe0", |text| !text.contains("10.82.0.7"))?;
    ip(bed, "addr add fd82::1/64 dev s0 nodad")?;
    ip(bed, "addr add 10.82.0.7/24 dev s0")?;
    let both = |text: &str| text.contains(&has("fd82::1")) && text.contains("10.82.0.7");
    let text = until(bed, "gid show rxe0", both)?;
    ensure!(index(&text) == first, "who comes back finds its index {first:?}:\n{text}");
    let gids = script(bed, "show_gids rxe0")?;
    let row = "rxe0\t1\t1\t0000:0000:0000:0000:0000:ffff:0a52:0001\t10.82.0.1  \tv2\ts0\n";
    ensure!(gids.contains(row) && gids.starts_with("DEV\tPORT\tINDEX\tGID\t"), "{gids}");
    ip(bed, "link set s0 mtu 4200")?;
    until(bed, "run -- ibv_devinfo -d rxe0", |text| text.contains("active_mtu:\t\t4096 (5)"))?;
    ip(bed, "link set s1 down")?;
    hears(&mut watch, "IBV_EVENT_PORT_ERR", 1)?;
    until(bed, "link show rxe0", |text| text.contains("state DOWN physical_state POLLING"))?;
    ip(bed, "link set s1 up")?;
    hears(&mut watch, "IBV_EVENT_PORT_ACTIVE", 1)?;
    ip(bed, "link set s0 down")?;
    hears(&mut watch, "IBV_EVENT_PORT_ERR", 2)?;
    until(bed, "link show rxe0", |text| text.contains("state DOWN physical_state DISABLED"))?;
    ip(bed, "link set s0 up")?;
    hears(&mut watch, "IBV_EVENT_PORT_ACTIVE", 2)?;
    // The device is the same under another name, and its program goes on.
    says(bed, "dev set rxe0 name rxe7", 0, "")?;
    says(bed, "link show rxe7", 0, "link rxe7/1 state ACTIVE")?;
    says(bed, "dev set rxe7 name rxe0", 0, "")?;
    let changes = watch.output().matches("IBV_EVENT_GID_CHANGE").count();
    says(bed, "dev set rxe0 roce off", 0, "")?;
    ensure!(says(bed, "gid show rxe0", 0, "")?.is_empty(), "GIDs are there without RoCE");
    hears(&mut watch, "IBV_EVENT_GID_CHANGE", changes + 1)?;
    says(bed, "dev set rxe0 roce on", 0, "")?;
    ensure!(!watch.output().contains("FATAL"), "{}", watch.output());
    says(bed, "link delete rxe0", 0, "")?;
    hears(&mut watch, "IBV_EVENT_DEVICE_FATAL", 1)?;
    watch.signal(nix::sys::signal::Signal::SIGTERM);
    watch.wait()?;
    says(bed, "link add rxe0 type roce netdev s0", 0, "").map(drop)
}

/// `u0` is above `s0`: its addresses are the link's, and go with it.
fn upper(bed: &Bed) -> Result<()> {
    ip(bed, "addr add 10.83.0.1/24 dev u0")?;
    ip(bed, "link set u0 up")?;
    let row = "gid ::ffff:10.83.0.1 type RoCE v2 netdev u0\n";
    until(bed, "gid show rxe0", |text| text.contains(row))?;
    let gids = script(bed, "show_gids")?;
    ensure!(gids.contains("\t10.83.0.1  \tv2\tu0\n"), "{gids}");
    ip(bed, "link del u0")?;
    until(bed, "gid show rxe0", |text| !text.contains("10.83.0.1")).map(drop)
}

fn settings(bed: &Bed) -> Result<()> {
    says(bed, "link set rxe0 mtu 512 cm-tos 0x60 ttl 9", 0, "")?;
    says(bed, "-d link show rxe0", 0, " cm-tos 96 mtu 512 ttl 9\n")?;
    says(bed, "run -- ibv_devinfo -d rxe0", 0, "active_mtu:\t\t512 (2)")?;
    restart()?;
    says(bed, "-d link show rxe0", 0, " cm-tos 96 mtu 512 ttl 9\n")?;
    says(bed, "link set rxe0 mtu -1 cm-tos 0 ttl -1", 0, "")?;
    says(bed, "link set rxe0 crc off", 0, "")?;
    says(bed, "status", 0, "WARNING: link rxe0/1 does NOT check the ICRC")?;
    says(bed, "link set rxe0 crc on", 0, "")?;
    let text = says(bed, "-d link show rxe0", 0, "")?;
    ensure!(!text.contains("crc") && !text.contains("ttl"), "{text}");
    Ok(())
}

/// Where the kernel has them; what it has not is skipped.
fn others(bed: &Bed, checks: &mut Checks) -> Result<()> {
    for kind in [
        "link add o0 type bridge",
        "tuntap add o0 mode tun",
        "tuntap add o0 mode tap",
        "link add o0 type dummy",
    ] {
        if let Err(error) = ip(bed, kind) {
            checks.skip(kind, &format!("{error:#}"));
            continue;
        }
        ip(bed, "addr add 10.84.0.1/24 dev o0")?;
        ip(bed, "link set o0 up")?;
        says(bed, "link add fr9 type roce netdev o0 --no-persist", 0, "")?;
        until(bed, "gid show fr9", |text| {
            text.contains("index 1 gid ::ffff:10.84.0.1 type RoCE v2 netdev o0\n")
        })?;
        let text = says(bed, "dev show fr9", 0, " node_guid ")?;
        ensure!(!text.contains("node_guid 0000:0000:0000:0000"), "{text}");
        ip(bed, "link del o0")?;
        until(bed, "link show", |text| !text.contains("fr9"))?;
    }
    Ok(())
}

/// Refused commands: words, exit status, part of the message.
const REFUSALS: &[(&str, i32, &str)] = &[
    ("link add fr5 type roce netdev nonesuch", 1, "there is no network interface \"nonesuch\"; there are: "),
    ("link add rxe0 type roce netdev s1", 1, "a device named rxe0 exists already"),
    ("link add fr5 type roce netdev s0", 1, "s0 has the RoCE device rxe0 already"),
    ("link add -x type roce netdev s1", 2, "unexpected argument"),
    ("link add a/b type roce netdev s1", 2, "'a/b' is no name of a device"),
    ("link delete nonesuch", 1, "there is no device named nonesuch"),
    ("link delete fr0", 1, "fr0 is the device that is always there"),
    ("link set nonesuch ttl 9", 1, "there is no device named nonesuch"),
    ("link set rxe0/2 ttl 9", 1, "rxe0 has no port 2"),
    ("link set rxe0 tclass 256", 2, "tclass is 0 to 255, or -1 for none, not '256'"),
    ("link set rxe0 ttl 9 roce-mode v3", 2, "roce-mode is v1, v2 or both, not 'v3'"),
    ("link set rxe0 ttl 9 cm-mode v1", 1, "rxe0: it has no RoCE v1 GIDs; roce-mode both makes them"),
    ("link tc rxe0 add tclass=16 src=10.82.0.1/33", 2, "src is '10.82.0.1/33': not an address"),
    ("link tc rxe0 add tclass=16 dst=10.82.0", 2, "dst is '10.82.0': not an address"),
    ("link tc rxe0 add tclass=300 dst=10.82.0.2", 2, "tclass is 0 to 255"),
    ("link tc rxe0 add tclass=-1 dst=10.99.0.0/16", 1, "rxe0: it has no rule for src=any dst=10.99.0.0/16"),
    ("dev set rxe0 name fr0", 1, "a device named fr0 exists already"),
    ("dev set rxe0 roce maybe", 2, "roce is on or off, not 'maybe'"),
    ("dev show nonesuch", 1, "no device is called nonesuch"),
];

/// Of usage, clap says more than that.
fn one_sentence(said: &str) -> Result<()> {
    let lines = said.lines().take_while(|line| !line.is_empty()).count();
    ensure!(lines == 1, "not one sentence:\n{said}");
    Ok(())
}

fn untouched(bed: &Bed) -> Result<()> {
    let text = says(bed, "-d link show", 0, "")?;
    ensure!(text.lines().count() == 2 && !text.contains("ttl") && !text.contains("tc"), "{text}");
    Ok(())
}

/// Configured for `s0`, which goes.
fn goes(bed: &Bed) -> Result<()> {
    ip(bed, "link del s0")?;
    until(bed, "link show", |text| !text.contains("rxe0"))?;
    // The link that waits for its netdev is still configured, and can be forgotten, once.
    says(bed, "link delete rxe0", 0, "")?;
    says(bed, "link delete rxe0", 1, "there is no device named rxe0").map(drop)
}
