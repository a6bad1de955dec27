//! GIDs and their IP addresses.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Global identifier of a port: 16 octets, on RoCE an IP address. IPv4 is written `::ffff:a.b.c.d` (RoCEv2
/// A17.4.5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The empty slot of a GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// The GID of an address.
    pub const fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The address of a GID: an IPv4-mapped GID gives an IPv4 address.
    pub const fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from_bits(u128::from_be_bytes(self.0));
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }

    /// Whether this GID is an empty slot.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// Whether this GID contains an IPv4 address.
    pub fn is_ipv4(self) -> bool {
        self.to_ip().is_ipv4()
    }

    /// Whether this GID is a multicast group: `ff…`, or an IPv4 address of class D.
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }

    /// The link-local GID of an Ethernet address: `fe80::/64` and the modified EUI-64.
    pub const fn link_local(mac: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = mac;
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self::from_ip(IpAddr::V4(ip))
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Self::from_ip(IpAddr::V6(ip))
    }
}

impl fmt::Display for Gid {
    /// Prints the GID as an IPv6 address: `::ffff:192.0.2.1`, `fe80::1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn addresses_round_trip() {
        for (text, v4) in [
            ("192.0.2.1", true),
            ("127.0.0.1", true),
            ("2001:db8::1", false),
            ("::1", false),
            ("fe80::1", false),
        ] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(Gid::from_ip(ip).to_ip(), ip);
            assert_eq!(Gid::from_ip(ip).is_ipv4(), v4, "{text}");
        }
        assert_eq!(Gid::from(Ipv4Addr::new(127, 0, 0, 1)).to_string(), "::ffff:127.0.0.1");
        assert!(Gid::ZERO.is_zero() && !Gid::from(Ipv6Addr::LOCALHOST).is_zero());
    }

    #[test]
    fn mapped_ipv6_address_is_ipv4() {
        let mapped: Ipv6Addr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(Gid::from(mapped).to_ip(), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    }

    #[test]
    fn groups() {
        for (text, group) in [("239.1.2.3", true), ("ff0e::1", true), ("10.0.0.1", false), ("fd79::1", false)]
        {
            assert_eq!(Gid::from_ip(text.parse().unwrap()).is_multicast(), group, "{text}");
        }
    }

    #[test]
    fn link_local_from_mac() {
        let gid = Gid::link_local([0x52, 0x54, 0x00, 0x79, 0x00, 0x01]);
        assert_eq!(gid.to_string(), "fe80::5054:ff:fe79:1");
    }
}
