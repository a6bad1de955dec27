//! A NAK of a peer that holds requests behind a gap: the network may only have changed the order, and then
//! the gap closes by itself.

use ferroce_wire::{Instant, Psn};

use super::{Completer, Refusal, SendSide};
use crate::DropReason;

/// A NAK that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Postponed {
    /// The PSN that the peer waits for.
    psn: Psn,
    /// Time at which the packet counts as lost.
    pub at: Instant,
    /// The NAK acknowledged something.
    moved: bool,
}

impl Completer {
    /// The peer waits for the oldest PSN, and more is on its way than it can hold. To send everything again
    /// would double what is on its way, so this waits until the packet counts as lost (RFC 8985 section 6.2).
    /// A peer that holds nothing has dropped all that followed, and gains nothing by a wait. A NAK of a
    /// packet for which everything is on its way again is dropped, as [`Self::go_back`] does.
    pub(super) fn postpone_or_go_back(
        &mut self,
        now: Instant,
        moved: bool,
        side: &mut SendSide<'_>,
    ) -> Result<(), Refusal> {
        let oldest = side.pipeline.oldest();
        let known = self.gone_back_to == Some(oldest) || side.requester.waits_for_receiver();
        if known || !side.requester.repair.is_agreed() {
            return self.go_back(now, moved, side);
        }
        if self.postponed.is_some_and(|Postponed { psn, .. }| psn == oldest) {
            return Err(DropReason::DuplicateNak.into());
        }
        let wait = side.requester.repair.window(now, self.rtt.reordering());
        self.postponed = Some(Postponed { psn: oldest, at: now + wait, moved });
        Ok(())
    }

    /// Goes back if the packet counts as lost by now, and was not sent again alone.
    pub(super) fn go_back_at_last(&mut self, now: Instant, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        let due = self.postponed.take_if(|postponed| postponed.at <= now);
        let Some(Postponed { psn, moved, .. }) = due else { return Ok(()) };
        if psn != side.pipeline.oldest() || side.pipeline.is_quiet() || side.requester.repair.is_resent(psn) {
            return Ok(());
        }
        match self.go_back(now, moved, side) {
            Ok(()) | Err(Refusal::Drop(_)) => Ok(()),
            fatal @ Err(Refusal::Fatal { .. }) => fatal,
        }
    }
}
