//! GID tables as rows.

use std::fmt::{self, Display};

use ferroce_ipc::{DeviceInfo, GidType};
use ferroce_wire::Gid;
use serde::{Serialize, Serializer};

#[derive(Serialize, Debug, PartialEq, Eq)]
pub struct GidRow {
    pub ifname: String,
    port: u8,
    pub index: u16,
    #[serde(serialize_with = "text")]
    pub gid: Gid,
    #[serde(rename = "type")]
    pub gid_type: &'static str,
    pub netdev: String,
}

fn text<S: Serializer>(gid: &Gid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(gid)
}

/// The used entries of these devices, by index. `netdev` maps an ifindex to a name.
pub fn rows(devices: &[(u32, &DeviceInfo)], netdev: impl Fn(u32) -> String) -> Vec<GidRow> {
    let mut rows = Vec::new();
    for (_, device) in devices {
        rows.extend(device.gid_table().iter().map(|entry| GidRow {
            ifname: device.name.clone(),
            port: 1,
            index: entry.index,
            gid: entry.gid,
            gid_type: if device.is_iwarp() { "IB/RoCE v1" } else { type_name(entry.gid_type) },
            netdev: netdev(entry.ifindex),
        }));
    }
    rows
}

/// The name in `ibv_devinfo`. For an iWARP port this is the name in sysfs.
fn type_name(gid_type: GidType) -> &'static str {
    match gid_type {
        GidType::RoceV1 => "RoCE v1",
        GidType::RoceV2 => "RoCE v2",
    }
}

/// The interface's name, or its index in angle brackets after its removal.
pub fn netdev_name(ifindex: u32) -> String {
    let known = nix::net::if_::if_indextoname(ifindex).ok();
    known.and_then(|name| name.into_string().ok()).unwrap_or_else(|| format!("<{ifindex}>"))
}

impl Display for GidRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ifname, port, index, gid, gid_type, netdev } = self;
        write!(f, "gid {ifname}/{port} index {index} gid {gid} type {gid_type} netdev {netdev}")
    }
}
