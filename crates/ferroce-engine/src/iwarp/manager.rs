//! All waits of iWARP connections outside their queue pairs, on the background thread.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferroce_host::fork::Guarded;
use ferroce_wire::Instant;
use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::Event;
use super::connection::Shared;
use super::lingering::Lingering;
use super::listener::Accepting;
use super::setup::{Asking, Connecting, Delivery, Hearing};
use crate::clock;
use crate::engine::{Attendant, Engine};
use crate::handover::NEVER;
use crate::lane::Hub;
use crate::streams::Remains;

/// Sockets that are served before the lanes have their turn.
const EVENTS: usize = 64;

/// The waits of connections that are being set up, of listeners, and of connections that ended.
pub(super) struct Manager {
    hub: Arc<Hub>,
    epoll: Guarded<OwnedFd>,
    next: AtomicU64,
    waits: Mutex<BTreeMap<u64, Wait>>,
    /// A leaf lock, taken by any thread that has an endpoint's.
    notes: Mutex<Vec<Note>>,
    /// False only while there are none.
    has_notes: AtomicBool,
    /// When a wait may be over; not too late.
    due: AtomicU64,
}

/// The one manager of an engine, made at the first use.
#[derive(Default)]
struct Slot(Mutex<Option<Arc<Manager>>>);

/// A wait for a socket, with a bound.
pub(super) enum Wait {
    Connecting(Box<Connecting>),
    Asking(Box<Asking>),
    Hearing(Box<Hearing>),
    Accepting(Box<Accepting>),
    Lingering(Box<Lingering>),
}

/// The outcome of a step.
pub(super) enum Step {
    /// There is more to wait for.
    Wait(Wait),
    /// The connection ends: these octets are the last.
    Linger(Arc<dyn AsFd + Send + Sync>, Vec<u8>),
    Done,
}

/// Something that happened to a connection on another thread.
pub(super) enum Note {
    /// The passive end may send.
    Established(Arc<Shared>),
    /// The queue pair gave the connection back.
    Ended(Arc<Shared>, Remains),
}

impl Wait {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Connecting(wait) => wait.socket.as_fd(),
            Self::Asking(wait) => wait.socket.as_fd(),
            Self::Hearing(wait) => wait.socket.as_fd(),
            Self::Accepting(wait) => wait.socket.as_fd(),
            Self::Lingering(wait) => wait.socket.as_fd(),
        }
    }

    /// `None`: it rests, and its socket is not watched.
    fn interest(&self) -> Option<epoll::EventFlags> {
        match self {
            Self::Connecting(wait) if wait.rests_until.is_some() => None,
            Self::Connecting(_) => Some(epoll::EventFlags::OUT),
            Self::Asking(_) | Self::Hearing(_) => Some(epoll::EventFlags::IN),
            Self::Accepting(wait) if wait.rests_until.is_some() => None,
            Self::Accepting(_) => Some(epoll::EventFlags::IN),
            Self::Lingering(wait) => Some(wait.interest()),
        }
    }

    /// When it is over; [`NEVER`] for a listener.
    fn until(&self) -> u64 {
        match self {
            Self::Connecting(wait) => wait.rests_until.unwrap_or(wait.until).as_nanos(),
            Self::Asking(wait) => wait.until.as_nanos(),
            Self::Hearing(wait) => wait.until.as_nanos(),
            Self::Accepting(wait) => Hub::deadline(wait.rests_until),
            Self::Lingering(wait) => wait.until.as_nanos(),
        }
    }

    /// The program has no more use for it.
    fn is_cancelled(&self) -> bool {
        match self {
            Self::Connecting(wait) => wait.is_cancelled(),
            Self::Asking(wait) => wait.is_cancelled(),
            Self::Hearing(wait) => wait.is_cancelled(),
            Self::Accepting(wait) => wait.is_cancelled(),
            Self::Lingering(_) => false,
        }
    }

    /// Its socket is ready. New waits go to `found`.
    fn go_on(self, now: Instant, found: &mut Vec<Self>, deliveries: &mut Vec<Delivery>) -> Step {
        match self {
            Self::Connecting(wait) => wait.go_on(now, deliveries),
            Self::Asking(wait) => wait.go_on(deliveries),
            Self::Hearing(wait) => wait.go_on(deliveries),
            Self::Accepting(wait) => wait.go_on(now, found),
            Self::Lingering(mut wait) => {
                if wait.go_on() {
                    Step::Wait(Self::Lingering(wait))
                } else {
                    Step::Done
                }
            }
        }
    }

    /// Its time is over.
    fn expire(self, now: Instant, found: &mut Vec<Self>, deliveries: &mut Vec<Delivery>) -> Step {
        match self {
            Self::Connecting(wait) => wait.expire(now, deliveries),
            Self::Asking(wait) => wait.expire(deliveries),
            Self::Accepting(wait) => wait.go_on(now, found),
            Self::Hearing(_) | Self::Lingering(_) => Step::Done,
        }
    }
}

impl Manager {
    /// The manager of this process, with its engine.
    pub(super) fn global() -> io::Result<(Arc<Engine>, Arc<Self>)> {
        let engine = Engine::global().map_err(io::Error::other)?;
        engine.start().map_err(io::Error::other)?;
        let manager = Self::of(&engine)?;
        Ok((engine, manager))
    }

    pub(super) fn of(engine: &Arc<Engine>) -> io::Result<Arc<Self>> {
        let slot = engine.shared(Slot::default);
        let mut slot = slot.0.lock();
        if let Some(known) = &*slot {
            return Ok(Arc::clone(known));
        }
        let manager = Arc::new(Self {
            hub: Arc::clone(engine.hub()),
            epoll: Guarded::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            next: AtomicU64::new(0),
            waits: Mutex::default(),
            notes: Mutex::default(),
            has_notes: AtomicBool::new(false),
            due: AtomicU64::new(NEVER),
        });
        engine.attend(|| Ok(Arc::clone(&manager)))?;
        Ok(Arc::clone(slot.insert(manager)))
    }

    /// A number that no wait had.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Begins a wait, unless it was cancelled meanwhile.
    pub(super) fn add(&self, number: u64, wait: Wait) -> Result<(), Errno> {
        let mut waits = self.waits.lock();
        if wait.is_cancelled() {
            return Ok(());
        }
        if let Some(interest) = wait.interest() {
            epoll::add(&self.epoll, wait.fd(), epoll::EventData::new_u64(number), interest)?;
        }
        let until = wait.until();
        waits.insert(number, wait);
        drop(waits);
        self.due.fetch_min(until, Ordering::SeqCst);
        self.hub.request_look(until);
        Ok(())
    }

    /// Ends a wait that is cancelled, whoever has it now.
    pub(super) fn cancel(&self, number: u64) {
        let wait = self.waits.lock().remove(&number);
        if let Some(wait) = wait {
            self.part(&wait);
        }
    }

    fn part(&self, wait: &Wait) {
        // Its socket may live on.
        if wait.interest().is_some()
            && let Err(errno) = epoll::delete(&self.epoll, wait.fd())
        {
            tracing::error!(%errno, "cannot stop watching a connection");
        }
    }

    /// Sends the last octets of a connection, reads the peer's to their end, and closes it.
    pub(super) fn linger(&self, socket: Arc<dyn AsFd + Send + Sync>, unsent: Vec<u8>) {
        let mut lingering = Lingering::new(socket, unsent, clock::now());
        if lingering.go_on()
            && let Err(errno) = self.add(self.number(), Wait::Lingering(Box::new(lingering)))
        {
            tracing::warn!(%errno, "a connection is closed early");
        }
    }

    /// Takes note of something for the background thread. May be called with an endpoint's lock held.
    pub(super) fn note(&self, note: Note) {
        self.notes.lock().push(note);
        self.has_notes.store(true, Ordering::SeqCst);
        self.hub.request_look(0);
    }

    /// Serves the sockets that are ready.
    fn serve_ready(&self, now: Instant) {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut space = [const { MaybeUninit::uninit() }; EVENTS];
        let events = match epoll::wait(&self.epoll, &mut space, Some(&AT_ONCE)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return,
            Err(errno) => {
                tracing::error!(%errno, "cannot look at connections that are being set up");
                return;
            }
        };
        for event in events {
            self.step(event.data.u64(), |wait, found, deliveries| wait.go_on(now, found, deliveries));
        }
    }

    /// Ends the waits whose time is over.
    fn serve_due(&self, now: Instant) {
        let mut next = NEVER;
        self.due.store(NEVER, Ordering::SeqCst);
        let due: Vec<u64> = {
            let waits = self.waits.lock();
            let is_due = |(number, wait): (&u64, &Wait)| {
                let until = wait.until();
                let is_due = until <= now.as_nanos();
                if !is_due {
                    next = next.min(until);
                }
                is_due.then_some(*number)
            };
            waits.iter().filter_map(is_due).collect()
        };
        self.due.fetch_min(next, Ordering::SeqCst);
        for number in due {
            self.step(number, |wait, found, deliveries| wait.expire(now, found, deliveries));
        }
    }

    /// Takes a wait, lets it go on, and puts it back if there is more to wait for. Then delivers the events.
    fn step(&self, number: u64, go_on: impl FnOnce(Wait, &mut Vec<Wait>, &mut Vec<Delivery>) -> Step) {
        let Some(wait) = self.waits.lock().remove(&number) else { return };
        let (mut found, mut deliveries) = (Vec::new(), Vec::new());
        self.part(&wait);
        match go_on(wait, &mut found, &mut deliveries) {
            Step::Wait(wait) => found.insert(0, wait),
            Step::Linger(socket, octets) => self.linger(socket, octets),
            Step::Done => {}
        }
        for (index, wait) in found.into_iter().enumerate() {
            // A wait that goes on keeps its number, by which it is cancelled.
            let number = if index == 0 { number } else { self.number() };
            if let Err(errno) = self.add(number, wait) {
                tracing::warn!(%errno, "a connection cannot be watched");
            }
        }
        for (sink, event) in deliveries {
            sink.deliver(event);
        }
    }

    /// Acts on what other threads noted.
    fn serve_notes(&self) {
        if !self.has_notes.swap(false, Ordering::SeqCst) {
            return;
        }
        let notes = std::mem::take(&mut *self.notes.lock());
        for note in notes {
            match note {
                Note::Established(shared) => {
                    let (ird, ord) = shared.depths();
                    shared.sink().deliver(Event::Established { ird, ord, private: Vec::new() });
                }
                Note::Ended(shared, Remains { socket, unsent }) => {
                    self.linger(socket, unsent);
                    shared.is_over();
                    shared.sink().deliver(Event::Disconnected);
                }
            }
        }
    }
}

impl Attendant for Manager {
    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn serve(&self, _engine: &Arc<Engine>, now: u64, ready: bool) -> u64 {
        let instant = Instant::from_nanos(now);
        if ready {
            self.serve_ready(instant);
        }
        self.serve_notes();
        if self.due.load(Ordering::SeqCst) <= now {
            self.serve_due(instant);
        }
        self.due.load(Ordering::SeqCst)
    }
}
