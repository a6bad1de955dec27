//! Requests that are sent once more although those behind them are on their way.

use ferroce_wire::{Instant, Psn, PushError, TxBatch};

use super::super::common::Common;
use super::super::pipeline::{Piece, Pipeline};
use super::{Requester, RoundTrips, Step, full_charge};
use crate::{Memory, WcStatus};

impl Requester {
    /// Whether [`Self::next_again`] may have a request.
    pub(super) fn repeats(&self) -> bool {
        self.probe_newest || self.reread.0 != self.reread.1 || self.repair.next_lost().is_some()
    }

    /// A request that is sent once more although those behind it are on their way.
    #[cold]
    pub(super) fn next_again(&mut self, pipeline: &Pipeline) -> Option<Piece> {
        while let Some(psn) = self.repair.next_lost() {
            match pipeline.covering(psn) {
                Some(piece) if piece.psn == psn => return Some(piece),
                _ => self.repair.no_request(psn, pipeline.next()),
            }
        }
        let (from, to) = self.reread;
        if to.since(from) > 0 {
            let from = if from.since(pipeline.oldest()) < 0 { pipeline.oldest() } else { from };
            let piece = pipeline.missing_response(from, to, self.repair.is_agreed());
            self.reread.0 = piece.as_ref().map_or(to, |piece| piece.psn);
            if piece.is_some() {
                return piece;
            }
        }
        if self.probe_newest { pipeline.newest(self.repair.is_agreed()) } else { None }
    }

    /// Asks again for the responses that are missing from `from` to before `to`.
    pub(in super::super) const fn reread(&mut self, from: Psn, to: Psn) {
        let (first, end) = self.reread;
        let is_empty = end.since(first) <= 0;
        self.reread = (
            if is_empty || from.since(first) < 0 { from } else { first },
            if is_empty || to.since(end) > 0 { to } else { end },
        );
    }

    /// The peer reports what it holds from now on.
    pub(in super::super) fn agree_to_reports(&mut self, common: &Common) {
        if !self.repair.is_agreed() {
            self.repair.agree();
            self.keep_two_reads(common);
        }
    }

    /// With selective repeat a lost response costs no more than itself. So losses by chance leave two READ
    /// requests on their way: with one, nothing would be while the next is asked for.
    pub(super) fn keep_two_reads(&mut self, common: &Common) {
        if self.repair.is_agreed() {
            self.reads.keep(2 * u64::from(Self::read_chunk(common)) * full_charge(common));
        }
    }

    /// The peer executed everything before `base`.
    pub(in super::super) fn reached(&mut self, now: Instant, base: Psn) {
        self.repair.reached(now, base);
        self.undo_needless_cut();
    }

    /// The peer waits for `base` and holds those of `held`, see [`super::repair::Repair::report`].
    pub(in super::super) fn reported(
        &mut self,
        now: Instant,
        base: Psn,
        held: u128,
        next: Psn,
        round_trips: RoundTrips,
    ) -> bool {
        let is_new = self.repair.report(now, base, held, next, round_trips);
        self.undo_needless_cut();
        is_new
    }

    /// The peer waits for `base` and dropped or holds something behind it.
    pub(in super::super) fn missing(&mut self, now: Instant, base: Psn, round_trips: RoundTrips) {
        self.repair.missing(now, base, round_trips);
        self.undo_needless_cut();
    }

    /// Sends [`Self::next_again`]. It is charged as in flight already.
    #[cold]
    pub(super) fn send_again(
        &mut self,
        piece: &Piece,
        common: &mut Common,
        pipeline: &mut Pipeline,
        mem: &impl Memory,
        out: &mut TxBatch<'_>,
    ) -> Step {
        match self.push(piece, true, common, pipeline, mem, out) {
            Ok(()) => {}
            Err(PushError::Full) => return Step::Full,
            Err(_) => {
                // The packet was sent before, so its memory was there: the program took it away.
                if let Some(wqe) = pipeline.queue.get_mut(piece.index) {
                    wqe.failure = Some(WcStatus::LocProtErr.into());
                }
                return Step::Idle;
            }
        }
        common.counters.sent_pkts += 1;
        common.counters.resent_pkts += 1;
        if self.repair.next_lost() == Some(piece.psn) {
            common.counters.selective_resends += 1;
            self.lost_one(false, piece.psn, common, pipeline);
            self.repair.resent(piece.psn, pipeline.next());
        } else if self.reread.1.since(self.reread.0) > 0 {
            self.reread.0 = piece.psn.add(piece.count);
        } else {
            self.probe_newest = false;
        }
        Step::Sent
    }
}
