//! Counting objects against a limit that the device reports.

use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) struct Limit {
    max: u32,
    count: AtomicU32,
}

impl Limit {
    pub(crate) const fn new(max: u32) -> Self {
        Self { max, count: AtomicU32::new(0) }
    }

    /// Counts one more; `false` if the limit is reached.
    pub(crate) fn take(&self) -> bool {
        let more = |count| (count < self.max).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn give_back(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
