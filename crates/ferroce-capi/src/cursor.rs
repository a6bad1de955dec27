//! The polling of an extended completion queue that is under way.

use std::cell::UnsafeCell;

use ferroce_engine::{CqPoll, WallClock, WcStatus, WorkCompletion};
use ferroce_host::latest::Hint;
use ferroce_wire::Instant;
use parking_lot::Mutex;

/// The contents of an entry before the first completion.
pub(crate) const EMPTY: WorkCompletion =
    WorkCompletion { status: WcStatus::Success, ..WorkCompletion::BLANK };

/// The state of one queue's polling, most of it between `start_poll` and `end_poll`.
pub(crate) struct Cursor {
    /// Held by the engine from start to end, so that other pollers wait.
    pub(crate) poll: Mutex<Option<CqPoll>>,
    /// The completion that the `read_*` functions read.
    pub(crate) current: UnsafeCell<Current>,
    wall_clock: UnsafeCell<WallClock>,
    /// The thread that polls the queue.
    pub(crate) poller: Hint,
}

impl Default for Cursor {
    fn default() -> Self {
        let current = Current { completion: EMPTY, at: Instant::from_nanos(0) };
        Self {
            poll: Mutex::new(None),
            current: UnsafeCell::new(current),
            wall_clock: UnsafeCell::new(WallClock::default()),
            poller: Hint::default(),
        }
    }
}

/// A completion and when it came to be.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    pub(crate) completion: WorkCompletion,
    pub(crate) at: Instant,
}

// SAFETY: `current` and `wall_clock` are written and read only between start_poll and end_poll, by the one
// thread that the engine lets in. A program that reads outside of them gets some completion: every value of
// the type is plain data.
unsafe impl Sync for Cursor {}
// SAFETY: the engine's lock inside `CqPoll` may be released by any thread (parking_lot, feature send_guard).
unsafe impl Send for Cursor {}

impl Cursor {
    /// Ends a polling that the program left open.
    pub(crate) fn end(&self) {
        drop(self.poll.lock().take());
    }

    pub(crate) fn current(&self) -> Current {
        // SAFETY: see the type.
        unsafe { *self.current.get() }
    }

    /// A polling begins.
    pub(crate) fn begin(&self) {
        // SAFETY: see the type.
        unsafe { (*self.wall_clock.get()).begin() };
    }

    /// Time of the current completion, in nanoseconds since 1970.
    pub(crate) fn wall_time(&self) -> u64 {
        // SAFETY: see the type.
        unsafe { (*self.wall_clock.get()).time(self.current().at) }
    }
}
