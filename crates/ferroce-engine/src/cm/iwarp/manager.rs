//! All waits of iWARP connections outside their queue pairs, on the background thread.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ferroce_host::fork::Guarded;
use ferroce_paths::clock;
use ferroce_paths::streams::MOST_PATIENCE;
use ferroce_wire::Instant;
use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::cm::CmError;
use crate::engine::{Attendant, Engine};
use crate::handover::NEVER;
use crate::lane::Hub;

/// Sockets that are served before the lanes have their turn.
const EVENTS: usize = 64;
/// Time between two looks whether a connection ended.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// The socket of a connection that ended is closed after this time, whatever the peer does.
const LONGEST_LINGER: Duration = Duration::from_secs(2);
/// Octets of the peer that are read at most from a connection that ended.
const MOST_READ: usize = 16 << 20;
/// Octets that are read before other connections have their turn.
const READ_AT_ONCE: usize = 1 << 20;
const PIECE: usize = 64 << 10;

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
    /// Time at which a wait may be over; may be too early, never too late.
    due: AtomicU64,
    /// The number of [`Unfinished`].
    unfinished: AtomicUsize,
    /// The end of the process does not wait longer for them.
    exit_at: AtomicU64,
}

/// A wait for a socket, with a bound.
pub(super) trait Waiting: Send {
    fn socket(&self) -> BorrowedFd<'_>;
    /// The readiness that it waits for: octets, or the end of the stream. `None`: it rests, and its socket is
    /// not watched.
    fn interest(&self) -> Option<epoll::EventFlags> {
        Some(epoll::EventFlags::IN)
    }
    /// Time at which the wait is over; `None` for a listener.
    fn until(&self) -> Option<Instant>;
    /// The program has no more use for it.
    fn is_cancelled(&self) -> bool {
        false
    }
    /// The socket of the wait is ready. Returns the wait that follows, if there is one.
    fn go_on(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait>;
    /// The time of the wait is over. Returns the wait that follows, if there is one.
    fn expire(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait>;
    /// The socket of the wait cannot be watched: the system has no memory for that, or the user watches too
    /// many descriptors. Returns the wait that follows, if there is one, which must not need its socket
    /// watched.
    fn unwatched(self: Box<Self>, errno: Errno, now: Instant, results: &mut Results) -> Option<Wait>;
}

pub(super) type Wait = Box<dyn Waiting>;

/// The results of a step beside the wait that follows.
#[derive(Default)]
pub(super) struct Results {
    /// Further waits, with their numbers.
    pub(super) found: Vec<(u64, Wait)>,
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

/// Work that another thread leaves to the background thread.
type Note = Box<dyn FnOnce(&Manager) + Send>;

/// A connection that ended for its queue pair and that has not sent FIN yet. The end of the process, which
/// would send it at once, waits until this is dropped, for [`MOST_PATIENCE`] at most.
pub(super) struct Unfinished(Arc<Manager>);

impl Unfinished {
    pub(super) fn new(manager: &Arc<Manager>) -> Self {
        let exit_at = clock::now() + MOST_PATIENCE;
        manager.exit_at.fetch_max(exit_at.as_nanos(), Ordering::SeqCst);
        manager.unfinished.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(manager))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.unfinished.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Manager {
    /// The manager of this process, with its engine.
    pub(super) fn global() -> Result<(Arc<Engine>, Arc<Self>), CmError> {
        let engine = Engine::global()?;
        engine.start()?;
        let manager = engine.attendant(|| Self::new(Arc::clone(engine.hub()))).map_err(CmError::Tcp)?;
        Ok((engine, manager))
    }

    fn new(hub: Arc<Hub>) -> io::Result<Self> {
        Ok(Self {
            hub,
            epoll: Guarded::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            next: AtomicU64::new(0),
            waits: Mutex::default(),
            notes: Mutex::default(),
            has_notes: AtomicBool::new(false),
            due: AtomicU64::new(NEVER),
            unfinished: AtomicUsize::new(0),
            exit_at: AtomicU64::new(0),
        })
    }

    /// A descriptor of the manager's own, for waits that need no socket watched.
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// A number that no wait had.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Begins a wait, unless it was cancelled meanwhile. An error gives it back: its socket cannot be
    /// watched.
    pub(super) fn add(&self, number: u64, wait: Wait) -> Result<(), (Errno, Wait)> {
        let mut waits = self.waits.lock();
        if wait.is_cancelled() {
            return Ok(());
        }
        if let Some(interest) = wait.interest()
            && let Err(errno) =
                epoll::add(&self.epoll, wait.socket(), epoll::EventData::new_u64(number), interest)
        {
            return Err((errno, wait));
        }
        let until = Hub::deadline(wait.until());
        waits.insert(number, wait);
        drop(waits);
        self.due.fetch_min(until, Ordering::SeqCst);
        self.hub.request_look(until);
        Ok(())
    }

    /// The same for a wait whose program learns by an event how it ends, also if its socket cannot be
    /// watched.
    fn begin(&self, number: u64, wait: Wait, now: Instant, results: &mut Results) {
        let Err((errno, wait)) = self.add(number, wait) else { return };
        tracing::warn!(%errno, "a connection cannot be watched");
        if let Some(next) = wait.unwatched(errno, now, results)
            && let Err((errno, _)) = self.add(number, next)
        {
            tracing::error!(%errno, "a wait ends without an event");
        }
    }

    /// Ends a wait that is cancelled, unless another thread runs a step of it now.
    pub(super) fn cancel(&self, number: u64) {
        let wait = self.waits.lock().remove(&number);
        if let Some(wait) = wait {
            self.part(&*wait);
        }
    }

    fn part(&self, wait: &dyn Waiting) {
        // The socket may live on.
        if wait.interest().is_some()
            && let Err(errno) = epoll::delete(&self.epoll, wait.socket())
        {
            tracing::error!(%errno, "cannot stop watching a connection");
        }
    }

    /// Sends the last octets of a connection, reads the peer's to their end, and closes it. FIN leaves at
    /// `fin_at`, or when the octets have left. Calls `then` when it has, or cannot.
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
        let mut results = Results::default();
        if continues {
            self.begin(self.number(), Box::new(lingering), now, &mut results);
        }
        if let Some(then) = then {
            then();
        }
        results.deliveries.into_iter().for_each(|deliver| deliver());
    }

    /// Has the background thread do `work`. May be called with an endpoint's lock held.
    pub(super) fn note(&self, work: impl FnOnce(&Self) + Send + 'static) {
        self.notes.lock().push(Box::new(work));
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
            self.step(event.data.u64(), now, |wait, results| wait.go_on(now, results));
        }
    }

    /// Serves the sockets that are ready, if any may be, and then ends the waits whose time is over. Returns
    /// when to come back.
    fn serve_at(&self, now: Instant, ready: bool) -> u64 {
        let is_due = || self.due.load(Ordering::SeqCst) <= now.as_nanos();
        // The event that a wait is for may have come since the last look.
        if ready || is_due() {
            self.serve_ready(now);
        }
        self.serve_notes();
        if is_due() {
            self.serve_due(now);
        }
        self.due.load(Ordering::SeqCst)
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
            self.step(number, now, |wait, results| wait.expire(now, results));
        }
    }

    /// Takes a wait, lets it go on, and puts it back if there is more to wait for. Then delivers the events.
    fn step(&self, number: u64, now: Instant, go_on: impl FnOnce(Wait, &mut Results) -> Option<Wait>) {
        let Some(wait) = self.waits.lock().remove(&number) else { return };
        self.part(&*wait);
        let mut results = Results::default();
        // A wait that goes on keeps its number, by which it is cancelled.
        let next = go_on(wait, &mut results).map(|wait| (number, wait));
        let found = std::mem::take(&mut results.found);
        for (number, wait) in next.into_iter().chain(found) {
            self.begin(number, wait, now, &mut results);
        }
        let Results { ends, deliveries, .. } = results;
        if let Some((socket, octets)) = ends {
            self.linger(socket, octets, Instant::ZERO, || ());
        }
        deliveries.into_iter().for_each(|deliver| deliver());
    }

    /// Does the work that other threads left.
    fn serve_notes(&self) {
        if !self.has_notes.swap(false, Ordering::SeqCst) {
            return;
        }
        let notes = std::mem::take(&mut *self.notes.lock());
        notes.into_iter().for_each(|work| work(self));
    }
}

impl Attendant for Manager {
    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn serve(&self, now: u64, ready: bool) -> u64 {
        self.serve_at(Instant::from_nanos(now), ready)
    }

    fn at_exit(&self) {
        let until = self.exit_at.load(Ordering::SeqCst);
        while self.unfinished.load(Ordering::SeqCst) > 0 && clock::now().as_nanos() < until {
            thread::sleep(LOOK);
        }
    }
}

/// The consequence of FIN: the program is told that the connection ended. A program that waits for this
/// before it exits gives the peer its time.
type Then = Box<dyn FnOnce() + Send>;

/// A connection that ended for its queue pair: the last octets leave, the peer's are read to their end, and
/// then the socket is closed. Octets of the peer that nobody reads would make TCP send a RST, which can
/// overtake our last message.
struct Lingering {
    socket: Arc<dyn AsFd + Send + Sync>,
    until: Instant,
    /// The last octets, those before `sent` with TCP.
    unsent: Vec<u8>,
    sent: usize,
    /// Earliest time at which FIN leaves.
    fin_at: Instant,
    /// FIN is on its way.
    finished: bool,
    /// Called when FIN has left, or cannot leave.
    then: Option<Then>,
    /// Octets of the peer that may still be read.
    left: usize,
}

impl Lingering {
    /// FIN leaves at `fin_at`, or when the octets have left.
    fn new(
        socket: Arc<dyn AsFd + Send + Sync>,
        unsent: Vec<u8>,
        fin_at: Instant,
        now: Instant,
        then: Then,
    ) -> Self {
        let (then, until) = (Some(then), now + LONGEST_LINGER);
        Self { socket, until, unsent, sent: 0, fin_at, finished: false, then, left: MOST_READ }
    }

    /// The consequence, if it is time for it.
    fn take_then(&mut self, continues: bool) -> Option<Then> {
        if self.finished || !continues { self.then.take() } else { None }
    }

    /// Time at which FIN leaves; `None` if it has left.
    fn fin_at(&self) -> Option<Instant> {
        (!self.finished).then_some(self.fin_at)
    }

    /// Goes on; returns whether there is more to wait for.
    fn continues(&mut self, now: Instant) -> bool {
        self.send(now) && self.read()
    }

    /// Sends the last octets and FIN, as far as TCP takes them. `false` if the connection is broken.
    fn send(&mut self, now: Instant) -> bool {
        while let Some(octets) = self.unsent.get(self.sent..).filter(|octets| !octets.is_empty()) {
            match rustix::net::send(&*self.socket, octets, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        if !self.finished && now >= self.fin_at {
            self.finished = true;
            return rustix::net::shutdown(&*self.socket, Shutdown::Write).is_ok();
        }
        true
    }

    /// Reads and forgets what the peer sent. `false` at its end.
    fn read(&mut self) -> bool {
        let mut piece = [0; PIECE];
        let mut read = 0;
        while read < READ_AT_ONCE {
            match rustix::net::recv(&*self.socket, &mut piece, RecvFlags::DONTWAIT) {
                Ok((len, _)) if len > 0 && len < self.left => {
                    self.left -= len;
                    read += len;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }
}

impl Waiting for Lingering {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn interest(&self) -> Option<epoll::EventFlags> {
        let all_sent = self.sent == self.unsent.len();
        Some(if all_sent { epoll::EventFlags::IN } else { epoll::EventFlags::IN | epoll::EventFlags::OUT })
    }

    fn until(&self) -> Option<Instant> {
        // While octets wait, room for them is the next thing to happen.
        let all_sent = self.sent == self.unsent.len();
        Some(self.fin_at().filter(|_| all_sent).map_or(self.until, |fin_at| fin_at.min(self.until)))
    }

    fn go_on(mut self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        let continues = now < self.until && self.continues(now);
        if let Some(then) = self.take_then(continues) {
            results.deliver(then);
        }
        if continues { Some(self) } else { None }
    }

    fn expire(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        self.go_on(now, results)
    }

    /// Closes the connection early.
    fn unwatched(mut self: Box<Self>, _: Errno, _: Instant, results: &mut Results) -> Option<Wait> {
        if let Some(then) = self.take_then(false) {
            results.deliver(then);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use ferroce_ipc::QpnOrder;

    use super::*;

    const NOW: Instant = Instant::from_nanos(0);
    const LATER: Instant = Instant::from_nanos(u64::MAX);

    fn manager() -> Manager {
        let (hub, _) = Hub::new(&[17], false, 1, QpnOrder { key: 1, start: 0 }, Arc::default()).unwrap();
        Manager::new(Arc::new(hub)).unwrap()
    }

    /// epoll refuses a descriptor that it watches already.
    fn watch(manager: &Manager, socket: BorrowedFd<'_>) {
        epoll::add(&manager.epoll, socket, epoll::EventData::new_u64(NEVER), epoll::EventFlags::IN).unwrap();
    }

    /// Lets a connection linger whose FIN leaves never; whether the program was told of its end.
    fn linger(manager: &Manager, socket: &Arc<UnixStream>) -> Arc<AtomicBool> {
        let told = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&told);
        manager
            .linger(Arc::clone(socket) as _, Vec::new(), LATER, move || tell.store(true, Ordering::SeqCst));
        told
    }

    #[test]
    fn the_end_of_a_connection_that_cannot_be_watched_is_told() {
        let manager = manager();
        let (socket, _peer) = UnixStream::pair().unwrap();
        let socket = Arc::new(socket);
        watch(&manager, socket.as_fd());
        let told = linger(&manager, &socket);
        assert!(told.load(Ordering::SeqCst));
        assert!(manager.waits.lock().is_empty());
    }

    #[test]
    fn the_end_of_a_connection_that_cannot_be_watched_any_more_is_told() {
        let manager = manager();
        let (socket, _peer) = UnixStream::pair().unwrap();
        let told = linger(&manager, &Arc::new(socket));
        assert!(!told.load(Ordering::SeqCst));
        let number = *manager.waits.lock().keys().next().unwrap();
        manager.step(number, NOW, |wait, _| {
            watch(&manager, wait.socket());
            Some(wait)
        });
        assert!(told.load(Ordering::SeqCst));
        assert!(manager.waits.lock().is_empty());
    }

    /// Waits for octets, or for time alone.
    struct Patient {
        socket: UnixStream,
        rests: bool,
    }

    impl Waiting for Patient {
        fn socket(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }

        fn interest(&self) -> Option<epoll::EventFlags> {
            (!self.rests).then_some(epoll::EventFlags::IN)
        }

        fn until(&self) -> Option<Instant> {
            self.rests.then_some(LATER)
        }

        fn go_on(self: Box<Self>, _: Instant, _: &mut Results) -> Option<Wait> {
            Some(self)
        }

        fn expire(self: Box<Self>, _: Instant, _: &mut Results) -> Option<Wait> {
            None
        }

        fn unwatched(self: Box<Self>, _: Errno, _: Instant, _: &mut Results) -> Option<Wait> {
            Some(Box::new(Self { rests: true, ..*self }))
        }
    }

    /// Octets that end the wait.
    struct Hopeful(Patient, Arc<AtomicBool>);

    impl Waiting for Hopeful {
        fn socket(&self) -> BorrowedFd<'_> {
            self.0.socket()
        }

        fn until(&self) -> Option<Instant> {
            Some(NOW)
        }

        fn go_on(self: Box<Self>, _: Instant, _: &mut Results) -> Option<Wait> {
            self.1.store(true, Ordering::SeqCst);
            None
        }

        fn expire(self: Box<Self>, _: Instant, _: &mut Results) -> Option<Wait> {
            None
        }

        fn unwatched(self: Box<Self>, _: Errno, _: Instant, _: &mut Results) -> Option<Wait> {
            None
        }
    }

    /// The thread looked at the sockets, and then got no processor until the wait was over.
    #[test]
    fn octets_that_have_arrived_come_before_the_end_of_the_wait_for_them() {
        for arrives in [true, false] {
            let manager = manager();
            let (socket, peer) = UnixStream::pair().unwrap();
            let heard = Arc::new(AtomicBool::new(false));
            let wait = Hopeful(Patient { socket, rests: false }, Arc::clone(&heard));
            assert!(manager.add(5, Box::new(wait)).is_ok());
            if arrives {
                (&peer).write_all(b"reply").unwrap();
            }
            manager.serve_at(LATER, false);
            assert_eq!(heard.load(Ordering::SeqCst), arrives);
            assert!(manager.waits.lock().is_empty());
        }
    }

    #[test]
    fn a_wait_that_needs_no_socket_goes_on_by_its_number() {
        let manager = manager();
        let (socket, _peer) = UnixStream::pair().unwrap();
        assert!(manager.add(5, Box::new(Patient { socket, rests: false })).is_ok());
        manager.step(5, NOW, |wait, results| {
            watch(&manager, wait.socket());
            wait.go_on(NOW, results)
        });
        let waits = manager.waits.lock();
        assert!(waits.keys().eq(&[5]) && waits[&5].interest().is_none());
    }
}
