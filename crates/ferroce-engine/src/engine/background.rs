//! The background thread: receives for programs that are inside no call.

use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::Engine;
use crate::clock;
use crate::handover::NEVER;
use crate::lane::{Lane, Served};
use ferroce_host::fork::Guarded;
use ferroce_host::thread;

/// Batches before it looks at the other lanes.
const ROUNDS: u32 = 16;
/// epoll data of the broker's connection.
const BROKER: u64 = u64::MAX - 1;
/// epoll data of the eventfd that wakes the thread.
const WAKE: u64 = u64::MAX;
const EVENTS: usize = 32;

/// Starts the thread, with all signals blocked: handlers are the program's and run on its threads.
/// Faults stay: the guard of registered memory catches those of this thread.
pub(crate) fn spawn(engine: Arc<Engine>) -> io::Result<()> {
    let epoll = Guarded::new(EpollSet(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?));
    epoll.0.add(engine.hub().wake_fd(), EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
    epoll.0.add(engine.broker().event_fd(), EpollEvent::new(EpollFlags::EPOLLIN, BROKER))?;
    thread::spawn_quietly("ferroce", move || {
        thread::ask_for_a_short_slice();
        let mut thread = Background { engine, epoll, watched: Vec::new(), known: Arc::default() };
        if catch_unwind(AssertUnwindSafe(|| thread.run())).is_err() {
            tracing::error!("the background thread panicked: the device is dead");
            thread.engine.fatal();
        }
    })
}

struct EpollSet(Epoll);

impl AsFd for EpollSet {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

struct Background {
    engine: Arc<Engine>,
    epoll: Guarded<EpollSet>,
    /// Lanes whose socket is in the epoll set, by id.
    watched: Vec<Watched>,
    /// The lanes at the last look.
    known: Arc<Vec<Arc<Lane>>>,
}

/// A lane whose socket is in the epoll set.
struct Watched {
    lane: Arc<Lane>,
    /// Looks in a row at a socket that a thread of the program serves by itself.
    in_vain: u32,
}

/// After this number of looks in vain the program is polling steadily, and the thread keeps off.
const LOOKS_IN_VAIN: u32 = 32;

impl Background {
    fn run(&mut self) {
        let mut events = [EpollEvent::empty(); EVENTS];
        let hub = Arc::clone(self.engine.hub());
        loop {
            hub.attention.unpark();
            let lanes = self.engine.lanes().all();
            self.unwatch_closed(&lanes);
            let wake_at = self.look(&lanes);
            hub.attention.park(wake_at);
            // A thread that changed something before it could see the new time is found here.
            if self.look(&lanes) < wake_at {
                continue;
            }
            let now = clock::now().as_nanos();
            let count = match self.epoll.0.wait(&mut events, timeout(now, wake_at)) {
                Ok(count) => count,
                Err(nix::Error::EINTR) => 0,
                Err(errno) => {
                    tracing::error!(%errno, "the background thread cannot wait");
                    self.engine.fatal();
                    return;
                }
            };
            for event in &events[..count] {
                match event.data() {
                    WAKE => hub.woken(),
                    BROKER => self.engine.follow_broker(),
                    id => {
                        if let Some(lane) = lanes.iter().find(|lane| lane.id() == id) {
                            self.ready(lane);
                        }
                    }
                }
            }
        }
    }

    /// Does what is due on every lane and returns when to look again.
    fn look(&mut self, lanes: &[Arc<Lane>]) -> u64 {
        let now = clock::now().as_nanos();
        let mut wake_at = self.engine.report_objects(now).min(self.engine.fire_moderated(now));
        for lane in lanes {
            let due = lane.state().earliest() <= now && !lane.state().kept_by_poller(now);
            if due || lane.state().delayed_ack_overdue(now) {
                lane.serve_in_background(ROUNDS);
            }
            let watching = self.find(lane).is_ok();
            let mut plan = lane.state().plan(now, watching);
            if plan.watch && !watching {
                self.watch(lane);
                // A packet waited for the tick although it could have been served at once: this program polls its
                // memory, for example, and its completion queue only now and then.
                if lane.serve_in_background(ROUNDS) == Served::Some && !lane.follow().was_late() {
                    lane.state().set_eager(true);
                    plan = lane.state().plan(now, true);
                }
            }
            wake_at = wake_at.min(plan.wake_at);
        }
        wake_at
    }

    /// A lane's socket has something to receive.
    fn ready(&mut self, lane: &Lane) {
        let now = clock::now().as_nanos();
        // The packet has woken the program as well, which gets a tick to receive it.
        if lane.follow().is_attached() && !lane.state().is_eager() {
            lane.state().served(now);
        }
        if lane.state().kept_by_program(now) {
            self.unwatch(lane);
            return;
        }
        // Eager, but a poller is about to take it: give it the time.
        let spinning = lane.state().is_spinning(now);
        let served = if spinning { Served::Busy } else { lane.serve_in_background(ROUNDS) };
        if served == Served::Busy {
            std::thread::yield_now();
        }
        let Ok(index) = self.find(lane) else { return };
        let watched = &mut self.watched[index];
        if served == Served::Some {
            watched.in_vain = 0;
        } else if lane.state().is_eager() {
            watched.in_vain += 1;
            if watched.in_vain == LOOKS_IN_VAIN {
                lane.state().set_eager(false);
                self.unwatch(lane);
            }
        }
    }

    /// Its place among the watched, or where it would be.
    fn find(&self, lane: &Lane) -> Result<usize, usize> {
        self.watched.binary_search_by_key(&lane.id(), |watched| watched.lane.id())
    }

    fn watch(&mut self, lane: &Arc<Lane>) {
        let Err(index) = self.find(lane) else { return };
        match self.epoll.0.add(lane.fd(), EpollEvent::new(EpollFlags::EPOLLIN, lane.id())) {
            Ok(()) => self.watched.insert(index, Watched { lane: Arc::clone(lane), in_vain: 0 }),
            Err(errno) => tracing::error!(%errno, "cannot watch a socket"),
        }
    }

    fn unwatch(&mut self, lane: &Lane) {
        let Ok(index) = self.find(lane) else { return };
        if let Err(errno) = self.epoll.0.delete(lane.fd()) {
            tracing::error!(%errno, "cannot stop watching a socket");
        }
        self.watched.remove(index);
    }

    /// Stops watching lanes of multicast groups that have ended. A thread that sleeps on one may hold its socket open
    /// for long.
    fn unwatch_closed(&mut self, lanes: &Arc<Vec<Arc<Lane>>>) {
        if Arc::ptr_eq(lanes, &self.known) {
            return;
        }
        let gone = |watched: &Watched| !lanes.iter().any(|lane| lane.id() == watched.lane.id());
        while let Some(index) = self.watched.iter().position(gone) {
            let lane = Arc::clone(&self.watched[index].lane);
            self.unwatch(&lane);
        }
        self.known = Arc::clone(lanes);
    }
}

/// Until `wake_at`, rounded up so that it is not early.
fn timeout(now: u64, wake_at: u64) -> EpollTimeout {
    if wake_at == NEVER {
        return EpollTimeout::NONE;
    }
    let millis = wake_at.saturating_sub(now).div_ceil(1_000_000);
    EpollTimeout::try_from(millis.min(i32::MAX as u64) as i32).unwrap_or(EpollTimeout::NONE)
}
