//! The next hop to a peer: whether the kernel can reach it, and the hop limit of the route, as the kernel
//! finds them for a card.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ferroce_host::PerProcess;
use ferroce_host::fork::Guarded;
use ferroce_host::rtnetlink::{NeighbourMonitor, Path, Resolver};
use ferroce_host::thread::spawn_quietly;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt;

/// Hop limit where neither the route nor the program says one.
pub const DEFAULT_HOP_LIMIT: u8 = 64;
/// Port of the empty datagram that makes the kernel look for a link address (RFC 863, discard).
const DISCARD: u16 = 9;
/// Longest wait between two looks at the kernel's table, and at whether the caller still waits.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The kernel gives up after three seconds, so a longer wait asks anew each second.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The kernel's answers about a destination that no packet reaches: without a route, and by routes that are
/// `unreachable`, `prohibit` and `blackhole`.
const REFUSALS: [i32; 4] = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];

/// Nothing can be sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreached {
    /// No host answered for the next hop in time.
    Unanswered,
    /// The kernel has no route to the peer, or one that refuses packets, with this error.
    NoRoute(i32),
}

/// Returns the hop limit of the route from `source` to `destination`, once the kernel knows the link address
/// of the next hop. Waits for that at most `limit`. Addresses of this host and interfaces without ARP need no
/// wait, and what the kernel does not tell counts as reachable. The caller holds no lock.
///
/// # Errors
/// See [`Unreached`].
pub fn reach(source: SocketAddr, destination: SocketAddr, limit: Duration) -> Result<u8, Unreached> {
    let mut search = Search::new(source, destination, limit);
    let mut resolver = Resolver::open().ok();
    if let Some(known) = search.known(resolver.as_mut()) {
        return known;
    }
    let monitor = NeighbourMonitor::open().ok();
    loop {
        if let Some(reached) = search.look(resolver.as_mut()) {
            return reached;
        }
        sleep(monitor.as_ref(), None, search.left());
    }
}

/// Calls `then` with what [`reach`] returns, on one thread that all waiting searches of the process share. A
/// search of which `is_over` says that nobody waits for it ends without a call.
///
/// # Errors
/// No thread can be started.
pub fn when_reached(
    source: SocketAddr,
    destination: SocketAddr,
    limit: Duration,
    is_over: impl Fn() -> bool + Send + 'static,
    then: impl FnOnce(Result<u8, Unreached>) + Send + 'static,
) -> io::Result<()> {
    let search = Search::new(source, destination, limit);
    let shared = WAITING.get();
    let mut waiting = shared.waiting.lock();
    if !waiting.is_served {
        spawn_quietly("ferroce-address", move || shared.serve())?;
        waiting.is_served = true;
    }
    waiting.new.push(Waiting { search, is_over: Box::new(is_over), then: Box::new(then) });
    drop(waiting);
    if let Some(wake) = &shared.wake {
        // A count that is full wakes as well.
        let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
    }
    Ok(())
}

/// A search for the link address of the next hop to a peer.
struct Search {
    source: SocketAddr,
    destination: SocketAddr,
    begun: Instant,
    limit: Duration,
    /// Time at which the kernel was last made to look for the address.
    asked: Option<Instant>,
}

impl Search {
    fn new(source: SocketAddr, destination: SocketAddr, limit: Duration) -> Self {
        Self { source, destination, begun: Instant::now(), limit, asked: None }
    }

    /// The hop limit, if the kernel knows the link address, or the path needs none. The refusal, if there is
    /// no route.
    fn known(&self, resolver: Option<&mut Resolver>) -> Option<Result<u8, Unreached>> {
        let (from, to) = (self.source.ip().to_canonical(), self.destination.ip().to_canonical());
        if from == to || to.is_loopback() || to.is_multicast() || to.is_unspecified() {
            return Some(Ok(DEFAULT_HOP_LIMIT));
        }
        let Some(resolver) = resolver else { return Some(Ok(DEFAULT_HOP_LIMIT)) };
        let scope = match self.destination {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let unknown = Path { resolved: true, hop_limit: None };
        let path = resolver.path(scope, from, to);
        let errno = path.as_ref().err().and_then(io::Error::raw_os_error);
        if let Some(errno) = errno.filter(|errno| REFUSALS.contains(errno)) {
            return Some(Err(Unreached::NoRoute(errno)));
        }
        let path = path.unwrap_or(unknown);
        let usual = || usual_hop_limit(&self.socket()?, self.destination);
        path.resolved.then(|| Ok(path.hop_limit.or_else(usual).unwrap_or(DEFAULT_HOP_LIMIT)))
    }

    /// Makes the kernel look for the address, if it is time to, and returns the result, if there is one.
    fn look(&mut self, resolver: Option<&mut Resolver>) -> Option<Result<u8, Unreached>> {
        if self.asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
            self.asked = Some(Instant::now());
            // Without a socket of this address nobody can ask, and the path counts as reachable.
            let Some(socket) = self.socket() else { return Some(Ok(DEFAULT_HOP_LIMIT)) };
            // An error is that of an earlier attempt, or says what the deadline will.
            let _ = socket.send_to(&[], with_port(self.destination, DISCARD));
        }
        self.known(resolver).or_else(|| self.left().is_zero().then_some(Err(Unreached::Unanswered)))
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begun.elapsed())
    }

    /// Returns a new socket for each use: a program may have a thousand searches, and not as many
    /// descriptors.
    fn socket(&self) -> Option<UdpSocket> {
        UdpSocket::bind(with_port(self.source, 0)).ok()
    }
}

/// A search, and who waits for its end.
struct Waiting {
    search: Search,
    is_over: Box<dyn Fn() -> bool + Send>,
    then: Box<dyn FnOnce(Result<u8, Unreached>) + Send>,
}

/// The searches of this process that their callers do not wait for.
static WAITING: PerProcess<Shared> = PerProcess::new();

struct Shared {
    waiting: Mutex<New>,
    /// An eventfd that tells the thread of new searches; without it they wait for the next look.
    wake: Option<Guarded<OwnedFd>>,
}

#[derive(Default)]
struct New {
    new: Vec<Waiting>,
    /// Whether the thread runs. It ends with the last search.
    is_served: bool,
}

impl Default for Shared {
    fn default() -> Self {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        Self { waiting: Mutex::default(), wake: wake.map(Guarded::new) }
    }
}

impl Shared {
    /// The shared thread: looks at all searches when the kernel's table changes, and at least ten times a
    /// second.
    fn serve(&self) {
        let mut resolver = Resolver::open().ok();
        let monitor = NeighbourMonitor::open().ok();
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            {
                let mut shared = self.waiting.lock();
                waiting.append(&mut shared.new);
                if waiting.is_empty() {
                    shared.is_served = false;
                    return;
                }
            }
            let begun = Instant::now();
            for mut one in std::mem::take(&mut waiting) {
                if (one.is_over)() {
                    continue;
                }
                match one.search.look(resolver.as_mut()) {
                    Some(reached) => (one.then)(reached),
                    None => waiting.push(one),
                }
            }
            let Some(left) = waiting.iter().map(|one| one.search.left()).min() else { continue };
            // Looks at many searches take half of a processor at most, however often the table changes.
            std::thread::sleep(begun.elapsed().min(LOOK_AGAIN));
            sleep(monitor.as_ref(), self.wake.as_ref().map(AsFd::as_fd), left);
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

/// Waits for a change of the kernel's table, or for `wake`, at most `limit` and [`LOOK_AGAIN`].
fn sleep(monitor: Option<&NeighbourMonitor>, wake: Option<BorrowedFd<'_>>, limit: Duration) {
    let limit = limit.min(LOOK_AGAIN);
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    let fds = monitor.map(AsFd::as_fd).into_iter().chain(wake);
    let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // A signal makes the look come early.
    let _ = poll(&mut fds, Some(&limit));
    if let Some(monitor) = monitor {
        monitor.drain(|_| {});
    }
    if let Some(wake) = wake {
        let _ = rustix::io::read(wake, &mut [0_u8; 8]);
    }
}
