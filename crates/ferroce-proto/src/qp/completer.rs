//! The completer: turns answers into progress.

use ferroce_wire::{Aeth, NakCode, Psn, Response, Syndrome};

use super::pipeline::Acknowledged;
use super::recovery::{Refusal, SendSide};
use super::requester::Requester;
use super::send_queue::Failure;
use crate::{DropReason, Memory, SendOp, WcStatus};

/// Takes the answers to what the requester sent.
pub(crate) struct Completer<'a> {
    pub side: SendSide<'a>,
    pub requester: &'a mut Requester,
}

impl Completer<'_> {
    /// An answer from the peer.
    pub fn handle_response(
        &mut self,
        psn: Psn,
        response: &Response<'_>,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let ahead = psn.since(self.side.pipeline.oldest());
        // An acknowledgement that comes for the credits alone has the PSN of the last one.
        if (-1..self.side.pipeline.outstanding() as i32).contains(&ahead)
            && let Some(Aeth { syndrome: Syndrome::Ack { credits }, msn }) = response.aeth()
        {
            self.requester.grant(msn, credits);
        }
        if ahead < 0 || ahead as u32 >= self.side.pipeline.outstanding() {
            if ahead < 0 {
                self.requester.recovery.answered_twice(self.side.now, psn, self.side.common);
            }
            return Err(DropReason::StaleResponse.into());
        }
        let reads = |op: &SendOp| {
            matches!(op, SendOp::Read { .. } | SendOp::AtomicWrite { .. } | SendOp::Flush { .. })
        };
        match response {
            Response::Acknowledge { aeth } => self.handle_ack(psn, *aeth),
            Response::ReadFirst { payload, .. } | Response::ReadMiddle { payload } => {
                self.handle_data(psn, payload, false, reads, mem)
            }
            Response::ReadLast { payload, .. } | Response::ReadOnly { payload, .. } => {
                self.handle_data(psn, payload, true, reads, mem)
            }
            Response::AtomicAcknowledge { original, .. } => {
                self.handle_data(psn, &original.to_ne_bytes(), true, SendOp::is_atomic, mem)
            }
        }
    }

    /// As [`Self::handle_response`], for an ACK of something outstanding, while no READ or atomic is.
    #[inline]
    pub fn acknowledged(&mut self, psn: Psn, aeth: Aeth) -> bool {
        let Syndrome::Ack { credits } = aeth.syndrome else { return false };
        let pipeline = &self.side.pipeline;
        let is_calm = self.requester.recovery.expects_answer() && pipeline.reads_pending() == 0;
        if !is_calm || !pipeline.is_outstanding(psn) {
            return false;
        }
        self.requester.grant(aeth.msn, credits);
        self.requester.recovery.reached(self.side.now, psn.next());
        let Self { side, requester } = self;
        match side.pipeline.acknowledge_oldest(psn, &side.common.budget) {
            Some(acknowledged) => {
                requester.recovery.progress(&acknowledged, side);
                requester.unblock(side.common);
            }
            None => _ = self.acknowledge(psn),
        }
        true
    }

    fn handle_ack(&mut self, psn: Psn, aeth: Aeth) -> Result<(), Refusal> {
        let Syndrome::Ack { .. } = aeth.syndrome else { return self.handle_nak(psn, aeth) };
        self.requester.recovery.reached(self.side.now, psn.next());
        let Acknowledged { packets, read_missing, .. } = self.acknowledge(psn);
        if read_missing {
            return self.requester.recovery.implied_nak(packets > 0, &mut self.side);
        }
        Ok(())
    }

    /// Everything up to `through` was received.
    #[inline(never)]
    fn acknowledge(&mut self, through: Psn) -> Acknowledged {
        let acknowledged = self.side.pipeline.acknowledge(through, &self.side.common.budget);
        if acknowledged.packets > 0 {
            self.progress(&acknowledged);
        }
        acknowledged
    }

    #[inline(never)]
    fn progress(&mut self, acknowledged: &Acknowledged) {
        self.requester.recovery.progress(acknowledged, &mut self.side);
        self.requester.unblock(self.side.common);
    }

    fn handle_nak(&mut self, psn: Psn, aeth: Aeth) -> Result<(), Refusal> {
        if let Syndrome::Reserved(_) = aeth.syndrome {
            return Err(DropReason::ReservedSyndrome.into());
        }
        // Any NAK acknowledges what is before it (IBTA 9.7.5.1.1).
        let Acknowledged { packets, read_missing, .. } = self.acknowledge(psn.add(u32::MAX));
        let moved = packets > 0;
        let Self { side, requester: Requester { recovery, .. } } = self;
        let status = match aeth.syndrome {
            Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::PsnSequenceError) if read_missing => {
                recovery.request_missing_too(moved, side)?;
                if let Syndrome::RnrNak(timer) = aeth.syndrome {
                    // The requests before the refused one are sent again at once. The NAK does not count
                    // against rnr_retry while a response is missing.
                    side.common.counters.rcvd_rnr_err += 1;
                    recovery.wait_for_receiver(side.now + timer.delay(), psn);
                }
                return Ok(());
            }
            Syndrome::RnrNak(timer) => return recovery.receiver_not_ready(timer, side),
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                return recovery.missing(psn, moved, side);
            }
            Syndrome::Nak(NakCode::InvalidRequest) => WcStatus::RemInvReqErr,
            Syndrome::Nak(NakCode::RemoteAccessError) => WcStatus::RemAccessErr,
            Syndrome::Nak(NakCode::RemoteOperationalError) => WcStatus::RemOpErr,
            Syndrome::Nak(NakCode::InvalidRdRequest | NakCode::Reserved(_))
            | Syndrome::Ack { .. }
            | Syndrome::Reserved(_) => WcStatus::BadRespErr,
        };
        // The refused request fails; an older read whose answer is missing is flushed, it can no longer be
        // answered.
        let index = side.pipeline.owner(psn).unwrap_or(side.pipeline.queue.done());
        let failure = Failure { status, vendor_err: u32::from(aeth.syndrome.to_byte()) };
        Err(Refusal::Fatal { index, failure })
    }

    /// A report of what the peer holds: it waits for `psn`.
    pub fn handle_sack(&mut self, psn: Psn, aeth: Aeth, held: u128) -> Result<(), Refusal> {
        if !self.side.pipeline.is_outstanding(psn) {
            return Err(DropReason::StaleResponse.into());
        }
        let Syndrome::Ack { credits } = aeth.syndrome else {
            return Err(DropReason::ReservedSyndrome.into());
        };
        self.side.common.counters.rcvd_sacks += 1;
        self.requester.recovery.agree_to_reports(self.side.common);
        self.requester.grant(aeth.msn, credits);
        let Acknowledged { packets, read_missing, .. } = self.acknowledge(psn.add(u32::MAX));
        let Self { side, requester: Requester { recovery, .. } } = self;
        if read_missing {
            return recovery.request_missing_too(packets > 0, side);
        }
        recovery.reported(psn, held, side)
    }

    /// A read response, or an atomic's result: `payload`, which `ends` a request.
    fn handle_data(
        &mut self,
        psn: Psn,
        payload: &[u8],
        ends: bool,
        answers: fn(&SendOp) -> bool,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let Self { side, requester: Requester { recovery, .. } } = self;
        let owner = side.pipeline.owner(psn);
        let index = owner.unwrap_or(side.pipeline.queue.done());
        let bad = Refusal::Fatal { index, failure: WcStatus::BadRespErr.into() };
        if owner.is_none() || !side.pipeline.queue.get(index).is_some_and(|wqe| answers(&wqe.op)) {
            return Err(bad);
        }
        // The response acknowledges all sends and writes before it.
        recovery.reached(side.now, psn.next());
        let moved = self.acknowledge(psn.add(u32::MAX)).packets > 0;
        let Self { side, requester: Requester { recovery, .. } } = self;
        let in_order = side.pipeline.oldest() == psn;
        let Some((expected, ends_request)) = side.pipeline.response(index, psn) else { return Err(bad) };
        // Atomic writes and flushes are answered by a READ response of nothing. At the point of a retry First
        // may stand for Middle and Only for Last, and the reverse: rxe continues, others begin anew.
        let length = if expected.wqe.op.writes_local() { expected.len as usize } else { 0 };
        let fits = ends == ends_request && payload.len() == length;
        if in_order && !fits {
            return Err(bad);
        }
        let again = !in_order && side.pipeline.is_placed(psn);
        if !(fits && (in_order || again || side.pipeline.place(psn))) {
            return recovery.implied_nak(moved, side);
        }
        let offset = u64::from(expected.offset);
        let placed = again || side.pipeline.queue.scatter(index, offset, payload, mem).is_ok();
        // A response behind a gap is in its place before the packet that closes the gap completes requests.
        let finishes = ends || !in_order || side.pipeline.has_placed();
        if !(placed && (!finishes || mem.finish_writes().is_ok())) {
            return Err(Refusal::Fatal { index, failure: WcStatus::LocProtErr.into() });
        }
        if !in_order {
            return recovery.response_behind_gap(psn, again, moved, side);
        }
        side.pipeline.answered(&side.common.budget);
        self.progress(&Acknowledged { packets: 1, reads: payload.len() as u64, ..Acknowledged::default() });
        self.requester.recovery.response_in_order(psn, self.side.pipeline);
        if self.side.pipeline.has_placed() {
            // This closed a gap, perhaps: then what came behind it is answered as well.
            self.acknowledge(self.requester.recovery.base().add(u32::MAX));
        }
        Ok(())
    }
}
