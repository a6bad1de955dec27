//! Network interfaces and their addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A local address, as a socket address names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    pub ip: IpAddr,
    /// Interface index of a link-local IPv6 address, else 0.
    pub scope_id: u32,
}

impl Address {
    pub fn of(ip: IpAddr, ifindex: u32) -> Self {
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        Self { ip, scope_id: if link_local { ifindex } else { 0 } }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope_id {
            0 => self.ip.fmt(f),
            scope => write!(f, "{}%{scope}", self.ip),
        }
    }
}

/// A VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Vlan {
    /// 12 bits.
    pub id: u16,
    /// The priority in the tag for each priority of a socket.
    pub egress: [u8; 8],
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Netdev {
    /// Index, 1 or more.
    pub ifindex: u32,
    pub name: String,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// Only for Ethernet interfaces.
    pub mac: Option<[u8; 6]>,
    /// The administrator has set it up (IFF_UP).
    pub up: bool,
    /// Up with carrier (IFF_RUNNING).
    pub running: bool,
    pub loopback: bool,
    /// The kernel's link kind: `veth`, `vlan`, `bridge`, …; empty for hardware and `lo`.
    pub kind: String,
    /// The VLAN's number and the priorities of its frames.
    pub vlan: Option<Vlan>,
    /// The interface below a VLAN or macvlan, if it is in this network namespace.
    pub lower: Option<u32>,
    /// All its traffic stays in memory of this host: `lo`, a veth, a bridge of such interfaces, …
    pub virtual_wire: bool,
    /// The bond that it is a member of.
    pub bond: Option<u32>,
    /// The sending member of a bond in a mode with one sender; `None` without such a member.
    pub active_member: Option<u32>,
    /// The GID that its device has even without the address, see [`Netdev::own_default_gid`].
    pub default_gid: Option<Ipv6Addr>,
    /// Usable addresses in the kernel's order: neither tentative nor duplicate.
    pub addresses: Vec<IpAddr>,
}

impl Netdev {
    /// The usual loopback interface, for systems where rtnetlink reports nothing.
    pub fn assumed_loopback() -> Self {
        Self {
            ifindex: 1,
            name: "lo".to_owned(),
            mtu: 65_536,
            up: true,
            running: true,
            loopback: true,
            virtual_wire: true,
            addresses: vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            ..Self::default()
        }
    }

    /// The link-local address derived from the hardware address, if the interface has no usable link-local
    /// address: IPv6 is off, or duplicate detection is not finished. The kernel's devices always have this
    /// GID, at index 0 (Linux 6.12, `roce_gid_mgmt.c`, `ib_cache_gid_set_default_gid`). RoCE v1 can use it
    /// without the address. Members of a bond have none.
    pub fn own_default_gid(&self) -> Option<Ipv6Addr> {
        let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if self.loopback || self.bond.is_some() || self.addresses.iter().any(link_local) {
            return None;
        }
        let mut octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        octets.split_at_mut(8).1.copy_from_slice(&self.eui64()?);
        Some(octets.into())
    }

    /// The modified EUI-64 of the hardware address.
    pub fn eui64(&self) -> Option<[u8; 8]> {
        let [a, b, c, d, e, f] = self.mac?;
        Some([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }
}

/// The sender that an address stands for in shares of senders: one host usually has all IPv6 addresses of a
/// /64.
pub fn sender(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

/// The addresses in the GID table of a device on `base`, each with the interface that holds it: those of
/// `base` first, then those of VLANs, macvlans and bonds above it; IPv4 before IPv6, in rxe's order.
/// Addresses above a bond belong to the active member only, or to all members if the bond has no such member
/// (Linux 6.12, `roce_gid_mgmt.c`).
pub fn addresses_over(netdevs: &[Netdev], base: &Netdev) -> Vec<(IpAddr, u32)> {
    let mut holders = vec![base];
    let carries = |bond: &&Netdev| {
        base.bond == Some(bond.ifindex)
            && bond.ifindex != base.ifindex
            && bond.active_member.is_none_or(|active| active == base.ifindex)
    };
    holders.extend(netdevs.iter().filter(carries));
    // Interfaces above those as well: a VLAN on a bond, a macvlan on a VLAN.
    let mut place = 0;
    while let Some(below) = holders.get(place).map(|holder| holder.ifindex) {
        let above = netdevs.iter().filter(|n| n.lower == Some(below));
        let new: Vec<&Netdev> = above.filter(|n| holders.iter().all(|h| h.ifindex != n.ifindex)).collect();
        holders.extend(new);
        place += 1;
    }
    let mut found = Vec::new();
    for v4 in [true, false] {
        for holder in holders.iter().filter(|holder| holder.up) {
            let of_family = holder.addresses.iter().filter(|ip| ip.is_ipv4() == v4);
            found.extend(of_family.map(|&ip| (ip, holder.ifindex)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netdev(ifindex: u32, addresses: &[&str]) -> Netdev {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        Netdev { ifindex, up: true, addresses, ..Netdev::default() }
    }

    #[test]
    fn a_device_has_the_addresses_of_what_is_above_it() {
        let all = [
            netdev(2, &["fe80::2", "10.0.0.2", "2001:db8::2"]),
            Netdev { lower: Some(2), ..netdev(3, &["10.0.3.3"]) },
            Netdev { lower: Some(2), up: false, ..netdev(4, &["10.0.4.4"]) },
            Netdev { lower: Some(9), ..netdev(5, &["10.0.5.5"]) },
            Netdev { bond: Some(7), ..netdev(6, &[]) },
            netdev(7, &["10.0.7.7"]),
        ];
        let mut stacked = all.clone();
        stacked[3].lower = Some(3); // a macvlan on the VLAN
        stacked[1].lower = Some(2);
        stacked[0].lower = Some(5); // impossible; the search must still end
        let found = addresses_over(&stacked, &stacked[0]);
        assert!(found.contains(&("10.0.5.5".parse().unwrap(), 5)), "{found:?}");
        let over = |index: usize| -> Vec<String> {
            addresses_over(&all, &all[index]).iter().map(|(ip, n)| format!("{ip} {n}")).collect()
        };
        assert_eq!(over(0), ["10.0.0.2 2", "10.0.3.3 3", "fe80::2 2", "2001:db8::2 2"]);
        assert_eq!(over(4), ["10.0.7.7 7"], "a bond's address is its members'");
        assert_eq!(over(2), [""; 0], "down");
    }

    #[test]
    fn a_bonds_addresses_are_the_active_members() {
        let over = |active_member, index: usize| -> Vec<String> {
            let all = [
                Netdev { bond: Some(7), ..netdev(5, &[]) },
                Netdev { bond: Some(7), ..netdev(6, &[]) },
                Netdev { active_member, ..netdev(7, &["10.0.7.7"]) },
                Netdev { lower: Some(7), ..netdev(8, &["10.0.8.8"]) },
                Netdev { lower: Some(5), ..netdev(9, &["10.0.9.9"]) },
            ];
            addresses_over(&all, &all[index]).iter().map(|(ip, n)| format!("{ip} {n}")).collect()
        };
        assert_eq!(over(Some(5), 0), ["10.0.7.7 7", "10.0.9.9 9", "10.0.8.8 8"]);
        assert_eq!(over(Some(5), 1), [""; 0]);
        assert_eq!(over(Some(6), 0), ["10.0.9.9 9"], "its own VLAN is not the bond's");
        assert_eq!(over(Some(6), 1), ["10.0.7.7 7", "10.0.8.8 8"]);
        for active in [None, Some(5), Some(6)] {
            assert_eq!(over(active, 2), ["10.0.7.7 7", "10.0.8.8 8"], "the bond's own device");
        }
        assert_eq!(over(None, 1), ["10.0.7.7 7", "10.0.8.8 8"], "it spreads, or no link is left");
    }

    #[test]
    fn only_link_local_addresses_have_a_scope() {
        assert_eq!(Address::of("fe80::1".parse().unwrap(), 4).to_string(), "fe80::1%4");
        assert_eq!(Address::of("2001:db8::1".parse().unwrap(), 4).to_string(), "2001:db8::1");
        assert_eq!(Address::of("127.0.0.1".parse().unwrap(), 1).to_string(), "127.0.0.1");
    }

    #[test]
    fn identity_and_state() {
        let mac = Some([0x02, 0xfc, 0, 0, 0, 1]);
        let up = Netdev { mac, running: true, ..netdev(2, &[]) };
        assert_eq!(up.eui64(), Some([0, 0xfc, 0, 0xff, 0xfe, 0, 0, 1]));
        assert_eq!(Netdev::assumed_loopback().eui64(), None);
        assert_eq!(up.own_default_gid(), Some("fe80::fc:ff:fe00:1".parse().unwrap()));
        let with = |address: &str| Netdev { mac, ..netdev(2, &[address]) }.own_default_gid();
        assert!(with("192.0.2.1").is_some() && with("2001:db8::1").is_some());
        assert_eq!(with("fe80::1"), None, "it has one that works");
        assert_eq!(Netdev { bond: Some(7), ..up.clone() }.own_default_gid(), None);
        assert_eq!(Netdev::assumed_loopback().own_default_gid(), None);
    }
}
