//! Interfaces, addresses, routes and neighbours from the kernel by rtnetlink.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::netdev::{Netdev, Vlan};

mod resolver;
mod routes;
mod veth;

pub use resolver::{Path, Resolver};
pub use routes::{RouteMtu, route_mtus};
pub use veth::{VethPair, create_pair, delete_link, own_ends};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// Groups RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR.
const LINK_GROUPS: u32 = 1 | 0x10 | 0x100;
/// Also RTMGRP_IPV4_ROUTE, RTMGRP_IPV4_RULE, RTMGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE and RTNLGRP_NEXTHOP, since
/// a route depends on all of them.
const ROUTE_GROUPS: u32 = LINK_GROUPS | 0x40 | 0x80 | 0x400 | 1 << 18 | 1 << 31;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;

const IFF_UP: u32 = 1;
const IFF_LOOPBACK: u32 = 8;
const IFF_LOWER_UP: u32 = 0x1_0000;
const ARPHRD_ETHER: u16 = 1;
/// Duplicate found, or duplicate detection not finished; an optimistic address may be used meanwhile.
const IFA_F_DADFAILED: u32 = 8;
const IFA_F_OPTIMISTIC: u32 = 4;
const IFA_F_TENTATIVE: u32 = 0x40;

/// Group RTMGRP_NEIGH.
const NEIGHBOURS: u32 = 4;
/// NUD_REACHABLE, STALE, DELAY, PROBE, NOARP and PERMANENT: the hardware address is known.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

/// Time limit of an answer; the kernel answers at once.
const LIMIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A socket that becomes readable when an interface, an address or (if opened for it) a route changes.
#[derive(Debug)]
pub struct Monitor {
    fd: OwnedFd,
}

impl Monitor {
    /// Monitors this network namespace.
    pub fn open() -> io::Result<Self> {
        Ok(Self { fd: socket(LINK_GROUPS)? })
    }

    /// Monitors its routes, too.
    pub fn of_routes() -> io::Result<Self> {
        Ok(Self { fd: socket(ROUTE_GROUPS)? })
    }

    /// Discards the queued notifications; returns whether there were any. The caller then reads the present
    /// state.
    pub fn drain(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut any = false;
        for _ in 0..1024 {
            match rustix::net::recv(&self.fd, &mut buffer, RecvFlags::DONTWAIT) {
                // ENOBUFS: the kernel dropped notifications.
                Ok(_) | Err(rustix::io::Errno::NOBUFS) => any = true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
        any
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// All interfaces of this network namespace, with their addresses, except the ends of pairs that a broker
/// made ([`create_pair`]).
pub fn netdevs() -> io::Result<Vec<Netdev>> {
    let mut links = links()?;
    dump(RTM_GETADDR, &[0; 8], |kind, body| {
        if kind == RTM_NEWADDR
            && let Some((ifindex, ip)) = parse_address(body)
            && let Some(link) = links.iter_mut().find(|link| link.netdev.ifindex == ifindex)
        {
            link.netdev.addresses.push(ip);
        }
    })?;
    let virtual_wires: Vec<bool> = links.iter().map(|link| is_virtual_wire(&links, link, 0)).collect();
    let bonds: Vec<u32> = links.iter().filter(|l| l.kind == "bond").map(|l| l.netdev.ifindex).collect();
    Ok(links
        .into_iter()
        .zip(virtual_wires)
        .map(|(link, virtual_wire)| {
            let mut netdev = link.netdev;
            netdev.virtual_wire = virtual_wire;
            netdev.lower = link.lower.filter(|_| matches!(link.kind.as_str(), "vlan" | "macvlan"));
            netdev.bond = link.controller.filter(|index| bonds.contains(index));
            netdev.active_member = link.active_member.filter(|_| link.kind == "bond");
            netdev.kind = link.kind;
            netdev.vlan = link.vlan.filter(|_| netdev.kind == "vlan");
            netdev.default_gid = netdev.own_default_gid();
            netdev
        })
        .collect())
}

/// As [`netdevs`], without addresses, and without what follows from the interfaces together.
fn links() -> io::Result<Vec<Link>> {
    let mut links = Vec::new();
    // A struct ifinfomsg or ifaddrmsg of zeros selects everything.
    dump(RTM_GETLINK, &[0; 16], |kind, body| {
        if kind == RTM_NEWLINK {
            links.extend(
                parse_link(body).filter(|link| !veth::is_own(&link.netdev.name, &link.kind, &link.alias)),
            );
        }
    })?;
    Ok(links)
}

/// Limit of nested interfaces in a search; Linux allows eight of a kind.
const MOST_LAYERS: u32 = 16;

/// Returns whether the interface's traffic stays in memory of this host, as far as this network namespace
/// shows: it is virtual, and so are all interfaces below it. An interface below in another namespace is
/// unknown and counts as physical.
fn is_virtual_wire(links: &[Link], link: &Link, depth: u32) -> bool {
    let virtual_too = |other: &Link| depth < MOST_LAYERS && is_virtual_wire(links, other, depth + 1);
    match link.kind.as_str() {
        "veth" | "dummy" | "tun" => true,
        "vlan" | "macvlan" | "macvtap" | "ipvlan" | "ipvtap" => {
            let lower = links.iter().find(|other| link.lower == Some(other.netdev.ifindex));
            lower.is_some_and(virtual_too)
        }
        "bridge" | "bond" | "team" => {
            let mut ports = links.iter().filter(|port| port.controller == Some(link.netdev.ifindex));
            ports.all(virtual_too)
        }
        _ => link.netdev.loopback,
    }
}

/// See [`Netdev::virtual_wire`]; `false` if the kernel does not answer.
pub fn has_virtual_wire(ifindex: u32) -> bool {
    let links = links().unwrap_or_default();
    let link = links.iter().find(|link| link.netdev.ifindex == ifindex);
    link.is_some_and(|link| is_virtual_wire(&links, link, 0))
}

/// Executes `ip link set dev … up`. Fails with `PermissionDenied` without the right.
pub fn set_up(ifindex: u32) -> io::Result<()> {
    change_link(ifindex, IFF_UP, |_| {})
}

/// Gives an Ethernet interface a hardware address and an MTU, and sets it up.
///
/// # Errors
/// Returns the kernel's error, which has the kind `PermissionDenied` without CAP_NET_ADMIN.
pub fn set_up_with(ifindex: u32, mac: [u8; 6], mtu: u16) -> io::Result<()> {
    change_link(ifindex, IFF_UP, |body| {
        push_attribute(body, 1, &mac);
        push_attribute(body, IFLA_MTU, &u32::from(mtu).to_ne_bytes());
    })
}

/// Attaches an XDP program to an interface in generic mode, in place of the one there. It stays as long as
/// the interface does, whatever becomes of this process.
///
/// # Errors
/// Returns the kernel's error, which has the kind `PermissionDenied` without CAP_NET_ADMIN.
pub fn keep_xdp(ifindex: u32, program: impl AsFd) -> io::Result<()> {
    const NESTED_IFLA_XDP: u16 = 43 | 0x8000;
    const IFLA_XDP_FD: u16 = 1;
    const IFLA_XDP_FLAGS: u16 = 3;
    const XDP_FLAGS_SKB_MODE: u32 = 2;
    let mut xdp = Vec::new();
    push_attribute(&mut xdp, IFLA_XDP_FD, &program.as_fd().as_raw_fd().to_ne_bytes());
    push_attribute(&mut xdp, IFLA_XDP_FLAGS, &XDP_FLAGS_SKB_MODE.to_ne_bytes());
    change_link(ifindex, 0, |body| push_attribute(body, NESTED_IFLA_XDP, &xdp))
}

/// Sets flags and attributes of an interface.
fn change_link(ifindex: u32, flags: u32, attributes: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
    let mut body = [0, ifindex, flags, flags].map(u32::to_ne_bytes).concat();
    attributes(&mut body);
    request(RTM_NEWLINK, NLM_F_ACK, &body, |_, _| {})
}

/// The index of an interface.
///
/// # Errors
/// `NotFound`, or `ENODEV`, if no interface has this name.
pub fn index_of(name: &str) -> io::Result<u32> {
    let mut body = vec![0; 16];
    push_attribute(&mut body, IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
    let mut found = None;
    request(RTM_GETLINK, NLM_F_ACK, &body, |kind, body| {
        if kind == RTM_NEWLINK {
            found = u32_at(body, 4);
        }
    })?;
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The error of a route that refuses packets. An answer for IPv4 is an error itself, one for IPv6 a route
/// whose type is RTN_BLACKHOLE, RTN_UNREACHABLE, RTN_PROHIBIT or RTN_THROW (Linux 6.12, `fib6_prop`).
fn refusal(route: &[u8]) -> Option<io::Error> {
    let errno = match route.get(7)? {
        6 => libc::EINVAL,
        7 => libc::EHOSTUNREACH,
        8 => libc::EACCES,
        9 => libc::ENETUNREACH,
        _ => return None,
    };
    Some(io::Error::from_raw_os_error(errno))
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub ifindex: u32,
    pub ip: IpAddr,
    /// `None` if it is unknown.
    pub mac: Option<[u8; 6]>,
}

fn parse_neighbour(body: &[u8]) -> Option<Neighbour> {
    let (head, rest) = body.split_at_checked(12)?;
    let (ifindex, state) = (u32_at(head, 4)?, u16_at(head, 8)?);
    let (mut address, mut mac) = (None, None);
    for (kind, value) in attributes(rest) {
        match kind {
            1 => address = ip(value),
            2 => mac = value.try_into().ok(),
            _ => {}
        }
    }
    Some(Neighbour { ifindex, ip: address?, mac: mac.filter(|_| state & NUD_VALID != 0) })
}

/// A socket that receives changes of the neighbour table.
#[derive(Debug)]
pub struct NeighbourMonitor {
    fd: OwnedFd,
}

impl NeighbourMonitor {
    /// Monitors this network namespace.
    pub fn open() -> io::Result<Self> {
        Ok(Self { fd: socket(NEIGHBOURS)? })
    }

    /// Passes the queued changes to `each` without waiting; a removed entry has no hardware address. Returns
    /// `false` if the kernel dropped notifications, so that any entry may have changed.
    pub fn drain(&self, mut each: impl FnMut(Neighbour)) -> bool {
        let mut buffer = [0_u8; 16_384];
        let mut whole = true;
        for _ in 0..1024 {
            let got = match rustix::net::recv(&self.fd, buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((_, got)) => got,
                Err(rustix::io::Errno::NOBUFS) => {
                    whole = false;
                    continue;
                }
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => break,
            };
            for (kind, body) in messages(buffer.get(..got).unwrap_or_default()) {
                let known = parse_neighbour(body).filter(|_| matches!(kind, RTM_NEWNEIGH | RTM_DELNEIGH));
                if let Some(entry) = known {
                    let mac = entry.mac.filter(|_| kind == RTM_NEWNEIGH);
                    each(Neighbour { mac, ..entry });
                }
            }
        }
        whole
    }
}

impl AsFd for NeighbourMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

struct Link {
    netdev: Netdev,
    kind: String,
    alias: String,
    vlan: Option<Vlan>,
    active_member: Option<u32>,
    lower: Option<u32>,
    controller: Option<u32>,
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let (head, rest) = body.split_at_checked(16)?;
    let ifindex = u32_at(head, 4)?;
    let flags = u32_at(head, 8)?;
    let ethernet = u16_at(head, 2)? == ARPHRD_ETHER;
    let mut link = Link {
        netdev: Netdev {
            ifindex,
            up: flags & IFF_UP != 0,
            running: flags & (IFF_UP | IFF_LOWER_UP) == IFF_UP | IFF_LOWER_UP,
            loopback: flags & IFF_LOOPBACK != 0,
            ..Netdev::default()
        },
        kind: String::new(),
        alias: String::new(),
        vlan: None,
        active_member: None,
        lower: None,
        controller: None,
    };
    let mut elsewhere = false;
    for (kind, value) in attributes(rest) {
        match kind {
            1 if ethernet => link.netdev.mac = value.try_into().ok().filter(|mac| *mac != [0; 6]),
            IFLA_IFNAME => link.netdev.name = text(value)?,
            IFLA_MTU => link.netdev.mtu = u32_at(value, 0)?,
            5 => link.lower = u32_at(value, 0),
            10 => link.controller = u32_at(value, 0),
            IFLA_LINKINFO => {
                for (kind, value) in attributes(value) {
                    match kind {
                        IFLA_INFO_KIND => link.kind = text(value).unwrap_or_default(),
                        // The meaning depends on the kind.
                        IFLA_INFO_DATA => {
                            (link.vlan, link.active_member) = (parse_vlan(value), parse_bond(value))
                        }
                        _ => {}
                    }
                }
            }
            20 => link.alias = text(value).unwrap_or_default(),
            // IFLA_LINK_NETNSID: the lower interface is in another namespace, where its index belongs to
            // another one
            37 => elsewhere = true,
            _ => {}
        }
    }
    if elsewhere {
        link.lower = None;
    }
    (ifindex != 0 && !link.netdev.name.is_empty()).then_some(link)
}

/// The number and egress map of a VLAN.
fn parse_vlan(data: &[u8]) -> Option<Vlan> {
    let find = |wanted| attributes(data).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    // IFLA_VLAN_ID
    let mut vlan = Vlan { id: u16_at(find(1)?, 0)?, egress: [0; 8] };
    // IFLA_VLAN_EGRESS_QOS: pairs of a socket's priority and a tag's
    for (_, pair) in find(3).into_iter().flat_map(attributes) {
        let (from, to) = (u32_at(pair, 0)?, u32_at(pair, 4)?);
        if let Some(entry) = vlan.egress.get_mut(from as usize) {
            *entry = to as u8 & 7;
        }
    }
    Some(vlan)
}

/// The sending member of a bond; the kernel names it in modes with one sender.
fn parse_bond(data: &[u8]) -> Option<u32> {
    // IFLA_BOND_ACTIVE_SLAVE
    let (_, index) = attributes(data).find(|(kind, _)| *kind == 2)?;
    u32_at(index, 0).filter(|index| *index != 0)
}

/// Copies the sockets' priorities to the frames of a VLAN, as
/// `ip link set … type vlan egress-qos-map 0:0 … 7:7` does. Fails with `PermissionDenied` without the right.
pub fn map_priorities(ifindex: u32) -> io::Result<()> {
    let (mut pairs, mut map, mut info) = (Vec::new(), Vec::new(), Vec::new());
    for priority in 0..8_u32 {
        push_attribute(&mut pairs, 1, &[priority.to_ne_bytes(); 2].concat());
    }
    push_attribute(&mut map, 3, &pairs);
    push_attribute(&mut info, IFLA_INFO_KIND, b"vlan\0");
    push_attribute(&mut info, IFLA_INFO_DATA, &map);
    change_link(ifindex, 0, |body| push_attribute(body, IFLA_LINKINFO, &info))
}

/// Priorities of an interface with flow control, one bit each; `None` if the driver reports none.
pub fn flow_controlled(netdev: &str) -> Option<u8> {
    const RTM_GETDCB: u16 = 78;
    const DCB_CMD_IEEE_GET: u8 = 21;
    let mut body = vec![0, DCB_CMD_IEEE_GET, 0, 0];
    push_attribute(&mut body, 1, &[netdev.as_bytes(), &[0]].concat()); // DCB_ATTR_IFNAME
    let mut found = None;
    // Many kernels lack the command, most drivers the operation. The answer is one message, and the
    // acknowledgement ends it.
    let _ = request(RTM_GETDCB, NLM_F_ACK, &body, |_, body| found = found.or(parse_pfc(body)));
    found
}

/// The enabled priorities in an answer to DCB_CMD_IEEE_GET.
fn parse_pfc(body: &[u8]) -> Option<u8> {
    // DCB_ATTR_IEEE, in it DCB_ATTR_IEEE_PFC, of which the second octet is `pfc_en`
    let (_, ieee) = attributes(body.get(4..)?).find(|(kind, _)| *kind == 13)?;
    let (_, pfc) = attributes(ieee).find(|(kind, _)| *kind == 2)?;
    pfc.get(1).copied()
}

/// The interface and the address, if the address is usable.
fn parse_address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let (head, rest) = body.split_at_checked(8)?;
    let mut flags = u32::from(*head.get(2)?);
    let ifindex = u32_at(head, 4)?;
    let (mut local, mut address) = (None, None);
    for (kind, value) in attributes(rest) {
        match kind {
            // On a point-to-point interface IFA_ADDRESS is the other end, IFA_LOCAL ours.
            1 => address = ip(value),
            2 => local = ip(value),
            8 => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    let waiting = flags & IFA_F_TENTATIVE != 0 && flags & IFA_F_OPTIMISTIC == 0;
    let works = flags & IFA_F_DADFAILED == 0 && !waiting;
    local.or(address).filter(|_| works).map(|ip| (ifindex, ip))
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

/// A zero-terminated UTF-8 text; interfaces with other names are ignored.
fn text(value: &[u8]) -> Option<String> {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    let text = std::str::from_utf8(value.get(..end)?).ok()?;
    (!text.chars().any(char::is_control)).then(|| text.to_owned())
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The type and value of each attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & 0x3fff; // without the nested and byte order flags
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The type and body of each message.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let message = (u16_at(bytes, 4)?, bytes.get(16..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn dump(kind: u16, body: &[u8], each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    request(kind, NLM_F_DUMP, body, each)
}

fn socket(groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // The default protocol 0 is NETLINK_ROUTE.
    let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

/// Sends one request and passes every message of the answer to `each`.
fn request(kind: u16, flags: u16, body: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let fd = socket(0)?;
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes()); // sequence number
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(body);
    rustix::net::sendto(&fd, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;

    let mut buffer = vec![0_u8; 65_536];
    loop {
        if rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&LIMIT)))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (_, got) = rustix::net::recv(&fd, buffer.as_mut_slice(), RecvFlags::DONTWAIT)?;
        for (kind, body) in messages(buffer.get(..got).unwrap_or_default()) {
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    return match u32_at(body, 0).map(|code| code as i32) {
                        Some(0) => Ok(()),
                        Some(code) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
                        None => Err(io::ErrorKind::InvalidData.into()),
                    };
                }
                _ => each(kind, body),
            }
        }
    }
}

#[cfg(test)]
mod tests;
