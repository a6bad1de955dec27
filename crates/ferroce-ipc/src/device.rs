//! A program's view of a device: its name, port and GID table.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ferroce_host::environment;
use ferroce_host::netdev::Netdev;
use ferroce_wire::{Gid, PathMtu};

use crate::datapath::DatapathState;
use crate::gid::{GidEntry, GidType};
use crate::kind::LinkKind;
use crate::settings::LinkSettings;

/// An RDMA device in a client's view: a link on a network interface, with its single port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The id is stable for the life of the device, and a broker never reuses it.
    pub id: u32,
    /// The name that `ibv_get_device_name` returns: 1 to 63 characters.
    pub name: String,
    /// Name of the character device that a kernel driver would make: `uverbs0`.
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
    pub phys_state: PhysState,
    pub origin: Origin,
    /// The transport that the device speaks.
    pub kind: LinkKind,
    /// The way that its packets take now.
    pub datapath: DatapathState,
    /// The GIDs that are IP addresses, in ascending order of index: those of RoCE. An iWARP device has none,
    /// so that no address finds it and no socket is opened for it. [`DeviceInfo::gid_table`] is the table
    /// that programs see.
    pub gids: Vec<GidEntry>,
    /// The administrator's settings.
    pub settings: LinkSettings,
    /// Hardware addresses, by interface index: those of the interfaces that hold the device's GIDs, and that
    /// of the bond that its interface is part of. The sender leaves out those that do not fit the message.
    pub macs: BTreeMap<u32, [u8; 6]>,
}

impl DeviceInfo {
    /// Returns the port's active MTU: the largest that fits its interface with all headers, unless the
    /// administrator set a smaller one. On iWARP it means nothing on the wire, and is the largest that is not
    /// above the MTU of the interface, as siw has it.
    pub fn path_mtu(&self) -> PathMtu {
        if self.is_iwarp() {
            return PathMtu::largest_fitting(self.mtu.saturating_add(PathMtu::HEADER_BUDGET));
        }
        let fits = PathMtu::largest_fitting(self.mtu);
        // A frame of AF_XDP has 3,840 octets in a chunk of 4 KiB, and larger packets would take another way
        // than the small ones.
        let fits = if self.datapath.is_xdp() { fits.min(PathMtu::B2048) } else { fits };
        self.settings.mtu.map_or(fits, |set| set.min(fits))
    }

    /// Whether the device speaks iWARP, and not RoCE.
    pub fn is_iwarp(&self) -> bool {
        self.kind == LinkKind::Siw
    }

    /// Returns the valid entries of the port's GID table, in ascending order of index. An iWARP port has one:
    /// the hardware address and ten zero octets, as siw has it. The address is part of the node GUID, which
    /// is random on an interface without one (`lo`). There the entry shows the same octets of the random
    /// GUID, because a GID of zeros counts as no GID.
    pub fn gid_table(&self) -> Cow<'_, [GidEntry]> {
        if !self.is_iwarp() {
            return Cow::Borrowed(&self.gids);
        }
        // The modified EUI-64 of a hardware address has one bit inverted, and two octets in the middle.
        let [a, b, c, _, _, d, e, f] = self.node_guid;
        let gid = Gid([a ^ 2, b, c, d, e, f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let gid_type = GidType::RoceV1; // The verbs have no type of its own for it.
        Cow::Owned(vec![GidEntry { index: 0, gid, gid_type, ifindex: self.ifindex }])
    }

    /// Returns the length of the port's GID table, empty entries included.
    pub fn gid_table_len(&self) -> u16 {
        if self.is_iwarp() { 1 } else { GID_TABLE }
    }
}

/// Entries of the GID table of a RoCE port, as rxe.
pub const GID_TABLE: u16 = 1024;

/// The devices that the library shows to a program that lists devices. The other devices work as well: a
/// connection to an address finds the device that has the address, listed or not.
///
/// The default device on `lo` serves hosts without configuration. A host with links shows only the links, as
/// a host with cards does. Programs that use every active port (UCX, NCCL, Mooncake) would take the default
/// device as a second path to every host, because the 127.0.0.1 of two hosts looks like one subnet to them,
/// and would hang. Reporting the port as DOWN would break programs that name the device, and programs that
/// use all ports ignore the order of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The list has only the first device, because `FERROCE_NETDEV` selected it.
    pub one: bool,
    /// The list includes the default device: `FERROCE_LOOPBACK=1`.
    pub loopback: bool,
}

impl Listing {
    /// Reads the listing from the environment.
    pub fn from_environment() -> Self {
        Self {
            one: environment::variable("FERROCE_NETDEV").is_some_and(|netdev| !netdev.is_empty()),
            loopback: environment::variable("FERROCE_LOOPBACK").is_some_and(|value| value == "1"),
        }
    }

    /// Selects the devices to show from those that the broker reported, in the same order.
    pub fn of(self, devices: &[DeviceInfo]) -> Vec<DeviceInfo> {
        let links = devices.iter().any(|device| device.origin == Origin::Link);
        let shown = |(index, device): &(usize, &DeviceInfo)| match device.origin {
            Origin::Default if self.loopback => true,
            _ if self.one => *index == 0,
            Origin::Default => !links,
            Origin::Link | Origin::View => true,
        };
        devices.iter().enumerate().filter(shown).map(|(_, device)| device.clone()).collect()
    }
}

/// Physical state of a port; the numbers are the verbs' `phys_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PhysState {
    /// Up, no carrier.
    Polling = 2,
    Disabled = 3,
    /// Up, with carrier.
    LinkUp = 5,
}

impl From<&Netdev> for PhysState {
    fn from(netdev: &Netdev) -> Self {
        match (netdev.up, netdev.running) {
            (true, true) => Self::LinkUp,
            (true, false) => Self::Polling,
            (false, _) => Self::Disabled,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Origin {
    /// The device on `lo` that every broker has.
    Default = 0,
    /// `ferroce link add` made the device.
    Link = 1,
    /// The broker made the device for one client that requested a netdev.
    View = 2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_as_its_interface() {
        let state = |up, running| PhysState::from(&Netdev { up, running, ..Netdev::default() });
        assert_eq!(state(true, true), PhysState::LinkUp);
        assert_eq!(state(true, false), PhysState::Polling);
        assert_eq!(state(false, true), PhysState::Disabled);
    }

    fn device(name: &str, origin: Origin) -> DeviceInfo {
        DeviceInfo {
            id: 1,
            name: name.to_owned(),
            dev_name: "uverbs0".to_owned(),
            node_guid: [1; 8],
            netdev: "eth0".to_owned(),
            ifindex: 2,
            mtu: 1500,
            port_active: true,
            phys_state: PhysState::LinkUp,
            origin,
            kind: LinkKind::Rxe,
            datapath: Default::default(),
            gids: Vec::new(),
            settings: LinkSettings::default(),
            macs: BTreeMap::new(),
        }
    }

    #[test]
    fn the_default_device_steps_back() {
        let (fr0, fr1) = (device("fr0", Origin::Default), device("fr1", Origin::Link));
        let (fr2, own) = (device("fr2", Origin::Link), device("fr3", Origin::View));
        let alone = vec![fr0.clone()];
        let links = vec![fr1.clone(), fr2.clone(), fr0.clone()];
        let view = vec![own, fr1, fr2.clone(), fr0.clone()];
        let lo = vec![fr0.clone(), fr2];
        let (default, one) = (Listing::default(), Listing { one: true, loopback: false });
        let (both, one_and_lo) =
            (Listing { one: false, loopback: true }, Listing { one: true, loopback: true });
        for (listing, devices, want) in [
            (default, &alone, &["fr0"][..]),
            (default, &links, &["fr1", "fr2"]),
            (both, &alone, &["fr0"]),
            (both, &links, &["fr1", "fr2", "fr0"]),
            (one, &view, &["fr3"]),
            (one, &links, &["fr1"]),
            (one, &lo, &["fr0"]),
            (one_and_lo, &view, &["fr3", "fr0"]),
            (one_and_lo, &lo, &["fr0"]),
            (default, &Vec::new(), &[]),
        ] {
            let shown = listing.of(devices);
            let shown: Vec<&str> = shown.iter().map(|device| device.name.as_str()).collect();
            assert_eq!(shown, want, "{listing:?}");
        }
    }

    #[test]
    fn an_iwarp_port_has_one_gid_which_is_no_address() {
        let siw = DeviceInfo {
            kind: LinkKind::Siw,
            node_guid: [0x50, 0x54, 0x00, 0xff, 0xfe, 0x77, 0x00, 0x02],
            ..device("siw0", Origin::Link)
        };
        let entry = siw.gid_table()[0];
        assert_eq!((siw.gid_table().len(), siw.gid_table_len(), entry.index, entry.ifindex), (1, 1, 0, 2));
        assert_eq!(entry.gid.0, [0x52, 0x54, 0x00, 0x77, 0x00, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(siw.gids.is_empty());
        for (mtu, want) in [(1500, 1024), (4096, 4096), (4095, 2048), (65_536, 4096), (68, 256)] {
            assert_eq!(DeviceInfo { mtu, ..siw.clone() }.path_mtu().bytes(), want, "{mtu}");
        }
        let rxe = device("rxe0", Origin::Link);
        assert_eq!((rxe.gid_table().len(), rxe.gid_table_len()), (0, 1024));
    }
}
