//! A path between two ports, as a REQ proposes it.

use super::{CmTime, bit, is_set, low, view};
use crate::Gid;

/// A path. LIDs and SL have no meaning on RoCE, but are preserved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Path {
    /// LID of the sender: 0xffff or 0 on RoCE.
    pub local_lid: u16,
    /// LID of the receiver.
    pub remote_lid: u16,
    /// GID of the sender's port.
    pub local_gid: Gid,
    /// GID of the receiver's port.
    pub remote_gid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// Static rate as in `ibv_rate`, 6 bits; 0 means the port's rate.
    pub rate: u8,
    /// IP's type of service.
    pub traffic_class: u8,
    /// IP's time to live.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Both ports are in one subnet, without a router between them.
    pub subnet_local: bool,
    /// Local ACK timeout of the receiver's queue pair.
    pub ack_timeout: CmTime,
}

pub(super) const fn flow_label(field: [u8; 3]) -> u32 {
    let [a, b, c] = field;
    u32::from_be_bytes([0, a, b, c]) >> 4
}

pub(super) const fn flow_label_field(label: u32) -> [u8; 3] {
    let [_, a, b, c] = (label << 4).to_be_bytes();
    [a, b, c]
}

impl From<view::Path> for Path {
    fn from(raw: view::Path) -> Self {
        Self {
            local_lid: raw.local_lid.get(),
            remote_lid: raw.remote_lid.get(),
            local_gid: Gid(raw.local_gid),
            remote_gid: Gid(raw.remote_gid),
            flow_label: flow_label(raw.flow_label),
            rate: low(raw.rate, 6),
            traffic_class: raw.traffic_class,
            hop_limit: raw.hop_limit,
            sl: raw.sl >> 4,
            subnet_local: is_set(raw.sl, 3),
            ack_timeout: CmTime::from_upper(raw.ack_timeout),
        }
    }
}

impl From<Path> for view::Path {
    fn from(path: Path) -> Self {
        Self {
            local_lid: path.local_lid.into(),
            remote_lid: path.remote_lid.into(),
            local_gid: path.local_gid.0,
            remote_gid: path.remote_gid.0,
            flow_label: flow_label_field(path.flow_label),
            rate: low(path.rate, 6),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            sl: low(path.sl, 4) << 4 | bit(path.subnet_local, 3),
            ack_timeout: path.ack_timeout.upper(),
        }
    }
}
