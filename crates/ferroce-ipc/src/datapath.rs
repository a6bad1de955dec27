//! The ways on which packets of a device move: the way that the administrator wants, and the way that is in
//! use.

use std::fmt;

use crate::words::words;

/// The wanted datapath of a link: `ferroce link set NAME datapath …`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Datapath {
    /// UDP sockets.
    #[default]
    Udp = 0,
    /// AF_XDP sockets behind an XDP program of the broker, and UDP sockets where that is impossible.
    Xdp = 1,
}

words! {
    Datapath {
        Udp => "udp",
        Xdp => "xdp",
    }
}

/// Which AF_XDP sockets programs get: `ferroce link set NAME xdp-ports …`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum XdpPorts {
    /// A port at the interface itself for a program that may send any frame anyway, and a port behind a
    /// checked pair for the others.
    #[default]
    Auto = 0,
    /// A port at the interface itself for every program of root, if the broker is root's. Otherwise as
    /// [`XdpPorts::Auto`].
    Direct = 1,
    /// Behind a checked pair for every program.
    Pairs = 2,
}

words! {
    XdpPorts {
        Auto => "auto",
        Direct => "direct",
        Pairs => "pairs",
    }
}

/// The datapath of a device that is in use, or the reason why it is not the wanted one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DatapathState {
    /// UDP sockets, as wanted.
    #[default]
    Udp = 0,
    /// AF_XDP; the driver of the interface runs the XDP program.
    XdpNative = 1,
    /// AF_XDP; the kernel runs the XDP program after the driver (`xdpgeneric`).
    XdpGeneric = 2,
    /// DPDK: the broker drives the port, and packets reach programs by the rings to the broker.
    Dpdk = 3,
    /// UDP sockets, because the broker lacks CAP_NET_ADMIN, CAP_NET_RAW or CAP_BPF.
    NoPermission = 16,
    /// UDP sockets, because the kernel has no AF_XDP, no `bpf(2)`, or no veth.
    NoSupport = 17,
    /// UDP sockets, because the interface is a loopback, a VLAN, or has no hardware address.
    WrongInterface = 18,
    /// UDP sockets, because another XDP program is attached to the interface.
    Busy = 19,
    /// UDP sockets, because of another error, which the broker's log has.
    Failed = 20,
}

impl DatapathState {
    /// Returns whether programs can have AF_XDP sockets.
    pub const fn is_xdp(self) -> bool {
        matches!(self, Self::XdpNative | Self::XdpGeneric)
    }
}

/// For people: `udp`, `xdp (native)`, `dpdk`, or `udp (…)` with the reason.
impl fmt::Display for DatapathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "udp",
            Self::XdpNative => "xdp (native)",
            Self::XdpGeneric => "xdp (generic)",
            Self::Dpdk => "dpdk",
            Self::NoPermission => "udp (xdp needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF in ferroced)",
            Self::NoSupport => "udp (the kernel has no AF_XDP, bpf or veth)",
            Self::WrongInterface => "udp (xdp needs an Ethernet interface that is no VLAN)",
            Self::Busy => "udp (the interface has another XDP program)",
            Self::Failed => "udp (xdp failed; see the log of ferroced)",
        })
    }
}
