//! The settings of devices, as a lane applies them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_paths::devices::scope_of;

use super::{Lane, Source};
use crate::device::{DeviceInfo, GidEntry};

impl Lane {
    /// Takes over the settings of the devices that have its address: the first of them counts what the lane
    /// receives, and if one of them checks no ICRC, the lane does not either. A group's address belongs to
    /// its interface.
    pub(crate) fn follow_settings(&self, devices: &[DeviceInfo]) {
        let here = |device: &&DeviceInfo| {
            let is = |entry: &GidEntry| {
                entry.gid.to_ip() == self.local && scope_of(entry.gid, entry.ifindex) == self.scope_id
            };
            match self.source {
                Source::Group { .. } => device.ifindex == self.scope_id && !device.is_iwarp(),
                Source::Xdp(ref port) => device.ifindex == port.ifindex() && !device.is_iwarp(),
                _ => device.gids.iter().any(is),
            }
        };
        // The setting of an iWARP link is about TCP connections.
        let mut unchecked = devices.iter().filter(|device| !device.settings.crc && !device.is_iwarp());
        if let Source::Rings { unchecked: interfaces, .. } = &self.source {
            let of = |device: &DeviceInfo| -> Vec<u32> {
                device.gids.iter().map(|entry| entry.ifindex).chain([device.ifindex]).collect()
            };
            interfaces.store(Arc::new(unchecked.clone().flat_map(of).collect()));
        }
        let checks = self.traits.has_icrc && !unchecked.any(|device| here(&device));
        self.checks.store(checks, Ordering::Relaxed);
        // A lane whose device is gone goes on counting for it.
        if let Some(device) = devices.iter().find(here) {
            let block = self.hub.ledger.block_of(device.id, &device.name);
            self.block.store(block, Ordering::Relaxed);
            if let Source::Xdp(port) = &self.source {
                port.set_block(block);
            }
        }
    }
}
