//! Stations before any packet: the device is seen, with sensible fields, by programs that load silently.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Bed;
use ferroce_harness::job;
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

const LIMIT: Duration = Duration::from_secs(20);

/// Everything that can be said of a device without a peer.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    checks.check("a cold start returns at once", cold(bed));
    checks.check("ibv_devices", lists(bed));
    checks.check("ibv_devinfo -v", devinfo(bed));
    checks.check("ibstat", ibstat(bed));
    for (name, program, args, wants) in LOADERS {
        if bed.programs.find(program).is_none() {
            checks.skip(name, &format!("{program} is not here"));
            continue;
        }
        checks.check(name, silent(bed, name, program, args, wants));
    }
    Ok(())
}

/// `out=$(timeout 5 ferroce run -- ibv_devices)` must not hang on a broker that holds the pipe open.
fn cold(bed: &Bed) -> Result<()> {
    let mut command = Command::new("timeout");
    let ours = bed.ours("ibv_devices");
    command.arg("5").arg(ours.get_program()).args(ours.get_args());
    let started = Instant::now();
    let output = command.stdin(std::process::Stdio::null()).output()?;
    let took = started.elapsed();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    ensure!(text.contains("fr0"), "no fr0 in\n{text}");
    ensure!(took < Duration::from_secs(4), "took {took:?}");
    Ok(())
}

fn lists(bed: &Bed) -> Result<()> {
    let ended = job::run(bed.ours("ibv_devices"), &bed.logs.path("ibv_devices"), LIMIT)?;
    ensure!(ended.ok(), "{}", ended.describe());
    let row = ended.output.lines().find(|l| l.trim_start().starts_with("fr0"));
    let guid = row.and_then(|l| l.split_whitespace().nth(1)).unwrap_or_default();
    let good =
        guid.len() == 16 && guid.bytes().all(|b| b.is_ascii_hexdigit()) && guid.bytes().any(|b| b != b'0');
    ensure!(good, "no fr0 with a node GUID in\n{}", ended.output);
    Ok(())
}

/// The names of the fields, those in brackets reduced to their kind.
pub(super) fn fields(text: &str) -> BTreeSet<String> {
    let names = text.lines().filter_map(|l| l.trim().split_once(':')).map(|(name, _)| name.trim());
    names.map(|n| if n.starts_with("GID[") { "GID[]".to_owned() } else { n.to_owned() }).collect()
}

fn devinfo(bed: &Bed) -> Result<()> {
    let mut command = bed.ours("ibv_devinfo");
    command.args(["-v", "-d", "fr0"]);
    let ended = job::run(command, &bed.logs.path("ibv_devinfo"), LIMIT)?;
    ensure!(ended.ok(), "{}", ended.describe());
    let text = &ended.output;
    let value = |name: &str| -> String {
        let line = text.lines().find(|l| l.trim().split(':').next() == Some(name)).unwrap_or_default();
        line.split_once(':').map(|(_, v)| v.trim().to_owned()).unwrap_or_default()
    };
    for (name, want) in [
        ("hca_id", "fr0"),
        ("transport", "InfiniBand (0)"),
        ("vendor_id", "0xffffff"),
        ("phys_port_cnt", "1"),
        ("state", "PORT_ACTIVE (4)"),
        ("max_mtu", "4096 (5)"),
        ("active_mtu", "4096 (5)"),
        ("link_layer", "Ethernet"),
        ("port_lid", "0"),
        ("GID[  0]", "::ffff:127.0.0.1, RoCE v2"),
        ("GID[  1]", "::1, RoCE v2"),
    ] {
        ensure!(value(name) == want, "{name} is '{}', wanted '{want}'", value(name));
    }
    let number = |name: &str| value(name).parse::<u64>().unwrap_or(0);
    for (name, least) in [("max_qp", 1000), ("max_cqe", 65_536), ("max_mr", 10_000), ("max_sge", 16)] {
        ensure!(number(name) >= least, "{name} is {}, wanted at least {least}", number(name));
    }
    let want = fields(&std::fs::read_to_string(tree::reference("ibv_devinfo_v.txt"))?);
    let have = fields(text);
    // The first line of the reference is the command; ibv_devinfo leaves out these where max_srq is 0.
    let no_srq = |f: &str| number("max_srq") == 0 && f.starts_with("max_srq_");
    let missing: Vec<_> = want.difference(&have).filter(|f| !f.starts_with('$') && !no_srq(f)).collect();
    ensure!(missing.is_empty(), "fields of the kernel's rxe that we do not show: {missing:?}");
    Ok(())
}

/// Compares the lines of ibstat, without indentation, with those of the kernel's rxe.
fn ibstat(bed: &Bed) -> Result<()> {
    let said = |args: &[&str]| -> Result<Vec<String>> {
        let mut command = bed.ours("ibstat");
        command.args(args);
        let ended = job::run(command, &bed.logs.path("ibstat"), LIMIT)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect())
    };
    let lines = said(&[])?;
    for want in [
        "CA 'fr0'",
        "Number of ports: 1",
        "State: Active",
        "Physical state: LinkUp",
        "Rate: 100",
        "Base lid: 0",
        "SM lid: 0",
        "Capability mask: 0x00010000",
        "Link layer: Ethernet",
    ] {
        ensure!(lines.iter().any(|line| line == want), "no '{want}' in\n{}", lines.join("\n"));
    }
    let reference = std::fs::read_to_string(tree::reference("ibstat.txt"))?;
    let first = reference.lines().skip(1).take_while(|line| !line.is_empty());
    let labels = |line: &str| line.trim().split([':', '\'']).next().unwrap_or_default().to_owned();
    let want: Vec<String> = first.map(labels).collect();
    let have: Vec<String> = lines.iter().map(|line| labels(line)).collect();
    ensure!(have == want, "other lines than the kernel's rxe has: {have:?} and {want:?}");
    ensure!(said(&["-l"])? == ["fr0"], "ibstat -l");
    let guid = lines.iter().find_map(|line| line.strip_prefix("Port GUID: ")).unwrap_or_default();
    ensure!(said(&["-p"])? == [guid], "ibstat -p does not say the port's GUID {guid}");
    Ok(())
}

/// Programs that link our three libraries, also by way of libmlx5 and libefa: name, program, arguments,
/// and what must appear in the output.
const LOADERS: &[(&str, &str, &[&str], &str)] = &[
    ("perftest loads", "ib_write_bw", &["--version"], "Version"),
    ("rping loads", "rping", &["-h"], "rping"),
    ("qperf loads", "qperf", &["--version"], "qperf"),
    ("fio loads", "fio", &["--enghelp=rdma"], "hostname"),
    ("UCX loads", "ucx_info", &["-v"], ""),
    ("libfabric loads", "fi_info", &["--version"], "libfabric"),
    (
        "pyverbs lists fr0",
        "/usr/bin/python3",
        &["-c", "import pyverbs.device as d; print([x.name for x in d.get_device_list()])"],
        "fr0",
    ),
];

/// ld.so complains on standard error about missing versions and symbols.
fn silent(bed: &Bed, name: &str, program: &str, args: &[&str], wants: &str) -> Result<()> {
    let mut command = bed.ours(program);
    command.args(args).env("LD_BIND_NOW", "1");
    let ended = job::run(command, &bed.logs.path(name), LIMIT)?;
    let text = &ended.output;
    ensure!(ended.status.is_some_and(|s| s.code().is_some()), "{}", ended.describe());
    for bad in [
        "version information",
        "symbol lookup error",
        "undefined symbol",
        "error while loading",
        "libibverbs: Warning",
    ] {
        ensure!(!text.contains(bad), "{}", ended.describe());
    }
    ensure!(text.contains(wants), "{}", ended.describe());
    Ok(())
}
