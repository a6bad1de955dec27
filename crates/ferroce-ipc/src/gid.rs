//! Entries of GID tables.

use std::fmt;

use ferroce_wire::{Gid, RoceVersion};

use crate::words::words;

/// A valid entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the port's table: 0 to 1023.
    pub index: u16,
    /// The GID; the interface or an upper interface of it holds its address.
    pub gid: Gid,
    /// RoCE version.
    pub gid_type: GidType,
    /// The interface that holds the address: the device's own or a VLAN, macvlan or bond above it.
    pub ifindex: u32,
}

impl fmt::Display for GidEntry {
    /// As in `index 1 is 10.0.0.5 (RoCE v2)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = RoceVersion::from(self.gid_type) as u8;
        write!(f, "index {} is {} (RoCE v{version})", self.index, self.gid.to_ip())
    }
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

words! {
    GidType {
        RoceV1 => "v1",
        RoceV2 => "v2",
    }
}
