//! The broker's description of a network interface, for people.

use std::net::Ipv4Addr;

use ferroce_host::netdev::Vlan;

/// A network interface, or a configured link whose interface is not there.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NetdevInfo {
    /// Name: 1 to 15 characters.
    pub name: String,
    /// Index; 0: not there.
    pub ifindex: u32,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// Set up by the administrator.
    pub up: bool,
    /// Up, with carrier.
    pub running: bool,
    /// Whether it has a hardware address, as Ethernet has.
    pub ethernet: bool,
    /// Driver, or what the kernel calls the kind of a virtual one; may be empty.
    pub driver: String,
    /// Mb/s; `None` where it says nothing.
    pub speed: Option<u32>,
    /// The first IPv4 address of the interface.
    pub ipv4: Option<Ipv4Addr>,
    /// Flow control of the whole link (IEEE 802.3x), where the driver tells.
    pub pause: Option<Pause>,
    /// Priorities with flow control of their own (IEEE 802.1Qbb), a bit each, where the driver tells.
    pub pfc: Option<u8>,
    /// The VLAN that the interface is; `None` for other kinds.
    pub vlan: Option<Vlan>,
    /// The link that is configured for it; empty for none.
    pub configured: String,
}

/// Pause frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pause {
    /// The interface negotiates pause frames with the other end.
    pub autoneg: bool,
    /// The interface obeys received pause frames.
    pub rx: bool,
    /// The interface sends pause frames when it receives too slowly.
    pub tx: bool,
}
