//! Responses behind a gap, and the results of atomics: kept, and what is missing before them is asked for
//! again.

use ferroce_wire::{Instant, Psn};

use super::{Completer, Data, Early, Refusal, SendSide};
use crate::{DropReason, Memory, WcStatus};

impl Completer {
    /// A response behind a gap: put in its place, and what is missing before it is asked for again, without
    /// all that came.
    #[expect(clippy::too_many_arguments, reason = "what comes with a response")]
    pub(super) fn keep(
        &mut self,
        now: Instant,
        psn: Psn,
        owner: Option<u64>,
        data: &Data<'_>,
        moved: bool,
        mem: &mut impl Memory,
        side: &mut SendSide<'_>,
    ) -> Result<(), Refusal> {
        let original;
        let (payload, ends) = match *data {
            Data::Read { payload, ends } => (payload, ends),
            Data::Atomic { original: value } => {
                original = value.to_ne_bytes();
                (&original[..], true)
            }
        };
        let expected = owner.and_then(|index| side.pipeline.response(index, psn));
        let Some((expected, ends_request)) = expected else { return self.implied_nak(now, moved, side) };
        let length = if expected.wqe.op.writes_local() { expected.len as usize } else { 0 };
        let again = side.pipeline.is_placed(psn);
        if ends != ends_request || payload.len() != length || !(again || side.pipeline.place(psn)) {
            return self.implied_nak(now, moved, side);
        }
        if again {
            // A round trip after what is missing was asked for, the answer behind it came: it was lost once
            // more.
            if self.rtt.is_round_trip(now.saturating_since(self.reread_at)) == Some(true) {
                self.reread = None;
            }
        } else if side
            .pipeline
            .queue
            .scatter(expected.index, u64::from(expected.offset), payload, mem)
            .is_err()
        {
            return Err(Refusal::Fatal { index: expected.index, failure: WcStatus::LocProtErr.into() });
        } else if side.requester.repair.is_agreed() && self.reread.is_some_and(|asked| psn.since(asked) < 0) {
            self.lost_again(now, psn, side);
        }
        if side.requester.repair.is_agreed()
            && let Some((early, Early::GiveUp)) = &mut self.early
        {
            // Answers come: the wait for silence begins anew.
            *early = (*early).max(now + self.rtt.recovery_timeout(side.common.ack_timeout()));
        }
        self.reread(now, psn, moved, side)
    }

    /// The response `psn`, which was asked for again, came: what is missing before it was lost once more,
    /// because the responder answers in order. Asks for it, unless that was done when an earlier one came.
    fn lost_again(&mut self, now: Instant, psn: Psn, side: &mut SendSide<'_>) {
        let oldest = side.pipeline.oldest();
        let seen = core::mem::replace(&mut self.answered_again, psn);
        let from = if seen.since(oldest) > 0 && psn.since(seen) > 0 { seen } else { oldest };
        if let Some(first) = side.pipeline.missing_response(from, psn, true) {
            self.reread_at = now;
            side.requester.lost_one(true, first.psn, side.common, side.pipeline);
            side.requester.reread(first.psn, psn);
        }
    }

    /// Silence: if the newest response came, asks once more for all that are missing before it. If not, the
    /// answer to a probe will.
    pub(super) fn ask_for_all(&mut self, now: Instant, side: &mut SendSide<'_>) -> bool {
        self.reread = None;
        let (oldest, newest) = (side.pipeline.oldest(), side.pipeline.next().add(u32::MAX));
        if !side.requester.repair.is_agreed() || !side.pipeline.is_placed(newest) {
            return false;
        }
        (self.reread, self.reread_at) = (Some(side.pipeline.next()), now);
        side.requester.reread(oldest, newest);
        true
    }

    /// Asks for the missing responses before `psn`, each once.
    fn reread(
        &mut self,
        now: Instant,
        psn: Psn,
        moved: bool,
        side: &mut SendSide<'_>,
    ) -> Result<(), Refusal> {
        let oldest = side.pipeline.oldest();
        let alone = side.requester.repair.is_agreed();
        let is_sent = side.pipeline.is_at_end() || (alone && side.pipeline.cursor_psn().since(psn) > 0);
        if !side.requester.is_idle() || !is_sent {
            // Everything is sent again anyway.
            return Ok(());
        }
        if self.gone_back_to != Some(oldest) {
            (self.gone_back_to, self.only_reread) = (Some(oldest), true);
            self.resent = None;
            if !moved {
                self.retries += 1;
                self.check_retries(now, side)?;
            }
            self.rtt.forget_sample();
            if side.common.early_resends {
                let wait = self.rtt.recovery_timeout(side.common.ack_timeout());
                self.early = Some((now + wait, Early::GiveUp));
            }
        }
        let mut asked = self.reread.filter(|asked| asked.since(oldest) > 0).unwrap_or(oldest);
        if let Some(first) = side.pipeline.missing_response(asked, psn, alone) {
            self.reread_at = now;
            side.common.counters.implied_nak += 1;
            side.requester.lost_one(true, first.psn, side.common, side.pipeline);
            side.requester.reread(first.psn, psn);
        }
        // Each asks for the rest of its request, or for one gap.
        while let Some(piece) = side.pipeline.missing_response(asked, psn, alone) {
            asked = piece.psn.add(piece.count);
        }
        self.reread = Some(if psn.since(asked) >= 0 { psn.next() } else { asked });
        Ok(())
    }

    /// The peer names a request that it misses, behind a response that is missing here. That the response was
    /// asked for again does not bring the request.
    pub(super) fn request_missing_too(
        &mut self,
        now: Instant,
        moved: bool,
        side: &mut SendSide<'_>,
    ) -> Result<(), Refusal> {
        if core::mem::take(&mut self.only_reread) {
            self.gone_back_to = None;
        }
        self.implied_nak(now, moved, side)
    }

    /// An answer shows that a read response or atomic result is missing before it.
    pub(super) fn implied_nak(
        &mut self,
        now: Instant,
        moved: bool,
        side: &mut SendSide<'_>,
    ) -> Result<(), Refusal> {
        self.go_back(now, moved, side).map_err(|refusal| match refusal {
            Refusal::Drop(_) => DropReason::ResponseGap.into(),
            fatal @ Refusal::Fatal { .. } => fatal,
        })?;
        side.common.counters.implied_nak += 1;
        Ok(())
    }
}
