//! When a thread that polls an empty completion queue lets others run.

use std::sync::atomic::{AtomicU32, Ordering};

/// Polls in a row that found nothing.
///
/// Cores may be scarcer than spinners: the peer that would answer may wait for this very core. So a thread that found
/// nothing for a while yields early. Its completion may be there when it runs again, perhaps milliseconds later, so it
/// looks once more before it reports an empty queue.
#[derive(Default)]
pub(super) struct Idle(AtomicU32);

impl Idle {
    /// Takes what is there; if that is nothing, makes `progress` and takes again, and once more after others ran.
    pub(super) fn look_for<T, E>(
        &self,
        mut take: impl FnMut() -> Result<Option<T>, E>,
        progress: impl Fn(),
    ) -> Result<Option<T>, E> {
        if let Some(found) = take()? {
            return Ok(Some(found));
        }
        progress();
        let mut found = take()?;
        if found.is_none() && self.is_over() {
            std::thread::yield_now();
            progress();
            found = take()?;
        }
        if found.is_some() {
            self.0.store(0, Ordering::Relaxed);
        }
        Ok(found)
    }

    /// Counts a look in vain; whether others shall run now.
    fn is_over(&self) -> bool {
        let looks = self.0.load(Ordering::Relaxed).wrapping_add(1);
        self.0.store(looks, Ordering::Relaxed);
        looks.is_multiple_of(IDLE_POLLS_PER_YIELD)
    }
}

/// Polls that find nothing before the thread lets others run: about 10 µs of receiving nothing.
const IDLE_POLLS_PER_YIELD: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::CqError;

    #[test]
    fn a_poll_that_let_others_run_looks_once_more() {
        let idle = Idle::default();
        // This poll finds what comes while others run, not the next one.
        for poll in (1..=IDLE_POLLS_PER_YIELD).chain(1..=IDLE_POLLS_PER_YIELD) {
            let yields = poll == IDLE_POLLS_PER_YIELD;
            let mut takes = 0;
            let take = || {
                takes += 1;
                Ok::<_, CqError>((takes == 3).then_some(7))
            };
            assert!(matches!(idle.look_for(take, || {}), Ok(found) if found == yields.then_some(7)));
            assert_eq!(takes, if yields { 3 } else { 2 }, "poll {poll}");
        }
    }
}
