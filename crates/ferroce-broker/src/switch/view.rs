//! The configuration of the switch, as the broker's state machine gives it.

use std::collections::BTreeSet;

use ferroce_host::netdev::Address;

use super::rules::Way;
use crate::ClientId;

/// The configuration of the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The interfaces that hold the addresses.
    pub ports: Vec<PortView>,
    /// All addresses that are served: of those queue pair 1 is ours.
    pub ways: BTreeSet<Way>,
    /// The programs that hold slots.
    pub programs: Vec<ProgramView>,
    /// The members of programs without sockets.
    pub relays: Vec<RelayView>,
    /// Another number than before, if their sockets are others.
    pub epoch: u64,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Index of the interface.
    pub ifindex: u32,
    /// Hardware address of the interface; without one nothing is sent by it.
    pub mac: Option<[u8; 6]>,
    /// The largest packet that it takes.
    pub mtu: u32,
    /// A VLAN: the interface below, and its number.
    pub vlan: Option<(u32, u16)>,
    /// The interface is a loopback interface.
    pub loopback: bool,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramView {
    /// Connection of the program.
    pub client: ClientId,
    /// Slots of the program.
    pub slots: Vec<u16>,
    /// The addresses of its devices.
    pub ways: BTreeSet<Way>,
    /// Packets of RoCE v2 to its slots come by the rings as well.
    pub v2: bool,
    /// The program has no sockets: its packets of RoCE v2 leave by the broker's, unless they are frames.
    pub relayed: bool,
}

/// A divided member on a local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RelayView {
    /// The address.
    pub address: Address,
    /// The member.
    pub member: u8,
    /// The interface of the address.
    pub ifindex: u32,
    /// Whether packets whose ICRC is wrong are dropped.
    pub checks: bool,
}
