//! The list of devices that the broker told of.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ferroce_ipc::{DatapathState, DeviceInfo, GidEntry};
use ferroce_wire::{Flow, Gid, RoceVersion};

/// Whether packets of RoCE v2 from an address on `ifindex` leave by the broker, because it polls the port of
/// the device. Packets of a VLAN above leave by sockets.
pub fn is_polled(info: &DeviceInfo, ifindex: u32) -> bool {
    info.datapath == DatapathState::Dpdk && info.ifindex == ifindex
}

/// The scope of an address: link-local addresses mean something on one interface only.
pub fn scope_of(gid: Gid, ifindex: u32) -> u32 {
    match gid.to_ip() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => ifindex,
        _ => 0,
    }
}

/// The devices, as last told by the broker.
#[derive(Default)]
pub struct Devices(ArcSwap<Vec<DeviceInfo>>);

impl Devices {
    pub fn all(&self) -> Arc<Vec<DeviceInfo>> {
        self.0.load_full()
    }

    pub fn set(&self, devices: Vec<DeviceInfo>) {
        self.0.store(Arc::new(devices));
    }

    /// Looks at a device without copying it; `None` if it is gone.
    pub fn with<R>(&self, id: u32, look: impl FnOnce(&DeviceInfo) -> Option<R>) -> Option<R> {
        self.0.load().iter().find(|info| info.id == id).and_then(look)
    }

    /// Whether a device has this address.
    pub fn has_address(&self, ip: IpAddr) -> bool {
        let gid = Gid::from_ip(ip);
        self.0.load().iter().flat_map(|info| &info.gids).any(|entry| entry.gid == gid)
    }

    /// The hardware address of the interface of this index, if a device has GIDs there.
    pub fn mac(&self, ifindex: u32) -> Option<[u8; 6]> {
        self.0.load().iter().find_map(|info| info.macs.get(&ifindex).copied())
    }

    /// Whether programs can have AF_XDP sockets on the interface of this index.
    pub fn is_xdp(&self, ifindex: u32) -> bool {
        self.0.load().iter().any(|info| info.ifindex == ifindex && info.datapath.is_xdp())
    }

    /// Whether a packet that came by the rings is for an address of device `id`.
    pub fn has(&self, id: u32, flow: &Flow) -> bool {
        let is = |entry: &GidEntry| {
            entry.ifindex == flow.link.ifindex
                && RoceVersion::from(entry.gid_type) == flow.link.version
                && entry.gid.to_ip() == flow.destination
        };
        self.with(id, |info| info.gids.iter().any(is).then_some(())).is_some()
    }
}
