//! The devices, as the broker last told them.

use std::sync::Arc;

use ferroce_ipc::DeviceInfo;

use super::BrokerEvent;
use super::link::Inner;

impl Inner {
    /// Takes over the devices as they are now, and tells the difference.
    pub(super) fn update(&mut self, devices: Vec<DeviceInfo>) {
        let before = std::mem::replace(&mut self.devices, devices);
        // Ids are a broker's own: the next one may number anew. Names and interfaces say what is the same; an
        // interface has one device of each kind, so that it may be renamed.
        let renamed = |a: &DeviceInfo, b: &DeviceInfo| {
            a.id == b.id && a.origin == b.origin && a.node_guid == b.node_guid
        };
        let same = |a: &DeviceInfo, b: &DeviceInfo| {
            a.ifindex == b.ifindex && a.kind == b.kind && (a.name == b.name || renamed(a, b))
        };
        let highest = before.iter().chain(&self.devices).map(|device| device.id).max().unwrap_or(0);
        let mut unused = highest.wrapping_add(1);
        for now in &mut self.devices {
            match before.iter().find(|old| same(old, now)) {
                Some(old) => {
                    now.id = old.id;
                    if now.gids != old.gids {
                        self.events.push_back(BrokerEvent::GidsChanged(now.id));
                    }
                    let shown = |device: &DeviceInfo| (device.mtu, device.name.clone(), device.datapath);
                    if shown(now) != shown(old) || now.settings != old.settings {
                        self.events.push_back(BrokerEvent::DeviceChanged(now.id));
                    }
                    let other = |(ifindex, mac): &(&u32, &[u8; 6])| {
                        old.macs.get(*ifindex).is_some_and(|before| before != *mac)
                    };
                    let changed = now.macs.iter().filter(other);
                    self.events.extend(changed.map(|(index, _)| BrokerEvent::MacChanged(now.id, *index)));
                    match (old.port_active, now.port_active) {
                        (false, true) => self.events.push_back(BrokerEvent::PortActive(now.id)),
                        (true, false) => self.events.push_back(BrokerEvent::PortDown(now.id)),
                        _ => {}
                    }
                }
                None => {
                    if before.iter().any(|old| old.id == now.id) {
                        now.id = unused;
                        unused = unused.wrapping_add(1);
                    }
                    self.events.push_back(BrokerEvent::DeviceAdded(now.id));
                }
            }
        }
        for old in &before {
            if !self.devices.iter().any(|now| same(old, now)) {
                self.events.push_back(BrokerEvent::DeviceRemoved(old.id));
            }
        }
        self.known.store(Arc::new(self.devices.clone()));
        self.ask_for_ports();
    }
}
