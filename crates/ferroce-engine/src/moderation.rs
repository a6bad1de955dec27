//! Completion moderation: one event for several completions (`ibv_modify_cq`).
//!
//! [`Moderator`] is a completion queue's part, changed under the queue's lock; [`Moderated`] the engine's,
//! which has the background thread fire what waited long enough.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_wire::Instant;
use parking_lot::Mutex;

use crate::handover::NEVER;

/// When a completion queue fires the event that was asked for. Moderation is on while both are set: an event
/// comes with the `count`th completion after it was asked for, or `period` after the first of them, whichever
/// is earlier.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[doc(alias = "ibv_moderate_cq")]
pub struct Moderation {
    /// Completions for an event; 0 and 1 stand for no moderation.
    pub count: u16,
    /// Microseconds; 0 stands for no moderation. The event may be a millisecond late.
    pub period: u16,
}

impl Moderation {
    fn is_on(self) -> bool {
        self.count > 1 && self.period > 0
    }
}

/// The state of one queue.
#[derive(Default)]
pub(crate) struct Moderator {
    setting: Moderation,
    /// Completions that an event waits for others with.
    waiting: u16,
    /// When it waits no longer.
    due: u64,
    /// The queue is in the engine's list.
    listed: bool,
}

/// The decision about a completion with an event request.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Fire it.
    Fire,
    /// Later ones will, or the engine's timer.
    Wait,
    /// The same, and the engine is to be told of this time.
    List(u64),
}

impl Moderator {
    /// Takes effect at once; what waits by the old setting is to be fired if the result is true.
    pub(crate) fn set(&mut self, setting: Moderation) -> bool {
        self.setting = setting;
        !setting.is_on() && std::mem::take(&mut self.waiting) > 0
    }

    /// A completion was added for which an event was asked.
    pub(crate) fn completed(&mut self, now: Instant) -> Verdict {
        if !self.setting.is_on() {
            return Verdict::Fire;
        }
        self.waiting += 1;
        if self.waiting >= self.setting.count {
            self.waiting = 0;
            return Verdict::Fire;
        }
        if self.waiting == 1 {
            self.due = now.as_nanos() + u64::from(self.setting.period) * 1000;
            if !self.listed {
                self.listed = true;
                return Verdict::List(self.due);
            }
        }
        Verdict::Wait
    }

    /// The engine looks, the queue is in its list no more: `Fire`, `List` again, or nothing waits.
    pub(crate) fn look(&mut self, now: u64) -> Verdict {
        self.listed = false;
        if self.waiting == 0 {
            return Verdict::Wait;
        }
        if self.due > now {
            self.listed = true;
            return Verdict::List(self.due);
        }
        self.waiting = 0;
        Verdict::Fire
    }
}

/// A completion queue whose events can wait.
pub(crate) trait Moderate: Send + Sync {
    /// Fires an event that waited long enough.
    fn fire_moderated(&self, now: u64);
}

/// The queues whose events wait.
pub(crate) struct Moderated {
    queues: Mutex<Vec<Weak<dyn Moderate>>>,
    /// When the first of them is due; may be too early, never too late.
    at: AtomicU64,
}

impl Default for Moderated {
    fn default() -> Self {
        Self { queues: Mutex::default(), at: AtomicU64::new(NEVER) }
    }
}

impl Moderated {
    /// Adds a queue; may be called with its lock held.
    pub(crate) fn add(&self, cq: Weak<dyn Moderate>, due: u64) {
        let mut queues = self.queues.lock();
        queues.push(cq);
        self.at.fetch_min(due, Ordering::SeqCst);
    }

    /// Fires what is due and returns when to look again.
    pub(crate) fn fire(&self, now: u64) -> u64 {
        let at = self.at.load(Ordering::SeqCst);
        if at > now {
            return at;
        }
        let queues = {
            let mut queues = self.queues.lock();
            self.at.store(NEVER, Ordering::SeqCst);
            std::mem::take(&mut *queues)
        };
        for cq in queues.iter().filter_map(Weak::upgrade) {
            cq.fire_moderated(now);
        }
        self.at.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn off_unless_both_are_set() {
        for (count, period) in [(0, 0), (1, 100), (5, 0)] {
            let mut moderator = Moderator::default();
            assert!(!moderator.set(Moderation { count, period }));
            assert_eq!(moderator.completed(at(0)), Verdict::Fire);
        }
    }

    #[test]
    fn the_last_of_the_count_fires() {
        let mut moderator = Moderator::default();
        moderator.set(Moderation { count: 3, period: 100 });
        assert_eq!(moderator.completed(at(1)), Verdict::List(101_000));
        assert_eq!(moderator.completed(at(2)), Verdict::Wait);
        assert_eq!(moderator.completed(at(3)), Verdict::Fire);
        // Still in the list, which finds nothing to do.
        assert_eq!(moderator.look(101_000), Verdict::Wait);
        assert_eq!(moderator.completed(at(200)), Verdict::List(300_000));
    }

    #[test]
    fn the_period_fires() {
        let mut moderator = Moderator::default();
        moderator.set(Moderation { count: 2, period: 100 });
        assert_eq!(moderator.completed(at(0)), Verdict::List(100_000));
        assert_eq!(moderator.completed(at(1)), Verdict::Fire);
        assert_eq!(moderator.completed(at(50)), Verdict::Wait, "in the list already");
        assert_eq!(moderator.look(100_000), Verdict::List(150_000));
        assert_eq!(moderator.look(150_000), Verdict::Fire);
        assert_eq!(moderator.look(150_000), Verdict::Wait);
    }

    #[test]
    fn turning_it_off_fires_what_waits() {
        let mut moderator = Moderator::default();
        moderator.set(Moderation { count: 9, period: 100 });
        assert_eq!(moderator.completed(at(0)), Verdict::List(100_000));
        assert!(!moderator.set(Moderation { count: 8, period: 100 }));
        assert!(moderator.set(Moderation::default()));
        assert_eq!(moderator.look(100_000), Verdict::Wait);
    }
}
