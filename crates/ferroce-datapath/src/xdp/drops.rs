//! Reasons why the kernel dropped what a program sent.

/// A reason why the check at the near end of a program's pair dropped a frame. The numbers are indices of a
/// map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// No whole packet of RoCE: another EtherType, a truncated header, IP options, or lengths that contradict
    /// each other.
    Malformed = 0,
    /// A fragment of an IPv4 packet.
    Fragment = 1,
    /// The protocol is not UDP, or the destination port is not 4791.
    ForeignPort = 2,
    /// No device on the interface has the source address.
    ForeignSource = 3,
    /// The DestQP is 0, 1 or 0xFFFFFF: queue pairs of management, and multicast.
    ReservedQp = 4,
    /// A UD packet names a source queue pair whose slot the program does not hold.
    ForeignQp = 5,
    /// The destination is an address of this host, and no program with a port holds the slot of the DestQP.
    NoPort = 6,
    /// The kernel has no route of type unicast to the destination, or the route forbids it.
    NoRoute = 7,
    /// The kernel's neighbour table has no valid hardware address for the next hop.
    NoNeighbour = 8,
    /// The kernel's route leads to another interface.
    OtherInterface = 9,
    /// The packet is longer than the MTU of the route.
    TooLong = 10,
    /// Forwarding is off at the near end: `net.ipv4.conf.IF.forwarding` or `net.ipv6.conf.IF.forwarding`.
    ForwardingOff = 11,
}

impl DropReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Malformed,
        Self::Fragment,
        Self::ForeignPort,
        Self::ForeignSource,
        Self::ReservedQp,
        Self::ForeignQp,
        Self::NoPort,
        Self::NoRoute,
        Self::NoNeighbour,
        Self::OtherInterface,
        Self::TooLong,
        Self::ForwardingOff,
    ];

    /// Returns the name for counters: lower case with `_`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Fragment => "fragment",
            Self::ForeignPort => "foreign_port",
            Self::ForeignSource => "foreign_source",
            Self::ReservedQp => "reserved_qp",
            Self::ForeignQp => "foreign_qp",
            Self::NoPort => "no_port",
            Self::NoRoute => "no_route",
            Self::NoNeighbour => "no_neighbour",
            Self::OtherInterface => "other_interface",
            Self::TooLong => "too_long",
            Self::ForwardingOff => "forwarding_off",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_indices_and_names_differ() {
        let names: std::collections::BTreeSet<_> =
            DropReason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), DropReason::ALL.len());
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }
}
