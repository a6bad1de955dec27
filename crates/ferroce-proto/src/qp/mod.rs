//! The queue pair: three roles, one state machine.

mod completer;
mod pipeline;
pub(crate) mod receive_queue;
mod receives;
mod requester;
mod responder;
mod send_queue;
pub(crate) mod sg;
mod shared;
mod state;

use std::net::IpAddr;

use ferroce_wire::{IcrcStatus, Instant, Operation, Packet, Pkey, Qpn, RcPacket, TxBatch};

use self::completer::{Completer, Refusal, SendSide};
use self::pipeline::Pipeline;
use self::receives::Receives;
use self::requester::Requester;
use self::responder::{Drained, Responder};
use self::send_queue::{Failure, SendQueue, SendWqe};
use self::shared::Shared;
use crate::{
    AsyncEvent, Budget, Counters, CreateQpError, DropReason, Memory, ModifyQpError, PostRecvError,
    PostSendError, QpAttr, QpAttrMask, QpCaps, QpConfig, QpEvent, QpState, RecvWr, SendOp, SendWr, Service,
    WcOpcode, WcStatus, WorkCompletion,
};

/// A queue pair without I/O.
///
/// # How to drive it
///
/// - Commands: [`modify`](Self::modify), [`post_send`](Self::post_send), [`post_recv`](Self::post_recv).
/// - Input: [`handle_datagram`](Self::handle_datagram) for each packet, [`handle_timeout`](Self::handle_timeout) when
///   [`poll_timeout`](Self::poll_timeout) has come. It may be called early or twice; it then does nothing.
/// - Output, after one command or input, or after a batch of received datagrams: call
///   [`poll_transmit`](Self::poll_transmit) with an empty batch and send it until it returns `false`; then
///   [`poll_event`](Self::poll_event) until `None`; then wait for input, or until [`poll_timeout`](Self::poll_timeout).
///
/// One ACK answers all requests handled between two drains of `poll_transmit`, so a batch of datagrams should be handled
/// whole before. No call loops over more than one datagram or one batch. Nothing allocates but creation and `modify`.
///
/// A batch that could not be sent counts as lost on the way: drop it, the retries do the rest.
///
/// `now` never goes backwards. Any method may be called in any state.
#[derive(Debug)]
pub struct QueuePair {
    shared: Shared,
    service: Service,
    sq_sig_all: bool,
    /// RTR was reached since RESET.
    receiving: bool,
    /// RTS was reached since RESET.
    sending: bool,
    line: Pipeline,
    receives: Receives,
    requester: Requester,
    completer: Completer,
    responder: Responder,
    /// Requests went before an ACK that then found no room: it is its turn.
    ack_passed_over: bool,
}

/// A place in the send queue; see [`QueuePair::sq_mark`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SqMark(u64);

impl QueuePair {
    /// Creates one in RESET, with all its queues.
    pub fn new(config: QpConfig) -> Result<Self, CreateQpError> {
        let QpConfig { qpn, service, caps, srq, sq_sig_all, seed, early_resends, budget } = config;
        if service != Service::Rc {
            return Err(CreateQpError::Service(service));
        }
        let max_recv_sge = srq.as_ref().map_or(caps.max_recv_sge, |srq| srq.max_sge());
        let completions = if srq.is_some() { u32::MAX } else { caps.max_recv_wr };
        let mut shared = Shared::new(qpn, caps, budget, early_resends);
        shared.tells_last_wqe = srq.is_some();
        Ok(Self {
            shared,
            service,
            sq_sig_all,
            receiving: false,
            sending: false,
            line: Pipeline::new(SendQueue::new(caps)),
            receives: Receives::new(caps, srq),
            requester: Requester::new(seed),
            completer: Completer::new(),
            responder: Responder::new(max_recv_sge, completions),
            ack_passed_over: false,
        })
    }

    /// Its number.
    pub const fn qpn(&self) -> Qpn {
        self.shared.qpn
    }

    /// Sizes of its queues.
    pub const fn caps(&self) -> QpCaps {
        self.shared.caps
    }

    /// Its state.
    pub const fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Its counters.
    pub const fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Its attributes as they are now, in any state (`ibv_query_qp`).
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        let mut attr = self.shared.attr;
        (attr.state, attr.cur_state) = (self.state(), self.state());
        if self.receiving {
            attr.rq_psn = self.responder.expected();
        }
        if self.sending {
            attr.sq_psn = self.line.next();
        }
        attr
    }

    /// Changes state and attributes (`ibv_modify_qp`, IBTA 10.3.1). All is checked before anything is changed.
    ///
    /// # Errors
    ///
    /// See [`ModifyQpError`]; the queue pair is as it was.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, now: Instant, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyQpError> {
        let from = self.state();
        let to = state::check(self.service, from, attr, mask)?;
        if from == QpState::Sqd && to == QpState::Rts && self.shared.attr.sq_draining {
            return Err(ModifyQpError::Draining);
        }
        state::apply(&mut self.shared.attr, attr, mask);
        if mask.contains(QpAttrMask::AV) {
            self.line.redirect(Budget::destination(self.shared.attr.path.destination), &self.shared.budget);
        }
        if mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC) {
            self.responder.set_depth(self.shared.attr.max_dest_rd_atomic);
        }
        if mask.contains(QpAttrMask::STATE) {
            self.enter(from, to, mask);
        }
        self.settle(now);
        Ok(())
    }

    fn enter(&mut self, from: QpState, to: QpState, mask: QpAttrMask) {
        match (from, to) {
            (_, QpState::Reset) => self.reset(),
            (_, QpState::Error) => {
                self.responder.silence();
                self.stop_sending();
            }
            (QpState::Init, QpState::Rtr) => {
                self.shared.established = false;
                self.receiving = true;
                let attr = &self.shared.attr;
                self.responder.begin(attr.rq_psn, attr.max_dest_rd_atomic);
            }
            (QpState::Rtr, QpState::Rts) => self.begin_sending(),
            (QpState::Rts, QpState::Sqd) => {
                self.shared.attr.en_sqd_async_notify &= mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY);
                self.shared.attr.sq_draining = true;
            }
            _ => {}
        }
        if from != to {
            self.shared.transition("modify", to);
        }
    }

    fn begin_sending(&mut self) {
        self.sending = true;
        let destination = Budget::destination(self.shared.attr.path.destination);
        let chunk = Requester::read_chunk(&self.shared);
        self.line.begin(self.shared.attr.sq_psn, self.shared.mtu(), chunk, destination);
        self.requester.begin(&self.shared);
        self.completer = Completer::new();
    }

    /// RESET forgets work requests, answers and events (IBTA 10.3.1.1).
    fn reset(&mut self) {
        self.line.clear(&self.shared.budget);
        self.receives.clear();
        self.responder.reset();
        self.requester.stop(&self.shared);
        self.completer.stop();
        self.shared.events.clear();
        self.shared.attr = QpAttr::default();
        (self.receiving, self.sending) = (false, false);
    }

    fn stop_sending(&mut self) {
        self.line.give_back(&self.shared.budget);
        self.requester.stop(&self.shared);
        self.completer.stop();
        self.shared.attr.sq_draining = false;
    }

    /// Posts a send work request (`ibv_post_send`). It is transmitted by [`poll_transmit`](Self::poll_transmit). In the
    /// error state it is taken and flushed.
    ///
    /// # Errors
    ///
    /// See [`PostSendError`]; the queue is as it was.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(
        &mut self,
        _now: Instant,
        wr: &SendWr<'_>,
        mem: &impl Memory,
    ) -> Result<(), PostSendError> {
        match self.state() {
            QpState::Reset | QpState::Init | QpState::Rtr => Err(PostSendError::State(self.state())),
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error => {
                let wr = SendWr { signaled: wr.signaled || self.sq_sig_all, ..*wr };
                self.line.queue.post(&wr, &self.shared.attr, mem)
            }
        }
    }

    /// Posts a receive work request (`ibv_post_recv`). In the error state it is taken and flushed.
    ///
    /// # Errors
    ///
    /// See [`PostRecvError`]; the queue is as it was.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        match self.state() {
            QpState::Reset => Err(PostRecvError::State(QpState::Reset)),
            QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error => {
                self.receives.post(wr)
            }
        }
    }

    /// Where the next send work request will stand.
    pub const fn sq_mark(&self) -> SqMark {
        SqMark(self.line.queue.tail())
    }

    /// Takes back what was posted since the mark, as far as nothing of it was transmitted (`ibv_wr_abort`): all of it, if
    /// `poll_transmit` and `poll_event` were not called in between.
    #[doc(alias = "ibv_wr_abort")]
    pub fn sq_rollback(&mut self, mark: SqMark) {
        self.line.queue.roll_back(mark.0);
    }

    /// Takes one packet that came from `source` for this QPN.
    ///
    /// # Errors
    ///
    /// It had no effect, or only that of an answer; the reason is for counters.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        source: IpAddr,
        packet: &Packet<'_>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        self.shared.counters.rcvd_pkts += 1;
        let result = self.dispatch(now, source, packet, mem);
        if let Err(reason) = result {
            self.shared.counters.dropped_pkts += 1;
            tracing::trace!(qpn = self.shared.qpn.value(), psn = packet.bth.psn.value(), ?reason, "dropped");
        }
        self.settle(now);
        result
    }

    fn dispatch(
        &mut self,
        now: Instant,
        source: IpAddr,
        packet: &Packet<'_>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        let packet_of_rc = self.check_packet(source, packet)?;
        match packet_of_rc {
            None => {
                self.requester.congested();
                Ok(())
            }
            Some(RcPacket::Request(request)) => {
                if !self.shared.answers() {
                    return Err(DropReason::State);
                }
                let Self { shared, responder, receives, .. } = self;
                responder.handle_request(shared, &packet.bth, request, receives, mem)?;
                Ok(())
            }
            Some(RcPacket::Response(response)) => {
                if !matches!(self.state(), QpState::Rts | QpState::Sqd) {
                    return Err(DropReason::State);
                }
                let Self { shared, line, requester, completer, .. } = self;
                let side = SendSide { shared, line, requester };
                match completer.handle_response(now, packet.bth.psn, response, mem, side) {
                    Ok(()) => Ok(()),
                    Err(Refusal::Drop(reason)) => Err(reason),
                    Err(Refusal::Fatal { index, failure }) => {
                        self.fail_send(index, failure);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Whether the packet is for us (IBTA 9.6.1). `None`: a congestion notification.
    fn check_packet<'p, 'a>(
        &self,
        source: IpAddr,
        packet: &'p Packet<'a>,
    ) -> Result<Option<&'p RcPacket<'a>>, DropReason> {
        if packet.icrc != IcrcStatus::Checked {
            return Err(DropReason::IcrcUnchecked);
        }
        if packet.bth.dest_qp != self.shared.qpn {
            return Err(DropReason::WrongQpn);
        }
        if matches!(self.state(), QpState::Reset | QpState::Init | QpState::Error) {
            return Err(DropReason::State);
        }
        if source != self.shared.attr.path.destination {
            return Err(DropReason::WrongSource);
        }
        if !packet.bth.pkey.matches(Pkey::DEFAULT) {
            return Err(DropReason::WrongPkey);
        }
        match &packet.op {
            Operation::Rc(packet) => Ok(Some(packet)),
            Operation::Cnp => Ok(None),
            Operation::Uc(_) | Operation::Ud(_) | Operation::Xrc { .. } => Err(DropReason::WrongService),
        }
    }

    /// Runs the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Self { shared, line, requester, completer, .. } = self;
        requester.handle_timeout(now);
        let side = SendSide { shared, line, requester };
        if let Err(Refusal::Fatal { index, failure }) = completer.handle_timeout(now, side) {
            self.fail_send(index, failure);
        }
        self.settle(now);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next; `None` if there is nothing to wait for.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.requester.timeout(), self.completer.timeout()].into_iter().flatten().min()
    }

    /// Whether one ACK is all there is to send. It may wait a little for a request to go with: what the application posts
    /// when it sees the completion, say.
    pub fn owes_only_ack(&self) -> bool {
        self.responder.owes_only_ack() && self.line.at_cursor().is_none()
    }

    /// Adds packets to the batch, answers first but for a lone ACK. `true` if it added any: send the batch, clear it and call again.
    ///
    /// The memory is mutable because local operations of the send queue (invalidate) happen here, in their turn.
    pub fn poll_transmit(&mut self, now: Instant, mem: &mut impl Memory, out: &mut TxBatch<'_>) -> bool {
        let Self { shared, line, requester, completer, responder, ack_passed_over, .. } = self;
        let before_state = shared.state();
        // A lone ACK is shorter than almost every request, and only the last packet of a batch may be shorter: behind
        // the requests it shares their system call. Requests and answers are not ordered with each other.
        let ack_last = responder.owes_only_ack() && !*ack_passed_over;
        let (mut answers, drained) =
            if ack_last { (0, Drained::Empty) } else { responder.transmit(shared, mem, out) };
        let mut requests = 0;
        if drained == Drained::Empty {
            let before = line.next();
            requests = requester.transmit(now, shared, line, mem, out);
            if requests > 0 {
                completer.sent(now, before, &SendSide { shared, line, requester });
            }
        }
        if ack_last {
            (answers, _) = responder.transmit(shared, mem, out);
        }
        *ack_passed_over = ack_last && answers == 0;
        if before_state != QpState::Error && self.state() == QpState::Error {
            self.stop_sending();
        }
        self.settle(now);
        answers + requests > 0
    }

    /// The next completion or asynchronous event.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        while let Some(wqe) = self.line.queue.pop_done() {
            if wqe.signaled {
                return Some(QpEvent::Send(self.completion(&wqe, WcStatus::Success.into())));
            }
        }
        if let Some(completion) = self.responder.poll_completion(&self.shared) {
            return Some(QpEvent::Recv(completion));
        }
        if self.state() == QpState::Error {
            // Flushed in post order, each with a completion, signaled or not (IBTA 10.3.1.5).
            if let Some(wqe) = self.line.queue.pop_failed() {
                let failure = wqe.failure.unwrap_or(WcStatus::WrFlushErr.into());
                return Some(QpEvent::Send(self.completion(&wqe, failure)));
            }
            if let Some(wr_id) = self.receives.pop_flushed() {
                return Some(QpEvent::Recv(responder::failed(wr_id, WcStatus::WrFlushErr, self.qpn())));
            }
        }
        self.shared.events.pop().map(QpEvent::Async)
    }

    /// The completion queue overran, or something else ended this queue pair for good: error state and
    /// [`AsyncEvent::QpFatal`].
    pub fn set_fatal(&mut self) {
        if !matches!(self.state(), QpState::Reset | QpState::Error) {
            self.shared.events.raise(AsyncEvent::QpFatal);
            self.responder.silence();
            self.stop_sending();
            self.shared.transition("fatal", QpState::Error);
        }
    }

    fn fail_send(&mut self, index: u64, failure: Failure) {
        if let Some(wqe) = self.line.queue.get_mut(index) {
            wqe.failure.get_or_insert(failure);
        }
        self.responder.silence();
        self.stop_sending();
        self.shared.transition("work request failed", QpState::Error);
    }

    /// What follows from any change: a WQE that cannot succeed fails once it is the oldest, and SQD is reached once
    /// everything that started has completed.
    fn settle(&mut self, _now: Instant) {
        if !matches!(self.state(), QpState::Rts | QpState::Sqd) {
            if self.state() == QpState::Error {
                self.stop_sending();
            }
            return;
        }
        let done = self.line.queue.done();
        if let Some(failure) = self.line.queue.get(done).and_then(|wqe| wqe.failure) {
            self.fail_send(done, failure);
        } else if self.shared.attr.sq_draining && self.line.queue.started() == done {
            self.shared.attr.sq_draining = false;
            if self.shared.attr.en_sqd_async_notify {
                self.shared.events.raise(AsyncEvent::SqDrained);
            }
        }
    }

    fn completion(&self, wqe: &SendWqe, failure: Failure) -> WorkCompletion {
        let success = failure.status == WcStatus::Success;
        WorkCompletion {
            wr_id: wqe.wr_id,
            status: failure.status,
            opcode: opcode(&wqe.op),
            byte_len: if success { wqe.length } else { 0 },
            imm: None,
            invalidated: None,
            qpn: self.qpn(),
            src_qp: self.shared.attr.dest_qp,
            solicited: false,
            vendor_err: failure.vendor_err,
        }
    }
}

impl Drop for QueuePair {
    /// What it has in flight goes back to the process's budget.
    fn drop(&mut self) {
        self.stop_sending();
    }
}

const fn opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => WcOpcode::Send,
        SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::LocalInvalidate(_) => WcOpcode::LocalInv,
    }
}
