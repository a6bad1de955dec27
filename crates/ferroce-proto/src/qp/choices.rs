//! Choices that are no attributes of verbs.

use super::QueuePair;
use crate::{CongestionControl, SelectiveRepeat};

impl QueuePair {
    /// Chooses how it sends again what was lost, and whether it tells the peer what it holds. Takes effect
    /// with the next change to RTR or RTS. RESET keeps it.
    pub const fn set_selective_repeat(&mut self, selective_repeat: SelectiveRepeat) {
        self.common.selective_repeat = selective_repeat;
    }

    /// Chooses what it does about congestion. Takes effect at once. RESET keeps it.
    pub const fn set_congestion_control(&mut self, congestion: CongestionControl) {
        self.common.congestion = congestion;
    }

    /// Chooses whether the budget limits it: a path that stops the sender by itself needs no limit. Takes
    /// effect with the next change of the path, or to RTS.
    pub const fn set_limited(&mut self, limited: bool) {
        self.common.limited = limited;
    }
}
