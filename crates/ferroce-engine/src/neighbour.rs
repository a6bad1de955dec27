//! The next hop to a peer: whether the kernel can reach it, and the hop limit of the route, as the kernel finds them for a card.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ferroce_host::rtnetlink::{NeighbourMonitor, Path, Resolver};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// Hop limit where neither the route nor the program says one.
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;
/// Port of the empty datagram that makes the kernel look for a link address (RFC 863, discard).
const DISCARD: u16 = 9;
/// Longest wait between two looks at the kernel's table, and at whether the caller still waits: 100 ms.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The kernel gives up after three seconds, so a longer wait asks anew each second.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// No host answered for the next hop in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;

/// Returns the hop limit of the route from `source` to `destination`, once the kernel knows the link address of the next hop. Waits for that
/// at most `limit`, or until `is_over`. Addresses of this host and interfaces without ARP need no wait, and what the kernel does not
/// tell counts as reachable. The caller holds no lock.
///
/// # Errors
/// No host answered.
pub fn reach(
    source: SocketAddr,
    destination: SocketAddr,
    limit: Duration,
    is_over: impl Fn() -> bool,
) -> Result<u8, Unanswered> {
    let begun = Instant::now();
    let (from, to) = (source.ip().to_canonical(), destination.ip().to_canonical());
    if from == to || to.is_loopback() || to.is_multicast() || to.is_unspecified() {
        return Ok(DEFAULT_HOP_LIMIT);
    }
    let scope = match destination {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let Ok(mut resolver) = Resolver::open() else { return Ok(DEFAULT_HOP_LIMIT) };
    let mut path = || resolver.path(scope, from, to).unwrap_or(Path { resolved: true, hop_limit: None });
    let first = path();
    let hop_limit = |socket: Option<&UdpSocket>| {
        first.hop_limit.or_else(|| usual_hop_limit(socket?, destination)).unwrap_or(DEFAULT_HOP_LIMIT)
    };
    let bound = UdpSocket::bind(with_port(source, 0)).ok();
    let Some(socket) = bound.as_ref().filter(|_| !first.resolved) else {
        return Ok(hop_limit(bound.as_ref()));
    };
    let monitor = NeighbourMonitor::open().ok();
    let mut asked: Option<Instant> = None;
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
            asked = Some(Instant::now());
            // An error is that of an earlier attempt, or says what the deadline will.
            let _ = socket.send_to(&[], with_port(destination, DISCARD));
        }
        if path().resolved {
            return Ok(hop_limit(Some(socket)));
        }
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() || is_over() {
            return Err(Unanswered);
        }
        match &monitor {
            Some(monitor) => {
                sleep(monitor.as_fd(), left.min(LOOK_AGAIN));
                monitor.drain(|_| {});
            }
            None => std::thread::sleep(left.min(LOOK_AGAIN)),
        }
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// The hop limit of a socket's packets, as the system or the interface has it.
fn usual_hop_limit(socket: &UdpSocket, destination: SocketAddr) -> Option<u8> {
    let limit = if destination.is_ipv4() {
        u8::try_from(sockopt::ip_ttl(socket).ok()?).ok()
    } else {
        // The interface is known once the socket has its route.
        socket.connect(with_port(destination, DISCARD)).ok()?;
        sockopt::ipv6_unicast_hops(socket).ok()
    };
    limit.filter(|limit| *limit != 0)
}

fn sleep(fd: BorrowedFd<'_>, limit: Duration) {
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    // A signal makes the look come early.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
}
