//! Choices that are no attributes of verbs.

use alloc::sync::Arc;

use super::QueuePair;
use crate::{Budget, CongestionControl, QpState, SelectiveRepeat};

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

    /// Shares this budget from now on. Does nothing from RTR on, when something may be charged to the budget
    /// before.
    pub fn use_budget(&mut self, budget: &Arc<Budget>) {
        if matches!(self.state(), QpState::Reset | QpState::Init) {
            self.common.budget = Arc::clone(budget);
        }
    }
}
