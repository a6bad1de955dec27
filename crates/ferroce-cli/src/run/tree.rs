//! The files of devices, as sysfs has them for the kernel's.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ferroce::PortAttr;
use ferroce_ipc::{CmStatus, DeviceInfo, GidType, PhysState};

use super::sysfs::LIFESPAN;
use crate::{gids, rows};

/// Entries of a GID table.
const GIDS: u16 = 1024;
/// An empty one.
const NO_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Text(String),
    Link(String),
    Directory,
}

type Tree = BTreeMap<PathBuf, Node>;

/// Writes what changed, below the working directory: whoever reads sees the old or the new, and never half of it.
#[derive(Default)]
pub struct Writer {
    written: Tree,
    counters: Tree,
}

impl Writer {
    /// The devices are these.
    pub fn devices(&mut self, devices: &[DeviceInfo]) -> io::Result<()> {
        let mut tree = Tree::new();
        let mut put = |path: String, text: String| tree.insert(path.into(), Node::Text(text));
        put("infiniband_verbs/abi_version".to_owned(), "6\n".to_owned());
        put("infiniband_mad/abi_version".to_owned(), "5\n".to_owned());
        for (number, device) in devices.iter().enumerate() {
            let verbs = format!("infiniband_verbs/{}", device.dev_name);
            // What the device file of `run --sysfs` is.
            for (file, text) in [("ibdev", &*device.name), ("dev", "1:3"), ("abi_version", "1")] {
                put(format!("{verbs}/{file}"), format!("{text}\n"));
            }
            for (file, text) in [("ibdev", &*device.name), ("port", "1")] {
                put(format!("infiniband_mad/umad{number}/{file}"), format!("{text}\n"));
            }
        }
        devices.iter().for_each(|device| describe(&mut tree, device));
        let old = std::mem::take(&mut self.written);
        for path in old.keys().filter(|path| !tree.contains_key(*path)) {
            remove(path);
        }
        // Of a device that is gone its counters, and the directories that are empty now.
        let here = |path: &Path| {
            devices.iter().any(|device| path.starts_with(format!("infiniband/{}", device.name)))
        };
        self.counters.retain(|path, _| {
            let stays = here(path);
            if !stays {
                remove(path);
            }
            stays
        });
        for (path, node) in tree.iter().filter(|(path, node)| old.get(*path) != Some(*node)) {
            write(path, node)?;
        }
        self.written = tree;
        Ok(())
    }

    /// What a device counted, and connection management for all of them.
    pub fn counters(
        &mut self,
        device: &DeviceInfo,
        counters: &[(String, u64)],
        cm: &CmStatus,
    ) -> io::Result<()> {
        for (path, node) in counter_files(device, counters, cm) {
            if self.counters.get(&path) != Some(&node) {
                write(&path, &node)?;
                self.counters.insert(path, node);
            }
        }
        Ok(())
    }
}

/// Everything of a device but its counters.
fn describe(tree: &mut Tree, device: &DeviceInfo) {
    let root = PathBuf::from("infiniband").join(&device.name);
    let port = root.join("ports/1");
    let mut put = |path: PathBuf, text: &str| tree.insert(path, Node::Text(format!("{text}\n")));
    let guid = rows::guid(device.node_guid);
    for (file, text) in [
        ("fw_ver", env!("CARGO_PKG_VERSION")),
        ("node_desc", "ferroce"),
        ("node_guid", &guid),
        ("node_type", "1: CA"),
        ("parent", &device.netdev),
        ("sys_image_guid", &guid),
        ("uevent", &format!("NAME={}", device.name)),
        ("device/numa_node", "-1"),
    ] {
        put(root.join(file), text);
    }
    let physical = match device.phys_state {
        PhysState::Polling => "2: Polling",
        PhysState::Disabled => "3: Disabled",
        PhysState::LinkUp => "5: LinkUp",
    };
    for (file, text) in [
        ("cap_mask", "0x00010000"),
        ("lid", "0x0"),
        ("lid_mask_count", "0"),
        ("link_layer", "Ethernet"),
        ("phys_state", physical),
        ("pkeys/0", "0xffff"),
        ("rate", &rate(device)),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("state", if device.port_active { "4: ACTIVE" } else { "1: DOWN" }),
    ] {
        put(port.join(file), text);
    }
    let mut entries = device.gids.iter().peekable();
    for index in 0..GIDS {
        let entry = entries.next_if(|entry| entry.index == index);
        let (gid, version, netdev) = match entry {
            Some(entry) => {
                let version = match entry.gid_type {
                    GidType::RoceV1 => "IB/RoCE v1\n",
                    GidType::RoceV2 => "RoCE v2\n",
                };
                let quads: Vec<String> =
                    entry.gid.0.chunks(2).map(|c| c.iter().map(|b| format!("{b:02x}")).collect()).collect();
                (quads.join(":") + "\n", version, gids::netdev_name(entry.ifindex) + "\n")
            }
            None => (NO_GID.to_owned(), "", String::new()),
        };
        tree.insert(port.join(format!("gids/{index}")), Node::Text(gid));
        tree.insert(port.join(format!("gid_attrs/types/{index}")), Node::Text(version.to_owned()));
        tree.insert(port.join(format!("gid_attrs/ndevs/{index}")), Node::Text(netdev));
    }
    tree.insert(root.join("subsystem"), Node::Link("../../infiniband".to_owned()));
    tree.insert(root.join("device/net").join(&device.netdev), Node::Directory);
}

/// `40 Gb/sec (4X FDR10)`.
fn rate(device: &DeviceInfo) -> String {
    let (width, speed) = PortAttr::of(device).width_and_speed();
    let lanes = if width == 1 { 1 } else { 4 };
    // Of a lane, in units of 100 Mb/s.
    let (name, lane) = match speed {
        1 => ("SDR", 25),
        2 => ("DDR", 50),
        4 => ("QDR", 100),
        8 => ("FDR10", 100),
        16 => ("FDR", 140),
        32 => ("EDR", 250),
        64 => ("HDR", 500),
        128 => ("NDR", 1000),
        _ => ("XDR", 2000),
    };
    let rate = lanes * lane;
    let half = if rate % 10 == 5 { ".5" } else { "" };
    format!("{}{half} Gb/sec ({lanes}X {name})", rate / 10)
}

/// Counters of a port, by file.
fn counter_files(device: &DeviceInfo, counters: &[(String, u64)], cm: &CmStatus) -> Tree {
    let port = PathBuf::from("infiniband").join(&device.name).join("ports/1");
    let mut tree = Tree::new();
    let mut put = |group: &str, name: &str, value: u64| {
        tree.insert(port.join(group).join(name), Node::Text(format!("{value}\n")));
    };
    counters.iter().for_each(|(name, value)| put("hw_counters", name, *value));
    put("hw_counters", "lifespan", LIFESPAN.as_millis() as u64);
    for (name, value) in ferroce_ipc::ledger::port_counters(counters) {
        put("counters", name, value);
    }
    for (group, values) in [
        ("cm_rx_msgs", &cm.rx_msgs),
        ("cm_rx_duplicates", &cm.rx_duplicates),
        ("cm_tx_msgs", &cm.tx_msgs),
        ("cm_tx_retries", &cm.tx_retries),
    ] {
        CmStatus::MESSAGES.into_iter().zip(values).for_each(|(name, value)| put(group, name, *value));
    }
    tree
}

fn write(path: &Path, node: &Node) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match node {
        Node::Directory => fs::create_dir_all(path),
        Node::Link(target) => {
            let _ = fs::remove_file(path);
            std::os::unix::fs::symlink(target, path)
        }
        Node::Text(text) => {
            let new = Path::new("new");
            // Most entries of a GID table are alike: one file is enough for them.
            let shared = match text.as_str() {
                NO_GID => Some("no_gid"),
                "" => Some("nothing"),
                _ => None,
            };
            match shared {
                Some(shared) => {
                    if !Path::new(shared).exists() {
                        fs::write(shared, text)?;
                    }
                    fs::hard_link(shared, new)?;
                }
                None => fs::write(new, text)?,
            }
            // Of two links to one file `rename` leaves both.
            fs::rename(new, path)?;
            match fs::remove_file(new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        }
    }
}

/// Removes a file, and the directories that it leaves empty.
fn remove(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
    for parent in path.ancestors().skip(1).filter(|parent| parent.components().count() > 1) {
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
}
