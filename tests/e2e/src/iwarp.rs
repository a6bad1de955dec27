//! iWARP devices: they come and go beside those of RoCE, look like the kernel's siw, and refuse what iWARP does not have.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Bed;
use super::cli::{ip, restart, says};
use super::devices::fields;
use super::nobody::Nobody;
use super::pyverbs::MODULE;
use ferroce_harness::job;
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

const LIMIT: Duration = Duration::from_secs(20);
/// The verbs and librdmacm, by rdma-core's Python module.
const VERBS: &str = "tests/e2e/src/iwarp.py";
/// The device's port of UDP, as `/proc/net/udp` writes it, at 10.85.0.1.
const SOCKET: &str = "0100550A:12B7";

/// On `lo` and on a veth of this network namespace.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    restart()?;
    checks.check("link add on lo", on_lo(bed));
    checks.check("as nobody", by_nobody(bed));
    let made = ip(bed, "link add w0 mtu 1500 type veth peer name w1")
        .and_then(|()| ip(bed, "addr add 10.85.0.1/24 dev w0"))
        .and_then(|()| ip(bed, "link set w0 up"))
        .and_then(|()| ip(bed, "link set w1 up"));
    if let Err(error) = made {
        checks.skip("links on a veth", &format!("no veth here: {error:#}"));
        return restart();
    }
    checks.check("link add on a veth opens no socket", on_veth(bed));
    checks.check("a RoCE device beside it", beside(bed));
    checks.check("ibv_devices and ibv_devinfo", devinfo(bed));
    checks.check("files of sysfs", files(bed));
    checks.check("settings", settings(bed));
    match bed.programs.find(MODULE) {
        Some(_) => checks.check("the verbs refuse, and librdmacm finds", verbs(bed)),
        None => checks.skip("the verbs refuse, and librdmacm finds", &format!("{MODULE} is not here")),
    }
    checks.check("links outlive the broker", outlives(bed));
    checks.check("link delete", goes(bed));
    ip(bed, "link del w0")?;
    restart()
}

fn on_lo(bed: &Bed) -> Result<()> {
    says(bed, "link add iw0 type siw netdev lo --no-persist", 0, "")?;
    let text = says(bed, "link show", 0, "")?;
    let line = "state ACTIVE physical_state LINK_UP netdev lo";
    ensure!(text == format!("link iw0/1 {line}\nlink fr0/1 {line}\n"), "{text}");
    says(bed, "-d link show iw0", 0, " netdev_index 1 type siw\n")?;
    let gid = says(bed, "gid show iw0", 0, "type IB/RoCE v1")?;
    ensure!(gid.lines().count() == 1 && !gid.contains(" gid :: "), "{gid}");
    says(bed, "link add iw1 type siw netdev lo", 1, "lo has the iWARP device iw0 already")?;
    says(bed, "link add iw0 type siw netdev nonesuch", 1, "there is no network interface")?;
    says(bed, "run -- ibv_devices", 0, "iw0")?;
    says(bed, "link delete iw0 --no-persist", 0, "")?;
    let text = says(bed, "link show", 0, "")?;
    ensure!(!text.contains("iw0"), "{text}");
    Ok(())
}

/// No privilege is needed, and the link is in nobody's own file.
fn by_nobody(bed: &Bed) -> Result<()> {
    let nobody = Nobody::new(bed, "ferroce-iwarp")?;
    let good = |words: &str| -> Result<String> {
        let mut command = nobody.ferroce();
        command.args(words.split(' '));
        let ended = job::run(command, &bed.logs.path(&format!("nobody {words}")), LIMIT)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output)
    };
    good("link add iw0 type siw netdev lo")?;
    let info = bed.programs.find("ibv_devinfo").context("ibv_devinfo is missing")?;
    let text = good(&format!("run -- {} -d iw0", info.display()))?;
    ensure!(text.contains("iWARP (1)"), "{text}");
    let file = std::fs::read_to_string(nobody.runtime().join("links.json"))?;
    ensure!(file.contains("\"siw\""), "{file}");
    good("link delete iw0").map(drop)
}

/// Sockets of UDP in this network namespace at the veth's address.
fn sockets() -> Result<usize> {
    Ok(std::fs::read_to_string("/proc/net/udp")?.matches(SOCKET).count())
}

fn on_veth(bed: &Bed) -> Result<()> {
    says(bed, "link add iw0 type siw netdev w0", 0, "")?;
    says(bed, "link show iw0", 0, "link iw0/1 state ACTIVE physical_state LINK_UP netdev w0\n")?;
    says(bed, "run -- ibv_devinfo -d iw0", 0, "PORT_ACTIVE (4)")?;
    ensure!(sockets()? == 0, "a socket of RoCE was opened for iWARP");
    let text = says(bed, "-d dev show iw0", 0, ": iw0: node_type rnic ")?;
    ensure!(text.contains("MEM_MGT_EXTENSIONS") && !text.contains("XRC"), "{text}");
    let json: Value = serde_json::from_str(&says(bed, "-j link show iw0", 0, "")?)?;
    ensure!(json.pointer("/0/type") == Some(&Value::from("siw")), "{json}");
    says(bed, "doctor", 0, "iw0 (iWARP) on w0 is active").map(drop)
}

fn beside(bed: &Bed) -> Result<()> {
    says(bed, "link add fr1 type roce netdev w0", 0, "")?;
    says(bed, "link add fr2 type roce netdev w0", 1, "w0 has the RoCE device fr1 already")?;
    ensure!(sockets()? > 0, "the RoCE device is not served");
    let text = says(bed, "run -- ibv_devices", 0, "fr1")?;
    let at = |name: &str| text.find(name).context("not listed");
    ensure!(at("iw0")? < at("fr1")?, "not in the order in which they were added:\n{text}");
    let gids = says(bed, "gid show", 0, "")?;
    ensure!(gids.contains("gid fr1/1 index 1 gid ::ffff:10.85.0.1 type RoCE v2 netdev w0\n"), "{gids}");
    ensure!(gids.matches("gid iw0/1 ").count() == 1, "{gids}");
    let status = says(bed, "status", 0, "iwarp link iw0/1 netdev w0 crc on\n")?;
    ensure!(!status.contains("fr1"), "{status}");
    // Only RoCE has management datagrams, and scripts for RoCE cards concern RoCE alone.
    let names = says(bed, "run -- ibstat -l", 0, "")?;
    ensure!(names == "fr1\n", "{names}");
    says(bed, "run -- ibstat iw0", 255, "").map(drop)
}

/// Fields of `ibv_devinfo -v` that do not depend on our limits or the host: as the kernel's siw says them.
const SAME: &[&str] = &[
    "transport",
    "vendor_id",
    "vendor_part_id",
    "hw_ver",
    "phys_port_cnt",
    "max_sge_rd",
    "max_qp_rd_atom",
    "atomic_cap",
    "max_raw_ethy_qp",
    "max_mcast_grp",
    "max_mcast_qp_attach",
    "max_total_mcast_qp_attach",
    "max_ah",
    "max_pkeys",
    "local_ca_ack_delay",
    "state",
    "max_mtu",
    "active_mtu",
    "sm_lid",
    "port_lid",
    "port_lmc",
    "link_layer",
    "port_cap_flags",
    "max_vl_num",
    "sm_sl",
    "pkey_tbl_len",
    "gid_tbl_len",
    "subnet_timeout",
];

fn devinfo(bed: &Bed) -> Result<()> {
    let text = says(bed, "run -- ibv_devinfo -v -d iw0", 0, "")?;
    let value = |text: &str, name: &str| -> String {
        let line = text.lines().find(|line| line.trim().split(':').next() == Some(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    for (name, want) in [
        ("hca_id", "iw0"),
        ("transport", "iWARP (1)"),
        ("vendor_id", "0x626d74"),
        ("max_sge_rd", "1"),
        ("atomic_cap", "ATOMIC_NONE (0)"),
        ("active_mtu", "1024 (3)"),
        ("port_cap_flags", "0x00090000"),
        ("gid_tbl_len", "1"),
        ("pkey_tbl_len", "0"),
    ] {
        ensure!(value(&text, name) == want, "{name} is '{}', wanted '{want}'", value(&text, name));
    }
    let guid = value(&text, "node_guid").replace(':', "");
    says(bed, "run -- ibv_devices", 0, &format!("iw0             \t{guid}"))?;
    let reference = std::fs::read_to_string(tree::reference("siw_devinfo.txt"))?;
    for name in SAME {
        let (ours, siws) = (value(&text, name), value(&reference, name));
        ensure!(ours == siws && !siws.is_empty(), "{name} is '{ours}', and siw's '{siws}'");
    }
    let (want, have) = (fields(&reference), fields(&text));
    let missing: Vec<_> = want.difference(&have).collect();
    ensure!(missing.is_empty(), "fields of the kernel's siw that we do not show: {missing:?}");
    Ok(())
}

fn files(bed: &Bed) -> Result<()> {
    let root = "/sys/class/infiniband/iw0";
    for (file, want) in [
        ("node_type", "4: RNIC\n"),
        ("ports/1/cap_mask", "0x00090000\n"),
        ("ports/1/lid", "0x0\n"),
        ("ports/1/link_layer", "Ethernet\n"),
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/gid_attrs/types/0", "IB/RoCE v1\n"),
        ("ports/1/gid_attrs/ndevs/0", ""),
    ] {
        let said = says(bed, &format!("run -- cat {root}/{file}"), 0, "")?;
        ensure!(said == want, "{file} is {said:?}, wanted {want:?}");
    }
    let mac = std::fs::read_to_string("/sys/class/net/w0/address").unwrap_or_default();
    let gid = says(bed, &format!("run -- cat {root}/ports/1/gids/0"), 0, ":0000:0000:0000:0000:0000\n")?;
    // In a namespace of ours sysfs may be another's, where the interface is not to be seen.
    let octets = |text: &str| text.trim().replace(':', "");
    ensure!(mac.is_empty() || octets(&gid).starts_with(&octets(&mac)), "{gid} is not made of {mac}");
    for missing in ["parent", "ports/1/pkeys/0", "ports/1/gids/1"] {
        says(bed, &format!("run -- cat {root}/{missing}"), 1, "No such file")?;
    }
    Ok(())
}

fn settings(bed: &Bed) -> Result<()> {
    for setting in ["mtu 1024", "roce-mode both", "cm-tos 96", "ttl 9", "tclass 8"] {
        let word = setting.split(' ').next().unwrap_or_default();
        let sentence = format!("iw0: {word} means nothing on an iWARP link; only crc can be set there");
        says(bed, &format!("link set iw0 {setting}"), 1, &sentence)?;
    }
    says(bed, "link tc iw0 add 16 dst=10.85.0.2", 1, "tc means nothing on an iWARP link")?;
    says(bed, "dev set iw0 roce off", 1, "roce means nothing on an iWARP link")?;
    says(bed, "link set iw0 crc off", 0, "")?;
    says(bed, "-d link show iw0", 0, " type siw crc off\n")?;
    let status = says(bed, "status", 0, "iwarp link iw0/1 netdev w0 crc off\n")?;
    ensure!(!status.contains("WARNING"), "{status}");
    Ok(())
}

fn verbs(bed: &Bed) -> Result<()> {
    for (transport, tcp) in [("", "iw0"), ("roce", "fr1"), ("iwarp", "iw0")] {
        let mut command = bed.ours("/usr/bin/python3");
        command.arg(tree::root().join(VERBS)).args(["iw0", "10.85.0.1"]).env("FERROCE_TRANSPORT", transport);
        // The script asks for what iWARP does not have, and the library would say so.
        command.env("FERROCE_LOG", "off");
        let ended = job::run(command, &bed.logs.path(&format!("iwarp.py {transport}")), LIMIT)?;
        ensure!(ended.ok(), "{}", ended.describe());
        ensure!(ended.output == format!("TCP {tcp}\nUDP fr1\n"), "{transport}: {}", ended.describe());
    }
    Ok(())
}

fn outlives(bed: &Bed) -> Result<()> {
    let before = says(bed, "-d link show", 0, " type siw crc off\n")?;
    restart()?;
    let after = says(bed, "-d link show", 0, "")?;
    ensure!(before == after, "{before} became {after}");
    says(bed, "dev set iw0 name siw7", 0, "")?;
    restart()?;
    says(bed, "-d link show siw7", 0, " type siw crc off\n")?;
    says(bed, "dev set siw7 name iw0", 0, "").map(drop)
}

fn goes(bed: &Bed) -> Result<()> {
    says(bed, "link delete iw0", 0, "")?;
    let text = says(bed, "link show", 0, "fr1/1")?;
    ensure!(!text.contains("iw0"), "{text}");
    says(bed, "link delete fr1", 0, "")?;
    restart()?;
    let text = says(bed, "link show", 0, "")?;
    ensure!(text.lines().count() == 1, "{text}");
    Ok(())
}
