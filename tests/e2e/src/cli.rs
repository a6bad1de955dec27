//! The command `ferroce`: devices and links come and go, as text and as JSON; what cannot be done says why.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Bed;
use ferroce_harness::job::{self, Ended};
use ferroce_harness::report::Checks;
use ferroce_harness::{netns, tree};

/// On a veth of this network namespace.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    checks.check("link show", shows(bed));
    checks.check("status", status(bed));
    checks.check("show_gids and ibdev2netdev", scripts(bed));
    checks.check("ping", ping(bed));
    let made = ip(bed, "link add d0 mtu 4200 type veth peer name d1")
        .and_then(|()| ip(bed, "addr add 10.81.0.1/24 dev d0"))
        .and_then(|()| ip(bed, "link set d0 up"))
        .and_then(|()| ip(bed, "link set d1 up"));
    match made {
        Ok(()) => {
            checks.check("link add and delete", comes_and_goes(bed));
            checks.check("run --netdev", one_view(bed));
            checks.check("ping of a link and by iWARP", ping_of_links(bed));
            checks.check("links outlive the broker", outlives(bed));
            ip(bed, "link del d0")?;
        }
        Err(error) => checks.skip("link add", &format!("no veth here: {error:#}")),
    }
    checks.check("run relays the exit status", statuses(bed));
    checks.check("run gives files and libraries", surroundings(bed));
    checks.check("run with thread-local variables", thread_local_variables(bed));
    checks.check("run avoids a fault of NCCL's and says so", nccl(bed));
    checks.check("run whatever its caller did to itself", callers(bed));
    checks.check("run does not wait for its own words", words_that_nobody_reads(bed));
    checks.check("run --private-net", private(bed));
    Ok(())
}

pub(super) fn ip(bed: &Bed, words: &str) -> Result<()> {
    let mut command = Command::new(bed.programs.find("ip").context("ip is missing")?);
    let output = command.args(words.split(' ')).output()?;
    ensure!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

fn ferroce(bed: &Bed, words: &str) -> Result<Ended> {
    let mut command = Command::new(bed.dist.bin("ferroce"));
    command.args(words.split(' '));
    job::run(command, &bed.logs.path(&format!("ferroce {words}")), Duration::from_secs(60))
}

pub(super) fn says(bed: &Bed, words: &str, code: i32, part: &str) -> Result<String> {
    let ended = ferroce(bed, words)?;
    ensure!(ended.status.and_then(|s| s.code()) == Some(code), "wanted exit {code}: {}", ended.describe());
    ensure!(ended.output.contains(part), "wanted '{part}': {}", ended.describe());
    Ok(ended.output)
}

fn shows(bed: &Bed) -> Result<()> {
    let text = says(bed, "link show", 0, "")?;
    ensure!(text == "link fr0/1 state ACTIVE physical_state LINK_UP netdev lo\n", "{text}");
    says(bed, "l s fr0", 0, "link fr0/1 ")?;
    says(bed, "dev", 0, "0: fr0: node_type ca fw ")?;
    let json: Value = serde_json::from_str(&says(bed, "-j -d link show", 0, "")?)?;
    let netdev = json.pointer("/0/netdev").and_then(Value::as_str);
    ensure!(netdev == Some("lo") && json.pointer("/0/netdev_index") == Some(&Value::from(1)), "{json}");
    says(bed, "link show fr9", 1, "no device is called fr9")?;
    says(bed, "bogus", 2, "unrecognized")?;
    says(bed, "link add fr1 type iwarp netdev lo", 2, "roce")?;
    says(bed, "link add fr1 type roce netdev nix", 1, "nix")?;
    Ok(())
}

/// The lines of a ping between two processes.
const PING: [&str; 10] = [
    "connection",
    "SEND",
    "SEND imm",
    "WRITE",
    "WRITE imm",
    "READ",
    "CMP_SWAP",
    "FETCH_ADD",
    "latency",
    "bandwidth",
];

fn pings(bed: &Bed, words: &str, part: &str, noted: &[&str]) -> Result<()> {
    let json: Value = serde_json::from_str(&says(bed, words, 0, part)?)?;
    let findings = json.as_array().context("no array")?;
    let text = |finding: &Value, key| finding.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let got: Vec<_> =
        findings.iter().map(|finding| (text(finding, "check"), text(finding, "state"))).collect();
    let want =
        PING.map(|check| (check.to_owned(), if noted.contains(&check) { "note" } else { "ok" }.to_owned()));
    ensure!(got == want, "{json}");
    Ok(())
}

/// Over the first device, with a broker that the ping starts, and by a GID.
fn ping(bed: &Bed) -> Result<()> {
    restart()?;
    pings(bed, "-j ping", "fr0 at 127.0.0.1", &[])?;
    pings(bed, "-j ping --device fr0/1 --gid 1", "fr0 at ::1", &[])?;
    says(bed, "ping --gid 7", 1, "fr0 has no GID 7")?;
    says(bed, "ping --device fr9", 1, "no device is called fr9")?;
    Ok(())
}

/// A link of each transport on one interface, whose address is that of both.
fn ping_of_links(bed: &Bed) -> Result<()> {
    says(bed, "link add fr1 type roce netdev d0 --no-persist", 0, "")?;
    says(bed, "link add iw1 type siw netdev d0 --no-persist", 0, "")?;
    for (device, noted) in [("fr1", &[][..]), ("iw1", &["SEND imm"])] {
        pings(bed, &format!("-j ping --device {device}"), &format!("{device} at 10.81.0.1"), noted)?;
    }
    says(bed, "link del fr1", 0, "")?;
    says(bed, "link del iw1", 0, "").map(drop)
}

/// Programs that have loaded NCCL, of whose library any file with its name is a stand-in here.
fn nccl(bed: &Bed) -> Result<()> {
    let folder = bed.logs.path("nccl").with_extension("d");
    let library = folder.join("libnccl.so.2");
    std::fs::create_dir_all(&folder)?;
    std::fs::copy(bed.dist.lib().join("libferroce-audit.so"), &library)?;
    for (own, wanted) in [(None, "2"), (Some("3"), "3")] {
        let mut command = Command::new(bed.dist.bin("ferroce"));
        command
            .args(["run", "--", "sh", "-c", "echo chosen $NCCL_GIN_TYPE; LD_PRELOAD=$0 ibv_devices"])
            .arg(&library);
        command.env_remove("NCCL_GIN_TYPE").envs(own.map(|own| ("NCCL_GIN_TYPE", own)));
        let ended = job::run(command, &bed.logs.path("run with NCCL"), Duration::from_secs(60))?;
        let told = ended.output.matches("has set NCCL_GIN_TYPE=2: NCCL 2.28 crashes without it").count();
        let right = ended.ok() && ended.output.contains(&format!("chosen {wanted}\n"));
        ensure!(right && told == usize::from(own.is_none()), "{own:?}: {}", ended.describe());
    }
    says(bed, "run -- ibv_devices", 0, "fr0").and_then(|said| {
        ensure!(!said.contains("NCCL"), "{said}");
        Ok(())
    })
}

/// Of a broker that runs, and of none, which it does not start.
fn status(bed: &Bed) -> Result<()> {
    restart()?;
    says(bed, "status", 1, "no ferroced runs in this network namespace")?;
    ensure!(netns::brokers().is_empty(), "it started a broker");
    says(bed, "run -- ibv_devices", 0, "fr0")?;
    let text = says(bed, "status", 0, "cm connections 0 listeners 0 ports 0\n")?;
    ensure!(text.starts_with("broker pid ") && !text.contains("program"), "{text}");
    let json: Value = serde_json::from_str(&says(bed, "-j status", 0, "")?)?;
    let pid = netns::brokers().first().map(|pid| Value::from(pid.as_raw()));
    ensure!(json.pointer("/broker/pid") == pid.as_ref(), "{json}");
    ensure!(json.pointer("/cm/cm_rx_msgs/req") == Some(&Value::from(0)), "{json}");
    let json: Value = serde_json::from_str(&says(bed, "-j stop", 0, "")?)?;
    ensure!(json.pointer("/0/pid") == pid.as_ref(), "{json}");
    // Its name is free; the process is about to be gone.
    netns::until("the broker has ended", || netns::brokers().is_empty())?;
    says(bed, "-j stop --force", 0, "[]")?;
    says(bed, "run -- ibv_devices", 0, "fr0")?;
    says(bed, "stop", 0, " stopped")?;
    says(bed, "run -- ibv_devices", 0, "fr0")?;
    Ok(())
}

/// The vendor's scripts for RoCE cards, and the same from `ferroce` itself.
fn scripts(bed: &Bed) -> Result<()> {
    let script = |name: &str, words: &[&str]| -> Result<Ended> {
        let mut command = Command::new(bed.dist.bin(name));
        command.args(words);
        job::run(command, &bed.logs.path(name), Duration::from_secs(60))
    };
    let gids = script("show_gids", &["fr0", "1"])?;
    let rows = "fr0\t1\t0\t0000:0000:0000:0000:0000:ffff:7f00:0001\t127.0.0.1  \tv2\tlo\n\
                fr0\t1\t1\t0000:0000:0000:0000:0000:0000:0000:0001\t\t\tv2\tlo\nn_gids_found=2\n";
    ensure!(gids.ok() && gids.output.ends_with(rows), "{}", gids.describe());
    let netdevs = script("ibdev2netdev", &[])?;
    ensure!(netdevs.ok() && netdevs.output == "fr0 port 1 ==> lo (Up)\n", "{}", netdevs.describe());
    for (words, code, part) in [
        (&["fr9"][..], 1, "show_gids: no device is called fr9"),
        (&["fr0", "2"], 1, "no port 2"),
        (&["fr0", "x"], 2, "invalid value 'x'"),
    ] {
        let wrong = script("show_gids", words)?;
        let status = wrong.status.and_then(|s| s.code());
        ensure!(status == Some(code) && wrong.output.contains(part), "{}", wrong.describe());
    }
    let text = "gid fr0/1 index 0 gid ::ffff:127.0.0.1 type RoCE v2 netdev lo\n\
                gid fr0/1 index 1 gid ::1 type RoCE v2 netdev lo\n";
    ensure!(says(bed, "gid show fr0", 0, "")? == text, "gid show");
    let json: Value = serde_json::from_str(&says(bed, "-j g", 0, "")?)?;
    ensure!(json.pointer("/1/gid") == Some(&Value::from("::1")), "{json}");
    Ok(())
}

fn comes_and_goes(bed: &Bed) -> Result<()> {
    says(bed, "link add fr1 type rxe netdev d0", 0, "")?;
    says(bed, "link add fr2 type roce netdev d0", 1, "d0")?;
    says(bed, "link add fr1 type roce netdev d1", 1, "fr1")?;
    let text = says(bed, "link", 0, "link fr1/1 state ACTIVE physical_state LINK_UP netdev d0\n")?;
    ensure!(text.lines().last().is_some_and(|l| l.starts_with("link fr0/1 ")), "fr0 is listed last: {text}");
    let info = says(bed, "run -- ibv_devinfo -v -d fr1", 0, "hca_id:\tfr1")?;
    for part in ["active_mtu:\t\t4096 (5)", "GID[  1]:\t\t::ffff:10.81.0.1, RoCE v2"] {
        ensure!(info.contains(part), "no '{part}' in\n{info}");
    }
    let listed = says(bed, "run -- ibv_devices", 0, "fr1")?;
    ensure!(!listed.contains("fr0"), "programs that take all devices take fr0:\n{listed}");
    says(bed, "run --loopback -- ibv_devices", 0, "fr0")?;
    says(bed, "run --netdev lo -- ibv_devices", 0, "fr0")?;
    says(bed, "link del fr1", 0, "")?;
    says(bed, "link del fr1", 1, "fr1")?;
    says(bed, "run -- ibv_devices", 0, "fr0")?;
    shows(bed)
}

/// Ends the broker; the next command starts another.
pub(super) fn restart() -> Result<()> {
    netns::end_broker();
    let deadline = Instant::now() + Duration::from_secs(5);
    while !netns::brokers().is_empty() {
        ensure!(Instant::now() < deadline, "the broker does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Configured links are there after a restart, others are not, and a file that cannot be read is kept aside.
fn outlives(bed: &Bed) -> Result<()> {
    let folder = PathBuf::from(std::env::var_os("FERROCE_RUNTIME_DIR").context("FERROCE_RUNTIME_DIR")?);
    let (file, aside) = (folder.join("links.json"), folder.join("links.json.bad"));
    for old in [&file, &aside] {
        let _ = std::fs::remove_file(old); // of an earlier run
    }
    let link = |name: &str, netdev: &str| {
        format!("link {name}/1 state ACTIVE physical_state LINK_UP netdev {netdev}\n")
    };
    let (first, second, default) = (link("fr1", "d0"), link("fr2", "d1"), link("fr0", "lo"));
    let shows = |want: &[&str]| -> Result<()> {
        let text = says(bed, "link", 0, "")?;
        ensure!(text == want.concat(), "wanted {want:?}, got {text}");
        Ok(())
    };
    says(bed, "link add fr1 type roce netdev d0", 0, "")?;
    says(bed, "link add fr2 type roce netdev d1 --no-persist", 0, "")?;
    shows(&[&first, &second, &default])?;
    restart()?;
    shows(&[&first, &default])?;
    says(bed, "link delete fr1 --no-persist", 0, "")?;
    shows(&[&default])?;
    restart()?;
    shows(&[&first, &default])?;
    let text = std::fs::read(&file)?;
    std::fs::write(&file, text.get(..text.len() / 2).context("an empty file")?)?;
    restart()?;
    shows(&[&default])?;
    ensure!(aside.exists() && !file.exists(), "the spoilt file was not put aside");
    let log = std::fs::read_to_string(folder.join("ferroced.log"))?;
    ensure!(log.contains("links.json cannot be used"), "the log says nothing of it:\n{log}");
    says(bed, "link add fr1 type roce netdev d0", 0, "")?;
    says(bed, "link delete fr1", 0, "")?;
    restart()?;
    shows(&[&default])
}

fn one_view(bed: &Bed) -> Result<()> {
    let text = says(bed, "run --netdev d0 -- ibv_devinfo -v", 0, "::ffff:10.81.0.1")?;
    ensure!(text.matches("hca_id").count() == 1, "not one device:\n{text}");
    let lo = says(bed, "run --netdev lo -- ibv_devices", 0, "fr0")?;
    ensure!(!lo.contains("fr1"), "{lo}");
    says(bed, "run --netdev nix -- true", 1, "nix")?;
    Ok(())
}

fn statuses(bed: &Bed) -> Result<()> {
    says(bed, "run -- false", 1, "")?;
    says(bed, "run -- true", 0, "")?;
    says(bed, "run -- nonesuch", 127, "nonesuch")?;
    says(bed, "run -- /etc/passwd", 126, "/etc/passwd")?;
    Ok(())
}

/// The files and libraries that a program finds without options, and with them.
fn surroundings(bed: &Bed) -> Result<()> {
    let files = "ls /sys/class/infiniband /dev/infiniband";
    if says(bed, "run --sysfs -- true", 0, "").is_ok() {
        for part in ["fr0", "uverbs0", "rdma_cm"] {
            says(bed, &format!("run -- {files}"), 0, part)?;
        }
        // Within another one nothing is mounted again, unless another device is asked for.
        let nested =
            format!("run -- {} run -- readlink /proc/self/ns/mnt", bed.dist.bin("ferroce").display());
        says(bed, &nested, 0, "mnt:[")?;
    }
    let own = std::fs::read_link("/proc/self/ns/mnt")?;
    says(bed, "run --no-sysfs -- readlink /proc/self/ns/mnt", 0, &own.to_string_lossy())?;
    let library = bed.dist.library();
    let copy = "run --no-sysfs -- env LD_PRELOAD=/nowhere/libibverbs-1de1263b.so.1 cat /proc/self/maps";
    let loaded = says(bed, copy, 0, "")?;
    ensure!(loaded.contains(&*library.to_string_lossy()), "{} is not mapped", library.display());
    let program = bed.programs.find("ibv_devices").context("ibv_devices is missing")?;
    let words = format!("doctor {}", program.display());
    says(bed, &words, 0, &format!("libibverbs.so.1 is ferroce's, {}", library.display()))?;
    says(bed, "doctor nonesuch", 1, "nonesuch was not found")?;
    Ok(())
}

/// A library with as many static thread-local variables as jemalloc has. With an auditor the loader reserves their room
/// before it knows them; from glibc 2.33 on, `ferroce run` asks for more.
fn thread_local_variables(bed: &Bed) -> Result<()> {
    let folder = tree::target().join("xtask");
    let (source, library) = (folder.join("variables.c"), folder.join("libvariables.so"));
    let text = "static __thread char room[2632] __attribute__((tls_model(\"initial-exec\")));\n\
                char *room_of_thread(void) { return room; }\n";
    std::fs::write(&source, text)?;
    let mut command = Command::new("cc");
    let status = command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status()?;
    ensure!(status.success(), "cc {}: {status}", source.display());
    says(bed, &format!("run --no-sysfs -- env LD_PRELOAD={} true", library.display()), 0, "")?;
    Ok(())
}

/// Limits and ignored signals of the program that starts `ferroce run`.
fn callers(bed: &Bed) -> Result<()> {
    let ferroce = bed.dist.bin("ferroce");
    for (number, prefix) in ["ulimit -f 0; exec", "trap '' CHLD; exec", "exec"].into_iter().enumerate() {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{prefix} {} run --sysfs -- sh -c 'exit 3'", ferroce.display()));
        // The record of its output is a file too: a pipe does not grow.
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        // No file can be written below a limit of 0, so `--sysfs` is refused.
        let wanted: &[i32] = if number == 0 { &[1, 3] } else { &[3] };
        let code = output.status.code();
        let is_refused_here = number > 0 && code == Some(1) && !said.contains("No child processes");
        ensure!(
            code.is_some_and(|code| wanted.contains(&code)) || is_refused_here,
            "{prefix}: {:?} {said}",
            output.status
        );
    }
    Ok(())
}

/// Standard error that is a full pipe, or one without a reader.
fn words_that_nobody_reads(bed: &Bed) -> Result<()> {
    for full in [true, false] {
        for (words, code) in [("run --no-sysfs -- nonesuch", 127), ("link delete nonesuch", 1)] {
            let (reader, mut writer) = std::io::pipe()?;
            // The usual capacity of a pipe.
            writer.write_all(&vec![0; 1 << 16])?;
            let reader = full.then_some(reader);
            let mut command = Command::new(bed.dist.bin("ferroce"));
            let mut child = command.args(words.split(' ')).stderr(writer).spawn()?;
            let deadline = Instant::now() + Duration::from_secs(60);
            let status = loop {
                if let Some(status) = child.try_wait()? {
                    break status;
                }
                if Instant::now() > deadline {
                    child.kill()?;
                    child.wait()?;
                    bail!("ferroce {words} waits for a reader");
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            drop(reader);
            ensure!(status.code() == Some(code), "ferroce {words}: {status}");
        }
    }
    Ok(())
}

/// Another network namespace, with a broker of its own, which we end: it would idle for a minute.
fn private(bed: &Bed) -> Result<()> {
    let mut command = Command::new(bed.dist.bin("ferroce"));
    let devices = bed.programs.find("ibv_devices").context("ibv_devices is missing")?;
    command
        .args(["run", "--private-net", "--", "sh", "-c", "readlink /proc/self/ns/net; exec \"$0\""])
        .arg(devices);
    let ended = job::run(command, &bed.logs.path("private net"), Duration::from_secs(60))?;
    ensure!(ended.ok() && ended.output.contains("fr0"), "{}", ended.describe());
    let namespace = ended.output.lines().next().unwrap_or_default();
    ensure!(namespace.starts_with("net:["), "{}", ended.output);
    let own = std::fs::read_link("/proc/self/ns/net")?;
    ensure!(own.as_os_str() != namespace, "the same network namespace as outside");
    ensure!(netns::end_brokers_in(Path::new(namespace)) == 1, "no broker of its own in {namespace}");
    Ok(())
}
