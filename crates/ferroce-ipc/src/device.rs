//! What a program sees of a device: its name, port and GID table.

use std::collections::BTreeMap;

use ferroce_wire::{Gid, PathMtu, RoceVersion};

use crate::settings::LinkSettings;

/// One RDMA device in a client's view: a link on a network interface, with its single port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Stable for the life of the device; never reused by one broker.
    pub id: u32,
    /// What `ibv_get_device_name` prints: 1 to 63 characters.
    pub name: String,
    /// The character device it would have: `uverbs0`.
    pub dev_name: String,
    /// Octets of `ibv_get_device_guid`, as on the wire; never zero.
    pub node_guid: [u8; 8],
    /// The interface's name: 1 to 15 characters.
    pub netdev: String,
    /// The interface's index.
    pub ifindex: u32,
    /// The interface's MTU in bytes; the port's active MTU is the largest path MTU that fits it.
    pub mtu: u32,
    /// Whether the port is ACTIVE: the interface is up and has a carrier.
    pub port_active: bool,
    /// The port's physical state.
    pub phys_state: PhysState,
    /// Why this device exists.
    pub origin: Origin,
    /// The valid entries of the GID table, by ascending index.
    pub gids: Vec<GidEntry>,
    /// What an administrator set for it; since minor version 3, the default before.
    pub settings: LinkSettings,
    /// Hardware addresses, by index, of its interfaces that have one: those that hold its GIDs, and the bond that its own is
    /// part of. Since minor version 8, none before; those that do not fit a message are left out.
    pub macs: BTreeMap<u32, [u8; 6]>,
}

impl DeviceInfo {
    /// The port's active MTU: the largest that fits its interface with all headers, unless a smaller one was set.
    pub fn path_mtu(&self) -> PathMtu {
        let fits = PathMtu::largest_fitting(self.mtu);
        self.settings.mtu.map_or(fits, |set| set.min(fits))
    }
}

/// One valid entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the port's table: 0 to 1023.
    pub index: u16,
    /// The GID; its address is one of the interface or of an upper of it.
    pub gid: Gid,
    /// RoCE version.
    pub gid_type: GidType,
    /// The interface that holds the address: the device's own or a VLAN, macvlan or bond above it.
    pub ifindex: u32,
}

/// RoCE version of a GID; the numbers are `enum ibv_gid_type`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GidType {
    /// Ethernet frames of type 0x8915.
    RoceV1 = 1,
    /// UDP port 4791.
    RoceV2 = 2,
}

impl From<GidType> for RoceVersion {
    fn from(gid_type: GidType) -> Self {
        match gid_type {
            GidType::RoceV1 => Self::V1,
            GidType::RoceV2 => Self::V2,
        }
    }
}

impl GidType {
    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoceV1 => "v1",
            Self::RoceV2 => "v2",
        }
    }
}

/// Physical state of a port; the numbers are the verbs' `phys_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PhysState {
    /// Up, no carrier.
    Polling = 2,
    /// The interface is down.
    Disabled = 3,
    /// Up, with carrier.
    LinkUp = 5,
}

/// Why a device exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Origin {
    /// The device on `lo` that is always there.
    Default = 0,
    /// Made by `ferroce link add`.
    Link = 1,
    /// Made for one client only, which asked for a netdev.
    View = 2,
}

macro_rules! from_u8 {
    ($type:ident: $($variant:ident),+) => {
        impl $type {
            /// The variant with this number.
            pub(crate) const fn from_u8(value: u8) -> Option<Self> {
                $(if value == Self::$variant as u8 { return Some(Self::$variant); })+
                None
            }
        }
    };
}

from_u8!(GidType: RoceV1, RoceV2);
from_u8!(PhysState: Polling, Disabled, LinkUp);
from_u8!(Origin: Default, Link, View);
