//! The hardware address of a next hop, for senders that write it themselves.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags};

use super::{
    NLM_F_REQUEST, NLMSG_ERROR, NUD_VALID, RTM_GETLINK, RTM_GETNEIGH, RTM_GETROUTE, RTM_NEWLINK,
    RTM_NEWNEIGH, RTM_NEWROUTE, attributes, family, ip, parse_neighbour, refusal, socket, u16_at, u32_at,
};

/// The type of routes to other hosts.
const RTN_UNICAST: u8 = 1;
/// Interface flags of `if_link.h` under which no address is resolved: loopback, point-to-point, without ARP.
const WITHOUT_ARP: u32 = 0x08 | 0x10 | 0x80;
/// Octets of the longest request: a route of IPv6, with two addresses and an interface.
const REQUEST: usize = 16 + 12 + 20 + 20 + 8;
/// Octets of an answer, a route or a neighbour.
const ANSWER: usize = 2048;
/// Messages that are read until the answer is found.
const MESSAGES: u32 = 8;

/// Asks the kernel for routes and neighbours without an allocation, so that a signal handler may call it.
/// Each question is two system calls, which do not wait.
#[derive(Debug)]
pub struct Resolver {
    fd: OwnedFd,
    sequence: u32,
}

/// The kernel's answer about the path to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Whether a packet can leave now: the kernel knows the link address of the next hop, or needs none.
    pub resolved: bool,
    /// The hop limit that the route prescribes, if it does.
    pub hop_limit: Option<u8>,
}

/// A request under construction.
struct Request {
    octets: [u8; REQUEST],
    len: usize,
}

impl Request {
    fn new(kind: u16, sequence: u32, head: &[u8]) -> Self {
        let mut request = Self { octets: [0; REQUEST], len: 4 };
        request.put(&kind.to_ne_bytes());
        request.put(&NLM_F_REQUEST.to_ne_bytes());
        request.put(&sequence.to_ne_bytes());
        request.put(&[0; 4]);
        request.put(head);
        request
    }

    /// Adds octets as far as there is room, which is enough for the requests here.
    fn put(&mut self, octets: &[u8]) {
        let room = self.octets.get_mut(self.len..).unwrap_or_default();
        room.iter_mut().zip(octets).for_each(|(to, from)| *to = *from);
        self.len = (self.len + octets.len()).min(REQUEST);
    }

    /// An attribute of a multiple of four octets.
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.put(&(4 + value.len() as u16).to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
    }

    fn address(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    fn finish(&mut self) -> &[u8] {
        let len = (self.len as u32).to_ne_bytes();
        self.octets.iter_mut().zip(len).for_each(|(to, from)| *to = from);
        self.octets.get(..self.len).unwrap_or_default()
    }
}

impl Resolver {
    /// A resolver for this network namespace.
    ///
    /// # Errors
    /// The errors of `socket(2)` and `bind(2)`.
    pub fn open() -> io::Result<Self> {
        Ok(Self { fd: socket(0)?, sequence: 0 })
    }

    /// Returns the hardware address of the next hop from `source` to `destination` by the interface
    /// `ifindex`.
    ///
    /// # Errors
    /// Returns an error of kind `NotFound` if there is no route to another host, or if the kernel has not
    /// resolved the address yet; else `ENETUNREACH` or another error of the kernel.
    pub fn hardware(&mut self, ifindex: u32, source: IpAddr, destination: IpAddr) -> io::Result<[u8; 6]> {
        let (kind, hop) = self.route_by(ifindex, source, destination)?;
        // A group address would bring the frame to all hosts of the link.
        let of_one = |mac: &[u8; 6]| mac[0] & 1 == 0;
        let mac = if kind == RTN_UNICAST { Some(self.neighbour(ifindex, hop)?) } else { None };
        mac.filter(of_one).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The next hop from `source` to `destination` by interface `ifindex`: the destination itself if it is on
    /// the same link, otherwise a router.
    ///
    /// # Errors
    /// `ENETUNREACH` and others if there is no route.
    pub fn next_hop(&mut self, ifindex: u32, source: IpAddr, destination: IpAddr) -> io::Result<IpAddr> {
        self.route_by(ifindex, source, destination).map(|(_, hop)| hop)
    }

    /// Returns the hardware address of a neighbour.
    ///
    /// # Errors
    /// Returns an error of kind `NotFound` if the kernel has not resolved the address yet, or if the
    /// interface needs none.
    pub fn neighbour(&mut self, ifindex: u32, ip: IpAddr) -> io::Result<[u8; 6]> {
        let request = self.ask_neighbour(ifindex, ip);
        self.ask(request, RTM_NEWNEIGH, |body| {
            parse_neighbour(body).filter(|entry| (entry.ifindex, entry.ip) == (ifindex, ip))?.mac
        })
    }

    /// Asks for the path from `source` to `destination` as the kernel would route it; by the interface
    /// `scope`, unless that is 0.
    ///
    /// # Errors
    /// `ENETUNREACH` without a route, the error of a route that refuses packets, and others of the kernel.
    pub fn path(&mut self, scope: u32, source: IpAddr, destination: IpAddr) -> io::Result<Path> {
        let mut request = self.route(source, destination);
        if scope != 0 {
            request.attribute(4, &scope.to_ne_bytes());
        }
        let (hop, hop_limit) = self.ask(request, RTM_NEWROUTE, |body| {
            let (head, rest) = body.split_at_checked(12)?;
            if let Some(error) = refusal(body) {
                return Some(Err(error));
            }
            let find = |kind| attributes(rest).find(|(found, _)| *found == kind).map(|(_, value)| value);
            // RTAX_HOPLIMIT in RTA_METRICS
            let metric = attributes(find(8).unwrap_or_default()).find(|(kind, _)| *kind == 10);
            let hop_limit = metric.and_then(|(_, value)| u8::try_from(u32_at(value, 0)?).ok());
            let gateway = find(5).map_or(Some(destination), ip);
            // The router of an IPv4 route may have an IPv6 address (RTA_VIA), which is not followed here.
            let to_others = head.get(7) == Some(&RTN_UNICAST) && find(18).is_none();
            let hop = gateway.zip(find(4).and_then(|value| u32_at(value, 0))).filter(|_| to_others);
            Some(Ok((hop, hop_limit.filter(|limit| *limit != 0))))
        })??;
        let resolved = match hop {
            Some((hop, ifindex)) => self.is_resolved(ifindex, hop)? || self.is_without_arp(ifindex)?,
            None => true,
        };
        Ok(Path { resolved, hop_limit })
    }

    fn is_resolved(&mut self, ifindex: u32, hop: IpAddr) -> io::Result<bool> {
        let request = self.ask_neighbour(ifindex, hop);
        match self.ask(request, RTM_NEWNEIGH, |body| u16_at(body, 8)) {
            Ok(state) => Ok(state & NUD_VALID != 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn is_without_arp(&mut self, ifindex: u32) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut head = [0; 16];
        head[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        let request = Request::new(RTM_GETLINK, self.sequence, &head);
        self.ask(request, RTM_NEWLINK, |body| u32_at(body, 8)).map(|flags| flags & WITHOUT_ARP != 0)
    }

    /// The type of the route by an interface, and the next hop.
    fn route_by(&mut self, ifindex: u32, source: IpAddr, destination: IpAddr) -> io::Result<(u8, IpAddr)> {
        let mut request = self.route(source, destination);
        request.attribute(4, &ifindex.to_ne_bytes());
        self.ask(request, RTM_NEWROUTE, |body| {
            let (head, rest) = body.split_at_checked(12)?;
            let gateway = attributes(rest).find(|(kind, _)| *kind == 5).and_then(|(_, value)| ip(value));
            Some(match refusal(body) {
                Some(error) => Err(error),
                None => Ok((*head.get(7)?, gateway.unwrap_or(destination))),
            })
        })?
    }

    fn route(&mut self, source: IpAddr, destination: IpAddr) -> Request {
        let bits = if destination.is_ipv4() { 32 } else { 128 };
        self.sequence = self.sequence.wrapping_add(1);
        let head = [family(destination), bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut request = Request::new(RTM_GETROUTE, self.sequence, &head);
        request.address(1, destination);
        request.address(2, source);
        request
    }

    fn ask_neighbour(&mut self, ifindex: u32, hop: IpAddr) -> Request {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Request::new(RTM_GETNEIGH, self.sequence, &[family(hop), 0, 0, 0]);
        request.put(&ifindex.to_ne_bytes());
        request.put(&[0; 4]);
        request.address(1, hop);
        request
    }

    /// Sends one question. The kernel answers before `sendto` returns.
    fn ask<T>(&self, mut request: Request, answer: u16, read: impl Fn(&[u8]) -> Option<T>) -> io::Result<T> {
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.fd, request.finish(), SendFlags::empty(), &kernel)?;
        let mut buffer = [0_u8; ANSWER];
        for _ in 0..MESSAGES {
            let (_, got) = rustix::net::recv(&self.fd, buffer.as_mut_slice(), RecvFlags::DONTWAIT)?;
            let message = buffer.get(..got).unwrap_or_default();
            let (Some(kind), Some(body)) = (u16_at(message, 4), message.get(16..)) else { continue };
            if u32_at(message, 8) != Some(self.sequence) {
                // The answer to an earlier question that was given up.
                continue;
            }
            if kind == NLMSG_ERROR {
                let code = u32_at(body, 0).map_or(0, |code| code as i32);
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
            }
            if kind == answer {
                return read(body).ok_or_else(|| io::ErrorKind::NotFound.into());
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }
}

impl AsFd for Resolver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_kernels_form_and_fit() {
        let mut request =
            Request::new(RTM_GETROUTE, 7, &[libc::AF_INET6 as u8, 128, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let address = IpAddr::from([0xfd; 16]);
        request.address(1, address);
        request.address(2, address);
        request.attribute(4, &9u32.to_ne_bytes());
        let octets = request.finish();
        assert_eq!(octets.len(), REQUEST, "the longest request");
        assert_eq!(u32_at(octets, 0), Some(REQUEST as u32));
        assert_eq!((u16_at(octets, 4), u16_at(octets, 6), u32_at(octets, 8)), (Some(26), Some(1), Some(7)));
        let all: Vec<_> = attributes(&octets[28..]).collect();
        assert_eq!(all, [(1, &[0xfd; 16][..]), (2, &[0xfd; 16]), (4, &9u32.to_ne_bytes())]);
    }

    #[test]
    fn an_address_of_this_host_has_no_next_hop() {
        let lo = nix::net::if_::if_nametoindex("lo").unwrap();
        let mut resolver = Resolver::open().unwrap();
        let ip = IpAddr::from([127, 0, 0, 1]);
        for _ in 0..3 {
            let found = resolver.hardware(lo, ip, ip);
            assert_eq!(found.map_err(|e| e.kind()), Err(io::ErrorKind::NotFound));
            assert_eq!(resolver.path(0, ip, ip).unwrap(), Path { resolved: true, hop_limit: None });
        }
        let nowhere = resolver.hardware(0x7fff_fff0, ip, IpAddr::from([192, 0, 2, 1]));
        assert!(nowhere.is_err());
    }
}
