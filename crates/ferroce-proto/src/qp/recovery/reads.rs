//! Responses to READs, and the results of atomics, that are missing while later ones came: they alone are
//! asked for again.

use ferroce_wire::{Instant, Psn};

use super::{Early, Recovery, Refusal};
use crate::DropReason;
use crate::qp::common::Common;
use crate::qp::pipeline::{Piece, Pipeline};

/// The responses that are missing.
#[derive(Debug)]
pub(super) struct Reads {
    /// Responses from the first PSN to before the second are missing and asked for again.
    again: (Psn, Psn),
    /// PSN before which all missing responses were requested again; `None` if no response is missing.
    requested: Option<Psn>,
    /// Time at which missing responses were last requested again.
    requested_at: Instant,
    /// With selective repeat, the PSN of the last response that came because it was requested again. The
    /// responder answers in order, so responses that are missing before it were lost once more; they have
    /// been requested again since.
    answered: Psn,
}

impl Default for Reads {
    fn default() -> Self {
        let none = Psn::new(0);
        Self { again: (none, none), requested: None, requested_at: Instant::ZERO, answered: none }
    }
}

impl Reads {
    /// Asks again for the responses that are missing from `from` to before `to`.
    const fn ask(&mut self, from: Psn, to: Psn) {
        let (first, end) = self.again;
        let is_empty = end.since(first) <= 0;
        self.again = (
            if is_empty || from.since(first) < 0 { from } else { first },
            if is_empty || to.since(end) > 0 { to } else { end },
        );
    }

    /// Whether missing responses wait to be asked for.
    pub fn is_asking(&self) -> bool {
        self.again.0 != self.again.1
    }

    /// Everything is sent again, in order.
    pub const fn forget(&mut self) {
        self.again.0 = self.again.1;
    }

    /// The next request for missing responses, for those `alone` if they have to be.
    pub fn next(&mut self, alone: bool, pipeline: &Pipeline) -> Option<Piece> {
        let (from, to) = self.again;
        if to.since(from) <= 0 {
            return None;
        }
        let from = if from.since(pipeline.oldest()) < 0 { pipeline.oldest() } else { from };
        let piece = pipeline.missing_response(from, to, alone);
        self.again.0 = piece.as_ref().map_or(to, |piece| piece.psn);
        piece
    }

    /// The request `piece` for missing responses left. `false` if none are asked for.
    pub const fn asked(&mut self, piece: &Piece) -> bool {
        let asking = self.again.1.since(self.again.0) > 0;
        if asking {
            self.again.0 = piece.psn.add(piece.count);
        }
        asking
    }
}

impl Recovery {
    /// The response `psn` to the oldest packet came.
    pub const fn response_in_order(&mut self, psn: Psn, pipeline: &Pipeline) {
        if pipeline.has_placed() { self.reads.answered = psn } else { self.reads.requested = None }
    }

    /// The response `psn`, behind a gap, is in its place; `again` if it came before, `moved` if it was
    /// progress. What is missing before it is asked for again, without all that came.
    pub fn response_behind_gap(
        &mut self,
        now: Instant,
        psn: Psn,
        again: bool,
        moved: bool,
        common: &mut Common,
        pipeline: &Pipeline,
    ) -> Result<(), Refusal> {
        let agreed = self.repair.is_agreed();
        if again {
            // A round trip after what is missing was asked for, the answer behind it came: it was lost once
            // more.
            if self.rtt.is_round_trip(now.saturating_since(self.reads.requested_at)) == Some(true) {
                self.reads.requested = None;
            }
        } else if agreed && self.reads.requested.is_some_and(|asked| psn.since(asked) < 0) {
            self.lost_again(now, psn, common, pipeline);
        }
        if agreed && let Some((early, Early::GiveUp)) = &mut self.early {
            // Answers come: the wait for silence begins anew.
            *early = (*early).max(now + self.rtt.recovery_timeout(common.ack_timeout()));
        }
        self.reread(now, psn, moved, common, pipeline)
    }

    /// The response `psn`, which was asked for again, came: what is missing before it was lost once more,
    /// because the responder answers in order. Asks for it, unless that was done when an earlier one came.
    fn lost_again(&mut self, now: Instant, psn: Psn, common: &Common, pipeline: &Pipeline) {
        let oldest = pipeline.oldest();
        let seen = core::mem::replace(&mut self.reads.answered, psn);
        let from = if seen.since(oldest) > 0 && psn.since(seen) > 0 { seen } else { oldest };
        self.reread_from(now, from, psn, common, pipeline);
    }

    /// Asks again for the responses missing from `from` to before `to`, if there are any.
    fn reread_from(
        &mut self,
        now: Instant,
        from: Psn,
        to: Psn,
        common: &Common,
        pipeline: &Pipeline,
    ) -> bool {
        let first = pipeline.missing_response(from, to, self.repair.is_agreed());
        if let Some(first) = &first {
            self.reads.requested_at = now;
            self.lost_one(true, first.psn, common, pipeline);
            self.reads.ask(first.psn, to);
        }
        first.is_some()
    }

    /// Silence: if the newest response came, asks once more for all that are missing before it. If not, the
    /// answer to a probe will.
    pub(super) fn ask_for_all(&mut self, now: Instant, pipeline: &Pipeline) -> bool {
        self.reads.requested = None;
        let newest = pipeline.next().add(u32::MAX);
        if !self.repair.is_agreed() || !pipeline.is_placed(newest) {
            return false;
        }
        (self.reads.requested, self.reads.requested_at) = (Some(pipeline.next()), now);
        self.reads.ask(pipeline.oldest(), newest);
        true
    }

    /// Asks for the missing responses before `psn`, each once.
    fn reread(
        &mut self,
        now: Instant,
        psn: Psn,
        moved: bool,
        common: &mut Common,
        pipeline: &Pipeline,
    ) -> Result<(), Refusal> {
        let oldest = pipeline.oldest();
        let alone = self.repair.is_agreed();
        let is_sent = pipeline.is_at_end() || (alone && pipeline.cursor_psn().since(psn) > 0);
        if !self.is_idle() || !is_sent {
            // Everything is sent again anyway.
            return Ok(());
        }
        if self.gone_back_to != Some(oldest) {
            (self.gone_back_to, self.only_reread) = (Some(oldest), true);
            self.resent = None;
            if !moved {
                self.retries += 1;
                self.check_retries(now, common, pipeline)?;
            }
            self.recover(now, common);
        }
        let mut asked = self.reads.requested.filter(|asked| asked.since(oldest) > 0).unwrap_or(oldest);
        if self.reread_from(now, asked, psn, common, pipeline) {
            common.counters.implied_nak += 1;
        }
        // Each asks for the rest of its request, or for one gap.
        while let Some(piece) = pipeline.missing_response(asked, psn, alone) {
            asked = piece.psn.add(piece.count);
        }
        self.reads.requested = Some(if psn.since(asked) >= 0 { psn.next() } else { asked });
        Ok(())
    }

    /// The peer names a request that it misses, behind a response that is missing here. That the response was
    /// asked for again does not bring the request.
    pub fn request_missing_too(
        &mut self,
        now: Instant,
        moved: bool,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        if core::mem::take(&mut self.only_reread) {
            self.gone_back_to = None;
        }
        self.implied_nak(now, moved, common, pipeline)
    }

    /// An answer shows that a read response or atomic result is missing before it.
    pub fn implied_nak(
        &mut self,
        now: Instant,
        moved: bool,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        self.go_back(now, moved, common, pipeline).map_err(|refusal| match refusal {
            Refusal::Drop(_) => DropReason::ResponseGap.into(),
            fatal @ Refusal::Fatal { .. } => fatal,
        })?;
        common.counters.implied_nak += 1;
        Ok(())
    }
}
