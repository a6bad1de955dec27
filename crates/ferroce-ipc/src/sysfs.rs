//! The files that sysfs would have for our devices, below `/sys/class`: their paths and contents.
//!
//! Two users share this description: `ferroce run --sysfs` writes all files ([`Tree::all`]), and the
//! libraries look up one file at a time ([`Tree::find`]). Counters are separate ([`counters`]), because they
//! change at any time, and only the broker knows them.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use crate::ledger::port_counters;
use crate::{CmStatus, DeviceInfo, GidEntry, GidType, LinkKind, PhysState};

/// Class directories that are ours.
pub const CLASSES: [&str; 3] = ["infiniband", "infiniband_verbs", "infiniband_mad"];
/// How old counters may be that were written into files: what `hw_counters/lifespan` says.
/// Each turn of the process that writes them wakes the broker.
pub const LIFESPAN: Duration = Duration::from_secs(1);

/// Device number of the device file of `run --sysfs`: `/dev/null`.
const DEVICE_NUMBER: &str = "1:3";
/// Target of the link `subsystem` of a device.
const SUBSYSTEM: &str = "../../infiniband";

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A symbolic link with its target. [`Tree::find`] follows it.
    Link(String),
    /// A file and its content, with the newline.
    Text(String),
    /// A file that the kernel refuses to read (EINVAL): what an empty entry of a GID table says of itself.
    /// Written down it is empty.
    Unreadable,
    /// A counter of [`counters`], if that list has the name.
    Counter {
        /// The device.
        device: String,
        /// A directory below the device's port.
        group: &'static str,
        /// The file.
        name: String,
    },
}

/// Why a path leads to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Nothing of that name (ENOENT).
    NoSuchFile,
    /// A file where a directory was expected (ENOTDIR).
    NotADirectory,
}

/// The devices that have the files, and what only the system knows of their interfaces.
pub struct Tree<'a> {
    /// In their order.
    pub devices: &'a [DeviceInfo],
    /// The codes of a port's width and of the speed of a lane.
    pub speed: &'a dyn Fn(&DeviceInfo) -> (u8, u32),
    /// The name of an interface.
    pub netdev: &'a dyn Fn(u32) -> String,
    /// The NUMA node of the interface of that name, see [`numa_node`].
    pub numa_node: &'a dyn Fn(&str) -> i32,
}

type Word = fn(&DeviceInfo) -> &str;
type Text = fn(&Tree<'_>, &DeviceInfo) -> String;
type Entry = fn(&Tree<'_>, &DeviceInfo, Option<&GidEntry>) -> Option<String>;

/// Files of a device, below `infiniband/DEV`; without the newline. An iWARP device lacks [`ROCE_FILES`].
const FILES: [(&str, Text); 17] = [
    ("fw_ver", |_, _| env!("CARGO_PKG_VERSION").to_owned()),
    ("node_desc", |_, _| "ferroce".to_owned()),
    ("node_guid", |_, device| quads(&device.node_guid)),
    ("node_type", |_, device| {
        let node_type = match device.kind {
            LinkKind::Rxe => "1: CA",
            LinkKind::Siw => "4: RNIC",
        };
        node_type.to_owned()
    }),
    ("parent", |_, device| device.netdev.clone()),
    ("sys_image_guid", |_, device| quads(&device.node_guid)),
    ("uevent", |_, device| format!("NAME={}", device.name)),
    ("ports/1/cap_mask", |_, device| {
        let mask = match device.kind {
            LinkKind::Rxe => "0x00010000",
            LinkKind::Siw => "0x00090000",
        };
        mask.to_owned()
    }),
    ("ports/1/lid", |_, _| "0x0".to_owned()),
    ("ports/1/lid_mask_count", |_, _| "0".to_owned()),
    ("ports/1/link_layer", |_, _| "Ethernet".to_owned()),
    ("ports/1/phys_state", |_, device| {
        let state = match device.phys_state {
            PhysState::Polling => "2: Polling",
            PhysState::Disabled => "3: Disabled",
            PhysState::LinkUp => "5: LinkUp",
        };
        state.to_owned()
    }),
    ("ports/1/pkeys/0", |_, _| "0xffff".to_owned()),
    ("ports/1/rate", |tree, device| rate((tree.speed)(device))),
    ("ports/1/sm_lid", |_, _| "0x0".to_owned()),
    ("ports/1/sm_sl", |_, _| "0".to_owned()),
    ("ports/1/state", |_, device| {
        let state = if device.port_active { "4: ACTIVE" } else { "1: DOWN" };
        state.to_owned()
    }),
];

/// The files of rxe that siw does not have: there are no P_Keys on iWARP.
const ROCE_FILES: [&str; 2] = ["parent", "ports/1/pkeys/0"];

/// Directories of a device with a file for each entry of its GID table. The kernel names no interface of an
/// iWARP entry.
const TABLES: [(&str, Entry); 3] = [
    ("ports/1/gids", |_, _, entry| Some(quads(&entry.map_or([0; 16], |entry| entry.gid.0)))),
    ("ports/1/gid_attrs/types", |_, _, entry| {
        let name = match entry?.gid_type {
            GidType::RoceV1 => "IB/RoCE v1",
            GidType::RoceV2 => "RoCE v2",
        };
        Some(name.to_owned())
    }),
    ("ports/1/gid_attrs/ndevs", |tree, device, entry| {
        entry.filter(|_| !device.is_iwarp()).map(|entry| (tree.netdev)(entry.ifindex))
    }),
];

/// Groups of counters, below the port.
const GROUPS: [&str; 6] =
    ["counters", "hw_counters", "cm_rx_msgs", "cm_rx_duplicates", "cm_tx_msgs", "cm_tx_retries"];
const PORT: &str = "ports/1";

/// Files of a device below `infiniband_verbs/uverbsN`.
const VERBS: [(&str, Word); 3] =
    [("ibdev", |device| &device.name), ("dev", |_| DEVICE_NUMBER), ("abi_version", |_| "1")];
/// Files of a device below `infiniband_mad/umadN`.
const MAD: [(&str, Word); 2] = [("ibdev", |device| &device.name), ("port", |_| "1")];
/// Files of the classes.
const ABI: [(&str, &str); 2] = [("infiniband_verbs/abi_version", "6"), ("infiniband_mad/abi_version", "5")];

impl Tree<'_> {
    /// Returns the node at an absolute path, and resolves `.`, `..`, doubled slashes and links as the kernel
    /// does. The counter of [`Node::Counter`] need not exist.
    ///
    /// # Errors
    /// If it leads to nothing.
    pub fn find(&self, path: &str) -> Result<Node, Missing> {
        let mut at: Vec<String> = Vec::new();
        let mut here = Node::Directory;
        let mut left: VecDeque<String> = path.split('/').map(str::to_owned).collect();
        while let Some(part) = left.pop_front() {
            if here != Node::Directory {
                return Err(Missing::NotADirectory);
            }
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    at.pop();
                    continue;
                }
                _ => at.push(part),
            }
            let parts: Vec<&str> = at.iter().map(String::as_str).collect();
            here = self.node(&parts).ok_or(Missing::NoSuchFile)?;
            if let Node::Link(target) = here {
                at.pop();
                target.rsplit('/').for_each(|part| left.push_front(part.to_owned()));
                here = Node::Directory;
            }
        }
        Ok(here)
    }

    /// Everything but counters, by its path below `/sys/class`. Directories are named where nothing is in
    /// them.
    pub fn all(&self) -> Vec<(String, Node)> {
        let line = |text: &str| Node::Text(format!("{text}\n"));
        let mut all: Vec<_> = ABI.map(|(path, text)| (path.to_owned(), line(text))).into();
        for (number, device) in with_mads(self.devices).enumerate() {
            let mad = format!("infiniband_mad/umad{number}");
            all.extend(MAD.map(|(file, text)| (format!("{mad}/{file}"), line(text(device)))));
        }
        for device in self.devices {
            let verbs = format!("infiniband_verbs/{}", device.dev_name);
            all.extend(VERBS.map(|(file, text)| (format!("{verbs}/{file}"), line(text(device)))));
            let root = format!("infiniband/{}", device.name);
            all.extend(
                files(device).map(|(file, text)| (format!("{root}/{file}"), line(&text(self, device)))),
            );
            for (directory, text) in TABLES {
                let table = device.gid_table();
                let mut entries = table.iter().peekable();
                all.extend((0..device.gid_table_len()).map(|index| {
                    let node = readable(text(self, device, entries.next_if(|entry| entry.index == index)));
                    (format!("{root}/{directory}/{index}"), node)
                }));
            }
            let (below, numa_node) = (below(device), (self.numa_node)(&device.netdev));
            all.push((format!("{root}/subsystem"), Node::Link(SUBSYSTEM.to_owned())));
            all.push((format!("{root}/device"), Node::Link(below.clone())));
            all.push((format!("{root}/{below}/numa_node"), line(&numa_node.to_string())));
            all.push((format!("{root}/{below}/net/{}", device.netdev), Node::Directory));
        }
        all
    }

    /// Returns the node at this path from the root. The path has no `.` and `..`.
    fn node(&self, path: &[&str]) -> Option<Node> {
        let below = match path {
            [] | ["sys"] | ["sys", "class"] => return Some(Node::Directory),
            ["sys", "class", below @ ..] => below,
            _ => return None,
        };
        let of_device = |device: Option<&DeviceInfo>, file: &[&str], files: &[(&str, Word)]| {
            let device = device?;
            match file {
                [] => Some(Node::Directory),
                [file] => {
                    let (_, text) = files.iter().find(|(known, _)| known == file)?;
                    Some(Node::Text(format!("{}\n", text(device))))
                }
                _ => None,
            }
        };
        match below {
            [class] => CLASSES.contains(class).then_some(Node::Directory),
            [class, "abi_version"] => {
                let (_, text) = ABI.iter().find(|(path, _)| Path::new(path).starts_with(class))?;
                Some(Node::Text(format!("{text}\n")))
            }
            ["infiniband_verbs", name, file @ ..] => {
                of_device(self.devices.iter().find(|device| device.dev_name == *name), file, &VERBS)
            }
            ["infiniband_mad", name, file @ ..] => {
                let number = name.strip_prefix("umad").and_then(number)?;
                of_device(with_mads(self.devices).nth(number), file, &MAD)
            }
            ["infiniband", name, file @ ..] => {
                let device = self.devices.iter().find(|device| device.name == *name)?;
                self.of(device, &file.join("/"))
            }
            _ => None,
        }
    }

    /// Returns a device's node at this path below its directory.
    fn of(&self, device: &DeviceInfo, path: &str) -> Option<Node> {
        if let Some((_, text)) = files(device).find(|(file, _)| *file == path) {
            return Some(Node::Text(format!("{}\n", text(self, device))));
        }
        let below = below(device);
        match path {
            "subsystem" => return Some(Node::Link(SUBSYSTEM.to_owned())),
            "device" => return Some(Node::Link(below)),
            _ => {}
        }
        if path == format!("{below}/numa_node") {
            return Some(Node::Text(format!("{}\n", (self.numa_node)(&device.netdev))));
        }
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        if let Some((_, text)) = TABLES.iter().find(|(table, _)| *table == directory) {
            let index = number(name).filter(|index| *index < device.gid_table_len().into())?;
            let table = device.gid_table();
            let entry = table.iter().find(|entry| usize::from(entry.index) == index);
            return Some(readable(text(self, device, entry)));
        }
        let below_port = |path: &str| -> Option<&'static str> {
            let group = path.strip_prefix(PORT)?.strip_prefix('/')?;
            GROUPS.into_iter().find(|known| *known == group)
        };
        if let Some(group) = below_port(directory) {
            return Some(Node::Counter { device: device.name.clone(), group, name: name.to_owned() });
        }
        let net = format!("{below}/net/{}", device.netdev);
        let directories = TABLES.iter().map(|(table, _)| *table).chain([net.as_str()]);
        let leads = |file: &str| path.is_empty() || Path::new(file).starts_with(path);
        let known =
            directories.chain(files(device).map(|(file, _)| file)).any(leads) || below_port(path).is_some();
        known.then_some(Node::Directory)
    }
}

/// The devices that have management datagrams, and so files of the class `infiniband_mad`: those of RoCE.
pub fn with_mads(devices: &[DeviceInfo]) -> impl Iterator<Item = &DeviceInfo> {
    devices.iter().filter(|device| !device.is_iwarp())
}

/// The [`FILES`] of a device.
fn files(device: &DeviceInfo) -> impl Iterator<Item = (&'static str, Text)> {
    let iwarp = device.is_iwarp();
    FILES.into_iter().filter(move |(file, _)| !(iwarp && ROCE_FILES.contains(file)))
}

/// The directory, beside a device's files, that its link `device` names: as on a card a link, because
/// programs read it (`readlink`), and with a name of its own, because some tell devices apart by that.
fn below(device: &DeviceInfo) -> String {
    format!(".{}", device.name)
}

/// The NUMA node of a network interface: what the kernel says of its hardware; 0 if it says nothing and node
/// 0 is the only one online, else -1.
pub fn numa_node(netdev: &str) -> i32 {
    numa_node_in(Path::new("/sys"), netdev)
}

fn numa_node_in(sys: &Path, netdev: &str) -> i32 {
    let read = |path: &str| std::fs::read_to_string(sys.join(path)).unwrap_or_default();
    let told = read(&format!("class/net/{netdev}/device/numa_node")).trim().parse();
    let only = if read("devices/system/node/online").trim() == "0" { 0 } else { -1 };
    told.ok().filter(|node: &i32| *node >= 0).unwrap_or(only)
}

/// Returns the counters of a device, as [`crate::Message::Statistics`] lists them, and those of connection
/// management for all devices, each with the directory below the device's port and the file's name.
pub fn counters<'a>(counted: &'a [(String, u64)], cm: &CmStatus) -> Vec<(&'static str, &'a str, u64)> {
    let mut all: Vec<_> =
        counted.iter().map(|(name, value)| ("hw_counters", name.as_str(), *value)).collect();
    all.push(("hw_counters", "lifespan", LIFESPAN.as_millis() as u64));
    all.extend(port_counters(counted).map(|(name, value)| ("counters", name, value)));
    for (group, values) in [
        ("cm_rx_msgs", &cm.counters.rx_msgs),
        ("cm_rx_duplicates", &cm.counters.rx_duplicates),
        ("cm_tx_msgs", &cm.counters.tx_msgs),
        ("cm_tx_retries", &cm.counters.tx_retries),
    ] {
        all.extend(CmStatus::MESSAGES.into_iter().zip(&values.0).map(|(name, value)| (group, name, *value)));
    }
    all
}

/// The file of a counter, below `/sys/class`.
pub fn counter_path(device: &str, group: &str, name: &str) -> String {
    format!("infiniband/{device}/{PORT}/{group}/{name}")
}

/// `5054:00ff:fe77:0002`: GUIDs and GIDs.
pub fn quads(octets: &[u8]) -> String {
    let quads: Vec<String> =
        octets.chunks(2).map(|pair| pair.iter().map(|octet| format!("{octet:02x}")).collect()).collect();
    quads.join(":")
}

/// A number as a file is named by it.
fn number(name: &str) -> Option<usize> {
    let plain = name == "0" || !name.starts_with(['0', '+']);
    name.parse().ok().filter(|_| plain)
}

fn readable(text: Option<String>) -> Node {
    text.map_or(Node::Unreadable, |text| Node::Text(text + "\n"))
}

/// `100 Gb/sec (4X EDR)`.
fn rate((width, speed): (u8, u32)) -> String {
    let lanes = if width == 1 { 1 } else { 4 };
    // The speed of a lane, in units of 100 Mb/s.
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

#[cfg(test)]
mod tests;
