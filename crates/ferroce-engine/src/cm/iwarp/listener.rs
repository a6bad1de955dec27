//! Listening at a port of TCP.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ferroce_host::fork::Guarded;
use ferroce_wire::Instant;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};

use super::backlog::{Listening, most_waiting};
use super::manager::{Manager, Results, Wait, Waiting};
use super::port::{TcpPort, canonical};
use super::setup::Hearing;
use crate::cm::{CmError, EventSink, resolve};
use crate::engine::Engine;

/// Connections that are taken before other sockets have their turn.
const AT_ONCE: usize = 64;
/// Without descriptors or memory, no connection is taken for this time.
const REST: Duration = Duration::from_millis(100);

/// A listener, until it is dropped. Requests that its sink was given can still be answered then.
pub(in crate::cm) struct Listener {
    engine: Arc<Engine>,
    manager: Arc<Manager>,
    number: u64,
    listening: Arc<Listening>,
}

impl Listener {
    /// Takes requests at `port` from now on, as [`crate::cm::Port::listen`].
    pub(in crate::cm) fn listen(port: &TcpPort, backlog: u16, sink: EventSink) -> Result<Self, CmError> {
        let (engine, manager) = Manager::global()?;
        engine.flush_all();
        let most = most_waiting(backlog);
        let socket = port.take()?;
        if let Err(errno) = rustix::net::listen(&socket, most as i32) {
            port.put_back(socket);
            return Err(errno.into());
        }
        let listening = Listening::new(&engine, &manager, most);
        let number = manager.number();
        let accepting = Accepting { socket, sink, listening: Arc::clone(&listening), rests_until: None };
        manager.add(number, Box::new(accepting)).map_err(|(errno, _)| errno)?;
        Ok(Self { engine, manager, number, listening })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.engine.is_ours() {
            self.listening.close();
            self.manager.cancel(self.number);
        }
    }
}

/// The wait for connections.
pub(super) struct Accepting {
    socket: Guarded<OwnedFd>,
    sink: EventSink,
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
        let device = resolve::iwarp_device(&self.listening.engine, canonical(local));
        if device.is_none() {
            tracing::debug!(%local, %remote, "a connection is closed: its local address is not one of an iWARP device");
            return Ok(None);
        }
        sockopt::set_tcp_nodelay(&socket, true)?;
        let silent = self.listening.hear(number, remote.ip());
        Ok(Some(Hearing::new(socket, silent, self.sink.clone(), (local, remote), now)))
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
