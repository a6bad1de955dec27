//! The roles of a reliable queue pair: requester, completer and responder together.

use core::time::Duration;

use ferroce_wire::{Bth, Due, IcrcStatus, Instant, Operation, Packet, Psn, RcPacket, Sink, TxBatch};

use super::common::Common;
use super::completer::Completer;
use super::congestion::{Limiter, Notifier};
use super::pipeline::Pipeline;
use super::recovery::{Refusal, SendSide};
use super::requester::Requester;
use super::responder::{Drained, Responder};
use crate::{CongestionControl, DropReason, Memory, MemoryError, QpState, SelectiveRepeat};

/// The round trip time if a CNP comes before any was measured.
const GUESSED_ROUND_TRIP: Duration = Duration::from_micros(100);

/// Number of PSNs that a marked request may be ahead of the expected one for its mark to count: packets
/// before it may be lost. Further ahead, the sender may be a stranger that does not know the PSN.
const MARKED_AHEAD: i32 = 1024;

/// Serves requests, sends them, and waits for their answers.
#[derive(Debug)]
pub(crate) struct Reliable {
    pub requester: Requester,
    pub responder: Responder,
    notifier: Notifier,
    /// Requests went before an ACK that then found no room: it is its turn.
    ack_passed_over: bool,
    /// A lone ACK leaves before requests.
    pub ack_first: bool,
    /// A lone ACK stays behind.
    pub ack_delayed: bool,
}

impl Reliable {
    pub fn new(seed: u64) -> Self {
        Self {
            requester: Requester::new(seed),
            responder: Responder::new(),
            notifier: Notifier::default(),
            ack_passed_over: false,
            ack_first: false,
            ack_delayed: false,
        }
    }

    /// Returns the receiver of the peer's answers, in the states in which answers are waited for.
    pub fn completer<'a>(
        &'a mut self,
        now: Instant,
        common: &'a mut Common,
        pipeline: &'a mut Pipeline,
    ) -> Result<Completer<'a>, DropReason> {
        if !matches!(common.state(), QpState::Rts | QpState::Sqd) {
            return Err(DropReason::State);
        }
        Ok(Completer { side: SendSide { now, common, pipeline }, requester: &mut self.requester })
    }

    /// An answer has the bit that agrees to selective repeat. It counts if the answer is to a request that is
    /// outstanding: its sender knows the PSN. [`Responder::handle_request`] notes the bit of requests.
    #[cold]
    pub fn note_agreement(&mut self, psn: Psn, op: &Operation<'_>, common: &Common, pipeline: &Pipeline) {
        if common.selective_repeat == SelectiveRepeat::Offered
            && let Operation::Rc(RcPacket::Response(_)) | Operation::Xrc { packet: RcPacket::Response(_), .. } =
                op
            && pipeline.is_outstanding(psn)
        {
            self.requester.recovery.agree_to_reports(common);
        }
    }

    /// Runs the timers that are due at `now`.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        self.responder.handle_timeout(now, &common.budget);
        common.paced.take_if(|at| *at <= now);
        if let Some(limiter) = &mut common.limiter {
            limiter.handle_timeout(now);
        }
        self.requester.handle_timeout(&mut SendSide { now, common, pipeline })
    }

    /// Time at which to call [`Self::handle_timeout`] next; [`Instant::MAX`] if no timer runs.
    #[inline]
    pub fn timeout(&self, common: &Common) -> Instant {
        let first = self.responder.timeout().or_never().min(common.paced.or_never());
        first.min(self.requester.timeout())
    }

    /// Whether one ACK is all there is to send.
    #[inline]
    pub fn only_ack_pending(&self, pipeline: &Pipeline) -> bool {
        let has_sent_all = || pipeline.is_at_tail() || pipeline.at_cursor().is_none();
        self.responder.only_ack_pending() && has_sent_all()
    }

    /// Whether no answer waits for its turn.
    pub const fn is_calm(&self) -> bool {
        !self.notifier.is_due() && !self.ack_passed_over
    }

    #[inline]
    pub fn delays_ack(&self) -> bool {
        self.ack_delayed && self.responder.only_ack_pending()
    }

    /// Adds one ACK to the batch, if that is all there is to answer; the number of packets.
    pub fn acknowledge(
        &mut self,
        now: Instant,
        common: &mut Common,
        mem: &mut impl Memory,
        out: &mut TxBatch<'_>,
    ) -> u32 {
        let leaves = self.responder.only_ack_pending() && !self.ack_delayed;
        if leaves { self.responder.transmit(now, common, mem, out).0 } else { 0 }
    }

    /// Whether [`Self::transmit`] would find nothing to send, and change nothing. `false` proves nothing.
    #[inline]
    pub fn is_silent(&self, common: &Common, pipeline: &Pipeline) -> bool {
        pipeline.is_at_tail()
            && self.responder.is_silent()
            && !self.requester.recovery.repeats()
            && !self.notifier.is_due()
            && !self.ack_passed_over
            && common.limiter.is_none()
            && common.paced.is_none()
    }

    /// Adds packets to the batch, answers first but for a lone ACK; the number of packets.
    pub fn transmit(
        &mut self,
        now: Instant,
        common: &mut Common,
        pipeline: &mut Pipeline,
        mem: &mut impl Memory,
        out: &mut TxBatch<'_>,
    ) -> u32 {
        let held = self.delays_ack();
        let Self { requester, responder, notifier, ack_passed_over, ack_first, ack_delayed: _ } = self;
        common.paced = None;
        if common.limiter.as_ref().is_some_and(|limiter| limiter.is_over(now)) {
            common.limiter = None;
        }
        if let Some(limiter) = &mut common.limiter {
            limiter.begin_round();
        }
        let mut notices = 0;
        if notifier.is_due() {
            if !push_cnp(common, out) {
                return 0;
            }
            notifier.sent();
            notices = 1;
        }
        // A lone ACK is shorter than almost every request, and only the last packet of a batch may be
        // shorter: behind the requests it shares their system call. Requests and answers are not ordered with
        // each other.
        let ack_last = responder.only_ack_pending() && !*ack_first && !*ack_passed_over && !held;
        let (mut answers, drained) =
            if ack_last || held { (0, Drained::Empty) } else { responder.transmit(now, common, mem, out) };
        let mut requests = 0;
        if matches!(drained, Drained::Empty | Drained::Paced) {
            requests = requester.transmit(&mut SendSide { now, common, pipeline }, mem, out);
        }
        if ack_last {
            (answers, _) = responder.transmit(now, common, mem, out);
        }
        *ack_passed_over = ack_last && answers == 0;
        notices + answers + requests
    }

    /// A packet of the peer's requester, or data for ours, came marked as having met congestion: the peer is
    /// to be told. If it is data that this end asked for, this end asks for less at once. Called before the
    /// packet is handled. The mark counts only if the packet's PSN is one that the peer may send now.
    pub fn marked(
        &mut self,
        now: Instant,
        psn: Psn,
        op: &RcPacket<'_>,
        common: &Common,
        pipeline: &Pipeline,
    ) {
        match op {
            RcPacket::Request(_) => {
                if !(0..MARKED_AHEAD).contains(&psn.since(self.responder.expected())) {
                    return;
                }
            }
            RcPacket::Response(response) => {
                if response.payload().is_empty() || !pipeline.is_outstanding(psn) {
                    return;
                }
                self.requester.recovery.read_congested(psn, pipeline.next());
            }
        }
        if common.congestion == CongestionControl::Full {
            self.notifier.marked(now);
        }
    }

    /// A CNP: what this end sends is too much for the network. Only packets that carry ECT come marked
    /// (RFC 3168 section 5), so the peer has no reason for a CNP if this end's do not.
    pub fn congested(&mut self, now: Instant, common: &mut Common, pipeline: &Pipeline) {
        common.counters.rcvd_cnps += 1;
        if common.congestion == CongestionControl::Off || !common.attr.path.is_ecn_capable() {
            common.counters.rp_cnp_ignored += 1;
            return;
        }
        let (flight, measured) = (pipeline.flight().data, self.requester.recovery.round_trip());
        let round_trip = measured.unwrap_or(GUESSED_ROUND_TRIP);
        let first = common.limiter.is_none();
        let octets = flight.max(self.requester.recovery.window() / 2);
        let limiter = common.limiter.get_or_insert_with(|| Limiter::new(now, octets, round_trip));
        // Before the first answer to what is on its way nothing says what a bearable rate is.
        if measured.is_some() || flight == 0 {
            limiter.keep(flight, round_trip);
        }
        let cuts = first || limiter.notified(now, round_trip);
        match cuts {
            true => common.counters.rp_cnp_handled += 1,
            false => common.counters.rp_cnp_ignored += 1,
        }
    }

    /// Forgets the connection, and what the network said about its path.
    pub fn reset(&mut self, common: &mut Common) {
        self.requester.stop(common);
        self.responder.reset(&common.budget);
        (self.notifier, self.ack_passed_over) = (Notifier::default(), false);
        (common.limiter, common.paced) = (None, None);
    }
}

/// Writes a CNP to the peer; whether there was room.
fn push_cnp(common: &mut Common, out: &mut TxBatch<'_>) -> bool {
    let bth = Bth { becn: true, ..common.bth(Psn::new(0)) };
    let head = Packet { bth, op: Operation::Cnp, icrc: IcrcStatus::Checked };
    let pushed = out.push(&common.attr.path, &head, 0, |_| Ok::<(), MemoryError>(()));
    if pushed.is_ok() {
        common.counters.sent_pkts += 1;
        common.counters.np_cnp_sent += 1;
    }
    pushed.is_ok()
}
