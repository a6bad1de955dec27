//! The ports of AF_XDP: when they are opened, and which queue pairs use them.

use std::net::IpAddr;
use std::sync::Arc;

use ferroce_paths::permitted;
use ferroce_paths::xdp::XdpPort;
use ferroce_proto::Service;

use super::{Engine, Running};
use crate::device::DeviceInfo;
use crate::lane::{Lanes, PortLane};
use ferroce_client::XdpOffer;

impl Engine {
    /// The program opened this device. From now on it has a port whenever the datapath of the device is
    /// AF_XDP. Without sockets for the time when a port is down a process has none.
    pub(crate) fn use_port(&self, device: &DeviceInfo) {
        if device.is_iwarp() || !permitted::xdp_wanted() || self.hub().by_rings {
            return;
        }
        match self.broker.open_xdp(device.ifindex) {
            Ok(Some(offer)) => self.install_port(offer),
            Ok(None) => {}
            Err(error) => tracing::info!(device = device.name, %error, "no AF_XDP: UDP sockets are used"),
        }
    }

    /// The broker gave a socket for a port.
    pub(super) fn install_port(&self, offer: XdpOffer) {
        let Some(Running { lanes, .. }) = self.running.get() else { return };
        let ifindex = offer.ifindex;
        let installed =
            lanes.open_port(ifindex).and_then(|port| port.install(offer.socket, offer.memory, offer.direct));
        match installed {
            Ok(()) => tracing::debug!(ifindex, offer.direct, "packets take AF_XDP"),
            Err(error) => tracing::info!(ifindex, %error, "AF_XDP cannot be used: UDP sockets are used"),
        }
        self.lanes_changed();
    }

    /// The devices changed: packets leave by UDP sockets where the datapath is not AF_XDP any more.
    pub(super) fn follow_ports(&self) {
        self.set_ports_down(|port| !self.devices.is_xdp(port.ifindex()));
    }

    /// Has the queue pairs of these ports send by UDP sockets.
    pub(super) fn set_ports_down(&self, which: impl Fn(&XdpPort) -> bool) {
        let ports = self.running.get().map(|running| running.lanes.ports()).unwrap_or_default();
        for (port, _) in ports.iter().filter(|(port, _)| port.is_up() && which(port)) {
            tracing::info!(ifindex = port.ifindex(), "packets take UDP sockets");
            port.set_down();
        }
    }

    /// The port of the interface of device `id` with its lane, up or down.
    pub(crate) fn port_of(&self, id: u32) -> Option<PortLane> {
        let ports = self.lanes().ports();
        if ports.is_empty() {
            return None;
        }
        let ifindex = self.with_device(id, |info| (!info.is_iwarp()).then_some(info.ifindex))?;
        ports.iter().find(|(port, _)| port.ifindex() == ifindex).cloned()
    }

    /// The port of the interface of device `id`, with the addresses on that interface.
    pub(crate) fn port_for_datagrams(&self, id: u32) -> Option<(Arc<XdpPort>, Vec<IpAddr>)> {
        let (port, _) = self.port_of(id)?;
        let here = |info: &DeviceInfo| {
            let on_it = info.gids.iter().filter(|entry| entry.ifindex == port.ifindex());
            Some(on_it.map(|entry| entry.gid.to_ip()).collect())
        };
        let addresses = self.with_device(id, here)?;
        Some((port, addresses))
    }

    /// Queue pairs take the lanes and the ports that their devices have now.
    pub(super) fn endpoints_follow(&self, lanes: &Lanes) {
        for endpoint in lanes.hub().table.iter() {
            if endpoint.service == Service::Ud {
                let mut core = endpoint.core.lock();
                let device = endpoint.device;
                endpoint.follow_lanes(
                    &mut core,
                    || self.lanes_of(device),
                    || self.port_for_datagrams(device),
                );
            } else if let Some((port, lane)) = self.port_of(endpoint.device)
                && let Some(gids) = self.with_device(endpoint.device, |info| Some(info.gids.clone()))
            {
                endpoint.follow_port(&mut endpoint.core.lock(), &port, &lane, &gids);
            }
        }
    }
}

#[cfg(test)]
mod tests;
