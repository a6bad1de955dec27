//! Counting objects against a limit that the device reports.

use std::sync::atomic::{AtomicU32, Ordering};

pub struct Limit {
    max: u32,
    count: AtomicU32,
}

impl Limit {
    pub const fn new(max: u32) -> Self {
        Self { max, count: AtomicU32::new(0) }
    }

    /// Counts one more; `false` if the limit is reached.
    pub fn take(&self) -> bool {
        self.take_several(1)
    }

    /// Counts `several` more; `false`, and none is counted, if the limit does not allow all of them.
    pub fn take_several(&self, several: u32) -> bool {
        let more = |count: u32| count.checked_add(several).filter(|count| *count <= self.max);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub fn give_back(&self) {
        self.give_back_several(1);
    }

    pub fn give_back_several(&self, several: u32) {
        self.count.fetch_sub(several, Ordering::Relaxed);
    }
}
