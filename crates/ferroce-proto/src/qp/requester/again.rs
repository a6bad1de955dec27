//! Requests that are sent once more although those behind them are on their way.

use ferroce_wire::{Psn, PushError, TxBatch};

use super::super::common::Common;
use super::super::pipeline::{Piece, Pipeline};
use super::repair::REPORTED;
use super::{Requester, Step, full_charge};
use crate::{Memory, WcStatus};

/// Octets that a responder holds.
const HELD_OCTETS: u32 = 256 << 10;

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
            let piece = pipeline.missing_response(from, to);
            self.reread.0 = piece.as_ref().map_or(to, |piece| piece.psn);
            if piece.is_some() {
                return piece;
            }
        }
        if self.probe_newest { pipeline.covering(pipeline.next().add(u32::MAX)) } else { None }
    }

    /// A packet is lost, and it alone is sent again. The window shrinks a little if that is all of a round trip, and as behind a NAK if
    /// packets wait in queues, or if more than a sixteenth of what is on its way is lost, at least four.
    fn lost_one(&mut self, psn: Psn, common: &Common, pipeline: &Pipeline) {
        let many = (pipeline.outstanding() / 16).max(3) + 1;
        if psn.since(self.recovery) >= 0 {
            if self.queueing {
                self.losses = many;
                return self.lost(false, psn, pipeline.next());
            }
            self.recovery = pipeline.next();
            self.losses = 0;
            let packets = (HELD_OCTETS / common.mtu()).min(REPORTED) - 4;
            self.data.ease(u64::from(packets) * full_charge(common));
        }
        self.losses = self.losses.saturating_add(1);
        if self.losses == many {
            self.data.shrink(self.queueing);
        }
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
                // It was sent before: its memory is gone.
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
            self.lost_one(piece.psn, common, pipeline);
            self.repair.resent(piece.psn, pipeline.next());
        } else if self.reread.1.since(self.reread.0) > 0 {
            self.reread.0 = piece.psn.add(piece.count);
        } else {
            self.probe_newest = false;
        }
        Step::Sent
    }
}
