//! Devices and the host's interfaces: links and what is set for them, as somebody asks for it.

use std::collections::BTreeSet;

use ferroce_ipc::{
    DEVICE_BYTES, DPDK_PREFIX, DeviceInfo, GID_BYTES, LinkKind, MAC_BYTES, MAX_MESSAGE, Message, RULE_BYTES,
    Refusal, RefusalCode, Setting, XdpPorts,
};
use tracing::{error, info, warn};

use crate::devices::{Devices, gids_of};
use crate::refusal;
use crate::system::System;
use ferroce_host::netdev::{Address, Netdev, addresses_over};

/// Devices in one client's view; its GIDs are as many as a message then has room for.
const MOST_DEVICES: usize = 256;

/// The devices, and the interfaces that they stand on.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) devices: Devices,
    pub(super) host: Vec<Netdev>,
    /// Addresses whose port somebody else holds.
    pub(super) taken: BTreeSet<Address>,
}

impl Links {
    /// The devices of `netdevs`, with the ports of DPDK of configured links.
    pub(super) fn new(system: &mut impl System, random_guid: [u8; 8], netdevs: Vec<Netdev>) -> Self {
        let devices = Devices::new(random_guid, system.configured_links(), system.may_send_frames());
        let mut links = Self { devices, host: netdevs, taken: BTreeSet::new() };
        links.open_configured(system);
        links.update(|_| false);
        links
    }

    /// The interface with this index.
    pub(super) fn netdev(&self, ifindex: u32) -> Option<&Netdev> {
        self.host.iter().find(|netdev| netdev.ifindex == ifindex)
    }

    /// Brings the devices up to date with the interfaces. Addresses that are `hidden` have no GIDs.
    pub(super) fn update(&mut self, hidden: impl Fn(Address) -> bool) {
        let mut netdevs = self.host.clone();
        for netdev in &mut netdevs {
            netdev.addresses.retain(|ip| !hidden(Address::of(*ip, netdev.ifindex)));
        }
        self.devices.update(netdevs);
    }

    /// Carries out one of the messages that change links: all of it, or nothing. Afterwards the devices are
    /// to be published.
    pub(super) fn execute(
        &mut self,
        message: Message,
        system: &mut impl System,
        uid: u32,
        hidden: impl Fn(Address) -> bool,
    ) -> Result<(), Refusal> {
        match message {
            Message::LinkAdd { name, kind, netdev, transient } => {
                if let Some(devargs) = netdev.strip_prefix(DPDK_PREFIX) {
                    return self.add_on_dpdk(&name, kind, devargs, transient, system, hidden);
                }
                self.change(system, |devices| devices.add_link(&name, kind, &netdev, transient))?;
                info!(name, kind = kind.name(), netdev, transient, "link added");
                if kind == LinkKind::Rxe {
                    self.map_priorities(&netdev, system);
                }
            }
            Message::LinkDel { name, transient } => {
                let tap = self.devices.tap_of(&name);
                self.change(system, |devices| devices.delete_link(&name, transient))?;
                if let Some((tap, configured)) = tap {
                    self.close_dpdk(&tap, transient && configured, system);
                }
                info!(name, transient, "link deleted");
            }
            Message::LinkSet { name, settings, transient, force } => {
                if uid != 0 && settings.contains(&Setting::XdpPorts(XdpPorts::Direct)) {
                    let sentence = "xdp-ports direct needs a ferroced of root: the programs of any other user could then send all \
                                    frames. With auto, the programs that have CAP_NET_RAW get direct ports";
                    return Err(refusal(RefusalCode::Permission, sentence));
                }
                self.change(system, |devices| devices.set_link(&name, &settings, transient, force))?;
                info!(name, ?settings, transient, force, "link set");
            }
            Message::LinkRename { name, to, transient } => {
                self.change(system, |devices| devices.rename_link(&name, &to, transient))?;
                info!(name, to, transient, "link renamed");
            }
            other => unreachable!("no message about links: {other:?}"),
        }
        Ok(())
    }

    /// Changes the links here and in their file, or neither.
    fn change(
        &mut self,
        system: &mut impl System,
        change: impl FnOnce(&mut Devices) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut devices = self.devices.clone();
        change(&mut devices)?;
        if devices.configured() != self.devices.configured() {
            system.configure_links(devices.configured()).map_err(|e| {
                let sentence =
                    format!("what links there are cannot be kept ({e}); --no-persist does without");
                refusal(RefusalCode::Failed, sentence)
            })?;
        }
        self.devices = devices;
        Ok(())
    }

    /// Frames of a VLAN, or of those above an interface, are to have the priorities of their sockets, where
    /// nobody chose others and we may; who added the link sees what came of it.
    fn map_priorities(&self, netdev: &str, system: &mut impl System) {
        let Some(below) = self.host.iter().find(|n| n.name == netdev).map(|n| n.ifindex) else { return };
        let here = |n: &&Netdev| n.ifindex == below || n.lower == Some(below);
        let unmapped = |n: &&Netdev| n.vlan.is_some_and(|vlan| vlan.egress == [0; 8]);
        for vlan in self.host.iter().filter(here).filter(unmapped) {
            if let Err(e) = system.map_priorities(vlan) {
                warn!(vlan.name, "frames have no priority of their own: {e}");
            }
        }
    }

    /// The devices that a client lists, as many as fit a message.
    pub(super) fn view(&self, own: Option<u32>) -> Vec<DeviceInfo> {
        let mut devices = self.devices.view(own);
        devices.truncate(MOST_DEVICES);
        for device in &mut devices {
            device.port_active &= !self.is_deaf(device);
        }
        let rules: usize = devices.iter().map(|device| device.settings.rules.len()).sum();
        let mut left = MAX_MESSAGE - 64 - DEVICE_BYTES * devices.len() - RULE_BYTES * rules;
        for device in &mut devices {
            device.gids.truncate(left / GID_BYTES);
            left -= device.gids.len() * GID_BYTES;
        }
        for device in &mut devices {
            while device.macs.len() > left / MAC_BYTES {
                device.macs.pop_last();
            }
            left -= device.macs.len() * MAC_BYTES;
        }
        devices
    }

    /// Whether others hold the port of all addresses of a RoCE device, so that no packet can arrive.
    fn is_deaf(&self, device: &DeviceInfo) -> bool {
        let below = self.netdev(device.ifindex).filter(|_| !self.taken.is_empty());
        let own = below.map(|below| addresses_over(&self.host, below));
        let is_taken = |(ip, ifindex)| self.taken.contains(&Address::of(ip, ifindex));
        !device.is_iwarp()
            && own.into_iter().flatten().any(is_taken)
            && !gids_of(device).any(|address| self.devices.is_assigned(address))
    }

    /// The addresses of a view that an interface has.
    pub(super) fn addresses_of(&self, view: Option<u32>) -> Vec<Address> {
        let mut found = Vec::new();
        for address in self.view(view).iter().flat_map(gids_of) {
            if !found.contains(&address) && self.devices.is_assigned(address) {
                found.push(address);
            }
        }
        found
    }

    /// Opens the ports of DPDK's links, as far as they are not open. A port that cannot be opened is logged;
    /// its link stays, and its tap has no carrier.
    fn open_configured(&mut self, system: &mut impl System) {
        for (tap, devargs) in self.devices.taps() {
            let mut configured = self.devices.configured().iter();
            let keep = configured.any(|link| link.netdev == *tap && link.dpdk.is_some());
            match system.open_dpdk(devargs, tap, keep) {
                Ok(all) => self.host = all,
                Err(sentence) => error!(tap, "the port of a link is not there: {sentence}"),
            }
        }
    }

    /// `ferroce link add NAME type rxe netdev dpdk:DEVARGS`.
    fn add_on_dpdk(
        &mut self,
        name: &str,
        kind: LinkKind,
        devargs: &str,
        transient: bool,
        system: &mut impl System,
        hidden: impl Fn(Address) -> bool,
    ) -> Result<(), Refusal> {
        if kind != LinkKind::Rxe {
            let sentence = "DPDK carries RoCE; an iWARP link stands on the tap of such a link: netdev dpdk0";
            return Err(refusal(RefusalCode::BadRequest, sentence));
        }
        let configured = || self.devices.configured().iter();
        if self.devices.all().any(|device| device.name == name) || configured().any(|link| link.name == name)
        {
            return Err(refusal(RefusalCode::Exists, format!("a device named {name} exists already")));
        }
        if self.devices.all_taps().any(|(_, other)| device_of(other) == device_of(devargs)) {
            let sentence = format!("the device {} of DPDK has a link already", device_of(devargs));
            return Err(refusal(RefusalCode::Exists, sentence));
        }
        let tap = self.devices.free_tap();
        let opened = system.open_dpdk(devargs, &tap, !transient);
        self.host = opened.map_err(|sentence| refusal(RefusalCode::Failed, sentence))?;
        self.update(hidden);
        let added = self.change(system, |devices| {
            devices.add_tap(&tap, devargs);
            devices.add_link(name, kind, &tap, transient)
        });
        if added.is_err() {
            self.close_dpdk(&tap, false, system);
        } else {
            info!(name, devargs, tap, transient, "link added on a device of DPDK");
        }
        added
    }

    /// Closes the port with this tap; `keep`: until the next broker.
    fn close_dpdk(&mut self, tap: &str, keep: bool, system: &mut impl System) {
        system.close_dpdk(tap, keep);
        if !keep {
            self.devices.remove_tap(tap);
            self.host.retain(|netdev| netdev.name != *tap);
        }
    }
}

/// The name of the device in DPDK's device arguments.
fn device_of(devargs: &str) -> &str {
    devargs.split(',').next().unwrap_or_default()
}
