//! The queue pair: one state machine, and the roles that its service has.

mod choices;
mod common;
mod completer;
mod congestion;
mod direct;
mod farewell;
mod iwarp;
mod pipeline;
mod raw;
mod receiving;
mod recovery;
mod reliable;
mod requester;
mod responder;
mod roles;
mod send_queue;
mod state;
mod straight;
mod uc;
mod ud;
mod unreliable;

use alloc::sync::Arc;
use core::time::Duration;

use ferroce_wire::iwarp::Cause;
use ferroce_wire::{Flow, IcrcStatus, Instant, Packet, PathMtu, Pkey, Psn, Qpn, TxBatch};

pub use self::pipeline::Backlog;
pub use self::raw::MAX_FRAME;
pub use self::state::bring_up_mask;

use self::common::Common;
use self::iwarp::Iwarp;
use self::pipeline::Pipeline;
use self::receiving::SharedQueues;
use self::recovery::Refusal;
use self::reliable::Reliable;
use self::roles::Roles;
use self::send_queue::{Failure, SendQueue, SendWqe};
use crate::counting::Counting;
use crate::{
    AsyncEventKind, AttachCounterError, CompletionCounter, Counters, CreateQpError, DropReason, Memory,
    ModifyQpError, PostRecvError, PostSendError, QpAttr, QpAttrMask, QpCaps, QpConfig, QpEvent, QpState,
    ReceiveSource, RecvWr, SendWr, Service, WcOpcode, WcStatus, WorkCompletion, sg,
};

/// A queue pair without I/O.
///
/// # How to drive it
///
/// - Commands: [`modify`](Self::modify), [`post_send`](Self::post_send), [`post_recv`](Self::post_recv).
/// - Input: [`handle_datagram`](Self::handle_datagram) for each packet,
///   [`handle_timeout`](Self::handle_timeout) when [`poll_timeout`](Self::poll_timeout) has come. It may be
///   called early or twice; it then does nothing.
/// - Output, after one command or input, or after a batch of received datagrams: call
///   [`poll_transmit`](Self::poll_transmit) with an empty batch and send it until it returns `false`; then
///   [`poll_event`](Self::poll_event) until `None`; then wait for input, or until
///   [`poll_timeout`](Self::poll_timeout).
///
/// One ACK answers all requests handled between two drains of `poll_transmit`, so a batch of datagrams should
/// be handled whole before. No call loops over more than one datagram or one batch. Nothing allocates but
/// creation and `modify`.
///
/// A batch that could not be sent counts as lost on the way: drop it, the retries do the rest.
///
/// `now` never goes backwards. Any method may be called in any state.
#[derive(Debug)]
pub struct QueuePair {
    common: Common,
    service: Service,
    sq_sig_all: bool,
    /// RTR was reached since RESET.
    receiving: bool,
    /// RTS was reached since RESET.
    sending: bool,
    pipeline: Pipeline,
    roles: Roles,
    /// Longest payload of a datagram.
    port_mtu: PathMtu,
    /// Something else than the straight way was at work since [`Self::take_strayed`].
    strayed: bool,
}

/// How the stream of an iWARP queue pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamState {
    /// The queue pair has no stream.
    Idle,
    /// The stream carries messages.
    Open {
        /// At least one FPDU came from the peer.
        has_received: bool,
    },
    /// The stream is over, by an error or a change of state at this end, or because the peer ended it. The
    /// caller sends the octets that [`QueuePair::poll_stream`] still writes, a Terminate at most, and then
    /// closes the connection.
    Closing,
}

/// A place in the send queue; see [`QueuePair::sq_mark`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SqMark(u64);

impl QueuePair {
    /// Creates one in RESET, with all its queues.
    pub fn new(config: QpConfig) -> Result<Self, CreateQpError> {
        let QpConfig { service, caps, sq_sig_all, port_mtu, seed, .. } = config;
        let addressed = matches!(service, Service::Ud | Service::XrcInitiator);
        let mut queue_pair = Self {
            common: Common::new(config)?,
            service,
            sq_sig_all,
            receiving: false,
            sending: false,
            pipeline: Pipeline::new(SendQueue::new(caps, addressed)),
            roles: Roles::new(service, seed),
            port_mtu,
            strayed: true,
        };
        queue_pair.common.attr = queue_pair.fresh_attr();
        Ok(queue_pair)
    }

    /// The attributes before the first modify.
    fn fresh_attr(&self) -> QpAttr {
        match self.service {
            Service::Ud => QpAttr { path_mtu: self.port_mtu, ..QpAttr::default() },
            Service::Rc
            | Service::Uc
            | Service::RawPacket
            | Service::XrcInitiator
            | Service::XrcTarget
            | Service::Iwarp => QpAttr::default(),
        }
    }

    pub const fn qpn(&self) -> Qpn {
        self.common.qpn
    }

    pub const fn caps(&self) -> QpCaps {
        self.common.caps
    }

    pub const fn state(&self) -> QpState {
        self.common.state()
    }

    pub const fn counters(&self) -> &Counters {
        &self.common.counters
    }

    /// The queue pair at the other end, the PSN that is expected next and the one that is sent next.
    pub fn progress(&self) -> (Qpn, Psn, Psn) {
        let attr = &self.common.attr;
        let expected = if self.receiving { self.roles.expected() } else { None };
        let next = if self.sending { self.pipeline.next() } else { attr.sq_psn };
        (attr.dest_qp, expected.unwrap_or(attr.rq_psn), next)
    }

    /// The work request of the send queue to which a packet with this PSN belongs: a request that this end
    /// sends, or an answer to it. `None` if the queue no longer has it.
    pub fn wr_id_of(&self, psn: Psn) -> Option<u64> {
        let queue = &self.pipeline.queue;
        // UC and UD complete a work request when its last packet leaves.
        let of = self.pipeline.owner(psn).and_then(|index| queue.get(index)).or_else(|| queue.completed(psn));
        of.map(|wqe| wqe.wr_id)
    }

    /// The attributes as they are now, in any state (`ibv_query_qp`).
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        let mut attr = self.common.attr;
        (attr.state, attr.cur_state) = (self.state(), self.state());
        if self.receiving
            && let Some(expected) = self.roles.expected()
        {
            attr.rq_psn = expected;
        }
        if self.sending {
            attr.sq_psn = self.pipeline.next();
        }
        attr
    }

    /// Changes state and attributes (`ibv_modify_qp`, IBTA 10.3.1). All is checked before anything is
    /// changed.
    ///
    /// # Errors
    ///
    /// See [`ModifyQpError`]; the queue pair is as it was.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyQpError> {
        let from = self.state();
        let mask = state::half_of(self.service, mask);
        let to = state::check(self.service, from, attr, mask)?;
        if from == QpState::Sqd && to == QpState::Rts && self.common.attr.sq_draining {
            return Err(ModifyQpError::Draining);
        }
        state::apply(&mut self.common.attr, attr, mask);
        if mask.contains(QpAttrMask::AV) {
            self.pipeline.redirect(self.common.accounts(), &self.common.budget);
        }
        if mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC)
            && let Some(reliable) = self.roles.reliable_mut()
        {
            reliable.responder.set_depth(self.common.attr.max_dest_rd_atomic);
        }
        if mask.contains(QpAttrMask::STATE) {
            self.enter(from, to, mask);
        }
        self.after_change();
        Ok(())
    }

    fn enter(&mut self, from: QpState, to: QpState, mask: QpAttrMask) {
        match (from, to) {
            (_, QpState::Reset) => self.reset(),
            (_, QpState::Error) => {
                self.close_stream(None);
                self.drop_answers();
                self.stop_sending();
            }
            (QpState::Init, QpState::Rtr) => {
                self.receiving = true;
                self.common.announces = false;
                let attr = &self.common.attr;
                self.roles.begin_receiving(attr.rq_psn, attr.max_dest_rd_atomic, &self.common);
            }
            (QpState::Rtr, QpState::Rts) => self.begin_sending(),
            (QpState::Sqe, QpState::Rts) => self.pipeline.restart(),
            (QpState::Rts, QpState::Sqd) => {
                self.common.attr.en_sqd_async_notify &= mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY);
                self.common.attr.sq_draining = true;
            }
            _ => {}
        }
        if from != to {
            self.common.transition("modify", to);
        }
    }

    fn begin_sending(&mut self) {
        self.sending = true;
        let accounts = self.common.accounts();
        let mtu = if self.service == Service::RawPacket { MAX_FRAME as u32 } else { self.common.mtu() };
        let chunk = self.roles.reliable().map_or(1, |_| self.common.read_chunk());
        self.pipeline.begin(self.common.attr.sq_psn, mtu, chunk, accounts);
        if let Some(reliable) = self.roles.reliable_mut() {
            reliable.requester.begin(&self.common);
        }
    }

    /// RESET forgets work requests, answers and events (IBTA 10.3.1.1).
    fn reset(&mut self) {
        self.pipeline.clear(&self.common.budget);
        self.common.receiving.clear();
        if let Some(reliable) = self.roles.reliable_mut() {
            reliable.reset(&mut self.common);
        }
        if let Some(stream) = self.roles.stream_mut() {
            *stream = Iwarp::default();
        }
        self.common.events.clear();
        self.common.attr = self.fresh_attr();
        (self.receiving, self.sending) = (false, false);
    }

    fn stop_sending(&mut self) {
        self.pipeline.give_back(&self.common.budget);
        if let Some(reliable) = self.roles.reliable_mut() {
            reliable.requester.stop(&self.common);
        }
        self.common.attr.sq_draining = false;
    }

    /// The queue pair ended: what was to be answered is not.
    fn drop_answers(&mut self) {
        if let Some(reliable) = self.roles.reliable_mut() {
            reliable.responder.drop_answers(&self.common.budget);
        }
    }

    /// Posts a send work request (`ibv_post_send`). It is transmitted by
    /// [`poll_transmit`](Self::poll_transmit). In the error state it is taken and flushed.
    ///
    /// # Errors
    ///
    /// See [`PostSendError`]; the queue is as it was.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&mut self, wr: &SendWr<'_>, mem: &impl Memory) -> Result<(), PostSendError> {
        let signaled = wr.signaled || self.sq_sig_all;
        if self.common.straight
            && self.state() == QpState::Rts
            && self.pipeline.queue.post_plain(wr, signaled)
        {
            return Ok(());
        }
        match self.state() {
            QpState::Reset | QpState::Init | QpState::Rtr => Err(PostSendError::State(self.state())),
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error => {
                roles::check_service(self.service, wr)?;
                self.check_stream(wr)?;
                self.check_datagram(wr)?;
                self.pipeline.queue.post(wr, signaled, &self.common.attr, mem)
            }
        }
    }

    /// A datagram is one packet. A longer one is refused here, where the caller learns which request it was.
    fn check_datagram(&self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let max = match self.service {
            Service::Ud => self.common.mtu(),
            Service::RawPacket => MAX_FRAME as u32,
            Service::Rc | Service::Uc | Service::XrcInitiator | Service::XrcTarget | Service::Iwarp => {
                return Ok(());
            }
        };
        let given = sg::length(wr.sges);
        if given > u64::from(max) { Err(PostSendError::DatagramTooLong { given, max }) } else { Ok(()) }
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
                self.common.receiving.post(wr)
            }
        }
    }

    /// The position of the next send work request in the send queue.
    pub const fn sq_mark(&self) -> SqMark {
        SqMark(self.pipeline.queue.tail())
    }

    /// Takes back what was posted since the mark, as far as nothing of it was transmitted (`ibv_wr_abort`):
    /// all of it, if `poll_transmit` and `poll_event` were not called in between.
    #[doc(alias = "ibv_wr_abort")]
    pub fn sq_rollback(&mut self, mark: SqMark) {
        self.pipeline.queue.roll_back(mark.0);
    }

    /// Takes one packet for this QPN that came along `from`: addresses, and for datagrams what else their IP
    /// header said.
    ///
    /// # Errors
    ///
    /// It had no effect, or only that of an answer; the reason is for counters.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: &Flow,
        packet: &Packet<'_>,
        source: &mut impl ReceiveSource,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        if self.handle_straight(now, from, packet, mem) {
            return Ok(());
        }
        self.common.counters.rcvd_pkts += 1;
        self.common.counters.rcvd_ecn_marked += u64::from(from.is_marked());
        let result = self.dispatch(now, from, packet, source, mem);
        if let Err(reason) = result {
            self.common.counters.dropped_pkts += 1;
            tracing::trace!(qpn = self.common.qpn.value(), psn = packet.bth.psn.value(), ?reason, "dropped");
        }
        self.after_change();
        result
    }

    /// Takes an Ethernet frame ([`Service::RawPacket`]), from its destination address to the end of its
    /// payload.
    ///
    /// # Errors
    ///
    /// It had no effect, or that of one which does not fit; the reason is for counters.
    pub fn handle_frame(
        &mut self,
        frame: &[u8],
        source: &mut impl ReceiveSource,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        self.common.counters.rcvd_pkts += 1;
        let result = match self.service {
            Service::RawPacket => {
                raw::receive(&mut self.common, frame, &mut SharedQueues { source, named: None }, mem)
            }
            _ => Err(DropReason::WrongService),
        };
        self.common.counters.dropped_pkts += u64::from(result.is_err());
        self.after_change();
        result
    }

    /// Writes the next Ethernet frame to send ([`Service::RawPacket`]) to `out`, of [`MAX_FRAME`] octets, and
    /// returns its length: the counterpart of [`poll_transmit`](Self::poll_transmit). `None` if there is
    /// none.
    pub fn poll_frame(&mut self, mem: &impl Memory, out: &mut [u8]) -> Option<usize> {
        let len = match self.service {
            Service::RawPacket => raw::next_frame(&mut self.common, &mut self.pipeline, mem, out),
            _ => None,
        };
        self.after_change();
        len
    }

    fn dispatch(
        &mut self,
        now: Instant,
        from: &Flow,
        packet: &Packet<'_>,
        source: &mut impl ReceiveSource,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        self.check_packet(from, packet)?;
        let Self { common, pipeline, roles, .. } = self;
        match roles.handle(now, from, packet, common, pipeline, source, mem) {
            Ok(()) => Ok(()),
            Err(Refusal::Drop(reason)) => Err(reason),
            Err(Refusal::Fatal { index, failure }) => {
                self.fail_send(index, failure);
                Ok(())
            }
        }
    }

    /// Whether the packet is for us (IBTA 9.6.1).
    fn check_packet(&self, from: &Flow, packet: &Packet<'_>) -> Result<(), DropReason> {
        if packet.icrc != IcrcStatus::Checked {
            return Err(DropReason::IcrcUnchecked);
        }
        // A group is its address and this number together; the caller knows which queue pairs are attached.
        let meant = if from.destination.is_multicast() {
            packet.bth.dest_qp == Qpn::MULTICAST && !self.service.is_connected()
        } else {
            packet.bth.dest_qp == self.common.qpn
        };
        if !meant {
            return Err(DropReason::WrongQpn);
        }
        if !self.common.answers() {
            return Err(DropReason::State);
        }
        // A packet of another RoCE version than our path's does not come from the peer.
        let peer = &self.common.attr.path;
        if self.service.is_connected()
            && (from.source != peer.destination || from.link.version != peer.link.version)
        {
            return Err(DropReason::WrongSource);
        }
        if !packet.bth.pkey.matches(Pkey::DEFAULT) {
            return Err(DropReason::WrongPkey);
        }
        Ok(())
    }

    /// Runs the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Self { common, pipeline, roles, .. } = self;
        if let Some(reliable) = roles.reliable_mut()
            && let Err(Refusal::Fatal { index, failure }) = reliable.handle_timeout(now, common, pipeline)
        {
            self.fail_send(index, failure);
        }
        self.after_change();
    }

    /// Starts the wait for answers anew, without a resend and without a retry. The caller knows that the
    /// newest packet can neither get lost nor was received yet, and calls this before
    /// [`handle_timeout`](Self::handle_timeout).
    pub fn excuse_peer(&mut self, now: Instant) {
        if let Some(reliable) = self.roles.reliable_mut() {
            reliable.requester.recovery.excuse_peer(now, &self.common);
        }
    }

    /// If the local ACK timeout is over, asks whether this process waited for a processor during that time.
    /// Then the request is sent again, and the retry does not count, up to 64 times in a row. Called before
    /// [`handle_timeout`](Self::handle_timeout).
    pub fn ask_if_starved(&mut self, now: Instant, was_starved: impl FnOnce(Duration) -> bool) {
        if let Some(reliable) = self.roles.reliable_mut() {
            reliable.requester.recovery.ask_if_starved(now, &self.common, was_starved);
        }
    }

    /// Time at which to call [`handle_timeout`](Self::handle_timeout) next; `None` if no timer runs.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_timeout().if_ever()
    }

    /// As [`Self::poll_timeout`]; [`Instant::MAX`] if no timer runs.
    #[inline]
    pub fn next_timeout(&self) -> Instant {
        self.roles.reliable().map_or(Instant::MAX, |reliable| reliable.timeout(&self.common))
    }

    /// Whether one ACK is all there is to send. It may wait a little for a request to go with: what the
    /// application posts when it sees the completion, say.
    pub fn only_ack_pending(&self) -> bool {
        self.roles.reliable().is_some_and(|reliable| reliable.only_ack_pending(&self.pipeline))
    }

    /// While `hold` is true, an ACK that is all there is to answer stays behind, also when requests leave. It
    /// speaks for later requests too (IBTA 9.7.5.1.2), and any other answer takes it along. The caller sees
    /// to it that it leaves before the peer takes it for lost.
    pub fn delay_ack(&mut self, hold: bool) {
        if let Some(reliable) = self.roles.reliable_mut() {
            reliable.ack_delayed = hold;
        }
    }

    /// While `first` is true, an ACK that is all there is to answer leaves before requests. Otherwise it
    /// leaves behind them, because a batch may end with a packet that is shorter than the others.
    pub fn put_ack_first(&mut self, first: bool) {
        if let Some(reliable) = self.roles.reliable_mut() {
            reliable.ack_first = first;
        }
    }

    /// Whether an ACK is held back.
    pub fn delays_ack(&self) -> bool {
        self.roles.reliable().is_some_and(Reliable::delays_ack)
    }

    /// Whether it has something to send and waits for others of the process to give back of the budget. It
    /// tries again by its timer. With many queue pairs it is better to call
    /// [`poll_transmit`](Self::poll_transmit) for one after the other as answers come in: then each sends
    /// about a full batch in its turn.
    pub fn waits_for_budget(&self) -> bool {
        self.roles.reliable().is_some_and(|reliable| reliable.requester.waits_for_turn())
    }

    /// The messages that were sent and posted, for a caller that lets small ones wait until they fill a
    /// batch. `None` if this is no time to wait, or if no answer would come to end the wait.
    pub fn backlog(&self) -> Option<Backlog> {
        let waits = self.state() == QpState::Rts && self.roles.reliable().is_some();
        if waits { self.pipeline.backlog() } else { None }
    }

    /// Adds packets to the batch, answers first but for a lone ACK. `true` if it added any: send the batch,
    /// clear it and call again.
    ///
    /// The memory is mutable because local operations of the send queue (invalidate) happen here, in their
    /// turn.
    pub fn poll_transmit(&mut self, now: Instant, mem: &mut impl Memory, out: &mut TxBatch<'_>) -> bool {
        if self.transmit_straight(now, mem, out) {
            return true;
        }
        let silent = self.is_silent();
        // With debug assertions each call shows that there is nothing to send indeed.
        if silent && cfg!(not(debug_assertions)) {
            self.follow_queue();
            return false;
        }
        let Self { common, pipeline, roles, .. } = self;
        let before = common.state();
        let sent = roles.transmit(now, common, pipeline, mem, out);
        debug_assert!(!silent || (sent == 0 && common.state() == before), "a silent queue pair sends");
        if silent {
            self.follow_queue();
            return false;
        }
        if before != QpState::Error && self.state() == QpState::Error {
            self.stop_sending();
        }
        self.after_change();
        sent > 0
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) certainly adds nothing now: no answer waits, all posted
    /// requests have left, and none has to leave again. Always `false` for services without answers.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.roles.reliable().is_some_and(|reliable| reliable.is_silent(&self.common, &self.pipeline))
    }

    /// As [`poll_transmit`](Self::poll_transmit), for one ACK if that is all there is to answer: the path
    /// has no room for more.
    pub fn poll_ack(&mut self, now: Instant, mem: &mut impl Memory, out: &mut TxBatch<'_>) -> bool {
        let Self { common, roles, .. } = self;
        roles.reliable_mut().is_some_and(|reliable| reliable.acknowledge(now, common, mem, out) > 0)
    }

    /// Whether [`poll_event`](Self::poll_event) may return something. `false` is certain.
    #[inline]
    pub fn may_have_events(&self) -> bool {
        self.pipeline.queue.has_done()
            || self.common.receiving.has_completed()
            || !self.common.events.is_empty()
            || matches!(self.state(), QpState::Error | QpState::Sqe)
    }

    /// The next completion or asynchronous event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        while let Some(wqe) = self.pipeline.queue.oldest_done() {
            let completion = wqe.signaled.then(|| self.completion(wqe, WcStatus::Success.into()));
            if completion.is_none() {
                self.common.counting.unreported(&wqe.op, wqe.length);
            }
            self.pipeline.queue.pop_done();
            if let Some(completion) = completion {
                return Some(QpEvent::Send(completion));
            }
        }
        let (error, qpn) = (self.state() == QpState::Error, self.qpn());
        if let Some(event) = self.common.receiving.poll_completion(error, qpn) {
            return Some(event);
        }
        // Flushed in post order, each with a completion, signaled or not (IBTA 10.3.1.5).
        if matches!(self.state(), QpState::Error | QpState::Sqe)
            && let Some(wqe) = self.pipeline.queue.pop_failed()
        {
            let failure = wqe.failure.unwrap_or(WcStatus::WrFlushErr.into());
            return Some(QpEvent::Send(self.completion(&wqe, failure)));
        }
        if error && let Some(event) = self.common.receiving.flush(qpn) {
            return Some(event);
        }
        self.common.events.pop().map(QpEvent::Async)
    }

    /// Has `counter` count the operations of the mask `ops` (`ibv_qp_attach_comp_cntr_op`) until
    /// [`detach_counters`](Self::detach_counters). Operations of the peer count when they were executed: a
    /// WRITE with its last octet, a READ when its last octet was sent. If they are refused, they count as
    /// failed where the peer learns of it.
    ///
    /// The caller has [`count`](Self::count) called for each completion.
    ///
    /// # Errors
    ///
    /// See [`AttachCounterError`]; nothing is attached.
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn attach_counter(
        &mut self,
        counter: &Arc<CompletionCounter>,
        ops: u32,
    ) -> Result<(), AttachCounterError> {
        match self.state() {
            QpState::Reset | QpState::Init => self.common.counting.attach(counter, ops),
            state => Err(AttachCounterError::State(state)),
        }
    }

    /// Detaches all completion counters.
    pub fn detach_counters(&mut self) {
        self.common.counting = Counting::default();
    }

    /// Counts a completion that [`poll_event`](Self::poll_event) returned, with the status that the program
    /// will see. Those of unsignaled work requests are counted without this call.
    #[inline]
    pub fn count(&self, completion: &WorkCompletion) {
        self.common.counting.reported(completion);
    }

    /// The completion queue overran, or something else ended this queue pair for good: error state and
    /// [`AsyncEventKind::QpFatal`].
    pub fn set_fatal(&mut self) {
        self.strayed = true;
        if !matches!(self.state(), QpState::Reset | QpState::Error) {
            self.common.events.raise(AsyncEventKind::QpFatal);
            self.close_stream(Some(Cause::LocalCatastrophic));
            self.drop_answers();
            self.stop_sending();
            self.common.transition("fatal", QpState::Error);
        }
    }

    fn fail_send(&mut self, index: u64, failure: Failure) {
        self.strayed = true;
        self.pipeline.queue.fail(index, failure);
        self.close_stream(Some(Cause::LocalCatastrophic));
        self.stop_sending();
        if self.service.survives_send_errors() {
            self.common.transition("work request failed", QpState::Sqe);
        } else {
            self.drop_answers();
            self.common.transition("work request failed", QpState::Error);
        }
    }

    /// Follows any change: a WQE that cannot succeed fails once it is the oldest, and SQD is reached once
    /// everything that started has completed.
    fn after_change(&mut self) {
        self.strayed = true;
        self.follow_queue();
    }

    /// As [`Self::after_change`], behind a change that the straight way made.
    #[inline]
    fn follow_queue(&mut self) {
        if !matches!(self.state(), QpState::Rts | QpState::Sqd) {
            if self.state() == QpState::Error {
                self.stop_sending();
            }
            return;
        }
        let done = self.pipeline.queue.done();
        if let Some(failure) = self.pipeline.queue.get(done).and_then(|wqe| wqe.failure) {
            self.fail_send(done, failure);
        } else if self.common.attr.sq_draining && self.pipeline.queue.started() == done {
            self.common.attr.sq_draining = false;
            if self.common.attr.en_sqd_async_notify {
                self.common.events.raise(AsyncEventKind::SqDrained);
            }
        }
    }

    #[inline]
    fn completion(&self, wqe: &SendWqe, failure: Failure) -> WorkCompletion {
        let success = failure.status == WcStatus::Success;
        WorkCompletion {
            wr_id: wqe.wr_id,
            status: failure.status,
            opcode: WcOpcode::of(&wqe.op),
            byte_len: if success { wqe.length } else { 0 },
            qpn: self.qpn(),
            src_qp: self.common.attr.dest_qp,
            vendor_err: failure.vendor_err,
            ..WorkCompletion::BLANK
        }
    }
}

impl Drop for QueuePair {
    /// Returns its data in flight and its held requests to the process's budget.
    fn drop(&mut self) {
        self.drop_answers();
        self.stop_sending();
    }
}
