//! The protocol by which the background thread and the program's threads pass a lane to each
//! other without losing a wake-up. Pure atomics and numbers, so that `tests/handover.rs` can run
//! it under loom with every interleaving.
//!
//! Times are nanoseconds of one monotonic clock, [`NEVER`] for none.

use super::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// No time at all.
pub const NEVER: u64 = u64::MAX;

/// The background thread keeps off for this time after a program's thread last served a lane: 1 ms.
pub const TICK: u64 = 1_000_000;

/// A thread that polls and fell asleep may have to wait for its core for two slices when it wakes: 8 ms.
const OFF_CORE: u64 = 8_000_000;

/// A program that polls in a loop comes back within this time, even if it posts in between: 10 µs.
pub const SPIN: u64 = 10_000;

/// The state of one lane for the background thread.
pub struct LaneState {
    /// Time at which a thread of the program last served the lane inside a verb.
    served: AtomicU64,
    /// A thread of the program sleeps on the lane's socket.
    watched: AtomicBool,
    /// Time until which a thread that polls is asleep at the longest; 0 if it is awake.
    asleep_until: AtomicU64,
    /// Earliest deadline of a queue pair on the lane; may be too early, never too late.
    earliest: AtomicU64,
    /// The program polls its memory, or now and then: wait for no tick. Set by the background thread, and
    /// cleared as well when packets begin to wake the program.
    eager: AtomicBool,
    /// The threads of the program were on their cores while a packet waited for a tick.
    runs_on: AtomicBool,
    /// An acknowledgement waits for the program to come back with something to send.
    delayed_ack: AtomicBool,
    /// Messages of some queue pair wait until then to fill a batch; may be too early, never too late.
    gathers_until: AtomicU64,
}

/// The background thread's tasks for one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// No thread of the program looks at the socket: the background thread must.
    pub watch: bool,
    /// Time at which to look again even if nothing arrives.
    pub wake_at: u64,
}

impl LaneState {
    /// A lane that no thread has served and that has no timers.
    pub fn new() -> Self {
        Self {
            served: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            asleep_until: AtomicU64::new(0),
            earliest: AtomicU64::new(NEVER),
            eager: AtomicBool::new(false),
            runs_on: AtomicBool::new(false),
            delayed_ack: AtomicBool::new(false),
            gathers_until: AtomicU64::new(NEVER),
        }
    }

    /// A thread of the program serves the lane at `now`.
    pub fn served(&self, now: u64) {
        self.served.store(now, Ordering::Relaxed);
    }

    /// Time at which a thread of the program last served it.
    pub fn served_at(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// The program serves this lane by itself at `now`, awake or asleep on its socket.
    pub fn kept_by_program(&self, now: u64) -> bool {
        self.watched.load(Ordering::Relaxed) || now < self.cold_at()
    }

    /// As [`Self::kept_by_program`] for timers, which do not wait for threads that are off their core.
    pub fn timers_kept_by_program(&self, now: u64) -> bool {
        now < self.polled_until()
    }

    /// Time from which no thread of the program polls the lane any more, be it off its core or not.
    fn cold_at(&self) -> u64 {
        match self.polled_until() {
            0 => 0,
            until => until.max(self.back_at()),
        }
    }

    /// Time by which a thread that polls and is asleep will poll again; 0 if it is awake.
    fn back_at(&self) -> u64 {
        match self.asleep_until.load(Ordering::Relaxed) {
            0 => 0,
            asleep => asleep.saturating_add(OFF_CORE),
        }
    }

    /// A thread that polls is asleep on the lane's socket, or about to be on its core.
    pub fn is_asleep(&self, now: u64) -> bool {
        now < self.back_at()
    }

    /// As [`Self::cold_at`], without regard to threads that are off their core.
    fn polled_until(&self) -> u64 {
        match self.served.load(Ordering::Relaxed) {
            0 => 0,
            _ if self.eager.load(Ordering::Relaxed) => 0,
            served => served.saturating_add(TICK),
        }
    }

    /// A thread that polls falls asleep until `until` at the longest, and then goes on polling: the
    /// background thread keeps off meanwhile, and for a while behind that.
    pub fn asleep_until(&self, until: u64) {
        self.asleep_until.store(until, Ordering::Relaxed);
    }

    /// The thread that said [`Self::asleep_until`] `until` is awake at `now`.
    pub fn awake(&self, until: u64, now: u64, attention: &Attention, wake: impl FnOnce()) {
        self.served(now);
        self.asleep_until.store(0, Ordering::Relaxed);
        // Else the background thread looks in time by itself.
        if until > now.saturating_add(TICK) {
            attention.request(now.saturating_add(TICK), wake);
        }
    }

    /// A thread of the program served the lane so short a time before `now` that it is most likely
    /// about to do it again.
    pub fn is_spinning(&self, now: u64) -> bool {
        now < self.served.load(Ordering::Relaxed).saturating_add(SPIN)
    }

    /// Whether the background thread waits for no tick.
    pub fn is_eager(&self) -> bool {
        self.eager.load(Ordering::Relaxed)
    }

    /// From now on it waits for none. `runs_on`: the program ran while a packet waited, and did not look.
    pub fn become_eager(&self, runs_on: bool) {
        self.runs_on.store(runs_on, Ordering::Relaxed);
        self.eager.store(true, Ordering::Relaxed);
    }

    /// From now on it waits for ticks.
    pub fn end_eager(&self) {
        self.eager.store(false, Ordering::Relaxed);
    }

    /// The argument of the last [`Self::become_eager`].
    pub fn runs_on(&self) -> bool {
        self.runs_on.load(Ordering::Relaxed)
    }

    /// A thread tries to become the one that sleeps on the socket. `false`: another one is already.
    pub fn watch(&self) -> bool {
        !self.watched.swap(true, Ordering::Relaxed)
    }

    /// The thread that got `true` from [`Self::watch`] woke up and leaves at `now`.
    pub fn unwatch(&self, now: u64, attention: &Attention, wake: impl FnOnce()) {
        self.served(now);
        self.watched.store(false, Ordering::Relaxed);
        attention.request(now.saturating_add(TICK), wake);
    }

    /// The holder delays an acknowledgement: if the program does not come back, the background
    /// thread sends it a tick after the lane was last served.
    pub fn ack_delayed(&self, attention: &Attention, wake: impl FnOnce()) {
        self.delayed_ack.store(true, Ordering::Relaxed);
        attention.request(self.tick_over_at(), wake);
    }

    /// The holder has sent it.
    pub fn ack_flushed(&self) {
        self.delayed_ack.store(false, Ordering::Relaxed);
    }

    /// Whether an acknowledgement is delayed.
    pub fn delayed_ack_pending(&self) -> bool {
        self.delayed_ack.load(Ordering::Relaxed)
    }

    /// Whether it cannot wait any longer.
    pub fn delayed_ack_overdue(&self, now: u64) -> bool {
        self.delayed_ack_pending() && now >= self.tick_over_at()
    }

    /// Messages wait until `at`; the caller then calls [`Attention::request`].
    pub fn gather_until(&self, at: u64) {
        self.gathers_until.fetch_min(at, Ordering::Relaxed);
    }

    /// The time that messages wait for; [`NEVER`] if none do.
    pub fn gathers_until(&self) -> u64 {
        self.gathers_until.load(Ordering::Relaxed)
    }

    /// The caller looks at all messages that wait, and calls [`Self::gather_until`] for those that go on.
    pub fn gathers_no_more(&self) {
        self.gathers_until.store(NEVER, Ordering::Relaxed);
    }

    fn tick_over_at(&self) -> u64 {
        self.served.load(Ordering::Relaxed).saturating_add(TICK)
    }

    /// The earliest deadline known.
    pub fn earliest(&self) -> u64 {
        self.earliest.load(Ordering::Relaxed)
    }

    /// The holder starts a scan: every deadline is seen by it or kept for the next. A setter writes
    /// its own atomic before [`Self::deadline`]; if that came before this swap, the scan sees it.
    pub fn start_scan(&self) {
        self.earliest.swap(NEVER, Ordering::AcqRel);
    }

    /// A queue pair's deadline is now `deadline`, which its own atomic already says.
    pub fn deadline(&self, deadline: u64, attention: &Attention, wake: impl FnOnce()) {
        if self.earliest.fetch_min(deadline, Ordering::AcqRel) > deadline {
            attention.request(deadline.max(self.polled_until()), wake);
        }
    }

    /// The background thread's tasks. `watching`: its epoll has the socket at present.
    pub fn plan(&self, now: u64, watching: bool) -> Plan {
        let cold_at = self.cold_at();
        // Pollers and sleepers run timers too; after they stop, the background thread takes over one tick
        // later.
        let timers = match self.earliest() {
            NEVER => NEVER,
            earliest => earliest.max(self.polled_until()),
        };
        let timers = if self.delayed_ack_pending() { timers.min(self.tick_over_at()) } else { timers };
        let timers = timers.min(self.gathers_until());
        if self.watched.load(Ordering::Relaxed) {
            Plan { watch: watching, wake_at: timers }
        } else if watching || now >= cold_at {
            Plan { watch: true, wake_at: timers }
        } else {
            // Off the socket while the program polls; back when it stopped. A thread that sleeps may wake
            // before the time that it gave, and stop then.
            let awake = self.asleep_until.load(Ordering::Relaxed).max(now);
            Plan { watch: false, wake_at: timers.min(cold_at).min(awake.saturating_add(TICK)) }
        }
    }
}

impl Default for LaneState {
    fn default() -> Self {
        Self::new()
    }
}

/// The time at which the background thread will look at the lanes next, and the way to make that earlier.
///
/// A requester first writes its request and then reads `wakes_at`; the background thread first writes
/// `wakes_at` and then reads the lanes once more. Each has a sequentially consistent fence between the two,
/// so at least one of them sees what the other wrote.
pub struct Attention {
    wakes_at: AtomicU64,
}

impl Attention {
    /// The background thread counts as awake until it parks.
    pub fn new() -> Self {
        Self { wakes_at: AtomicU64::new(0) }
    }

    /// Asks for a look at the lanes no later than `at`; calls `wake` if that is earlier than planned.
    pub fn request(&self, at: u64, wake: impl FnOnce()) {
        fence(Ordering::SeqCst);
        if at < self.wakes_at.load(Ordering::Relaxed) && self.wakes_at.fetch_min(at, Ordering::Relaxed) > at {
            wake();
        }
    }

    /// The background thread is about to sleep until `at`; it must look at the lanes once more.
    pub fn park(&self, at: u64) {
        self.wakes_at.store(at, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The background thread is awake and will look at everything before it parks again.
    pub fn unpark(&self) {
        self.wakes_at.store(0, Ordering::Relaxed);
    }
}

impl Default for Attention {
    fn default() -> Self {
        Self::new()
    }
}
