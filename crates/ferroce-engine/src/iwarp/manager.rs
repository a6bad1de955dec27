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

use super::lingering::Lingering;
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
pub(super) trait Waiting: Send {
    fn socket(&self) -> BorrowedFd<'_>;
    /// The readiness that it waits for. `None`: it rests, and its socket is not watched.
    fn interest(&self) -> Option<epoll::EventFlags>;
    /// When it is over; `None` for a listener.
    fn until(&self) -> Option<Instant>;
    /// The program has no more use for it.
    fn is_cancelled(&self) -> bool {
        false
    }
    /// Its socket is ready. Returns the wait that follows, if there is one.
    fn go_on(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait>;
    /// Its time is over. Returns the wait that follows, if there is one.
    fn expire(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait>;
}

pub(super) type Wait = Box<dyn Waiting>;

/// The results of a step beside the wait that follows.
#[derive(Default)]
pub(super) struct Results {
    /// Further waits.
    pub(super) found: Vec<Wait>,
    /// A connection that ends, and its last octets.
    pub(super) ends: Option<(Arc<dyn AsFd + Send + Sync>, Vec<u8>)>,
    /// Events to deliver.
    deliveries: Vec<Box<dyn FnOnce()>>,
}

impl Results {
    /// Has an event delivered once no lock is held.
    pub(super) fn deliver(&mut self, delivery: impl FnOnce() + 'static) {
        self.deliveries.push(Box::new(delivery));
    }
}

/// A connection that is told of notes, on the background thread.
pub(super) trait Noted: Send + Sync {
    /// The passive end may send.
    fn established(&self);
    /// The queue pair gave the connection back.
    fn disconnected(&self);
}

/// Something that happened to a connection on another thread.
pub(super) enum Note {
    /// The passive end may send.
    Established(Arc<dyn Noted>),
    /// The queue pair gave the connection back.
    Ended(Arc<dyn Noted>, Remains),
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
            epoll::add(&self.epoll, wait.socket(), epoll::EventData::new_u64(number), interest)?;
        }
        let until = Hub::deadline(wait.until());
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
            self.part(&*wait);
        }
    }

    fn part(&self, wait: &dyn Waiting) {
        // Its socket may live on.
        if wait.interest().is_some()
            && let Err(errno) = epoll::delete(&self.epoll, wait.socket())
        {
            tracing::error!(%errno, "cannot stop watching a connection");
        }
    }

    /// Sends the last octets of a connection, reads the peer's to their end, and closes it. FIN leaves at `fin_at`, or when
    /// the octets have left. Calls `then` when it has, or cannot.
    pub(super) fn linger(
        &self,
        socket: Arc<dyn AsFd + Send + Sync>,
        unsent: Vec<u8>,
        fin_at: Instant,
        then: impl FnOnce() + Send + 'static,
    ) {
        let now = clock::now();
        let mut lingering = Lingering::new(socket, unsent, fin_at, now, Box::new(then));
        let continues = lingering.continues(now);
        let then = lingering.take_then(continues);
        if continues && let Err(errno) = self.add(self.number(), Box::new(lingering)) {
            tracing::warn!(%errno, "a connection is closed early");
        }
        if let Some(then) = then {
            then();
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
            self.step(event.data.u64(), |wait, results| wait.go_on(now, results));
        }
    }

    /// Ends the waits whose time is over.
    fn serve_due(&self, now: Instant) {
        let mut next = NEVER;
        self.due.store(NEVER, Ordering::SeqCst);
        let due: Vec<u64> = {
            let waits = self.waits.lock();
            let is_due = |(number, wait): (&u64, &Wait)| {
                let until = Hub::deadline(wait.until());
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
            self.step(number, |wait, results| wait.expire(now, results));
        }
    }

    /// Takes a wait, lets it go on, and puts it back if there is more to wait for. Then delivers the events.
    fn step(&self, number: u64, go_on: impl FnOnce(Wait, &mut Results) -> Option<Wait>) {
        let Some(wait) = self.waits.lock().remove(&number) else { return };
        self.part(&*wait);
        let mut results = Results::default();
        // A wait that goes on keeps its number, by which it is cancelled.
        let next = go_on(wait, &mut results).map(|wait| (number, wait));
        let Results { found, ends, deliveries } = results;
        let found = found.into_iter().map(|wait| (self.number(), wait));
        for (number, wait) in next.into_iter().chain(found) {
            if let Err(errno) = self.add(number, wait) {
                tracing::warn!(%errno, "a connection cannot be watched");
            }
        }
        if let Some((socket, octets)) = ends {
            self.linger(socket, octets, Instant::ZERO, || ());
        }
        deliveries.into_iter().for_each(|deliver| deliver());
    }

    /// Acts on what other threads noted.
    fn serve_notes(&self) {
        if !self.has_notes.swap(false, Ordering::SeqCst) {
            return;
        }
        let notes = std::mem::take(&mut *self.notes.lock());
        for note in notes {
            match note {
                Note::Established(connection) => connection.established(),
                Note::Ended(connection, Remains { socket, unsent, fin_at }) => {
                    self.linger(socket, unsent, fin_at, move || connection.disconnected());
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
