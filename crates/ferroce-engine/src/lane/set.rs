//! The lanes that a completion queue or channel depends on, polled together and slept on together.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ferroce_host::idle::COST_PER_REST;
use ferroce_host::latest::{self, Latest, Reader};
use ferroce_paths::clock;
use ferroce_wire::Instant;
use parking_lot::Mutex;
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::{Lane, Served, Visit};

/// The lanes that matter to a completion queue or channel: those its queue pairs are on.
pub(crate) struct LaneSet {
    lanes: Latest<Vec<Arc<Lane>>>,
    /// The only lane of the set, if there is one and its packets come by pipes.
    pipes: Latest<Lane>,
    counts: Mutex<Vec<(Arc<Lane>, usize)>>,
}

impl Default for LaneSet {
    fn default() -> Self {
        Self { lanes: Latest::new(Vec::new()), pipes: Latest::empty(), counts: Mutex::default() }
    }
}

/// Lanes that one sleeping thread watches; the background thread looks after any others.
pub(crate) const WATCHED: usize = 8;

/// About 10 µs of receiving nothing.
const LOOKS_BEFORE_SLEEP: u32 = 24;
const LOOKS_PER_YIELD: u32 = 4;
/// Longest sleep of a thread whose polls were in vain for a short time, in nanoseconds. Each further rest in
/// vain doubles the time.
const FIRST_NAP: u64 = 750_000;
/// Longest sleep of all: a slice or two, as long as a yield may take then. Hundreds of programs that wait for
/// each other would spend their cores on shorter ones.
const LONGEST_NAP: u64 = 8 * FIRST_NAP;
/// A thread that has looked for longer gave its core to a thread that computes, not to the peer that answers.
/// Each further yield would do so again, for a slice of some milliseconds. A thread that sleeps is woken
/// before that slice is used up.
const LONGEST_LOOK: Duration = Duration::from_micros(50);

impl LaneSet {
    pub(crate) fn add(&self, lane: &Arc<Lane>) {
        let mut counts = self.counts.lock();
        match counts.iter_mut().find(|(known, _)| Arc::ptr_eq(known, lane)) {
            Some((_, count)) => *count += 1,
            None => {
                counts.push((Arc::clone(lane), 1));
                self.publish(&counts);
            }
        }
    }

    pub(crate) fn remove(&self, lane: &Arc<Lane>) {
        let mut counts = self.counts.lock();
        let Some(index) = counts.iter().position(|(known, _)| Arc::ptr_eq(known, lane)) else { return };
        counts[index].1 -= 1;
        if counts[index].1 == 0 {
            counts.swap_remove(index);
            self.publish(&counts);
        }
    }

    fn publish(&self, counts: &[(Arc<Lane>, usize)]) {
        let only = counts.first().filter(|(lane, _)| counts.len() == 1 && lane.source.pipes().is_some());
        self.pipes.store(only.map(|(lane, _)| Arc::clone(lane)));
        self.lanes.store(Some(Arc::new(counts.iter().map(|(lane, _)| Arc::clone(lane)).collect())));
    }

    /// Whether [`Self::serve_once`] has nothing to do, as far as a look at memory tells. `counts` counts that
    /// look, unless more than that is to be done now. Few registers are in use behind it.
    #[inline(always)]
    pub(crate) fn are_quiet(&self, reader: &Reader, counts: impl FnOnce() -> bool) -> bool {
        self.pipes.read(reader).is_some_and(|lane| counts() && lane.is_quiet(reader))
    }

    /// As [`Self::are_quiet`], with a look at the clock, which tells as well that the program polls.
    pub(crate) fn are_idle(&self, reader: &Reader) -> bool {
        self.pipes.read(reader).is_some_and(|lane| lane.is_quiet(reader) && !lane.is_due())
    }

    /// Receives and processes once on every lane that is due and that no other thread holds. Returns the cost
    /// of that if nothing came, in looks at shared memory.
    pub(crate) fn serve_once(&self, reader: &Reader) -> u32 {
        match self.pipes.read(reader) {
            Some(lane) => serve_one(lane, reader).unwrap_or(0),
            None => serve_all(self.lanes.read(reader).map_or(&[], Vec::as_slice), reader),
        }
    }

    /// Lets other threads run after polls in vain: the peer that would answer may wait for this very core.
    /// If other threads compute on the cores, it sleeps until something arrives instead, and processes
    /// that; for 750 µs at most, and for up to 6 ms after `in_vain` such sleeps in a row. `is_ready` says that
    /// there is a completion; the descriptor of `alarm` is readable when another thread made one. Returns the
    /// number of sleeps in vain, with this one.
    #[cold]
    pub(crate) fn rest<A: AsFd>(
        &self,
        in_vain: u32,
        is_ready: impl Fn() -> bool,
        alarm: impl FnOnce() -> Option<A>,
    ) -> u32 {
        debug_assert!(!latest::is_reading());
        let begun = clock::now();
        if CORES.are_shared(begun) {
            let longest = FIRST_NAP.saturating_mul(1 << in_vain.min(8)).min(LONGEST_NAP);
            let alarm = alarm();
            match self.nap(begun, longest, is_ready, alarm.as_ref().map(AsFd::as_fd)) {
                Nap::No => {}
                Nap::InVain => return in_vain.saturating_add(1),
                Nap::Over => return 0,
            }
        }
        yield_core();
        in_vain
    }

    /// Sleeps until something arrives, `alarm` is readable, a timer is due, or for `longest`, in nanoseconds.
    /// Does not sleep while something is due, if there are too many lanes, or if the system refuses.
    pub(super) fn nap(
        &self,
        now: Instant,
        longest: u64,
        is_ready: impl Fn() -> bool,
        alarm: Option<BorrowedFd<'_>>,
    ) -> Nap {
        let lanes = self.all();
        let Some(first) = lanes.first().filter(|_| lanes.len() <= WATCHED) else { return Nap::No };
        let due =
            || lanes.iter().map(|lane| lane.next_due()).min().unwrap_or(0).saturating_sub(now.as_nanos());
        let time = due().min(longest);
        if time == 0 {
            // A yield might take longer than the peer waits for what is due.
            serve(lanes.iter().zip(std::iter::repeat(true)));
            return if due() == 0 { Nap::No } else { Nap::Over };
        }
        lanes.iter().for_each(|lane| lane.flush_all());
        if lanes.iter().any(|lane| lane.stay_ready()) || is_ready() {
            return Nap::Over;
        }
        let fd =
            |place: usize| lanes.get(place).map_or(alarm.unwrap_or(first.fd()), |lane: &Arc<Lane>| lane.fd());
        let mut fds: [_; WATCHED + 1] =
            std::array::from_fn(|place| PollFd::from_borrowed_fd(fd(place), PollFlags::IN));
        let fds = &mut fds[..lanes.len() + usize::from(alarm.is_some())];
        let until = now.as_nanos() + time;
        lanes.iter().for_each(|lane| lane.state.asleep_until(until));
        let time = Timespec { tv_sec: 0, tv_nsec: time as i64 };
        // Not by the C library: its `poll` is a point of cancellation, and librspreload replaces it.
        let slept = event::poll(fds, Some(&time));
        let awake = clock::now().as_nanos();
        lanes.iter().for_each(|lane| lane.state.awake(until, awake, &lane.hub.attention, || lane.hub.wake()));
        match slept {
            Ok(0) if !is_ready() => Nap::InVain,
            Ok(_) => {
                serve(lanes.iter().zip(fds.iter().map(|fd| !fd.revents().is_empty())));
                Nap::Over
            }
            Err(Errno::INTR) => Nap::Over,
            Err(_) => Nap::No,
        }
    }

    /// Sends the messages that wait to fill a batch.
    pub(crate) fn flush_gathered(&self) {
        let lanes = self.lanes.load();
        lanes
            .iter()
            .flat_map(|lanes| lanes.iter())
            .for_each(|lane| lane.visit_gatherers(Visit::Final, clock::now));
    }

    /// The lane that all packets come by, as far as one can tell.
    pub(crate) fn only(&self) -> Option<Arc<Lane>> {
        only(&self.lanes.load()?).cloned()
    }

    /// The lanes, as they are now.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Lane>>> {
        self.lanes.load().unwrap_or_default()
    }
}

/// Receives and processes once on those of `lanes` that are due, see [`LaneSet::serve_once`].
#[inline(never)]
fn serve_all(lanes: &[Arc<Lane>], reader: &Reader) -> u32 {
    let mut cost = 0;
    let mut found = false;
    for lane in due(lanes) {
        let is_quiet = lanes.len() > 1 && lane.is_quiet(reader) && !lane.looks_at_clock();
        match if is_quiet { Some(lane.cost()) } else { serve_one(lane, reader) } {
            Some(in_vain) => cost += in_vain,
            None => found = true,
        }
    }
    if found { 0 } else { cost }
}

/// Receives and processes once on a lane. Returns the cost of that, `None` if something came.
fn serve_one(lane: &Lane, reader: &Reader) -> Option<u32> {
    match lane.serve_inline(reader) {
        Served::Some => return None,
        // The holder of the lane may wait for this very core.
        Served::Busy => std::thread::yield_now(),
        // So may the broker, which passes all packets on.
        Served::Nothing if lane.traits.is_by_broker => return Some(lane.cost() + COST_PER_REST),
        Served::Nothing => {}
    }
    Some(lane.cost())
}

/// The outcome of [`LaneSet::nap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nap {
    /// The thread did not sleep, and may yield.
    No,
    /// Nothing came.
    InVain,
    /// Something came, or was there.
    Over,
}

/// The lanes that this poll looks at: all of them, or, while the port of one of them is up, few of those
/// beside it.
fn due(lanes: &[Arc<Lane>]) -> impl Iterator<Item = &Arc<Lane>> {
    let by_port = lanes.iter().any(|lane| lane.source.is_port_up());
    lanes.iter().filter(move |lane| !by_port || !lane.traits.is_beside_port || lane.seldom.is_due())
}

/// The lane that all packets come by, as far as one can tell; `None` if there are several or none.
fn only(lanes: &[Arc<Lane>]) -> Option<&Arc<Lane>> {
    let by_port = lanes.iter().any(|lane| lane.source.is_port_up());
    let mut main = lanes.iter().filter(|lane| !by_port || !lane.traits.is_beside_port);
    main.next().filter(|_| main.next().is_none())
}

/// Looks a few times whether something arrives on one of `lanes`. If nothing does, the calling thread is the
/// one that watches those lanes that nobody else watches, eight at most, and is about to sleep on their
/// descriptors.
pub(crate) fn watch(lanes: &[Arc<Lane>]) -> Option<Watch> {
    // To fall asleep and be woken costs as much as a few looks, in which an answer often comes.
    let mut looks = Looks { begun: clock::now(), made: 0 };
    loop {
        if due(lanes).any(|lane| lane.serve_inline(&Reader::enter()) == Served::Some) {
            return None;
        }
        // The peer that answers may wait for this core.
        if CORES.are_shared(looks.begun) || !looks.go_on(yield_core) {
            break;
        }
    }
    lanes.iter().for_each(|lane| lane.flush_all());
    let mut watch = Watch::default();
    for lane in lanes.iter().filter(|lane| lane.state.watch()).take(WATCHED) {
        watch.lanes[watch.count] = Some(Arc::clone(lane));
        watch.count += 1;
    }
    // Something came meanwhile: the caller looks at its queue, and comes back.
    let ready = watch.lanes.iter().flatten().any(|lane| lane.prepare_to_sleep());
    (!ready).then_some(watch)
}

/// Yields the core, and returns the time behind that.
pub(crate) fn yield_core() -> Instant {
    let begun = clock::now();
    std::thread::yield_now();
    let end = clock::now();
    CORES.yielded(begun, end);
    end
}

/// Longest yield of a thread whose core no thread needs that computes: a peer that answers takes less time.
const LONGEST_YIELD: Duration = Duration::from_micros(200);
/// Time behind the first yield of more than [`LONGEST_YIELD`] in which threads sleep instead of yielding, in
/// nanoseconds. Each further yield of that kind doubles the time.
const FIRST_SHARED: u64 = 10_000_000;
/// Longest time of that kind.
const LONGEST_SHARED: u64 = 16 * FIRST_SHARED;
/// Shorter yields in a row behind which no thread computes any more. The core may be the thread's for some
/// yields though others compute.
const SHORT_YIELDS: u32 = 16;

/// The cores of this process, as its yields showed them.
static CORES: Cores = Cores::new();

/// Whether the process shares its cores with threads that compute. Each yield then costs a slice of some
/// milliseconds, while a thread that sleeps is woken by a packet at once.
struct Cores {
    /// Time until which the cores count as shared, in nanoseconds.
    shared_until: AtomicU64,
    /// Time for which they count as shared after the next yield that takes long, in nanoseconds.
    next: AtomicU64,
    /// Yields in a row that were short, from [`SHORT_YIELDS`] on the cores are the process's own.
    short: AtomicU32,
}

impl Cores {
    const fn new() -> Self {
        Self {
            shared_until: AtomicU64::new(0),
            next: AtomicU64::new(FIRST_SHARED),
            short: AtomicU32::new(SHORT_YIELDS),
        }
    }

    fn are_shared(&self, now: Instant) -> bool {
        now.as_nanos() < self.shared_until.load(Ordering::Relaxed)
    }

    /// Notes how long a yield took. Threads note theirs together; a lost note means little.
    fn yielded(&self, begun: Instant, end: Instant) {
        let short = self.short.load(Ordering::Relaxed);
        if end > begun + LONGEST_YIELD {
            let next = if short < SHORT_YIELDS { self.next.load(Ordering::Relaxed) } else { FIRST_SHARED };
            self.shared_until.store(end.as_nanos() + next, Ordering::Relaxed);
            self.next.store((2 * next).min(LONGEST_SHARED), Ordering::Relaxed);
            self.short.store(0, Ordering::Relaxed);
        } else if short < SHORT_YIELDS {
            self.short.store(short + 1, Ordering::Relaxed);
        }
    }
}

/// Whether other threads compute on the cores of this process, as far as its yields showed.
pub(crate) fn cores_are_shared(now: Instant) -> bool {
    CORES.are_shared(now)
}

/// The looks of a thread that is about to sleep.
struct Looks {
    begun: Instant,
    made: u32,
}

impl Looks {
    /// Whether to look again after a look that found nothing. `rest` yields the core and returns the time
    /// after that.
    fn go_on(&mut self, rest: impl FnOnce() -> Instant) -> bool {
        self.made += 1;
        !self.made.is_multiple_of(LOOKS_PER_YIELD)
            || (rest() < self.begun + LONGEST_LOOK && self.made < LOOKS_BEFORE_SLEEP)
    }
}

/// The lanes a thread sleeps on; given up however it wakes.
#[derive(Default)]
pub(crate) struct Watch {
    lanes: [Option<Arc<Lane>>; WATCHED],
    count: usize,
}

impl Watch {
    /// The descriptors of the lanes, in their order.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lanes.iter().flatten().map(|lane| lane.fd())
    }

    /// Receives on those lanes whose descriptors are readable; `readable` says so in their order.
    pub(crate) fn serve(&self, readable: impl Iterator<Item = bool>) {
        serve(self.lanes.iter().flatten().zip(readable));
    }
}

/// Receives on those lanes that are said to be readable.
fn serve<'a>(lanes: impl Iterator<Item = (&'a Arc<Lane>, bool)>) {
    for (lane, _) in lanes.filter(|(_, readable)| *readable) {
        if lane.serve_inline(&Reader::enter()) == Served::Busy {
            // A poller holds it: it will find what is there. Let it finish.
            std::thread::yield_now();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.count == 0 {
            return;
        }
        let now = clock::now().as_nanos();
        for lane in self.lanes.iter().flatten() {
            lane.state.unwatch(now, &lane.hub.attention, || lane.hub.wake());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks and rests until it sleeps, with rests of `micros`.
    fn until_asleep(micros: u64) -> (u32, u32) {
        let (mut now, mut rests) = (Instant::from_nanos(7), 0);
        let mut looks = Looks { begun: now, made: 0 };
        let mut rest = || {
            rests += 1;
            now += Duration::from_micros(micros);
            now
        };
        while looks.go_on(&mut rest) {}
        (looks.made, rests)
    }

    #[test]
    fn cores_are_shared_for_a_while_after_a_yield_that_took_long() {
        let (cores, mut now) = (Cores::new(), Instant::from_nanos(7));
        let mut shared_after = |micros| {
            let begun = now;
            now += Duration::from_micros(micros);
            cores.yielded(begun, now);
            let until = cores.shared_until.load(Ordering::Relaxed);
            assert!(until == 0 || cores.are_shared(Instant::from_nanos(until - 1)));
            assert!(!cores.are_shared(Instant::from_nanos(until)));
            now = now.max(Instant::from_nanos(until));
            Duration::from_nanos(until.saturating_sub(begun.as_nanos() + 1000 * micros)).as_millis()
        };
        assert_eq!([1, 200].map(&mut shared_after), [0; 2]);
        assert_eq!([4000; 6].map(&mut shared_after), [10, 20, 40, 80, 160, 160]);
        assert_eq!([20, 4000].map(&mut shared_after), [0, 160]);
        assert_eq!([20; SHORT_YIELDS as usize].map(&mut shared_after), [0; SHORT_YIELDS as usize]);
        assert_eq!(shared_after(4000), 10, "the others were gone for a while");
    }

    #[test]
    fn who_loses_its_core_to_others_sleeps_at_once() {
        assert_eq!(until_asleep(1), (24, 6));
        assert_eq!(until_asleep(20), (12, 3), "the peer is on the same core");
        assert_eq!(until_asleep(3000), (4, 1), "somebody computes there");
    }
}
