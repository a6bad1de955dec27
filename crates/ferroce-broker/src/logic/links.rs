//! Links and what is set for them, as somebody asks for it.

use std::net::IpAddr;

use ferroce_ipc::{
    DPDK_PREFIX, DatapathState, DeviceInfo, IWARP_MINOR, LinkKind, MAX_MESSAGE, Message, NetdevInfo, Refusal,
    RefusalCode, Setting, XDP_MINOR, XdpPorts,
};
use tracing::{info, warn};

use super::{Broker, dpdk};
use crate::devices::Devices;
use crate::refusal;
use crate::system::{Hardware, System};
use ferroce_host::netdev::Netdev;

/// Interfaces that fit a message.
const MOST_NETDEVS: usize = MAX_MESSAGE / 160;

impl<S: System> Broker<S> {
    /// One of the messages that change links: all of it, or nothing.
    pub(super) fn links(&mut self, message: Message) -> Result<(), Refusal> {
        match message {
            Message::LinkAdd { name, kind, netdev, transient } => {
                if let Some(devargs) = netdev.strip_prefix(DPDK_PREFIX) {
                    return self.add_dpdk_link(&name, kind, devargs, transient);
                }
                self.change_links(|devices| devices.add_link(&name, kind, &netdev, transient))?;
                info!(name, kind = kind.name(), netdev, transient, "link added");
                if kind == LinkKind::Rxe {
                    self.map_priorities(&netdev);
                }
            }
            Message::LinkDel { name, transient } => {
                let tap = self.devices.tap_of(&name);
                self.change_links(|devices| devices.delete_link(&name, transient))?;
                if let Some((tap, configured)) = tap {
                    self.close_dpdk_port(&tap, transient && configured);
                }
                info!(name, transient, "link deleted");
            }
            Message::LinkSet { name, settings, transient, force } => {
                if self.uid != 0 && settings.contains(&Setting::XdpPorts(XdpPorts::Direct)) {
                    let sentence = "xdp-ports direct needs a ferroced of root: the programs of any other user could then send all \
                                    frames. With auto, the programs that have CAP_NET_RAW get direct ports";
                    return Err(refusal(RefusalCode::Permission, sentence));
                }
                self.change_links(|devices| devices.set_link(&name, &settings, transient, force))?;
                info!(name, ?settings, transient, force, "link set");
            }
            Message::LinkRename { name, to, transient } => {
                self.change_links(|devices| devices.rename_link(&name, &to, transient))?;
                info!(name, to, transient, "link renamed");
            }
            Message::LinkStart => {
                self.devices.start();
                if let Some(netdevs) = dpdk::open_configured(&mut self.system, &self.devices) {
                    self.host = netdevs;
                }
                self.publish();
            }
            other => unreachable!("no message about links: {other:?}"),
        }
        Ok(())
    }

    /// Changes the links here and in their file, or neither.
    pub(super) fn change_links(
        &mut self,
        change: impl FnOnce(&mut Devices) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut devices = self.devices.clone();
        change(&mut devices)?;
        if devices.configured() != self.devices.configured() {
            self.system.configure_links(devices.configured()).map_err(|e| {
                let sentence =
                    format!("what links there are cannot be kept ({e}); --no-persist does without");
                refusal(RefusalCode::Failed, sentence)
            })?;
        }
        self.devices = devices;
        self.publish();
        Ok(())
    }

    /// Frames of a VLAN, or of those above an interface, are to have the priorities of their sockets, where
    /// nobody chose others and we may; who added the link sees what came of it.
    fn map_priorities(&mut self, netdev: &str) {
        let Some(below) = self.host.iter().find(|n| n.name == netdev).map(|n| n.ifindex) else { return };
        let here = |n: &&Netdev| n.ifindex == below || n.lower == Some(below);
        let unmapped = |n: &&Netdev| n.vlan.is_some_and(|vlan| vlan.egress == [0; 8]);
        for vlan in self.host.iter().filter(here).filter(unmapped) {
            if let Err(e) = self.system.map_priorities(vlan) {
                warn!(vlan.name, "frames have no priority of their own: {e}");
            }
        }
    }

    /// The devices of a view that a program of this minor version is told of. An older one would take those
    /// of iWARP for RoCE, and cannot ask for AF_XDP.
    pub(super) fn told(&self, view: Option<u32>, minor: u16) -> Vec<DeviceInfo> {
        let mut devices = self.view(view);
        devices.retain(|device| minor >= IWARP_MINOR || !device.is_iwarp());
        if minor < XDP_MINOR {
            devices.iter_mut().for_each(|device| device.datapath = DatapathState::Udp);
        }
        devices
    }

    /// The interfaces, and configured links that wait for theirs.
    pub(super) fn netdevs(&self) -> Vec<NetdevInfo> {
        let configured = |name: &str| {
            let here = self.devices.configured().iter().filter(|link| link.netdev == name);
            // There may be one of each kind; that of RoCE is named before the other.
            let found = here.min_by_key(|link| link.kind != LinkKind::Rxe);
            found.map(|link| link.name.clone()).unwrap_or_default()
        };
        let row = |netdev: &Netdev| {
            let Hardware { driver, speed, pause, pfc } = self.system.hardware(netdev);
            let ipv4 = netdev.addresses.iter().find_map(|ip| match ip {
                IpAddr::V4(ip) => Some(*ip),
                IpAddr::V6(_) => None,
            });
            NetdevInfo {
                name: netdev.name.clone(),
                ifindex: netdev.ifindex,
                mtu: netdev.mtu,
                up: netdev.up,
                running: netdev.running,
                ethernet: netdev.mac.is_some(),
                driver,
                speed,
                ipv4,
                pause,
                pfc,
                vlan: netdev.vlan,
                configured: configured(&netdev.name),
            }
        };
        let waiting = self.devices.configured().iter();
        let waiting = waiting.filter(|link| !self.host.iter().any(|n| n.name == link.netdev));
        let waiting = waiting.map(|link| NetdevInfo {
            name: link.netdev.clone(),
            configured: link.name.clone(),
            ..NetdevInfo::default()
        });
        self.host.iter().map(row).chain(waiting).take(MOST_NETDEVS).collect()
    }
}
