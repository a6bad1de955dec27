//! UDP datagrams to another host, and the errors of ICMP that they cause.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6, SO_EE_ORIGIN_LOCAL, sock_extended_err, sockaddr_in6};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, recvmsg, setsockopt, sockopt,
};
use rustix::net::sockopt as mtu;

/// The answer to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    /// An error of ICMP, and the host that sent it, if the kernel tells.
    Error(Reason, Option<IpAddr>),
}

/// The reason in an error of ICMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The port is closed.
    PortClosed,
    /// A packet filter refuses the packet.
    Prohibited,
    /// There is no way to the host, or the host does not answer on its network.
    NoHost,
    /// The next network carries packets of this size at most, in octets.
    TooBig(u32),
}

/// A socket for one peer and one port, whose datagrams are never fragmented.
pub struct Probe(UdpSocket);

impl Probe {
    pub fn new(local: SocketAddr, peer: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(local)?;
        // PROBE sends packets larger than what the kernel knows of the path, as RoCE's sockets do.
        if peer.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
            mtu::set_ip_mtu_discover(&socket, mtu::Ipv4PathMtuDiscovery::PROBE)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
            mtu::set_ipv6_mtu_discover(&socket, mtu::Ipv6PathMtuDiscovery::PROBE)?;
        }
        socket.set_nonblocking(true)?;
        socket.connect(peer)?;
        Ok(Self(socket))
    }

    /// The MTU of the path, as far as the kernel knows it.
    pub fn mtu(&self) -> io::Result<u32> {
        let is_ipv4 = self.0.peer_addr()?.is_ipv4();
        Ok(if is_ipv4 { mtu::ip_mtu(&self.0)? } else { mtu::ipv6_mtu(&self.0)? })
    }

    /// Sends a datagram of zeros. Errors that the kernel reports at once count as heard.
    pub fn send(&self, octets: usize) -> io::Result<Heard> {
        // An error that an earlier datagram caused is reported here, and is in the queue as well.
        let _ = self.0.take_error()?;
        match self.0.send(&vec![0; octets]) {
            Ok(_) => Ok(Heard::Nothing),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                // The packet filter of this host drops it.
                Some(Errno::EPERM) => Ok(Heard::Error(Reason::Prohibited, Some(self.0.local_addr()?.ip()))),
                // The interface drops it, or the queue has the error.
                Some(
                    Errno::ENOBUFS
                    | Errno::EMSGSIZE
                    | Errno::ECONNREFUSED
                    | Errno::EHOSTUNREACH
                    | Errno::ENETUNREACH
                    | Errno::EACCES,
                ) => Ok(Heard::Nothing),
                _ => Err(error),
            },
        }
    }

    /// Sends a datagram, and waits for an error that comes back.
    pub fn ask(&self, octets: usize, limit: Duration) -> io::Result<Heard> {
        while self.heard()? != Heard::Nothing {}
        let at_once = self.send(octets)?;
        if at_once != Heard::Nothing {
            return Ok(at_once);
        }
        let end = Instant::now() + limit;
        loop {
            let heard = self.heard()?;
            let left = end.saturating_duration_since(Instant::now());
            if heard != Heard::Nothing || left.is_zero() {
                return Ok(heard);
            }
            wait(&[self.as_fd()], left)?;
        }
    }

    /// The next error that came back.
    pub fn heard(&self) -> io::Result<Heard> {
        loop {
            let mut room = nix::cmsg_space!(sock_extended_err, sockaddr_in6);
            let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
            let got = match recvmsg::<()>(self.0.as_raw_fd(), &mut [], Some(&mut room), flags) {
                Err(Errno::EAGAIN) => return Ok(Heard::Nothing),
                other => other?,
            };
            let heard = got.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::Ipv4RecvErr(error, from) => meaning(&error)
                    .map(|reason| (reason, from.map(|from| SockaddrIn::from(from).ip().into()))),
                ControlMessageOwned::Ipv6RecvErr(error, from) => meaning(&error)
                    .map(|reason| (reason, from.map(|from| SockaddrIn6::from(from).ip().into()))),
                _ => None,
            });
            if let Some((reason, from)) = heard {
                return Ok(Heard::Error(reason, from));
            }
        }
    }
}

impl AsFd for Probe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of the descriptors is readable or has an error, or the time is over.
pub fn wait(descriptors: &[BorrowedFd<'_>], limit: Duration) -> io::Result<()> {
    let mut all: Vec<PollFd<'_>> = descriptors.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Rounded up, so that the rest of a millisecond is not spent on calls.
    let millis = limit.as_micros().div_ceil(1000);
    match nix::poll::poll(&mut all, PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The reason in an error of ICMP (RFC 792, RFC 1812 section 5.2.7) or ICMPv6 (RFC 4443), or of this host.
fn meaning(error: &sock_extended_err) -> Option<Reason> {
    match (error.ee_origin, error.ee_type, error.ee_code) {
        (SO_EE_ORIGIN_LOCAL, ..) if error.ee_errno == Errno::EMSGSIZE as u32 => {
            Some(Reason::TooBig(error.ee_info))
        }
        (SO_EE_ORIGIN_ICMP, 3, 3) | (SO_EE_ORIGIN_ICMP6, 1, 4) => Some(Reason::PortClosed),
        (SO_EE_ORIGIN_ICMP, 3, 4) | (SO_EE_ORIGIN_ICMP6, 2, _) => Some(Reason::TooBig(error.ee_info)),
        (SO_EE_ORIGIN_ICMP, 3, 9 | 10 | 13) | (SO_EE_ORIGIN_ICMP6, 1, 1 | 5 | 6) => Some(Reason::Prohibited),
        (SO_EE_ORIGIN_ICMP, 3, _) | (SO_EE_ORIGIN_ICMP6, 1, _) => Some(Reason::NoHost),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_port_answers_and_an_open_one_does_not() {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let open = UdpSocket::bind(local).unwrap();
        let at = open.local_addr().unwrap();
        let probe = Probe::new(local, at).unwrap();
        assert_eq!(probe.ask(8, Duration::ZERO).unwrap(), Heard::Nothing);
        drop(open);
        let closed = Heard::Error(Reason::PortClosed, Some(at.ip()));
        for octets in [8, 4000] {
            assert_eq!(probe.ask(octets, Duration::from_secs(60)).unwrap(), closed);
        }
    }

    #[test]
    fn errors_have_one_meaning_in_both_families() {
        let error = |ee_origin, ee_type, ee_code| sock_extended_err {
            ee_errno: 0,
            ee_origin,
            ee_type,
            ee_code,
            ee_pad: 0,
            ee_info: 1400,
            ee_data: 0,
        };
        for (v4, v6, want) in [
            ((3, 3), (1, 4), Some(Reason::PortClosed)),
            ((3, 13), (1, 1), Some(Reason::Prohibited)),
            ((3, 1), (1, 3), Some(Reason::NoHost)),
            ((3, 4), (2, 0), Some(Reason::TooBig(1400))),
            ((11, 0), (3, 0), None),
        ] {
            assert_eq!(meaning(&error(SO_EE_ORIGIN_ICMP, v4.0, v4.1)), want);
            assert_eq!(meaning(&error(SO_EE_ORIGIN_ICMP6, v6.0, v6.1)), want);
        }
    }
}
