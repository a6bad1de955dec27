//! Listening at a port of TCP.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ferroce_host::fork::Guarded;
use ferroce_wire::Instant;
use parking_lot::Mutex;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};

use super::connection::{Shared, crc_at};
use super::manager::{Manager, Results, Wait, Waiting};
use super::setup::Hearing;
use super::{Connection, Port, Sink};
use crate::cm::resolve;
use crate::engine::Engine;
use crate::half_open::HalfOpen;

/// Requests that may wait for an answer, at most.
const MOST_WAITING: usize = 1024;
/// Connections of TCP whose request has not come.
const MOST_SILENT: usize = 1024;
/// Connections that are taken before other sockets have their turn.
const AT_ONCE: usize = 64;
/// Without descriptors or memory, no connection is taken for this time.
const REST: Duration = Duration::from_millis(100);

/// A listener, until it is dropped. Requests that its sink was given can still be answered then.
pub struct Listener {
    engine: Arc<Engine>,
    manager: Arc<Manager>,
    number: u64,
    listening: Arc<Listening>,
}

impl Listener {
    /// Takes requests at `port` from now on, and gives each to `sink`: those whose local address is one of an
    /// iWARP device. `backlog` of them may wait for an answer; 0, or more than 1024, mean 1024. Further ones
    /// wait for a place until the time for a request is over.
    ///
    /// # Errors
    /// EADDRINUSE: another socket listens there. EINVAL: the port is in use by a connection or listener of
    /// this process.
    #[doc(alias = "rdma_listen")]
    pub fn listen(port: &Port, backlog: u16, sink: Sink) -> std::io::Result<Self> {
        let (engine, manager) = Manager::global()?;
        engine.flush_all();
        let most = match usize::from(backlog) {
            0 => MOST_WAITING,
            backlog => backlog.min(MOST_WAITING),
        };
        let socket = port.take()?;
        if let Err(errno) = rustix::net::listen(&socket, most as i32) {
            port.put_back(socket);
            return Err(errno.into());
        }
        let listening = Arc::new(Listening {
            engine: Arc::clone(&engine),
            manager: Arc::clone(&manager),
            sink,
            most,
            waiting: Arc::default(),
            silent: Mutex::new(HalfOpen::new(MOST_SILENT)),
            closed: AtomicBool::new(false),
        });
        let number = manager.number();
        let accepting = Accepting { socket, listening: Arc::clone(&listening), rests_until: None };
        manager.add(number, Box::new(accepting)).map_err(|(errno, _)| errno)?;
        Ok(Self { engine, manager, number, listening })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.engine.is_ours() {
            self.listening.closed.store(true, Ordering::SeqCst);
            self.manager.cancel(self.number);
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// The knowledge of a listener that its set-ups share.
pub(super) struct Listening {
    engine: Arc<Engine>,
    manager: Arc<Manager>,
    sink: Sink,
    most: usize,
    waiting: Arc<AtomicUsize>,
    silent: Mutex<HalfOpen<Arc<SilentNumber>>>,
    closed: AtomicBool,
}

/// The number of a set-up whose request has not come, and whether it had to make way.
#[derive(Debug)]
struct SilentNumber(u64, AtomicBool);

/// A place among the connections whose request has not come.
pub(super) struct Silent {
    number: Arc<SilentNumber>,
    listening: Arc<Listening>,
}

impl Silent {
    pub(super) fn listening(&self) -> &Arc<Listening> {
        &self.listening
    }

    /// Whether the connection had to make way for another one, or the listener is closed.
    pub(super) fn is_over(&self) -> bool {
        self.number.1.load(Ordering::SeqCst) || self.listening.is_closed()
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.listening.silent.lock().remove(|other| Arc::ptr_eq(other, &self.number));
    }
}

impl Listening {
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn sink(&self) -> Sink {
        self.sink.clone()
    }

    /// A connection that a peer asks for at a local address. It is the listener's for now.
    pub(super) fn connection(&self, local: SocketAddr) -> Connection {
        let crc = crc_at(&self.engine, local);
        Connection(Shared::new(&self.engine, &self.manager, crc, self.sink()))
    }

    /// A place for the set-up with this number, before its request has come. The silent set-up that makes way
    /// ends.
    fn hear(self: &Arc<Self>, number: u64, from: IpAddr) -> Silent {
        let number = Arc::new(SilentNumber(number, AtomicBool::new(false)));
        let ended = self.silent.lock().push(from, Arc::clone(&number));
        if let Some(ended) = ended {
            ended.1.store(true, Ordering::SeqCst);
            self.manager.cancel(ended.0);
        }
        Silent { number, listening: Arc::clone(self) }
    }

    /// A place in the backlog, if one is free. Only the background thread takes places.
    pub(super) fn place(&self) -> Option<Place> {
        let free = self.waiting.load(Ordering::Relaxed) < self.most;
        free.then(|| {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            Place(Arc::clone(&self.waiting))
        })
    }
}

/// A place in the backlog of a listener: a request that is not answered yet.
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The wait for connections.
pub(super) struct Accepting {
    socket: Guarded<OwnedFd>,
    listening: Arc<Listening>,
    /// The system was short of something.
    rests_until: Option<Instant>,
}

impl Accepting {
    /// Takes the connections that wait, up to a bound, and adds each to `found`.
    fn accept_all(&mut self, now: Instant, found: &mut Vec<(u64, Wait)>) {
        self.rests_until = None;
        for _ in 0..AT_ONCE {
            let number = self.listening.manager.number();
            match self.accept(number, now) {
                Ok(hearing) => found.extend(hearing.map(|hearing| (number, Box::new(hearing) as Wait))),
                Err(Errno::AGAIN) => break,
                // The connection broke while it waited.
                Err(
                    Errno::CONNABORTED
                    | Errno::INTR
                    | Errno::NETDOWN
                    | Errno::PROTO
                    | Errno::HOSTUNREACH
                    | Errno::NETUNREACH
                    | Errno::PERM,
                ) => {}
                Err(errno) => {
                    tracing::warn!(%errno, "cannot take a connection");
                    self.rests_until = Some(now + REST);
                    break;
                }
            }
        }
    }

    /// Takes one connection, whose set-up has this number. `None`: it was closed, because it came to another
    /// device.
    fn accept(&self, number: u64, now: Instant) -> Result<Option<Hearing>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, remote) = rustix::net::acceptfrom_with(&self.socket, flags)?;
        let socket = Guarded::new(socket);
        let address = |address| SocketAddr::try_from(address);
        let local = address(rustix::net::getsockname(&socket)?)?;
        let Some(Ok(remote)) = remote.map(address) else { return Ok(None) };
        let device = resolve::iwarp_device(&self.listening.engine, super::port::canonical(local));
        if device.is_none() {
            tracing::debug!(%local, %remote, "a connection is closed: its local address is not one of an iWARP device");
            return Ok(None);
        }
        sockopt::set_tcp_nodelay(&socket, true)?;
        let silent = self.listening.hear(number, remote.ip());
        Ok(Some(Hearing::new(socket, silent, (local, remote), now)))
    }
}

impl Waiting for Accepting {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn interest(&self) -> Option<EventFlags> {
        self.rests_until.is_none().then_some(EventFlags::IN)
    }

    fn until(&self) -> Option<Instant> {
        self.rests_until
    }

    fn is_cancelled(&self) -> bool {
        self.listening.is_closed()
    }

    fn go_on(mut self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        self.accept_all(now, &mut results.found);
        Some(self)
    }

    fn expire(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        self.go_on(now, results)
    }

    /// Connections wait in TCP's queue meanwhile.
    fn unwatched(mut self: Box<Self>, _: Errno, now: Instant, _: &mut Results) -> Option<Wait> {
        self.rests_until = Some(now + REST);
        Some(self)
    }
}
