//! Polls in vain: how often a thread that finds nothing looks at the clock, and lets others run.

use std::sync::atomic::{AtomicU32, Ordering};

/// The cost of a look at shared memory in vain.
pub const MEMORY: u32 = 1;
/// Looks of polling threads at memory in vain for each look at the clock.
pub const LOOKS_PER_CLOCK: u32 = 16;
/// The cost of polls that find nothing before the thread lets others run: about 10 µs.
pub const COST_PER_REST: u32 = 512;

/// The outcome of [`Idle::look`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// There was something to take. Another thread may take it before.
    Found,
    /// The queue is empty.
    Nothing,
    /// The queue is empty, and looks were in vain for so long that others shall run now, see
    /// [`Idle::rested`].
    Rest,
}

/// The cost of polls in a row that found nothing, after some of which a thread lets others run.
///
/// Cores may be scarcer than spinners: the peer that would answer may wait for this very core. So a thread
/// that found nothing for a while yields early. Its completion may be there when it runs again, perhaps
/// milliseconds later, so it looks once more before it reports an empty queue.
#[derive(Default)]
pub struct Idle {
    /// Cost of the polls since the last rest.
    spent: AtomicU32,
    /// Sleeps in vain since a poll found something.
    sleeps: AtomicU32,
}

impl Idle {
    /// The polls of a queue with this number: those of several queues do not all look at the clock together.
    pub fn of(number: u32) -> Self {
        Self { spent: AtomicU32::new(number % LOOKS_PER_CLOCK), sleeps: AtomicU32::new(0) }
    }

    /// Looks, and if nothing is there, makes `progress` and looks again.
    #[inline]
    pub fn look(&self, is_ready: impl Fn() -> bool, progress: impl Fn() -> u32) -> Look {
        if is_ready() {
            // Looks since the last one at the clock count towards the next one.
            self.found(self.spent.load(Ordering::Relaxed) % LOOKS_PER_CLOCK);
            return Look::Found;
        }
        let cost = progress();
        if !is_ready() {
            return if self.is_over(cost) { Look::Rest } else { Look::Nothing };
        }
        self.found(0);
        Look::Found
    }

    /// A poll finds something, behind looks in vain that go on counting as `spent`.
    fn found(&self, spent: u32) {
        self.spent.store(spent, Ordering::Relaxed);
        self.sleeps.store(0, Ordering::Relaxed);
    }

    /// Whether something is there behind a `rest` in which others ran, or behind that and `progress`. The
    /// rest is told the number of sleeps in vain, and returns the new one.
    #[cold]
    pub fn rested(
        &self,
        is_ready: impl Fn() -> bool,
        progress: impl Fn() -> u32,
        rest: impl FnOnce(u32) -> u32,
    ) -> bool {
        self.sleeps.store(rest(self.sleeps.load(Ordering::Relaxed)), Ordering::Relaxed);
        let mut ready = is_ready();
        if !ready {
            progress();
            ready = is_ready();
        }
        if ready {
            self.found(0);
        }
        ready
    }

    /// Counts a look at memory in vain, unless it is followed by one at the clock, which costs more.
    #[inline(always)]
    pub fn goes_on(&self) -> bool {
        self.next().inspect(|spent| self.spent.store(*spent, Ordering::Relaxed)).is_some()
    }

    /// Whether the next look is followed by one at the clock, as far as looks at memory count.
    #[inline(always)]
    pub fn is_for_clock(&self) -> bool {
        self.next().is_none()
    }

    /// The cost with another look at memory; `None` if that is followed by one at the clock.
    #[inline(always)]
    fn next(&self) -> Option<u32> {
        let spent = self.spent.load(Ordering::Relaxed).wrapping_add(MEMORY);
        (!spent.is_multiple_of(LOOKS_PER_CLOCK)).then_some(spent)
    }

    /// Counts a look in vain of this cost; whether others shall run now.
    fn is_over(&self, cost: u32) -> bool {
        let spent = self.spent.load(Ordering::Relaxed) + cost;
        let over = spent >= COST_PER_REST;
        self.spent.store(if over { 0 } else { spent }, Ordering::Relaxed);
        over
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_poll_that_let_others_run_looks_once_more() {
        let idle = Idle::default();
        // This poll finds what comes while others run, not the next one.
        for poll in (1..=16).chain(1..=16) {
            let yields = poll == 16;
            let looks = Cell::new(0);
            let is_ready = || {
                looks.set(looks.get() + 1);
                looks.get() == 3
            };
            let rests = Cell::new(None);
            let progress = || COST_PER_REST / 16;
            let rest = |vain| {
                rests.set(Some(vain));
                vain
            };
            let found = idle.look(is_ready, progress) == Look::Rest && idle.rested(is_ready, progress, rest);
            assert_eq!(found, yields);
            assert_eq!(rests.get(), yields.then_some(0), "poll {poll}");
            assert_eq!(looks.get(), if yields { 3 } else { 2 }, "poll {poll}");
        }
    }

    #[test]
    fn sleeps_in_vain_are_counted_until_a_poll_finds_something() {
        let idle = Idle::default();
        let rests = |comes: bool| {
            let rests = Cell::new(None);
            let is_ready = || comes && rests.get().is_some();
            let rest = |vain| {
                rests.set(Some(vain));
                vain + 1
            };
            assert_eq!(idle.look(is_ready, || COST_PER_REST), Look::Rest);
            let found = idle.rested(is_ready, || COST_PER_REST, rest);
            assert_eq!(found, comes);
            rests.get()
        };
        assert_eq!([false, false, true, false].map(rests), [0, 1, 2, 0].map(Some));
    }
}
