//! The background thread: receives for programs that are inside no call.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ferroce_memory::publisher::Publisher;
use ferroce_paths::clock;
use ferroce_wire::Instant;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::Engine;
use crate::handover::{self, NEVER};
use crate::lane::{self, Lane, Served, Visit};
use ferroce_host::fork::Guarded;
use ferroce_host::latest;
use ferroce_host::thread::{self, Others};
use ferroce_host::trial::Trial;

/// Batches before it looks at the other lanes.
const ROUNDS: u32 = 16;
/// epoll data of the attendant's descriptor.
const ATTENDANT: u64 = u64::MAX - 2;
/// epoll data of the broker's connection.
const BROKER: u64 = u64::MAX - 1;
/// epoll data of the eventfd that wakes the thread.
const WAKE: u64 = u64::MAX;
const EVENTS: usize = 32;

/// Starts the thread, with all signals blocked: handlers are the program's and run on its threads.
/// Faults stay: the guard of registered memory catches those of this thread. The publication lives with it.
pub(crate) fn spawn(engine: Arc<Engine>, publisher: Option<Arc<Publisher>>) -> io::Result<()> {
    // System calls, because librspreload sends the C library's epoll calls to `repoll_create` and its like.
    let epoll = Guarded::new(epoll::create(CreateFlags::CLOEXEC)?);
    epoll::add(&epoll, engine.hub().wake_fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
    epoll::add(&epoll, engine.broker().event_fd(), EventData::new_u64(BROKER), EventFlags::IN)?;
    let (started, has_started) = mpsc::sync_channel(1);
    thread::spawn_quietly("ferroce", move || {
        if let Some(Err(error)) = publisher.map(|publisher| publisher.live_with_this_thread()) {
            tracing::debug!(%error, "no direct copies to this process");
        }
        let _ = started.send(());
        thread::ask_for_a_short_slice();
        thread::ask_for_short_sleeps();
        let mut thread = Background {
            engine,
            epoll,
            watched: Vec::new(),
            known: Arc::default(),
            attends: false,
            tick: None,
        };
        if catch_unwind(AssertUnwindSafe(|| thread.run())).is_err() {
            thread.engine.fatal();
            tracing::error!("the background thread panicked: the device is dead");
        }
    })?;
    // Peers shall find the publication valid from the first queue pair on.
    let _ = has_started.recv();
    Ok(())
}

struct Background {
    engine: Arc<Engine>,
    epoll: Guarded<OwnedFd>,
    /// Lanes whose socket is in the epoll set, by id.
    watched: Vec<Watched>,
    /// The lanes at the last look.
    known: Arc<Vec<Arc<Lane>>>,
    /// The attendant's descriptor is in the epoll set.
    attends: bool,
    /// The last look, if some lane was left to the program then.
    tick: Option<Others>,
}

/// A lane whose socket is in the epoll set.
struct Watched {
    lane: Arc<Lane>,
    /// Looks in a row at a socket that a thread of the program serves by itself.
    in_vain: u32,
    /// Looks in a row at which a poller slept that the packet has woken.
    left: u32,
    stay: Trial,
    /// A program that polled a moment ago gets time to take a packet.
    wait: Trial,
}

/// After this number of looks in vain the program is polling steadily, and the thread keeps off.
const LOOKS_IN_VAIN: u32 = 32;
/// A poller has this time to take a packet, or if it was asleep, this time [`LEFT_TO_SLEEPER`] times.
const PATIENCE: Duration = Duration::from_nanos(handover::SPIN);
const LEFT_TO_SLEEPER: u32 = 64;

impl Background {
    fn run(&mut self) {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let hub = Arc::clone(self.engine.hub());
        loop {
            hub.attention.unpark();
            latest::collect();
            let lanes = self.engine.lanes().all();
            self.unwatch_closed(&lanes);
            let wake_at = self.look(&lanes);
            hub.attention.park(wake_at);
            // A thread that changed something before it could see the new time is found here.
            if self.look(&lanes) < wake_at {
                continue;
            }
            let timeout = timeout(clock::now().as_nanos(), wake_at);
            let ready = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => &mut [],
                Err(errno) => {
                    tracing::error!(%errno, "the background thread cannot wait");
                    self.engine.fatal();
                    return;
                }
            };
            for event in ready {
                match event.data.u64() {
                    WAKE => hub.woken(),
                    BROKER => self.engine.follow_broker(),
                    ATTENDANT => {
                        self.attend(clock::now().as_nanos(), true);
                    }
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
        let mut wake_at = self.engine.report_objects(now).min(self.engine.moderated.fire(now));
        wake_at = wake_at.min(self.attend(now, false));
        // A thread that has lost its core is late as well, and goes on polling.
        let shared = lane::cores_are_shared(Instant::from_nanos(now));
        let tick = self.tick.take();
        for lane in lanes {
            if shared && !lane.state().runs_on() {
                lane.state().end_eager();
            }
            if lane.state().gathers_until() <= now {
                lane.visit_gatherers(Visit::Due(Instant::from_nanos(now)), || Instant::from_nanos(now));
            }
            let due = lane.state().earliest() <= now && !lane.state().timers_kept_by_program(now);
            if due || lane.state().delayed_ack_overdue(now) {
                lane.serve_in_background(ROUNDS);
            }
            let watching = self.find(lane).is_ok();
            let mut plan = lane.state().plan(now, watching);
            if plan.watch && !watching {
                self.watch(lane);
                // A packet waited for the tick although it could have been served at once: this program polls
                // its memory, for example, and its completion queue only now and then.
                let late = lane.serve_in_background(ROUNDS) == Served::Some && !lane.follow().was_late();
                let runs_on = late && tick.as_ref().is_some_and(Others::have_run);
                if runs_on || (late && !shared) {
                    lane.state().become_eager(runs_on);
                    plan = lane.state().plan(now, true);
                }
            }
            if shared && !plan.watch && self.tick.is_none() {
                self.tick = Others::now();
            }
            wake_at = wake_at.min(plan.wake_at);
        }
        wake_at
    }

    /// Serves the attendant, if there is one, and returns when to look again.
    fn attend(&mut self, now: u64, ready: bool) -> u64 {
        let Some(attendant) = self.engine.attendant.get() else { return NEVER };
        if !self.attends {
            let watched =
                epoll::add(&self.epoll, attendant.fd(), EventData::new_u64(ATTENDANT), EventFlags::IN);
            self.attends = watched.is_ok();
            if let Err(errno) = watched {
                tracing::error!(%errno, "cannot watch connections that are being set up");
            }
        }
        attendant.serve(now, ready)
    }

    /// A lane's socket has something to receive.
    fn ready(&mut self, lane: &Lane) {
        let now = clock::now().as_nanos();
        // The packet has woken the program as well, which gets a tick to receive it.
        if lane.follow().is_attached() && !lane.state().is_eager() {
            lane.state().served(now);
        }
        if lane.state().kept_by_program(now) {
            // The lane's descriptor stays readable: a thread that sleeps on it must wake up.
            self.unwatch(lane);
            return;
        }
        let Ok(index) = self.find(lane) else { return };
        let watched = &mut self.watched[index];
        // The packet has woken a poller from its short sleep: the descriptor stays readable for the poller. A
        // thread that yields may come back later than one that sleeps.
        if lane.state().is_asleep(now) && watched.left < LEFT_TO_SLEEPER {
            watched.left += 1;
            return std::thread::sleep(PATIENCE);
        }
        watched.left = 0;
        // A poller is about to take it, as it seems.
        if lane.state().is_spinning(now) && watched.wait.is_worth_it() {
            let before = lane.state().served_at();
            std::thread::sleep(PATIENCE);
            let polls = lane.state().served_at() != before;
            watched.wait.ended(polls);
            if polls {
                watched.in_vain += 1;
                if watched.in_vain >= LOOKS_IN_VAIN {
                    lane.state().end_eager();
                    self.unwatch(lane);
                }
                return;
            }
        }
        lane.silence();
        let served = lane.serve_in_background(ROUNDS);
        if served == Served::Busy {
            std::thread::sleep(PATIENCE);
        }
        if served == Served::Some && lane.traits().can_stay && watched.stay.is_worth_it() {
            watched.stay.ended(stay(lane));
        }
        lane.stay_ready();
        if served == Served::Some {
            watched.in_vain = 0;
        }
    }

    /// Place of the lane among the watched, or the place to insert it.
    fn find(&self, lane: &Lane) -> Result<usize, usize> {
        self.watched.binary_search_by_key(&lane.id(), |watched| watched.lane.id())
    }

    fn watch(&mut self, lane: &Arc<Lane>) {
        let Err(index) = self.find(lane) else { return };
        if let Err(errno) = epoll::add(&self.epoll, lane.fd(), EventData::new_u64(lane.id()), EventFlags::IN)
        {
            return tracing::error!(%errno, "cannot watch a socket");
        }
        let (lane, (stay, wait)) = (Arc::clone(lane), Default::default());
        self.watched.insert(index, Watched { lane, in_vain: 0, left: 0, stay, wait });
    }

    fn unwatch(&mut self, lane: &Lane) {
        let Ok(index) = self.find(lane) else { return };
        if let Err(errno) = epoll::delete(&self.epoll, lane.fd()) {
            tracing::error!(%errno, "cannot stop watching a socket");
        }
        self.watched.remove(index);
    }

    /// Stops watching lanes of multicast groups that have ended. A thread that sleeps on one may hold its
    /// socket open for long.
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

/// The thread goes on looking for this time behind a batch: a peer that streams fills the next one meanwhile,
/// and to fall asleep and be woken costs more.
const STAY: Duration = Duration::from_micros(50);
/// Other lanes wait no longer.
const LONGEST_STAY: Duration = Duration::from_millis(1);

/// Looks at a lane until nothing came for [`STAY`]. Whether something did.
fn stay(lane: &Lane) -> bool {
    let begun = clock::now();
    let (mut last, mut found) = (begun, false);
    loop {
        let served = lane.serve_in_background(1);
        let now = clock::now();
        if served == Served::Some {
            (last, found) = (now, true);
        }
        if served == Served::Busy || now >= last + STAY || now >= begun + LONGEST_STAY {
            return found;
        }
    }
}

/// Until `wake_at`, rounded up so that it is not early.
fn timeout(now: u64, wake_at: u64) -> Option<Timespec> {
    if wake_at == NEVER {
        return None;
    }
    // Whole milliseconds that fit into an `int`, so that the call is `epoll_pwait`, which every kernel has.
    let millis = wake_at.saturating_sub(now).div_ceil(1_000_000).min(i32::MAX as u64);
    Timespec::try_from(Duration::from_millis(millis)).ok()
}
