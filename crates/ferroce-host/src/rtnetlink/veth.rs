//! Pairs of veth interfaces for the broker's AF_XDP ports.
//!
//! The near end is called `ferroceN`, the far end `ferroceNp`, and both have the alias `ferroce`. Only an
//! administrator can give an interface an alias, so name, kind and alias together say that a broker made the
//! interface. [`super::netdevs`] leaves these out.

use std::fs;
use std::io;

use super::{
    IFF_UP, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_MTU, NLM_F_ACK, NLM_F_DUMP,
    RTM_GETLINK, RTM_NEWLINK, change_link, index_of, parse_link, push_attribute, request,
};

const RTM_DELLINK: u16 = 17;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const IFF_NOARP: u32 = 0x80;

const IFLA_IFALIAS: u16 = 20;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
/// IN6_ADDR_GEN_MODE_NONE: the kernel gives the interface no link-local address.
const NO_ADDRESSES: u8 = 1;

/// Alias of both ends, and the first letters of their names.
const MARK: &str = "ferroce";

/// The ends of a pair, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VethPair {
    /// The end that forwards.
    pub near: u32,
    /// The other end.
    pub far: u32,
}

/// Returns the names of the near and the far end of pair `number`.
fn names(number: u32) -> [String; 2] {
    [format!("{MARK}{number}"), format!("{MARK}{number}p")]
}

/// Returns whether a broker made this interface, as an end of a pair.
pub(super) fn is_own(name: &str, kind: &str, alias: &str) -> bool {
    let number = |name: &str| {
        let digits = name.strip_prefix(MARK)?;
        digits.strip_suffix('p').unwrap_or(digits).parse::<u32>().ok()
    };
    kind == "veth" && alias == MARK && number(name).is_some()
}

/// Makes pair `number`, with one queue in each direction, and sets it up. The ends get no addresses. The
/// kernel forwards between the near end and other interfaces, so `bpf_fib_lookup` works there.
///
/// # Errors
/// `AlreadyExists` if one of the names is taken, `PermissionDenied` without CAP_NET_ADMIN, `EOPNOTSUPP` if
/// the kernel has no veth, and the errors of writing to `/proc/sys`. No interface is left then.
pub fn create_pair(number: u32, mtu: u32) -> io::Result<VethPair> {
    let [near_name, far_name] = names(number);
    let end = |name: &str| {
        let mut body = vec![0; 16];
        push_attribute(&mut body, IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        push_attribute(&mut body, IFLA_MTU, &mtu.to_ne_bytes());
        // The kernel's default is a queue for each core, and the sender's core would choose the receiver's
        // queue.
        push_attribute(&mut body, IFLA_NUM_TX_QUEUES, &1_u32.to_ne_bytes());
        push_attribute(&mut body, IFLA_NUM_RX_QUEUES, &1_u32.to_ne_bytes());
        body
    };
    let (mut peer, mut info) = (Vec::new(), Vec::new());
    push_attribute(&mut peer, VETH_INFO_PEER, &end(&far_name));
    push_attribute(&mut info, IFLA_INFO_KIND, b"veth");
    push_attribute(&mut info, IFLA_INFO_DATA, &peer);
    let mut body = end(&near_name);
    push_attribute(&mut body, IFLA_LINKINFO, &info);
    request(RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &body, |_, _| {})?;
    let configured = index_of(&near_name).and_then(|near| {
        let pair = VethPair { near, far: index_of(&far_name)? };
        configure(pair, &near_name).map(|()| pair)
    });
    configured.inspect_err(|_| {
        if let Ok(near) = index_of(&near_name) {
            let _ = delete_link(near);
        }
    })
}

fn configure(pair: VethPair, near_name: &str) -> io::Result<()> {
    for ifindex in [pair.near, pair.far] {
        change_link(ifindex, 0, |body| push_attribute(body, IFLA_IFALIAS, MARK.as_bytes()))?;
        let without = change_link(ifindex, 0, |body| {
            let (mut mode, mut families) = (Vec::new(), Vec::new());
            push_attribute(&mut mode, IFLA_INET6_ADDR_GEN_MODE, &[NO_ADDRESSES]);
            push_attribute(&mut families, libc::AF_INET6 as u16, &mode);
            push_attribute(body, IFLA_AF_SPEC, &families);
        });
        match without {
            // The host has no IPv6, and so no link-local addresses.
            Err(e) if e.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
            other => other?,
        }
    }
    forward(near_name)?;
    [pair.near, pair.far].into_iter().try_for_each(|ifindex| change_link(ifindex, IFF_UP | IFF_NOARP, |_| {}))
}

/// Lets the kernel forward packets that arrive at an interface.
fn forward(name: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/ipv4/conf/{name}/forwarding"), "1")?;
    match fs::write(format!("/proc/sys/net/ipv6/conf/{name}/forwarding"), "1") {
        // The host has no IPv6.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes an interface, and with an end of a pair the other end. The kernel may take tens of milliseconds
/// for it.
///
/// # Errors
/// `ENODEV` if it is gone, `PermissionDenied` without CAP_NET_ADMIN.
pub fn delete_link(ifindex: u32) -> io::Result<()> {
    let mut body = vec![0; 4];
    body.extend_from_slice(&ifindex.to_ne_bytes());
    body.extend_from_slice(&[0; 8]);
    request(RTM_DELLINK, NLM_F_ACK, &body, |_, _| {})
}

/// Returns the indices of all ends of pairs in this network namespace that a broker made, this one or an
/// earlier one.
///
/// # Errors
/// The errors of netlink sockets.
pub fn own_ends() -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    request(RTM_GETLINK, NLM_F_DUMP, &[0; 16], |kind, body| {
        if kind == RTM_NEWLINK {
            found.extend(own_end(body));
        }
    })?;
    Ok(found)
}

fn own_end(body: &[u8]) -> Option<u32> {
    let link = parse_link(body)?;
    is_own(&link.netdev.name, &link.kind, &link.alias).then_some(link.netdev.ifindex)
}

#[cfg(test)]
mod tests;
