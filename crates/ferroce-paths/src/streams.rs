//! The TCP connections of iWARP queue pairs: receiving from those that have something, and sending.
//!
//! All connections of the process that carry messages are one lane, whose descriptor is an epoll set of their
//! sockets. The connections that are being set up, or that ended, belong to `iwarp`.

mod harm;
mod port;
mod stall;
mod unsent;

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use ferroce_host::event;
use ferroce_host::fork::Guarded;
use ferroce_proto::iwarp::Expected;
use ferroce_wire::Qpn;
use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

pub use harm::StreamHarm;
pub use port::{Held, MOST_PATIENCE, Remains, StreamPort, patience};

/// With at most this number of connections a poll asks each of them by a receive call of its own; with more,
/// it asks the epoll set.
const FEW: usize = 8;
/// Connections that one look receives from.
const READY: usize = 16;
/// Octets that one look receives from a connection.
const RECEIVED: usize = 64 << 10;

/// The socket of a connection that carries messages.
pub struct StreamSocket {
    /// Unique in the process.
    id: u64,
    /// The queue pair that it is of.
    qpn: Qpn,
    socket: Guarded<OwnedFd>,
    /// The most octets to receive at once; 0 if the queue pair names memory for the next ones. The holder of
    /// the endpoint's lock sets it.
    most: AtomicUsize,
    /// A message waits for a receive of the program's, and nothing is received. The holder of the endpoint's
    /// lock sets it.
    stalled: AtomicBool,
}

/// The events of a connection that the epoll set watches for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Watched {
    arrivals: bool,
    room: bool,
}

impl Watched {
    const USUAL: Self = Self { arrivals: true, room: false };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.arrivals);
        flags.set(epoll::EventFlags::OUT, self.room);
        flags
    }
}

impl StreamSocket {
    /// The most octets to receive at once. `None`: the next ones may be received into registered memory,
    /// under the endpoint's lock.
    fn most(&self) -> Option<usize> {
        Some(self.most.load(Ordering::Relaxed)).filter(|most| *most > 0)
    }

    /// Whether nothing is received, because a message waits for a receive of the program's.
    fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Notes what the queue pair expects.
    fn expect(&self, expected: &Expected) {
        let most = match expected {
            Expected { memory: Some(_), .. } => 0,
            Expected { most, .. } => most.unwrap_or(usize::MAX),
        };
        self.most.store(most, Ordering::Relaxed);
    }

    /// The queue pair that it is of.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The address of the peer; unspecified if the connection broke.
    fn peer(&self) -> IpAddr {
        let address = rustix::net::getpeername(&self.socket)
            .ok()
            .flatten()
            .and_then(|peer| SocketAddr::try_from(peer).ok());
        address.map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.ip().to_canonical())
    }

    /// Whether the connection ended in both directions: by RST, or because the peer does not answer.
    fn is_broken(&self) -> bool {
        let mut events = [libc::pollfd { fd: self.socket.as_fd().as_raw_fd(), events: 0, revents: 0 }];
        let found = event::poll(&mut events, 0);
        found.is_ok() && events[0].revents & (libc::POLLERR | libc::POLLHUP) != 0
    }

    /// Looks at the connection without the endpoint's lock, and receives into `buffer` if that is where the
    /// next octets belong.
    pub fn look(&self, buffer: &mut [u8]) -> Found {
        // The epoll set watches a stalled connection for no arrivals, but still tells of an end by RST.
        if self.is_stalled() {
            return if self.is_broken() { Found::End } else { Found::Nothing };
        }
        let Some(most) = self.most() else { return Found::InPlace };
        let most = most.min(buffer.len());
        self.found(self.receive(buffer.get_mut(..most).unwrap_or_default()), 0)
    }

    /// The meaning of the result of a receive call, whose first octets, `placed` at most, are in registered
    /// memory.
    fn found(&self, received: Result<usize, Errno>, placed: usize) -> Found {
        match received {
            Ok(0) => Found::End,
            Ok(total) => Found::Octets { total, behind: total.saturating_sub(placed) },
            Err(Errno::AGAIN | Errno::INTR) => Found::Nothing,
            Err(errno) => {
                tracing::debug!(qpn = self.qpn.value(), %errno, "a connection broke");
                Found::End
            }
        }
    }

    /// Receives what has arrived; 0 octets at the end of the stream.
    fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::net::recv(&self.socket, buffer, RecvFlags::DONTWAIT).map(|(len, _)| len)
    }

    /// Sends as much as TCP takes now.
    pub fn send(&self, octets: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(&self.socket, octets, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }
}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The result of a look at a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing arrived.
    Nothing,
    /// The next octets belong into registered memory. They are received under the endpoint's lock.
    InPlace,
    /// Octets arrived: `total` of them, the last `behind` of which are in the buffer.
    Octets { total: usize, behind: usize },
    /// The connection ended: by FIN, by RST, or because the peer does not answer.
    End,
}

type Sockets = Vec<Arc<StreamSocket>>;
/// All connections, where they are few.
type Few = Arc<Sockets>;

/// All connections of the process that carry messages.
pub struct Streams {
    epoll: Guarded<OwnedFd>,
    /// A leaf lock, taken once a look where there are many.
    known: Mutex<BTreeMap<u64, Arc<StreamSocket>>>,
    /// All connections as well, for a look without the lock; `None` if there are more than [`FEW`].
    few: ArcSwapOption<Sockets>,
    /// Connections that only the epoll set knows how to look at: those that wait for room, and those that are
    /// stalled.
    unusual: AtomicUsize,
    next: AtomicU64,
}

impl Streams {
    /// Makes the set, without connections.
    ///
    /// # Errors
    /// The process or the system has no further descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Guarded::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            known: Mutex::default(),
            few: ArcSwapOption::from_pointee(Vec::new()),
            unusual: AtomicUsize::new(0),
            next: AtomicU64::new(0),
        })
    }

    /// Readable while a connection has something to receive, or has room to send again.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Begins to receive from a connection.
    ///
    /// # Errors
    /// The system has no memory for it, or the user watches too many descriptors (`max_user_watches`).
    pub fn add(&self, qpn: Qpn, socket: Guarded<OwnedFd>) -> io::Result<Arc<StreamSocket>> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let socket = Arc::new(StreamSocket {
            id,
            qpn,
            socket,
            most: AtomicUsize::new(usize::MAX),
            stalled: AtomicBool::new(false),
        });
        self.change(|known| drop(known.insert(id, Arc::clone(&socket))));
        let watched = epoll::add(&self.epoll, &*socket, epoll::EventData::new_u64(id), epoll::EventFlags::IN);
        if let Err(errno) = watched {
            self.change(|known| drop(known.remove(&id)));
            return Err(errno.into());
        }
        Ok(socket)
    }

    /// Receives nothing more from it. Its descriptor stays open as long as `socket` is there.
    pub fn forget(&self, socket: &StreamSocket) {
        if let Err(errno) = epoll::delete(&self.epoll, socket) {
            tracing::error!(%errno, "cannot stop watching a connection");
        }
        self.change(|known| drop(known.remove(&socket.id)));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<u64, Arc<StreamSocket>>)) {
        let mut known = self.known.lock();
        change(&mut known);
        let few = (known.len() <= FEW).then(|| Arc::new(known.values().cloned().collect()));
        if few.is_some() || self.few.load().is_some() {
            self.few.store(few);
        }
    }

    /// Changes what the epoll set watches a connection for.
    fn watch(&self, socket: &StreamSocket, before: Watched, now: Watched) {
        let data = epoll::EventData::new_u64(socket.id);
        if let Err(errno) = epoll::modify(&self.epoll, socket, data, now.flags()) {
            tracing::error!(%errno, "cannot watch a connection");
        }
        match (before == Watched::USUAL, now == Watched::USUAL) {
            (true, false) => drop(self.unusual.fetch_add(1, Ordering::Relaxed)),
            (false, true) => drop(self.unusual.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// The connections to receive from in turn, if they are few, and each has nothing to wait for but
    /// arrivals.
    pub fn few(&self) -> Option<Guard<Option<Few>>> {
        if self.unusual.load(Ordering::Relaxed) > 0 {
            return None;
        }
        Some(self.few.load()).filter(|few| few.is_some())
    }

    /// Finds the connections that have something to receive or room to send, at most [`READY`] of them.
    pub fn find_ready(&self, arrived: &mut Arrivals) {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut space = [const { MaybeUninit::uninit() }; READY];
        let events = match epoll::wait(&self.epoll, &mut space, Some(&AT_ONCE)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return,
            Err(errno) => {
                tracing::error!(%errno, "cannot look at connections");
                return;
            }
        };
        if events.is_empty() {
            return;
        }
        let known = self.known.lock();
        let ready = events.iter().filter_map(|event| {
            let flags = event.flags;
            let socket = Arc::clone(known.get(&event.data.u64())?);
            let room = flags.contains(epoll::EventFlags::OUT);
            Some(Ready { socket, room, arrived: flags.intersects(epoll::EventFlags::OUT.complement()) })
        });
        arrived.ready.extend(ready);
    }
}

/// The buffers with which the holder of the lane receives.
pub struct Arrivals {
    pub buffer: Box<[u8]>,
    /// The result of [`Streams::find_ready`].
    pub ready: Vec<Ready>,
}

/// A connection that the epoll set names.
pub struct Ready {
    pub socket: Arc<StreamSocket>,
    /// TCP has room to send again.
    pub room: bool,
    /// Something arrived, perhaps the end.
    pub arrived: bool,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { buffer: vec![0; RECEIVED].into_boxed_slice(), ready: Vec::with_capacity(READY) }
    }
}
