//! Stream rsockets.

mod connecting;
mod listener;
mod mappings;
mod transfer;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::protocol::{How, Phase};
use ferroce_wire::PathMtu;
use ferroce_wire::cm::{CmTime, Req};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Mutex, MutexGuard};

use super::link::Link;
use super::service::{self, Task};
use super::settings::Settings;
use super::waker::{Blocking, Waker};
use crate::error::{Failure, Ready, RsocketError};
use ferroce_engine::cm::{self, EventSink};
use ferroce_engine::{AhAttr, CompletionChannel};
use ferroce_engine::{Held, Sleep};
use ferroce_host::event;
use ferroce_host::fork::{self, Guarded};
use listener::Listener;
use mappings::Mapped;
pub use transfer::Progress;

#[derive(Default)]
enum Role {
    /// Unconnected, perhaps with a port.
    #[default]
    Idle,
    Listening(Listener),
    /// A request was sent; `None` by iWARP.
    Connecting(Option<Asked>),
    /// The parent's peer sent a request, which was answered.
    Accepting(Weak<Stream>),
    /// Both ends were connected, and may have disconnected since.
    Connected,
    /// The connection attempt failed.
    Failed,
    Closed,
}

/// The request that was sent by RoCE.
struct Asked {
    req: Box<Req>,
    ah: AhAttr,
    /// Packet life time of the path.
    life: CmTime,
}

/// The addresses of an accepted stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

#[doc(alias = "rsocket")]
pub struct Stream {
    me: Weak<Stream>,
    fd: Guarded<EventFd>,
    state: Mutex<StreamState>,
}

#[derive(Default)]
struct StreamState {
    settings: Settings,
    v6: bool,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    mtu: Option<PathMtu>,
    role: Role,
    port: Option<cm::Port>,
    link: Option<Link>,
    connection: Option<cm::Connection>,
    failure: Option<Failure>,
    keepalive: Option<Duration>,
    mapped: Vec<Mapped>,
    /// A thread sleeps on the completion channel.
    sleeper: bool,
    waiting: Vec<Arc<Waker>>,
}

type Guard<'a> = MutexGuard<'a, StreamState>;

impl StreamState {
    /// Takes completions and wakes the waiting threads if there were any, which it returns.
    fn pump(&mut self) -> bool {
        let Some(link) = &mut self.link else { return false };
        match self.role {
            Role::Connected => {}
            Role::Connecting(_) if link.is_dead() => {
                self.failure = Some(Failure::QueuePair);
                self.role = Role::Failed;
                self.wake();
                return true;
            }
            _ => return false,
        }
        let before = link.protocol.as_ref().map(|protocol| protocol.phase());
        let moved = link.pump();
        let after = link.protocol.as_ref().map(|protocol| protocol.phase());
        if let (Some(Phase::Connected), Some(Phase::Failed(fault))) = (before, after) {
            tracing::debug!(%fault, "an rsocket ends");
            self.failure = Some(fault.into());
        }
        if moved {
            self.wake();
        }
        moved
    }

    /// Makes every waiting thread check the state again.
    fn wake(&mut self) {
        self.waiting.iter().for_each(|waker| waker.wake());
        if let (true, Some(link)) = (self.sleeper, &self.link) {
            link.queues.channel.nudge();
        }
    }

    fn protocol(&self) -> Option<&crate::protocol::StreamProtocol> {
        self.link.as_ref()?.protocol.as_ref()
    }

    fn available(&self) -> u32 {
        self.protocol().map_or(0, |protocol| protocol.available())
    }

    /// Octets are readable, or none will arrive any more.
    fn has_input(&self) -> bool {
        self.available() > 0 || self.protocol().is_none_or(|protocol| !protocol.is_readable())
    }

    /// Octets can be sent, or sending has ended.
    fn has_room(&self) -> bool {
        self.protocol().is_none_or(|protocol| protocol.can_send() || !protocol.is_writable())
    }

    /// All octets sent have arrived, or the connection has ended.
    fn is_drained(&self) -> bool {
        self.protocol().is_none_or(|protocol| protocol.is_drained() || protocol.phase() != Phase::Connected)
    }

    fn ready(&self) -> Ready {
        match &self.role {
            Role::Listening(listener) => Ready { readable: listener.is_ready(), ..Ready::default() },
            Role::Failed => Ready { readable: true, writable: true, hang_up: false, error: true },
            Role::Connected => {
                let phase = self.protocol().map_or(Phase::Disconnected, |protocol| protocol.phase());
                Ready {
                    readable: self.has_input(),
                    writable: self.has_room(),
                    hang_up: phase == Phase::Disconnected && self.available() == 0,
                    error: matches!(phase, Phase::Failed(_)),
                }
            }
            Role::Idle | Role::Connecting(_) | Role::Accepting(_) | Role::Closed => Ready::default(),
        }
    }
}

impl Stream {
    /// # Errors
    ///
    /// If no descriptor is free.
    pub fn new(v6: bool) -> io::Result<Arc<Self>> {
        fork::install();
        let state = StreamState { v6, ..StreamState::default() };
        let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let fd = Guarded::new(fd);
        Ok(Arc::new_cyclic(|me| Self { me: me.clone(), fd, state: Mutex::new(state) }))
    }

    fn accepted(
        addresses: Accepted,
        settings: Settings,
        link: Link,
        role: Role,
    ) -> Result<Arc<Self>, RsocketError> {
        let Accepted { local, remote } = addresses;
        let stream = Self::new(local.is_ipv6())?;
        {
            let mut state = stream.state.lock();
            state.settings = Settings { sizes: link.sizes, ..settings };
            (state.local, state.remote) = (Some(local), Some(remote));
            state.mtu = Some(link.queues.qp.query().path_mtu);
            (state.link, state.role) = (Some(link), role);
        }
        Ok(stream)
    }

    pub(super) fn own(&self, connection: cm::Connection) {
        self.state.lock().connection = Some(connection);
    }

    /// A descriptor that identifies the stream. It reports no readiness: see [`Self::watch`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn settings(&self) -> Settings {
        self.state.lock().settings
    }

    /// Returns `false` once a queue pair exists; sizes then stay as they are.
    pub fn choose(&self, change: impl FnOnce(&mut Settings)) -> bool {
        let mut state = self.state.lock();
        let sizes = state.settings.sizes;
        change(&mut state.settings);
        if state.link.is_some() {
            state.settings.sizes = sizes;
        }
        state.link.is_none()
    }

    pub fn is_connected(&self) -> bool {
        let state = self.state.lock();
        matches!(state.role, Role::Connected)
            && state.protocol().is_some_and(|protocol| protocol.phase() == Phase::Connected)
    }

    /// The local address, or the wildcard without one.
    pub fn local_addr(&self) -> SocketAddr {
        let state = self.state.lock();
        state.local.unwrap_or_else(|| wildcard(state.v6))
    }

    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.state.lock().remote
    }

    /// The payload of a full packet; `None` until the path is known.
    pub fn mtu(&self) -> Option<PathMtu> {
        self.state.lock().mtu
    }

    /// Returns the failure of the connection once.
    pub fn take_failure(&self) -> Option<Failure> {
        self.state.lock().failure.take()
    }

    pub fn keepalive(&self) -> Option<Duration> {
        self.state.lock().keepalive
    }

    /// Sends keepalives at this interval; with them the stream notices a peer that has vanished. `None` stops
    /// them.
    ///
    /// # Errors
    ///
    /// If the service thread cannot be started.
    pub fn set_keepalive(&self, interval: Option<Duration>) -> io::Result<()> {
        service::start()?;
        self.state.lock().keepalive = interval;
        let stream = self.me.clone();
        let keepalive = move |send| {
            let stream = stream.upgrade()?;
            if send {
                stream.post_keepalive();
            }
            stream.keepalive()
        };
        service::push(Task::Keepalive(self.me.as_ptr().addr(), Box::new(keepalive)));
        Ok(())
    }

    fn post_keepalive(&self) {
        let mut state = self.state.lock();
        state.pump();
        if matches!(state.role, Role::Connected)
            && let Some(link) = &mut state.link
            && let Some(write) = link.protocol.as_mut().and_then(|protocol| protocol.keepalive())
        {
            link.post(&write);
        }
    }

    /// Takes completions and returns the operations that would not block.
    pub fn ready(&self) -> Ready {
        let mut state = self.state.lock();
        state.pump();
        state.ready()
    }

    /// As [`Self::ready`]. Until [`Self::unwatch`], `waker` is woken when the result may have changed; the
    /// descriptor of the returned channel becomes readable for the same reason.
    pub fn watch(&self, waker: &Arc<Waker>) -> (Ready, Option<Arc<CompletionChannel>>) {
        let mut state = self.state.lock();
        if !state.waiting.iter().any(|known| Arc::ptr_eq(known, waker)) {
            state.waiting.push(Arc::clone(waker));
        }
        let mut channel = None;
        if let Some(link) = &state.link {
            // A thread that sleeps on the channel takes its events and wakes the others.
            if !state.sleeper {
                link.queues.channel.take_back();
                channel = Some(Arc::clone(&link.queues.channel));
            }
            // While the stream connects, the channel tells only of the end of the device.
            if link.protocol.is_some() {
                link.arm();
            }
        }
        state.pump();
        (state.ready(), channel)
    }

    /// Undoes [`Self::watch`].
    pub fn unwatch(&self, waker: &Arc<Waker>) {
        self.state.lock().waiting.retain(|known| !Arc::ptr_eq(known, waker));
    }

    /// Waits until `done` returns true.
    fn wait<'a>(
        &'a self,
        mut state: Guard<'a>,
        blocking: Blocking,
        done: impl Fn(&StreamState) -> bool,
    ) -> Result<Guard<'a>, RsocketError> {
        loop {
            if matches!(state.role, Role::Closed) {
                return Err(RsocketError::Closed);
            }
            if done(&state) {
                return Ok(state);
            }
            if state.pump() {
                continue;
            }
            if blocking == Blocking::None {
                return Err(RsocketError::WouldBlock);
            }
            if let Some(sleep) = self.prepare_sleep(&mut state)? {
                blocking.apply(sleep, &mut state)?;
            }
        }
    }

    /// Prepares a sleep until the state may have changed. Returns `None` if it has changed already.
    fn prepare_sleep(&self, state: &mut Guard<'_>) -> Result<Option<Sleep>, RsocketError> {
        let stream = self.me.upgrade().ok_or(RsocketError::Closed)?;
        let channel = state.link.as_ref().filter(|link| link.protocol.is_some()).map(|link| {
            link.arm();
            Arc::clone(&link.queues.channel)
        });
        match channel.filter(|_| !state.sleeper) {
            Some(channel) => {
                if state.pump() {
                    return Ok(None);
                }
                state.sleeper = true;
                let held = Held::Own(Box::new(Sleeper { stream, channel: Arc::clone(&channel) }));
                Ok(MutexGuard::unlocked(state, || channel.doze(held)))
            }
            None => {
                let waker = Waker::own()?;
                state.waiting.push(Arc::clone(&waker));
                // While the stream connects, the channel tells only of the end of the device.
                let connecting = state.link.as_ref().filter(|link| link.protocol.is_none());
                let channel = connecting.map(|link| Arc::clone(&link.queues.channel));
                let fds = [Some(waker.fd()), channel.as_ref().map(|channel| channel.fd())];
                let fds: Vec<_> = fds.into_iter().flatten().map(event::readable).collect();
                let held = Held::Own(Box::new(Waiter { stream, waker, _channel: channel }));
                Ok(Some(Sleep::on(fds, held)))
            }
        }
    }

    /// Shuts down reading, sending or both, and waits until the peer has all octets.
    ///
    /// # Errors
    /// [`RsocketError::NotConnected`]; [`RsocketError::Interrupted`] by a signal during the wait.
    #[doc(alias = "rshutdown")]
    pub fn shutdown(&self, how: How) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        if !matches!(state.role, Role::Connected) {
            return Err(RsocketError::NotConnected);
        }
        state.pump();
        if let Some(link) = &mut state.link {
            if let Some(protocol) = &mut link.protocol {
                protocol.shutdown(how);
            }
            link.post_control();
        }
        state.wake();
        if how != How::Read || state.protocol().is_some_and(|protocol| !protocol.is_writable()) {
            state = self.wait(state, Blocking::Sleep, StreamState::is_drained)?;
        }
        if state.protocol().is_some_and(|protocol| protocol.phase() == Phase::Disconnected) {
            self.disconnect(&mut state);
        }
        Ok(())
    }

    /// Disconnects the queue pair and the connection manager's connection.
    fn disconnect(&self, state: &mut StreamState) {
        if let Some(link) = &state.link {
            link.move_to_error();
        }
        if let Some(connection) = &state.connection
            && let Err(error) = connection.disconnect()
        {
            tracing::debug!(%error, "an rsocket was disconnected already");
        }
        state.wake();
    }

    /// Closes the stream: a connected one as [`Self::shutdown`] of both directions, others at once. Waiting
    /// calls return.
    #[doc(alias = "rclose")]
    pub fn close(&self) {
        if self.is_connected()
            && let Err(error) = self.shutdown(How::Both)
        {
            tracing::debug!(%error, "an rsocket is closed without a disconnect message");
        }
        let ended = {
            let mut state = self.state.lock();
            state.wake();
            state.keepalive = None;
            let role = std::mem::replace(&mut state.role, Role::Closed);
            let mapped = std::mem::take(&mut state.mapped);
            (role, mapped, state.port.take(), state.connection.take(), state.link.take())
        };
        // Calls the broker, and waits for threads inside the objects, so the lock is free.
        drop(ended);
    }
}

/// The thread that sleeps on a stream's completion channel.
struct Sleeper {
    stream: Arc<Stream>,
    channel: Arc<CompletionChannel>,
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.channel.take_back();
        let mut state = self.stream.state.lock();
        state.sleeper = false;
        // If this thread returns, another one must take its place.
        state.waiting.iter().for_each(|waker| waker.wake());
    }
}

/// A thread that sleeps on its waker in a stream's list, and on the channel of a stream that connects.
struct Waiter {
    stream: Arc<Stream>,
    waker: Arc<Waker>,
    _channel: Option<Arc<CompletionChannel>>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.stream.unwatch(&self.waker);
    }
}

/// Leaves work to the service's thread, unless the stream is closed by then.
fn later(stream: &Weak<Stream>, work: impl FnOnce(&Arc<Stream>) + Send + 'static) {
    let stream = Weak::clone(stream);
    let work = move || {
        if let Some(stream) = stream.upgrade() {
            work(&stream);
        }
    };
    service::push(Task::Work(Box::new(work)));
}

/// The receiver of the events of a stream's port or connection. Dropping the event of a closed stream ends
/// the connection in it.
fn sink(stream: Weak<Stream>) -> EventSink {
    EventSink::new(move |event| later(&stream, |stream| stream.take_event(event)))
}

impl Drop for Stream {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        // Dropped before the queue pair, so that the peer receives a DREQ.
        state.connection = None;
    }
}

fn wildcard(v6: bool) -> SocketAddr {
    if v6 { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() }
}
