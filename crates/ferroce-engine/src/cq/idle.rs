//! Polls of empty completion queues, after some of which a thread lets others run.

use std::sync::atomic::{AtomicU32, Ordering};

/// The cost of polls in a row that found nothing.
///
/// Cores may be scarcer than spinners: the peer that would answer may wait for this very core. So a thread
/// that found nothing for a while yields early. Its completion may be there when it runs again, perhaps
/// milliseconds later, so it looks once more before it reports an empty queue.
#[derive(Default)]
pub(super) struct Idle(AtomicU32);

impl Idle {
    /// Takes what is there; if that is nothing, makes `progress` and takes again, and once more after others
    /// ran.
    pub(super) fn look_for<T, E>(
        &self,
        mut take: impl FnMut() -> Result<Option<T>, E>,
        progress: impl Fn() -> u32,
    ) -> Result<Option<T>, E> {
        if let Some(found) = take()? {
            return Ok(Some(found));
        }
        let cost = progress();
        let mut found = take()?;
        if found.is_none() && self.is_over(cost) {
            std::thread::yield_now();
            progress();
            found = take()?;
        }
        if found.is_some() {
            self.0.store(0, Ordering::Relaxed);
        }
        Ok(found)
    }

    /// Counts a look in vain of this cost; whether others shall run now.
    fn is_over(&self, cost: u32) -> bool {
        let spent = self.0.load(Ordering::Relaxed) + cost;
        let over = spent >= COST_PER_YIELD;
        self.0.store(if over { 0 } else { spent }, Ordering::Relaxed);
        over
    }
}

/// The cost of polls that find nothing before the thread lets others run, in looks at shared memory: about 10
/// µs.
const COST_PER_YIELD: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Overrun;

    #[test]
    fn a_poll_that_let_others_run_looks_once_more() {
        let idle = Idle::default();
        // This poll finds what comes while others run, not the next one.
        for poll in (1..=16).chain(1..=16) {
            let yields = poll == 16;
            let mut takes = 0;
            let take = || {
                takes += 1;
                Ok::<_, Overrun>((takes == 3).then_some(7))
            };
            assert!(
                matches!(idle.look_for(take, || COST_PER_YIELD / 16), Ok(found) if found == yields.then_some(7))
            );
            assert_eq!(takes, if yields { 3 } else { 2 }, "poll {poll}");
        }
    }
}
