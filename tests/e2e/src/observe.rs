//! The administrator's view: counters, objects of all programs, the files of `ferroce run --sysfs`.

pub(super) mod capture;
mod explain;
mod parts;
mod watch;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use self::parts::{PATIENCE, ferroce, rping, wait};
use super::Bed;
use super::nobody::Nobody;
use ferroce_harness::cc;
use ferroce_harness::exchange::{self, Exchange};
use ferroce_harness::job::{self, Ended, Job};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// How our tree differs from that of the kernel's rxe: what a path begins with, and words of docs/book/src/sysfs.md that explain it.
const EXPLAINED: &[(&str, &str)] = &[
    ("./power", "`power/`"),
    ("./device", "`device`"),
    ("./.fr0", "`device`"),
    ("./ports/1/counters", "`counters/`"),
    ("./ports/1/hw_counters/", "`hw_counters/`"),
];

/// On `fr0`.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    if bed.programs.find("rping").is_some() {
        checks.check("statistic and resource", programs(bed));
    } else {
        checks.skip("statistic and resource", "rping is not here");
    }
    watch::check(bed, checks)?;
    checks.check("bad words", refusals(bed));
    explain::check(bed, checks);
    capture::check(bed, checks)?;
    if bed.programs.find("perfquery").is_some() {
        checks.check("perfquery of the local port", perfquery(bed));
    } else {
        checks.skip("perfquery of the local port", "perfquery is not here");
    }
    let tried = with_sysfs(bed, "true")?;
    if tried.output.contains("--sysfs is not possible here") {
        checks.skip("run --sysfs", tried.output.trim());
        return Ok(());
    }
    ensure!(tried.ok(), "{}", tried.describe());
    checks.check("the tree is that of rxe", same_tree(bed, &tree::reference("sysfs_tree.txt")));
    if Path::new("/sys/class/infiniband").exists() {
        checks.skip("files from memory", "this host has devices of its own, whose files come first");
    } else {
        checks.check("files from memory", from_memory(bed));
    }
    checks.check("the files of peer memory", peer_memory(bed));
    checks.check("everything agrees", agrees(bed));
    checks.check("counters in files are live", live(bed));
    ucx(bed, checks)?;
    checks.check("the keeper is nobody's child and ends", keeper(bed));
    checks.check("two programs of an ordinary user share a user namespace", namespace(bed));
    Ok(())
}

/// NCCL and others look for them before they register memory of a GPU.
fn peer_memory(bed: &Bed) -> Result<()> {
    for file in ["/sys/module/nvidia_peermem/version", "/sys/kernel/mm/memory_peers/nv_mem/version"] {
        if Path::new(file).exists() {
            continue;
        }
        for (value, there) in [("on", true), ("off", false)] {
            let mut command = Command::new(bed.dist.bin("ferroce"));
            command.args(["run", "--sysfs", "--", "cat", file]).env("FERROCE_GPU", value);
            let ended = job::run(command, &bed.logs.path("run --sysfs with a GPU"), PATIENCE)?;
            let is = ended.ok() && ended.output.trim().starts_with("ferroce ");
            ensure!(is == there, "{file}, {value}: {}", ended.describe());
        }
    }
    Ok(())
}

/// Otherwise neither could copy directly to the other's memory.
fn namespace(bed: &Bed) -> Result<()> {
    let nobody = Nobody::new(bed, "ferroce-observe")?;
    let command = |script: &str| {
        let mut command = nobody.command(Path::new("/bin/sh"));
        command.args(["-c", script]);
        command
    };
    let log = |name: &str| bed.logs.path(&format!("namespace {name}"));
    let first = Job::start(command("readlink /proc/self/ns/user; sleep 30"), &log("first"), PATIENCE)?;
    wait("the first program", || Ok(first.output().contains("user:")))?;
    let second = job::run(command("readlink /proc/self/ns/user"), &log("second"), PATIENCE)?;
    ensure!(second.ok() && first.output() == second.output, "{}: {}", second.describe(), first.output());
    Ok(())
}

fn json(bed: &Bed, words: &str) -> Result<Vec<Value>> {
    let ended = ferroce(bed, &format!("-j {words}"))?;
    ensure!(ended.ok(), "{}", ended.describe());
    serde_json::from_str(&ended.output).with_context(|| ended.output.clone())
}

/// `ferroce run --sysfs -- sh -c SCRIPT`
fn with_sysfs(bed: &Bed, script: &str) -> Result<Ended> {
    let mut command = Command::new(bed.dist.bin("ferroce"));
    command.args(["run", "--sysfs", "--", "sh", "-c", script]);
    job::run(command, &bed.logs.path("run --sysfs"), PATIENCE)
}

fn number(row: &Value, key: &str) -> u64 {
    row.get(key).and_then(Value::as_u64).unwrap_or(0)
}

fn programs(bed: &Bed) -> Result<()> {
    let counted = |name: &str| -> Result<u64> {
        Ok(json(bed, "-d statistic show link fr0/1")?.first().map_or(0, |row| number(row, name)))
    };
    let before = counted("rcvd_pkts")?;
    let (server, client) = rping(bed)?;
    let running = |bed: &Bed| -> Result<Vec<Value>> { json(bed, "resource show qp type RC state RTS") };
    wait("two queue pairs", || Ok(running(bed)?.len() == 2))?;
    let pairs = running(bed)?;
    let (a, b) = (&pairs[0], &pairs[1]);
    ensure!(a["lqpn"] == b["rqpn"] && a["rqpn"] == b["lqpn"] && a["pid"] != b["pid"], "{pairs:?}");
    for key in ["ifindex", "ifname", "port", "rq-psn", "sq-psn", "path-mig-state", "pdn", "comm"] {
        ensure!(a.get(key).is_some(), "no {key} in {a}");
    }
    ensure!(a["comm"] == "rping", "{a}");
    for (kind, least) in [("pd", 2), ("cq", 2), ("mr", 4), ("ctx", 2), ("qp", 2)] {
        let rows = json(bed, &format!("resource show {kind}"))?;
        ensure!(rows.len() >= least, "{kind}: {rows:?}");
        ensure!(rows.iter().all(|row| number(row, "pid") > 0), "{kind}: {rows:?}");
        let summary = json(bed, "resource show fr0")?;
        ensure!(summary.len() == 1 && number(&summary[0], kind) >= least as u64, "{summary:?}");
    }
    let ids = json(bed, "resource show cm_id")?;
    let of = |state: &str| {
        ids.iter().filter(|id| id["state"] == state && id["ps"] == "TCP" && id["comm"] == "rping").count()
    };
    ensure!(of("LISTEN") == 1 && of("CONNECT") == 2, "{ids:?}");
    let connected: Vec<_> = ids.iter().filter(|id| id["state"] == "CONNECT").collect();
    ensure!(connected[0]["src-addr"] == connected[1]["dst-addr"], "{ids:?}");
    ensure!(connected.iter().all(|id| pairs.iter().any(|pair| pair["lqpn"] == id["lqpn"])), "{ids:?}");
    let text = ferroce(bed, &format!("res sh qp link fr0/1 lqpn {}", a["lqpn"]))?.output;
    ensure!(text.starts_with("link fr0/1 lqpn ") && text.contains(" type RC state RTS rq-psn "), "{text}");
    ensure!(text.lines().count() == 1 && text.trim_end().ends_with(" comm rping"), "{text}");
    wait("packets", || Ok(counted("rcvd_pkts")? > before + 100))?;
    let pairs = json(bed, "stat qp show")?;
    ensure!(pairs.iter().filter(|row| number(row, "rdma_sends") > 0).count() == 2, "{pairs:?}");
    // A stopped program is listed, too.
    server.signal(Signal::SIGSTOP);
    let stopped = json(bed, "resource show qp")?.len();
    ensure!(stopped == 2, "{stopped} queue pairs while the server is stopped");
    server.signal(Signal::SIGCONT);
    let seen = counted("rcvd_pkts")?;
    drop((server, client));
    wait("no queue pairs", || Ok(json(bed, "resource show qp type RC")?.is_empty()))?;
    let after = counted("rcvd_pkts")?;
    ensure!(after >= seen, "{after} packets after their programs were killed, {seen} before");
    let row = &json(bed, "statistic")?[0];
    ensure!(row.as_object().is_some_and(|row| row.len() == 17), "rxe has 15 counters: {row}");
    Ok(())
}

/// Counters of the port by management datagrams, and what goes to another one.
fn perfquery(bed: &Bed) -> Result<()> {
    let ask = |args: &[&str]| {
        let mut command = bed.ours("perfquery");
        command.args(args);
        job::run(command, &bed.logs.path("perfquery"), PATIENCE)
    };
    // Until nothing is sent between the two any more.
    wait("the same from both", || {
        let said = ask(&[])?;
        let value = |name: &str| -> Option<u64> {
            let line = said.output.lines().find(|line| line.starts_with(&format!("{name}:")))?;
            line.rsplit('.').next()?.parse().ok()
        };
        let counted = json(bed, "statistic show link fr0")?;
        ensure!(said.ok() && value("PortSelect") == Some(1), "{}", said.describe());
        let same = |theirs: &str, ours: &str| value(theirs) == Some(number(&counted[0], ours));
        Ok(same("PortRcvPkts", "rcvd_pkts") && same("PortXmitPkts", "sent_pkts"))
    })?;
    let wide = ask(&["-x"])?;
    ensure!(wide.ok() && wide.output.contains("PortXmitPkts:"), "{}", wide.describe());
    let elsewhere = ask(&["5", "1"])?;
    ensure!(!elsewhere.ok() && elsewhere.output.contains("Invalid argument"), "{}", elsewhere.describe());
    Ok(())
}

fn refusals(bed: &Bed) -> Result<()> {
    for (words, code, part) in [
        ("statistic show link fr9", 1, "no device is called fr9"),
        ("statistic show link fr0/2", 1, "no port 2"),
        ("statistic show fr0", 2, "needs a value"),
        ("statistic qp bogus 3", 2, "'bogus' was not expected"),
        (
            "resource show bogus",
            1,
            "no device is called bogus (see `ferroce dev show`), and no kind of objects: there are pd",
        ),
        ("resource show qp bogus 3", 2, "'bogus' was not expected"),
        ("resource show qp link", 1, "no device is called link"),
    ] {
        let ended = ferroce(bed, words)?;
        let status = ended.status.and_then(|status| status.code());
        ensure!(
            status == Some(code) && ended.output.contains(part),
            "wanted {code} '{part}': {}",
            ended.describe()
        );
    }
    Ok(())
}

/// Paths below a device but the entries of tables.
fn paths(listing: &str) -> BTreeSet<&str> {
    let entry =
        |path: &&str| path.rsplit('/').next().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()));
    listing.lines().filter(|path| path.starts_with("./")).filter(|path| !entry(path)).collect()
}

fn same_tree(bed: &Bed, reference: &Path) -> Result<()> {
    let reference = std::fs::read_to_string(reference)?;
    let ended = with_sysfs(bed, "cd /sys/class/infiniband/fr0 && find . | sort")?;
    ensure!(ended.ok(), "{}", ended.describe());
    let (theirs, ours) = (paths(&reference), paths(&ended.output));
    let page = std::fs::read_to_string(tree::root().join("docs/book/src/sysfs.md"))?;
    for path in theirs.symmetric_difference(&ours) {
        let explained = EXPLAINED.iter().find(|(start, _)| path.starts_with(start));
        let word = explained.with_context(|| format!("{path} is in one of the trees alone"))?.1;
        ensure!(page.contains(word), "docs/book/src/sysfs.md does not explain {path}: no {word}");
    }
    // Every name that rxe has is there.
    let missing: Vec<_> = theirs.difference(&ours).filter(|path| !path.starts_with("./power")).collect();
    ensure!(missing.is_empty(), "{missing:?}");
    let entries =
        with_sysfs(bed, "cd /sys/class/infiniband/fr0/ports/1 && ls gids gid_attrs/types gid_attrs/ndevs")?;
    let count = entries.output.lines().filter(|line| line.parse::<u16>().is_ok()).count();
    ensure!(count == 3 * 1024, "{count} entries of the GID tables");
    Ok(())
}

/// `ibv_read_sysfs_file`, which needs no file, answers with the content of the files.
fn from_memory(bed: &Bed) -> Result<()> {
    let program = cc::ours("sysfs", &bed.dist, &bed.programs)?;
    let listed = with_sysfs(
        bed,
        "cd /sys/class && find $PWD/infiniband $PWD/infiniband_verbs $PWD/infiniband_mad -type f | sort",
    )?;
    ensure!(listed.ok(), "{}", listed.describe());
    let list = bed.logs.path("sysfs paths");
    std::fs::write(&list, &listed.output)?;
    let read = |words: &[&str]| -> Result<Vec<String>> {
        let mut command = Command::new(bed.dist.bin("ferroce"));
        command.arg("run").args(words).arg("--").arg(&program).arg(&list);
        let ended = job::run(command, &bed.logs.path(&format!("sysfs {}", words.concat())), PATIENCE)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output.lines().map(str::to_owned).collect())
    };
    // A file cannot refuse to be read (EINVAL), and is empty instead.
    let same = |file: &str, memory: &str| {
        let empty = file.strip_suffix(" 0 ").is_some_and(|path| memory == format!("{path} -22 "));
        file == memory || empty
    };
    // Until the programs of earlier checks count no more.
    let mut differ = Vec::new();
    wait("the same from files and from memory", || {
        let (files, memory) = (read(&["--sysfs"])?, read(&["--no-sysfs"])?);
        ensure!(
            files.len() == listed.output.lines().count() && files.len() > 3 * 1024,
            "{} files",
            files.len()
        );
        ensure!(files.len() == memory.len(), "{} files, {} answers", files.len(), memory.len());
        let pairs = files.into_iter().zip(memory);
        differ = pairs.filter(|(file, memory)| !same(file, memory)).collect();
        Ok(differ.is_empty())
    })
    .with_context(|| format!("{} differ: {:?}", differ.len(), differ.first()))
}

/// State, rate, GUID and first GID from everything that tells them.
fn agrees(bed: &Bed) -> Result<()> {
    let link = json(bed, "link show fr0")?;
    ensure!(link[0]["state"] == "ACTIVE" && link[0]["physical_state"] == "LINK_UP", "{link:?}");
    let files = with_sysfs(
        bed,
        "cd /sys/class/infiniband/fr0 && cat ports/1/state ports/1/phys_state ports/1/link_layer node_guid ports/1/gids/0 \
         ports/1/gid_attrs/types/0 ports/1/gid_attrs/ndevs/0 ports/1/rate",
    )?;
    let files: Vec<&str> = files.output.lines().collect();
    let [state, physical, layer, guid, gid, kind, netdev, rate] = files[..] else {
        anyhow::bail!("files: {files:?}")
    };
    ensure!((state, physical, layer) == ("4: ACTIVE", "5: LinkUp", "Ethernet"), "{files:?}");
    ensure!((kind, link[0]["netdev"].as_str()) == ("RoCE v2", Some(netdev)), "{files:?} {link:?}");
    let gigabits = rate.split(' ').next().unwrap_or_default();
    let digits: String = guid.chars().filter(|c| *c != ':').collect();
    let dotted = format!("node_guid:\t\t\t{guid}");
    let stat_guid = format!("Node GUID: 0x{digits}");
    let stat_rate = format!("Rate: {gigabits}");
    let script: &[(&str, &[&str])] = &[
        (
            "ibstat",
            &["State: Active", "Physical state: LinkUp", "Link layer: Ethernet", &stat_guid, &stat_rate],
        ),
        ("ibstatus", &[state, physical, rate, gid, layer]),
        ("ibv_devices", &["fr0", &digits]),
        (
            "ibv_devinfo -v",
            &["hca_id:\tfr0", "PORT_ACTIVE (4)", "LINK_UP (5)", "link_layer:\t\tEthernet", &dotted],
        ),
    ];
    for (program, wants) in script {
        if bed.programs.find(program.split(' ').next().unwrap_or_default()).is_none() {
            continue;
        }
        let said = with_sysfs(bed, &format!("PATH=$PATH:/usr/sbin; {program}"))?;
        ensure!(said.ok(), "{}", said.describe());
        for want in *wants {
            ensure!(said.output.contains(want), "no '{want}' in\n{}", said.describe());
        }
    }
    let dev = with_sysfs(
        bed,
        "test -c /dev/infiniband/uverbs0 -a -r /dev/infiniband/uverbs0 && touch /sys/class/infiniband/x",
    )?;
    ensure!(!dev.ok() && dev.output.contains("Read-only"), "{}", dev.describe());
    Ok(())
}

/// A program reads in files what others do meanwhile.
fn live(bed: &Bed) -> Result<()> {
    if bed.programs.find("rping").is_none() {
        return Ok(());
    }
    let (server, client) = rping(bed)?;
    let counter = "/sys/class/infiniband/fr0/ports/1/hw_counters/rcvd_pkts";
    let said = with_sysfs(
        bed,
        &format!(
            "a=$(cat {counter}); while b=$(cat {counter}); [ $b -le $a ]; do sleep 0.1; done; echo $a $b"
        ),
    )?;
    drop((server, client));
    ensure!(said.ok(), "the counter does not move: {}", said.describe());
    Ok(())
}

/// UCX, which wants the files and the device file, by queue pairs that it connects by datagrams.
fn ucx(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let Some(perftest) = bed.programs.find("ucx_perftest") else {
        checks.skip("UCX", "ucx_perftest is not here");
        return Ok(());
    };
    // It looks for the kind of IP header in the completions of datagrams, each family at its own value.
    for (family, address) in [("IPv4", "::ffff:127.0.0.1"), ("IPv6", "::1")] {
        let gids = json(bed, "gid show fr0")?;
        match gids.iter().find(|row| row["gid"] == address).map(|row| number(row, "index")) {
            Some(gid) => ucx_over(bed, checks, &perftest, family, gid)?,
            None => checks.skip(&format!("UCX over {family}"), "lo has no such address here"),
        }
    }
    Ok(())
}

/// Both ways of its exchange over one GID.
fn ucx_over(bed: &Bed, checks: &mut Checks, perftest: &Path, family: &str, gid: u64) -> Result<()> {
    for (test, words) in [("tag_lat", "-s 8 -n 1000"), ("tag_bw", "-s 1000000 -n 50")] {
        let port = bed.port();
        let end = |words: &str| {
            let mut command = Command::new(bed.dist.bin("ferroce"));
            command.args(["run", "--sysfs", "--"]).arg(perftest).args(["-p", &port.to_string()]);
            command.args(words.split_whitespace()).envs([
                ("UCX_TLS", "rc_verbs,ud_verbs:aux"),
                ("UCX_NET_DEVICES", "fr0:1"),
                ("UCX_IB_GID_INDEX", &gid.to_string()),
            ]);
            if let Some((root, dirs)) = bed.programs.unpacked.as_ref().zip(bed.programs.libraries()) {
                let modules = format!("usr/lib/{}-linux-gnu/ucx", std::env::consts::ARCH);
                command.env("LD_LIBRARY_PATH", dirs).env("UCX_MODULE_DIR", root.join(modules));
            }
            command
        };
        let exchange = Exchange {
            name: format!("ucx_perftest {test} over {family}"),
            server: end(""),
            client: end(&format!("-t {test} {words} 127.0.0.1")),
            ready: Box::new(move || exchange::listening(port)),
            limit: PATIENCE,
        };
        exchange.run(&bed.logs, checks)?;
    }
    Ok(())
}

/// A program that waits for all its children ends, whoever reads its output to the end does not wait for the keeper, and
/// no keeper stays, of this check or of those before.
fn keeper(bed: &Bed) -> Result<()> {
    let mut command = Command::new(bed.dist.bin("ferroce"));
    command.args(["run", "--sysfs", "--", "sh", "-c", "cat /proc/$$/task/$$/children"]);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Its only child is the one that reads this.
    let children = text.split_whitespace().count();
    ensure!(output.status.success() && children <= 1, "{}: {text}", output.status);
    let own = std::fs::read_link("/proc/self/ns/net")?;
    let keeps = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        line.starts_with(b"ferroce-sysfs\0")
            && std::fs::read_link(path.join("ns/net")).is_ok_and(|ns| ns == own)
    };
    wait("the keepers' end", || Ok(!std::fs::read_dir("/proc")?.flatten().any(keeps)))
}
