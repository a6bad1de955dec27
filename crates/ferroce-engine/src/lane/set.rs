//! The lanes that a completion queue or channel depends on, polled together and slept on together.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use ferroce_wire::Instant;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use super::{Lane, Served};
use crate::error::EventError;
use crate::sys;

/// The lanes that matter to a completion queue or channel: those its queue pairs are on.
#[derive(Default)]
pub(crate) struct LaneSet {
    lanes: ArcSwap<Vec<Arc<Lane>>>,
    counts: Mutex<Vec<(Arc<Lane>, usize)>>,
}

/// Lanes that one sleeping thread watches; the background thread looks after any others.
const WATCHED: usize = 8;

/// About 10 µs of receiving nothing.
const LOOKS_BEFORE_SLEEP: u32 = 24;
const LOOKS_PER_YIELD: u32 = 4;
/// Who has looked for longer gave its core to somebody who computes, not to whoever answers, and would do so at each further
/// yield, for a slice of some milliseconds. Who sleeps is woken before that one has used up its slice.
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
        self.lanes.store(Arc::new(counts.iter().map(|(lane, _)| Arc::clone(lane)).collect()));
    }

    /// Receives and processes once on every lane that no other thread holds.
    pub(crate) fn serve_once(&self) {
        for lane in self.lanes.load().iter() {
            match lane.serve_inline() {
                // Its holder, or the broker through which all comes, may wait for this very core.
                Served::Busy => std::thread::yield_now(),
                Served::Nothing if lane.is_of_rings() => std::thread::yield_now(),
                Served::Nothing | Served::Some => {}
            }
        }
    }

    /// Sleeps until `event` is readable or something arrived on a lane, which is then processed.
    /// Returns after one of them; the caller looks whether it has what it waits for.
    pub(crate) fn sleep(&self, event: BorrowedFd<'_>) -> Result<(), EventError> {
        attend(&self.lanes.load_full(), |lanes| {
            let mut fds =
                [const { None::<PollFd<'_>> }; WATCHED + 1].map(|_| PollFd::new(event, PollFlags::POLLIN));
            for (fd, lane) in fds[1..].iter_mut().zip(lanes) {
                *fd = PollFd::new(*lane, PollFlags::POLLIN);
            }
            let fds = &mut fds[..=lanes.len()];
            match poll(fds, PollTimeout::NONE) {
                Ok(_) => {}
                Err(nix::Error::EINTR) if sys::a_handler_interrupts() => return Err(EventError::Interrupted),
                Err(nix::Error::EINTR) => return Ok(0),
                Err(errno) => return Err(EventError::Io(errno.into())),
            }
            let readable = fds[1..].iter().enumerate().filter(|(_, fd)| fd.any() == Some(true));
            Ok(readable.fold(0, |readable, (index, _)| readable | 1 << index))
        })
    }

    /// The lanes, as they are now.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Lane>>> {
        self.lanes.load_full()
    }
}

/// Looks a few times whether something arrives on one of `lanes`; if not, calls `sleep` with the descriptors of those that
/// this thread watches meanwhile, and serves those that it says are readable, as bits by their place.
pub(crate) fn attend<E>(
    lanes: &[Arc<Lane>],
    sleep: impl FnOnce(&[BorrowedFd<'_>]) -> Result<u32, E>,
) -> Result<(), E> {
    // To fall asleep and be woken costs as much as a few looks, in which an answer often comes.
    let mut looks = Looks { begun: sys::now(), made: 0 };
    loop {
        if lanes.iter().any(|lane| lane.serve_inline() == Served::Some) {
            return Ok(());
        }
        let rest = || {
            std::thread::yield_now(); // whoever answers may wait for this core
            sys::now()
        };
        if !looks.go_on(rest) {
            break;
        }
    }
    lanes.iter().for_each(|lane| lane.pay_now());
    let mut watch = Watch { lanes: [None; WATCHED], count: 0 };
    for lane in lanes.iter().filter(|lane| lane.state.watch()).take(WATCHED) {
        watch.lanes[watch.count] = Some(lane);
        watch.count += 1;
    }
    let fds = watch.lanes.map(|lane| lane.map(|lane| lane.fd()));
    let Some(first) = fds[0] else { return sleep(&[]).map(drop) };
    let readable = sleep(&fds.map(|fd| fd.unwrap_or(first))[..watch.count])?;
    for (index, lane) in watch.lanes.iter().flatten().enumerate() {
        if readable & 1 << index != 0 && lane.serve_inline() == Served::Busy {
            // A poller holds it: it will find what is there. Let it finish.
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// The looks of a thread that is about to sleep.
struct Looks {
    begun: Instant,
    made: u32,
}

impl Looks {
    /// Whether to look again after one in vain. `rest` gives the core away and says when it has it back.
    fn go_on(&mut self, rest: impl FnOnce() -> Instant) -> bool {
        self.made += 1;
        !self.made.is_multiple_of(LOOKS_PER_YIELD)
            || (rest() < self.begun + LONGEST_LOOK && self.made < LOOKS_BEFORE_SLEEP)
    }
}

/// The lanes a thread sleeps on; given up however it wakes.
struct Watch<'a> {
    lanes: [Option<&'a Arc<Lane>>; WATCHED],
    count: usize,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if self.count == 0 {
            return;
        }
        let now = sys::now().as_nanos();
        for lane in self.lanes.iter().flatten() {
            lane.state.unwatch(now, &lane.hub.attention, || lane.hub.wake());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks and rests until it sleeps, with rests of so many microseconds.
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
    fn who_loses_its_core_to_others_sleeps_at_once() {
        assert_eq!(until_asleep(1), (24, 6));
        assert_eq!(until_asleep(20), (12, 3), "the peer is on the same core");
        assert_eq!(until_asleep(3000), (4, 1), "somebody computes there");
    }
}
