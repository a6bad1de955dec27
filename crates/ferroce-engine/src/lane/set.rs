//! The lanes that a completion queue or channel depends on, polled together and slept on together.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferroce_host::latest::Latest;
use ferroce_paths::clock;
use ferroce_wire::Instant;
use parking_lot::Mutex;

use super::{Lane, Served, Visit};

/// The lanes that matter to a completion queue or channel: those its queue pairs are on.
pub(crate) struct LaneSet {
    lanes: Latest<Vec<Arc<Lane>>>,
    counts: Mutex<Vec<(Arc<Lane>, usize)>>,
}

impl Default for LaneSet {
    fn default() -> Self {
        Self { lanes: Latest::new(Vec::new()), counts: Mutex::default() }
    }
}

/// Lanes that one sleeping thread watches; the background thread looks after any others.
pub(crate) const WATCHED: usize = 8;

/// About 10 µs of receiving nothing.
const LOOKS_BEFORE_SLEEP: u32 = 24;
const LOOKS_PER_YIELD: u32 = 4;
/// A receive call costs as much as this number of looks at shared memory.
const SYSTEM_CALL: u32 = 16;
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
        self.lanes.store(Some(Arc::new(counts.iter().map(|(lane, _)| Arc::clone(lane)).collect())));
    }

    /// Receives and processes once on every lane that is due and that no other thread holds. Returns the cost
    /// of that if nothing came, in looks at shared memory.
    pub(crate) fn serve_once(&self) -> u32 {
        let mut cost = 0;
        let Some(lanes) = self.lanes.load() else { return 0 };
        for lane in due(&lanes) {
            cost += if lane.traits.is_in_memory { 1 } else { SYSTEM_CALL };
            if lane.is_quiet() {
                continue;
            }
            match lane.serve_inline() {
                // The holder of the lane, or the broker that passes all packets on, may wait for this very
                // core.
                Served::Busy => std::thread::yield_now(),
                Served::Nothing if lane.traits.is_by_broker => std::thread::yield_now(),
                Served::Nothing | Served::Some => {}
            }
        }
        cost
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
        self.lanes.load().map(|lanes| lanes.to_arc()).unwrap_or_default()
    }
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
        if due(lanes).any(|lane| lane.serve_inline() == Served::Some) {
            return None;
        }
        let rest = || {
            let begun = clock::now();
            std::thread::yield_now(); // whoever answers may wait for this core
            let end = clock::now();
            CORES.yielded(begun, end);
            end
        };
        if CORES.are_shared(looks.begun) || !looks.go_on(rest) {
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

/// Longest yield of a thread whose core no thread needs that computes: a peer that answers takes less time.
const LONGEST_YIELD: Duration = Duration::from_micros(200);
/// Time behind a yield of more than [`LONGEST_YIELD`] in which threads sleep without looks before.
const SHARED: Duration = Duration::from_millis(100);

/// The cores of this process, as its yields showed them.
static CORES: Cores = Cores { shared_until: AtomicU64::new(0) };

/// Whether the process shares its cores with threads that compute. Each yield then costs a slice of some
/// milliseconds, while a thread that sleeps is woken by a packet at once.
struct Cores {
    /// Time until which the cores count as shared, in nanoseconds.
    shared_until: AtomicU64,
}

impl Cores {
    fn are_shared(&self, now: Instant) -> bool {
        now.as_nanos() < self.shared_until.load(Ordering::Relaxed)
    }

    /// Notes how long a yield took.
    fn yielded(&self, begun: Instant, end: Instant) {
        if end > begun + LONGEST_YIELD {
            self.shared_until.store((end + SHARED).as_nanos(), Ordering::Relaxed);
        }
    }
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
        for (lane, _) in self.lanes.iter().flatten().zip(readable).filter(|(_, readable)| *readable) {
            if lane.serve_inline() == Served::Busy {
                // A poller holds it: it will find what is there. Let it finish.
                std::thread::yield_now();
            }
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
        let (cores, begun) = (Cores { shared_until: AtomicU64::new(0) }, Instant::from_nanos(7));
        cores.yielded(begun, begun + LONGEST_YIELD);
        assert!(!cores.are_shared(begun));
        let end = begun + Duration::from_millis(4);
        cores.yielded(begun, end);
        assert!(cores.are_shared(end) && cores.are_shared(end + Duration::from_millis(99)));
        assert!(!cores.are_shared(end + SHARED));
    }

    #[test]
    fn who_loses_its_core_to_others_sleeps_at_once() {
        assert_eq!(until_asleep(1), (24, 6));
        assert_eq!(until_asleep(20), (12, 3), "the peer is on the same core");
        assert_eq!(until_asleep(3000), (4, 1), "somebody computes there");
    }
}
