//! Responses to READs, and the results of atomics, that are missing while later ones came: they alone are
//! asked for again.

use ferroce_wire::{Instant, Psn};

use super::{Gap, Mode, Recovery, Refusal, SendSide};
use crate::DropReason;
use crate::qp::pipeline::{Piece, Pipeline};

/// The responses that are missing.
#[derive(Debug, Default)]
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
        psn: Psn,
        again: bool,
        moved: bool,
        side: &mut SendSide<'_>,
    ) -> Result<(), Refusal> {
        let agreed = self.scoreboard.is_agreed();
        if again {
            // A round trip after what is missing was asked for, the answer behind it came: it was lost once
            // more.
            if self.rtt.is_round_trip(side.now.span_since(self.reads.requested_at)) == Some(true) {
                self.reads.requested = None;
            }
        } else if agreed && self.reads.requested.is_some_and(|requested| psn.since(requested) < 0) {
            // The responder answers in order, and this answers a request that was sent again: what is missing
            // before it was lost once more. Asks for it, unless that was done when an earlier one came.
            let oldest = side.pipeline.oldest();
            let seen = core::mem::replace(&mut self.reads.answered, psn);
            let from = if seen.since(oldest) > 0 && psn.since(seen) > 0 { seen } else { oldest };
            self.reread_between(from, psn, side);
        }
        if agreed && self.mode != Mode::Parked {
            // Answers come: the wait for silence begins anew.
            let wait = self.rtt.recovery_timeout(side.common.ack_timeout());
            self.probe_at.put_off(self.probe_at.0.max(side.now + wait));
        }
        self.reread(psn, moved, side)
    }

    /// Asks again for the responses that are missing from `from` to before `to`; whether there are any.
    fn reread_between(&mut self, from: Psn, to: Psn, side: &SendSide<'_>) -> bool {
        let first = side.pipeline.missing_response(from, to, self.scoreboard.is_agreed());
        if let Some(first) = &first {
            self.reads.requested_at = side.now;
            self.lost_one(true, first.psn, side.common, side.pipeline);
            self.reads.ask(first.psn, to);
        }
        first.is_some()
    }

    /// Silence: if the newest response came, asks once more for all that are missing before it. If not, the
    /// answer to a probe will.
    pub(super) fn ask_for_all(&mut self, side: &SendSide<'_>) -> bool {
        let (oldest, next) = (side.pipeline.oldest(), side.pipeline.next());
        let newest = next.add(u32::MAX);
        let came = self.scoreboard.is_agreed() && side.pipeline.is_placed(newest);
        self.reads.requested = came.then_some(next);
        if came {
            self.reads.requested_at = side.now;
            self.reads.ask(oldest, newest);
        }
        came
    }

    /// Asks for the missing responses before `psn`, each once.
    fn reread(&mut self, psn: Psn, moved: bool, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        let oldest = side.pipeline.oldest();
        let alone = self.scoreboard.is_agreed();
        let is_sent = side.pipeline.is_at_end() || (alone && side.pipeline.cursor_psn().since(psn) > 0);
        if !self.is_idle() || !is_sent {
            // Everything is sent again anyway.
            return Ok(());
        }
        if let Gap::Unknown | Gap::Postponed { .. } = self.gap {
            self.gap = Gap::Reread;
            self.recover(moved, side)?;
        }
        let mut asked = self.reads.requested.filter(|asked| asked.since(oldest) > 0).unwrap_or(oldest);
        if self.reread_between(asked, psn, side) {
            side.common.counters.implied_nak += 1;
        }
        // Each asks for the rest of its request, or for one gap.
        while let Some(piece) = side.pipeline.missing_response(asked, psn, alone) {
            asked = piece.psn.add(piece.count);
        }
        self.reads.requested = Some(if psn.since(asked) >= 0 { psn.next() } else { asked });
        Ok(())
    }

    /// The peer names a request that it misses, behind a response that is missing here. That the response was
    /// asked for again does not bring the request.
    pub fn request_missing_too(&mut self, moved: bool, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        if self.gap == Gap::Reread {
            self.gap = Gap::Unknown;
        }
        self.implied_nak(moved, side)
    }

    /// An answer shows that a read response or atomic result is missing before it.
    pub fn implied_nak(&mut self, moved: bool, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        self.go_back(moved, side).map_err(|refusal| match refusal {
            Refusal::Drop(_) => DropReason::ResponseGap.into(),
            fatal @ Refusal::Fatal { .. } => fatal,
        })?;
        side.common.counters.implied_nak += 1;
        Ok(())
    }
}
