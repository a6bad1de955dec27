//! Early resends that were needless, because nothing was lost.

use ferroce_wire::{Instant, Psn};

use super::{Completer, MAX_EARLY, Resent};
use crate::qp::common::Common;

impl Completer {
    /// An answer came after early resends. An answer to a resend comes a round trip later. If it comes sooner
    /// or much later, it answers the original: the peer was late, for example without a free core, and
    /// nothing was lost.
    pub(super) fn judge_resends(&mut self, now: Instant, common: &mut Common) {
        let Some(resent) = self.resent.take() else { return };
        self.answered = None;
        match self.rtt.is_round_trip(now.saturating_since(resent.at)) {
            Some(true) => {
                self.rtt.was_lost();
                let count = common.counters.resent_pkts;
                self.answered = Some((self.probed, Resent { at: now, ..resent }, count));
            }
            Some(false) => self.was_late(now, resent, common),
            None => {}
        }
    }

    /// An answer to what is answered: if it tells of a packet that was just sent again, both copies arrived.
    pub(super) fn answered_twice(&mut self, now: Instant, psn: Psn, common: &mut Common) {
        if let Some((probed, resent, count)) = self.answered.take()
            && count == common.counters.resent_pkts
            && now.saturating_since(resent.at) <= MAX_EARLY
            && psn.since(probed) >= 0
        {
            self.was_late(resent.at, resent, common);
        }
    }

    /// The early resends were needless; the answer came at `answered`.
    fn was_late(&mut self, answered: Instant, resent: Resent, common: &mut Common) {
        common.counters.spurious_resends += u64::from(resent.count);
        self.rtt.was_late(answered, answered.saturating_since(resent.since));
    }
}
