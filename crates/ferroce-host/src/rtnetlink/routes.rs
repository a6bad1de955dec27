//! Routes that carry smaller packets than their interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{RTM_GETROUTE, RTM_NEWROUTE, attributes, dump, ip, u32_at};

/// `RTM_F_CLONED` of rtnetlink(7): in a request the path MTUs that routers have told, in an answer one of
/// them.
const CLONED: u32 = 0x200;

/// The largest packet that a route carries, from its configuration or as routers told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMtu {
    /// The index of the interface.
    pub ifindex: u32,
    /// The destination, and how many bits of it count.
    pub destination: IpAddr,
    pub bits: u8,
    /// Octets of an IP packet.
    pub mtu: u32,
    /// Whether a router told it.
    pub told: bool,
}

/// All routes of this network namespace that have an MTU of their own.
///
/// # Errors
/// The errors of a netlink socket.
pub fn route_mtus() -> io::Result<Vec<RouteMtu>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for flags in [0, CLONED] {
            let mut body = [0_u8; 12];
            body[0] = family as u8;
            body[8..].copy_from_slice(&flags.to_ne_bytes());
            dump(RTM_GETROUTE, &body, |kind, body| {
                let route = if kind == RTM_NEWROUTE { parse(body) } else { None };
                found.extend(route.filter(|route| !found.contains(route)));
            })?;
        }
    }
    Ok(found)
}

fn parse(body: &[u8]) -> Option<RouteMtu> {
    let (head, rest) = body.split_at_checked(12)?;
    let find = |kind| attributes(rest).find(|(found, _)| *found == kind).map(|(_, value)| value);
    // RTAX_MTU in RTA_METRICS
    let (_, mtu) = attributes(find(8)?).find(|(kind, _)| *kind == 2)?;
    let any = if i32::from(*head.first()?) == libc::AF_INET {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    Some(RouteMtu {
        // RTA_OIF
        ifindex: u32_at(find(4)?, 0)?,
        destination: find(1).map_or(Some(any), ip)?,
        bits: *head.get(1)?,
        mtu: u32_at(mtu, 0).filter(|mtu| *mtu > 0)?,
        told: u32_at(head, 8)? & CLONED != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        super::super::push_attribute(&mut bytes, kind, value);
        bytes
    }

    #[test]
    fn only_routes_with_an_mtu_are_told() {
        let route = |metrics: &[u8]| {
            let mut body = vec![libc::AF_INET as u8, 24, 0, 0, 254, 3, 0, 1, 0, 2, 0, 0];
            body.extend(attribute(1, &[10, 99, 0, 0]));
            body.extend(attribute(4, &7_u32.to_ne_bytes()));
            body.extend(attribute(8, metrics));
            parse(&body)
        };
        let found = route(&attribute(2, &1000_u32.to_ne_bytes())).unwrap();
        let want =
            RouteMtu { ifindex: 7, destination: [10, 99, 0, 0].into(), bits: 24, mtu: 1000, told: true };
        assert_eq!(found, want);
        assert_eq!(route(&attribute(10, &64_u32.to_ne_bytes())), None, "a hop limit alone");
        assert_eq!((parse(&[]), parse(&[2; 12])), (None, None));
        assert!(route_mtus().is_ok());
    }
}
