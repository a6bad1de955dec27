//! AF_XDP sockets, which the broker gives: asked for when a device is opened, and again of each broker that
//! follows.

use std::os::fd::OwnedFd;

use ferroce_ipc::{ClientError, Message};
use tracing::{info, warn};

use super::link::{Inner, Link};
use super::offers::{XdpOffer, XdpSocketState};
use super::{BrokerClient, BrokerError, BrokerEvent, REQUEST};

impl Inner {
    /// Asks for the sockets that the broker can give now. The answers are events.
    pub(super) fn ask_for_ports(&mut self) {
        let Link::Up { client, resume: None } = &mut self.link else { return };
        if self.slots.is_empty() {
            return;
        }
        for ifindex in self.ports.due(&self.devices) {
            match client.send(&Message::OpenXdp(ifindex), &[]) {
                Ok(id) => self.ports.set(ifindex, XdpSocketState::Asked(id)),
                Err(error) => warn!(ifindex, %error, "the broker was not asked for an AF_XDP socket"),
            }
        }
    }

    /// The broker gave a socket.
    pub(super) fn port_given(&mut self, ifindex: u32, direct: bool, descriptors: Vec<OwnedFd>) {
        self.ports.set(ifindex, XdpSocketState::Given);
        self.events.extend(XdpOffer::new(ifindex, direct, descriptors).map(BrokerEvent::Xdp));
    }

    /// The broker refused a request. Returns whether it was for a socket.
    pub(super) fn port_refused(&mut self, id: u32, sentence: &str) -> bool {
        let refused = self.ports.refused(id);
        if let Some(ifindex) = refused {
            info!(ifindex, "no AF_XDP, UDP sockets are used: {sentence}");
        }
        refused.is_some()
    }
}

impl BrokerClient {
    /// Asks for an AF_XDP socket on the interface of a device, of this broker and of each one that follows
    /// it, now and whenever the device gets AF_XDP again. Returns `None` if there is no socket now, and if
    /// the program has one already. Later ones are [`BrokerEvent::Xdp`].
    ///
    /// # Errors
    /// [`BrokerError::Client`] with the broker's sentence: it gives no socket.
    pub fn open_xdp(&self, ifindex: u32) -> Result<Option<XdpOffer>, BrokerError> {
        {
            let mut inner = self.inner.lock();
            inner.ports.0.entry(ifindex).or_insert(XdpSocketState::Wanted);
            let ready = inner.is_ready() && !inner.slots.is_empty();
            let Inner { ports, devices, .. } = &mut *inner;
            if !ready || !ports.due(devices).contains(&ifindex) {
                return Ok(None);
            }
            ports.set(ifindex, XdpSocketState::Asked(0));
        }
        let request = Message::OpenXdp(ifindex);
        let asked = self.ask(|client| match client.request(&request, REQUEST)? {
            (Message::Xdp { direct, .. }, descriptors) => {
                XdpOffer::new(ifindex, direct, descriptors).ok_or(ClientError::Unexpected)
            }
            _ => Err(ClientError::Unexpected),
        });
        match asked {
            Ok((mut guard, offer)) => {
                guard.inner.ports.set(ifindex, XdpSocketState::Given);
                Ok(Some(offer))
            }
            Err(error) => {
                self.inner.lock().ports.set(ifindex, XdpSocketState::Refused);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
