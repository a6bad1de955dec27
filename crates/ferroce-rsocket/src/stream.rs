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
use super::service::{self, StreamTasks, Task};
use super::settings::Settings;
use super::waker::{Patience, Waker};
use crate::error::{Failure, Ready, RsocketError};
use ferroce_engine::cm::{Connection, EventKind, Port};
use ferroce_engine::{AhAttr, CompletionChannel};
use ferroce_engine::{Held, Sleep};
use ferroce_host::fork::{self, Guarded};
use listener::Listener;
use mappings::Mapped;
pub use transfer::Progress;

/// How far a stream has come.
enum Role {
    /// It has no connection, perhaps a port.
    Idle,
    /// It takes requests.
    Listening(Listener),
    /// The peer was asked.
    Connecting {
        /// What it was asked.
        req: Box<Req>,
        /// The way there.
        ah: AhAttr,
        /// Of packets on that way.
        life: CmTime,
    },
    /// The peer asked this one's parent, and was answered.
    Accepting(Weak<Stream>),
    /// Both ends are there, or were.
    Connected,
    /// There will never be a connection.
    Failed,
    /// The program is done with it.
    Closed,
}

/// Both addresses of a stream that came of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// Ours.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
}

/// A stream rsocket.
#[doc(alias = "rsocket")]
pub struct Stream {
    me: Weak<Stream>,
    fd: Guarded<EventFd>,
    state: Mutex<State>,
}

struct State {
    settings: Settings,
    v6: bool,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    mtu: Option<PathMtu>,
    role: Role,
    port: Option<Port>,
    link: Option<Link>,
    connection: Option<Connection>,
    failure: Option<Failure>,
    keepalive: Option<Duration>,
    mapped: Vec<Mapped>,
    /// A thread sleeps on the completion channel.
    sleeper: bool,
    waiting: Vec<Arc<Waker>>,
}

type Guard<'a> = MutexGuard<'a, State>;

impl State {
    /// Takes completions; wakes the others if there were any. Whether there were.
    fn pump(&mut self) -> bool {
        let Some(link) = &mut self.link else { return false };
        if !matches!(self.role, Role::Connected) {
            return false;
        }
        let before = link.books.as_ref().map(|books| books.phase());
        let moved = link.pump();
        let after = link.books.as_ref().map(|books| books.phase());
        if let (Some(Phase::Connected), Some(Phase::Failed(fault))) = (before, after) {
            tracing::debug!(%fault, "an rsocket ends");
            self.failure = Some(fault.into());
        }
        if moved {
            self.wake();
        }
        moved
    }

    /// Something changed: whoever waits looks again.
    fn wake(&mut self) {
        self.waiting.iter().for_each(|waker| waker.wake());
        if let (true, Some(link)) = (self.sleeper, &self.link) {
            link.channel.nudge();
        }
    }

    fn books(&self) -> Option<&crate::protocol::Stream> {
        self.link.as_ref()?.books.as_ref()
    }

    /// Octets that can be read.
    fn available(&self) -> u32 {
        self.books().map_or(0, |books| books.available())
    }

    /// Something can be read, or nothing ever will.
    fn has_input(&self) -> bool {
        self.available() > 0 || self.books().is_none_or(|books| !books.is_readable())
    }

    /// Something can be sent, or nothing ever will.
    fn has_room(&self) -> bool {
        self.books().is_none_or(|books| books.can_send() || !books.is_writable())
    }

    /// What was sent has arrived, or nothing will any more.
    fn is_drained(&self) -> bool {
        self.books().is_none_or(|books| books.is_drained() || books.phase() != Phase::Connected)
    }

    fn ready(&self) -> Ready {
        match &self.role {
            Role::Listening(listener) => Ready { readable: listener.is_ready(), ..Ready::default() },
            Role::Failed => Ready { readable: true, writable: true, hang_up: false, error: true },
            Role::Connected => {
                let phase = self.books().map_or(Phase::Disconnected, |books| books.phase());
                Ready {
                    readable: self.has_input(),
                    writable: self.has_room(),
                    hang_up: phase == Phase::Disconnected && self.available() == 0,
                    error: matches!(phase, Phase::Failed(_)),
                }
            }
            Role::Idle | Role::Connecting { .. } | Role::Accepting(_) | Role::Closed => Ready::default(),
        }
    }
}

impl Stream {
    /// A stream without address.
    ///
    /// # Errors
    ///
    /// Without another descriptor.
    pub fn new(v6: bool) -> io::Result<Arc<Self>> {
        Self::with(State {
            settings: Settings::usual(),
            v6,
            local: None,
            remote: None,
            mtu: None,
            role: Role::Idle,
            port: None,
            link: None,
            connection: None,
            failure: None,
            keepalive: None,
            mapped: Vec::new(),
            sleeper: false,
            waiting: Vec::new(),
        })
    }

    fn with(state: State) -> io::Result<Arc<Self>> {
        fork::install();
        let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let fd = Guarded::new(fd);
        Ok(Arc::new_cyclic(|me| Self { me: me.clone(), fd, state: Mutex::new(state) }))
    }

    /// One that came of a request.
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
            state.mtu = Some(link.qp.query().path_mtu);
            (state.link, state.role) = (Some(link), role);
        }
        Ok(stream)
    }

    /// It has this connection.
    pub(super) fn own(&self, connection: Connection) {
        self.state.lock().connection = Some(connection);
    }

    /// A descriptor that is the stream's alone. It says nothing: see [`Self::watch`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What the program chose.
    pub fn settings(&self) -> Settings {
        self.state.lock().settings
    }

    /// Changes what the program chose. Whether it counts: once there is a queue pair, sizes come too late, and stay.
    pub fn choose(&self, change: impl FnOnce(&mut Settings)) -> bool {
        let mut state = self.state.lock();
        let sizes = state.settings.sizes;
        change(&mut state.settings);
        if state.link.is_some() {
            state.settings.sizes = sizes;
        }
        state.link.is_none()
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        let state = self.state.lock();
        matches!(state.role, Role::Connected)
            && state.books().is_some_and(|books| books.phase() == Phase::Connected)
    }

    /// Its address; the wildcard without one.
    pub fn local_addr(&self) -> SocketAddr {
        let state = self.state.lock();
        state.local.unwrap_or_else(|| wildcard(state.v6))
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.state.lock().remote
    }

    /// Payload of a full packet, once the way is known.
    pub fn mtu(&self) -> Option<PathMtu> {
        self.state.lock().mtu
    }

    /// What made the connection fail, told once.
    pub fn take_failure(&self) -> Option<Failure> {
        self.state.lock().failure.take()
    }

    /// How often it says that it lives.
    pub fn keepalive(&self) -> Option<Duration> {
        self.state.lock().keepalive
    }

    /// Has it say so often that it lives, or not at all. A peer that is gone is noticed by that.
    ///
    /// # Errors
    ///
    /// If the thread that does it cannot be started.
    pub fn set_keepalive(&self, interval: Option<Duration>) -> io::Result<()> {
        service::start()?;
        self.state.lock().keepalive = interval;
        service::push(Task::Keepalive(self.me.clone() as _));
        Ok(())
    }

    /// Says that it lives.
    fn say_alive(&self) {
        let mut state = self.state.lock();
        state.pump();
        if matches!(state.role, Role::Connected)
            && let Some(link) = &mut state.link
            && let Some(write) = link.books.as_mut().and_then(|books| books.keepalive())
        {
            link.post(&write);
        }
    }

    /// What can be done without waiting.
    pub fn ready(&self) -> Ready {
        let mut state = self.state.lock();
        state.pump();
        state.ready()
    }

    /// As [`Self::ready`]. From now on `waker` is woken when that may have changed, until [`Self::unwatch`]; so does the
    /// descriptor of the channel, if there is one, say it by becoming readable.
    pub fn watch(&self, waker: &Arc<Waker>) -> (Ready, Option<Arc<CompletionChannel>>) {
        let mut state = self.state.lock();
        if !state.waiting.iter().any(|known| Arc::ptr_eq(known, waker)) {
            state.waiting.push(Arc::clone(waker));
        }
        let mut channel = None;
        if let Some(link) = state.link.as_ref().filter(|link| link.books.is_some()) {
            // One that sleeps on it takes its events, and wakes all.
            if !state.sleeper {
                link.channel.take_back();
                channel = Some(Arc::clone(&link.channel));
            }
            link.arm();
        }
        state.pump();
        (state.ready(), channel)
    }

    /// Takes [`Self::watch`] back.
    pub fn unwatch(&self, waker: &Arc<Waker>) {
        self.state.lock().waiting.retain(|known| !Arc::ptr_eq(known, waker));
    }

    /// Waits until `done` says so.
    fn wait<'a>(
        &'a self,
        mut state: Guard<'a>,
        patience: Patience,
        done: impl Fn(&State) -> bool,
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
            if patience == Patience::None {
                return Err(RsocketError::WouldBlock);
            }
            if let Some(sleep) = self.fall_asleep(&mut state)? {
                patience.spend(sleep, &mut state)?;
            }
        }
    }

    /// Prepares a sleep until something may have changed. `None`: something may have.
    fn fall_asleep(&self, state: &mut Guard<'_>) -> Result<Option<Sleep>, RsocketError> {
        let stream = self.me.upgrade().ok_or(RsocketError::Closed)?;
        let channel = state.link.as_ref().filter(|link| link.books.is_some()).map(|link| {
            link.arm();
            Arc::clone(&link.channel)
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
                let held = Held::Own(Box::new(Waiter { stream, waker: Arc::clone(&waker) }));
                Ok(Some(Sleep::until_readable(waker.fd(), held)))
            }
        }
    }

    /// Stops reading, sending or both, and waits until the peer has everything.
    ///
    /// # Errors
    ///
    /// [`RsocketError::NotConnected`]; [`RsocketError::Interrupted`] while it waits.
    #[doc(alias = "rshutdown")]
    pub fn shutdown(&self, how: How) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        if !matches!(state.role, Role::Connected) {
            return Err(RsocketError::NotConnected);
        }
        state.pump();
        if let Some(link) = &mut state.link {
            if let Some(books) = &mut link.books {
                books.shutdown(how);
            }
            link.tell();
        }
        state.wake();
        if how != How::Read || state.books().is_some_and(|books| !books.is_writable()) {
            state = self.wait(state, Patience::Sleep, State::is_drained)?;
        }
        if state.books().is_some_and(|books| books.phase() == Phase::Disconnected) {
            self.part(&mut state);
        }
        Ok(())
    }

    /// Ends the connection, in the eyes of connection management as well.
    fn part(&self, state: &mut State) {
        if let Some(link) = &state.link {
            link.break_off();
        }
        if let Some(connection) = &state.connection
            && let Err(error) = connection.disconnect()
        {
            tracing::debug!(%error, "an rsocket was disconnected already");
        }
        state.wake();
    }

    /// Ends it: as [`Self::shutdown`] of both if there is a connection, at once if not. Calls that wait return.
    #[doc(alias = "rclose")]
    pub fn close(&self) {
        if self.is_connected()
            && let Err(error) = self.shutdown(How::Both)
        {
            tracing::debug!(%error, "an rsocket is closed without farewell");
        }
        let ended = {
            let mut state = self.state.lock();
            state.wake();
            state.keepalive = None;
            let role = std::mem::replace(&mut state.role, Role::Closed);
            let mapped = std::mem::take(&mut state.mapped);
            (role, mapped, state.port.take(), state.connection.take(), state.link.take())
        };
        // Asks the broker, and waits for those who are inside.
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
        // If this thread has what it waits for, another one must take its place.
        state.waiting.iter().for_each(|waker| waker.wake());
    }
}

/// A thread that waits in a stream's list.
struct Waiter {
    stream: Arc<Stream>,
    waker: Arc<Waker>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.stream.unwatch(&self.waker);
    }
}

impl StreamTasks for Stream {
    fn connection_event(&self, kind: EventKind) {
        if let Some(stream) = self.me.upgrade() {
            stream.take_event(kind);
        }
    }

    fn answer_waiting(&self) {
        self.answer_waiting_requests();
    }

    fn keepalive(&self) -> Option<Duration> {
        self.keepalive()
    }

    fn send_keepalive(&self) {
        self.say_alive();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        // The connection before the queue pair: the peer is to hear of it.
        state.connection = None;
    }
}

fn wildcard(v6: bool) -> SocketAddr {
    if v6 { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() }
}
