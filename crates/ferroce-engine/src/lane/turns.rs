//! The turns of queue pairs that wait for the process's budget.
//!
//! The octets on their way to one address are limited for the whole process. Where many queue pairs share
//! that, each sends a batch in its turn, in the order in which they began to wait, as the answers to others
//! make room. Their timers are the reserve, for example if the answers come in on another lane.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_wire::Instant;

use super::{Endpoint, Lane};

/// Turns before the thread looks at its socket again.
const TURNS: u32 = 16;

impl Lane {
    /// The endpoint waits for its turn; it is in no list, and its lock is held. `false` if the list is in
    /// use: by another thread, or by this one, which a signal handler interrupted. Then its timer has to do.
    pub(super) fn queue_up(&self, endpoint: Arc<Endpoint>) -> bool {
        let Some(mut waiting) = self.waiting.try_lock() else { return false };
        waiting.push_back(endpoint);
        self.any_waits.store(true, Ordering::Relaxed);
        true
    }

    /// Lets those that wait send, as long as there is room.
    #[inline]
    pub(super) fn give_turns(&self, now: Instant) {
        if self.any_waits.load(Ordering::Relaxed) {
            self.give_turns_in_line(now);
        }
    }

    #[cold]
    fn give_turns_in_line(&self, now: Instant) {
        for _ in 0..TURNS {
            let Some(endpoint) = self.first_in_line() else { return };
            let turn = endpoint.lock().take_turn(now);
            if turn.waits {
                match self.waiting.try_lock() {
                    Some(mut waiting) => {
                        if turn.sent {
                            waiting.push_back(endpoint)
                        } else {
                            waiting.push_front(endpoint)
                        }
                        self.any_waits.store(true, Ordering::Relaxed);
                    }
                    None => endpoint.lock().forget_turn(),
                }
            }
            if !turn.sent {
                return;
            }
        }
    }

    fn first_in_line(&self) -> Option<Arc<Endpoint>> {
        let mut waiting = self.waiting.try_lock()?;
        let first = waiting.pop_front();
        self.any_waits.store(!waiting.is_empty(), Ordering::Relaxed);
        first
    }
}
