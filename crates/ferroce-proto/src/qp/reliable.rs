//! The roles of a reliable queue pair: requester, completer and responder together.

use ferroce_wire::{Instant, Psn, Response, TxBatch};

use super::common::Common;
use super::completer::{Completer, Refusal, SendSide};
use super::pipeline::Pipeline;
use super::requester::Requester;
use super::responder::{Drained, Responder};
use crate::{DropReason, Memory, QpState};

/// Serves requests, sends them, and waits for their answers.
#[derive(Debug)]
pub(crate) struct Reliable {
    pub requester: Requester,
    pub completer: Completer,
    pub responder: Responder,
    /// Requests went before an ACK that then found no room: it is its turn.
    ack_passed_over: bool,
    /// A lone ACK leaves before requests.
    ack_first: bool,
    /// A lone ACK stays behind.
    ack_delayed: bool,
}

impl Reliable {
    pub fn new(seed: u64) -> Self {
        Self {
            requester: Requester::new(seed),
            completer: Completer::new(),
            responder: Responder::new(),
            ack_passed_over: false,
            ack_first: false,
            ack_delayed: false,
        }
    }

    /// Takes a response of the peer.
    pub fn handle_response(
        &mut self,
        now: Instant,
        psn: Psn,
        response: &Response<'_>,
        common: &mut Common,
        pipeline: &mut Pipeline,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        if !matches!(common.state(), QpState::Rts | QpState::Sqd) {
            return Err(DropReason::State.into());
        }
        let Self { requester, completer, .. } = self;
        completer.handle_response(now, psn, response, mem, SendSide { common, pipeline, requester })
    }

    /// Runs the timers that are due at `now`.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        let Self { requester, completer, .. } = self;
        requester.handle_timeout(now);
        completer.handle_timeout(now, SendSide { common, pipeline, requester })
    }

    /// When to call [`Self::handle_timeout`] next.
    pub fn timeout(&self) -> Option<Instant> {
        [self.requester.timeout(), self.completer.timeout()].into_iter().flatten().min()
    }

    /// Whether one ACK is all there is to send.
    pub fn only_ack_pending(&self, pipeline: &Pipeline) -> bool {
        self.responder.only_ack_pending() && pipeline.at_cursor().is_none()
    }

    /// Whether an ACK stays behind if it is all there is to answer.
    pub fn delay_ack(&mut self, hold: bool) {
        self.ack_delayed = hold;
    }

    /// Whether an ACK that is all there is to answer leaves before requests.
    pub fn put_ack_first(&mut self, first: bool) {
        self.ack_first = first;
    }

    pub fn delays_ack(&self) -> bool {
        self.ack_delayed && self.responder.only_ack_pending()
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
        let Self { requester, completer, responder, ack_passed_over, ack_first, ack_delayed: _ } = self;
        // A lone ACK is shorter than almost every request, and only the last packet of a batch may be shorter: behind
        // the requests it shares their system call. Requests and answers are not ordered with each other.
        let ack_last = responder.only_ack_pending() && !*ack_first && !*ack_passed_over && !held;
        let (mut answers, drained) =
            if ack_last || held { (0, Drained::Empty) } else { responder.transmit(common, mem, out) };
        let mut requests = 0;
        if drained == Drained::Empty {
            let before = pipeline.next();
            requests = requester.transmit(now, common, pipeline, mem, out);
            if requests > 0 {
                completer.sent(now, before, &SendSide { common, pipeline, requester });
            }
        }
        if ack_last {
            (answers, _) = responder.transmit(common, mem, out);
        }
        *ack_passed_over = ack_last && answers == 0;
        answers + requests
    }

    pub fn begin_sending(&mut self, common: &Common) {
        self.requester.begin(common);
        self.completer = Completer::new();
    }

    /// Sends no requests and waits for no answers any more.
    pub fn stop_sending(&mut self, common: &Common) {
        self.requester.stop(common);
        self.completer.stop();
    }
}
