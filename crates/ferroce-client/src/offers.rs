//! The rings and AF_XDP sockets that the broker gave, and the sockets that the program wants.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use ferroce_host::fork::Guarded;
use ferroce_ipc::{DeviceInfo, Message};

/// Rings to the broker.
#[derive(Debug)]
pub struct RingsOffer {
    /// See [`ferroce_ipc::ring::Rings::join`].
    pub memory: OwnedFd,
    /// Wakes the broker.
    pub bell: OwnedFd,
}

impl RingsOffer {
    /// The rings of a [`ferroce_ipc::Message::Rings`]; `None` if that has too few descriptors.
    pub(super) fn new(descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        Some(Self { memory: descriptors.next()?, bell: descriptors.next()? })
    }
}

/// The doorbell with which the program asks for rings, of this broker and of each later one.
#[derive(Debug)]
pub(super) struct Bell {
    /// The broker's end of the doorbell.
    pub(super) far: Guarded<OwnedFd>,
    /// Packets of RoCE v2 go by the rings as well.
    pub(super) v2: bool,
}

impl Bell {
    pub(super) fn message(&self) -> Message {
        Message::OpenRings { v2: self.v2 }
    }
}

/// An AF_XDP socket for the interface of a device.
#[derive(Debug)]
pub struct XdpOffer {
    /// The index of the interface.
    pub ifindex: u32,
    /// The bound socket.
    pub socket: OwnedFd,
    /// The memory of its packets.
    pub memory: OwnedFd,
    /// Whether it is bound to the interface itself, so that its frames need hardware addresses.
    pub direct: bool,
}

impl XdpOffer {
    /// The socket of a [`ferroce_ipc::Message::Xdp`]; `None` if that has too few descriptors.
    pub(super) fn new(ifindex: u32, direct: bool, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        Some(Self { ifindex, socket: descriptors.next()?, memory: descriptors.next()?, direct })
    }
}

/// The interfaces whose devices the program opened, each with the state of its socket at this broker.
#[derive(Debug, Default)]
pub(super) struct Ports(pub(super) BTreeMap<u32, XdpSocketState>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum XdpSocketState {
    /// To be asked for as soon as the device has AF_XDP.
    Wanted,
    /// Asked for by the request of this id; 0 if the asking thread waits for the answer.
    Asked(u32),
    /// Given.
    Given,
    /// Refused. It is asked for again after the device was without AF_XDP.
    Refused,
}

impl Ports {
    /// Another broker has given nothing yet.
    pub(super) fn forget_broker(&mut self) {
        self.0.values_mut().for_each(|state| *state = XdpSocketState::Wanted);
    }

    /// Takes over the devices, and returns the interfaces whose sockets are to be asked for now.
    pub(super) fn due(&mut self, devices: &[DeviceInfo]) -> Vec<u32> {
        let is_xdp =
            |ifindex| devices.iter().any(|device| device.ifindex == ifindex && device.datapath.is_xdp());
        let mut due = Vec::new();
        for (ifindex, state) in &mut self.0 {
            match is_xdp(*ifindex) {
                true if *state == XdpSocketState::Wanted => due.push(*ifindex),
                true => {}
                // The broker has taken it back.
                false => *state = XdpSocketState::Wanted,
            }
        }
        due
    }

    pub(super) fn set(&mut self, ifindex: u32, state: XdpSocketState) {
        self.0.insert(ifindex, state);
    }

    /// Takes the refusal of a request. Returns its interface, if it was for a socket.
    pub(super) fn refused(&mut self, id: u32) -> Option<u32> {
        let asked =
            |(_, state): &(&u32, &mut XdpSocketState)| **state == XdpSocketState::Asked(id) && id != 0;
        let (ifindex, state) = self.0.iter_mut().find(asked)?;
        *state = XdpSocketState::Refused;
        Some(*ifindex)
    }
}
