//! The requester: sends what was posted, in order, as far as windows allow.

use core::time::Duration;

use ferroce_wire::{
    CreditCode, Due, IcrcStatus, Instant, Msn, Operation, Packet, PushError, RcPacket, Sink, Ssn, TxBatch,
};

use super::common::Common;
use super::congestion::Kind;
use super::pipeline::{Piece, Pipeline};
use super::recovery::{Recovery, Refusal, SendSide};
use super::send_queue::Failure;
use crate::budget::Account;
use crate::{Memory, QpState, SelectiveRepeat, SendOp, Service, WcStatus};

/// Least time after which a queue pair that the process's budget stops tries again. A random part of the same
/// time is added, so that several queue pairs do not try in step.
const BLOCKED_RETRY: Duration = Duration::from_micros(200);
/// [`BLOCKED_RETRY`] for a budget that gives turns: the timer is only a reserve then.
const TURN_RETRY: Duration = Duration::from_millis(20);
/// Octets, as charged, that a queue pair sends at a time when others wait for the budget too: about a full
/// batch. With less, each packet of many queue pairs would need a system call of its own.
const TURN: u64 = 68 << 10;
/// Longest time that a queue pair with nothing in flight is stopped; then it may send one packet whatever the
/// others do.
const BLOCKED_LIMIT: Duration = Duration::from_millis(50);
/// [`BLOCKED_LIMIT`] for a budget that gives turns: with thousands of queue pairs a turn may be long in
/// coming.
const TURN_LIMIT: Duration = Duration::from_millis(200);
/// Inside a message, an acknowledgement is requested each time that the window's octets divided by this were
/// sent.
const ACK_EVERY: u64 = 4;

/// Sends requests. The timers are those of loss recovery and the retry after the budget was used up.
#[derive(Debug)]
pub(crate) struct Requester {
    pub recovery: Recovery,
    blocked: Option<Blocked>,
    /// Octets that the queue pair may still send in its turn, at most [`TURN`].
    turn: u64,
    /// Octets sent since an acknowledgement was asked for.
    since_ack_req: u64,
    /// Number of messages sent; a message sent again does not count.
    sent_messages: Ssn,
    credits: Credits,
    random: u64,
    /// The caller may be able to execute one-sided requests once nothing is in flight.
    prefers_direct: bool,
}

/// End-to-end flow control as the responder may ask for it (IBTA 9.7.7.2). Ours does not; some cards do.
#[derive(Clone, Copy, Debug, Default)]
struct Credits {
    /// The message sequence number of the newest acknowledgement.
    msn: Msn,
    /// The last message that may be sent that takes a receive WQE; `None` if there is no limit.
    limit: Option<Ssn>,
}

#[derive(Clone, Copy, Debug)]
struct Blocked {
    account: Account,
    since: Instant,
    /// `None` once that time has come.
    retry: Option<Instant>,
}

/// How one step of sending ended.
enum Step {
    Sent,
    /// The batch takes no more.
    Full,
    /// Nothing may be sent now.
    Idle,
}

enum Gate {
    Answer,
    Budget,
}

impl Requester {
    pub fn new(seed: u64) -> Self {
        Self {
            recovery: Recovery::default(),
            blocked: None,
            turn: 0,
            since_ack_req: 0,
            sent_messages: Ssn::new(0),
            credits: Credits::default(),
            random: seed | 1,
            prefers_direct: false,
        }
    }

    /// Begins afresh with windows for this budget.
    pub fn begin(&mut self, common: &Common) {
        *self = Self { recovery: Recovery::begin(common), ..Self::new(self.random) };
    }

    /// Fills the batch; the number of packets it added.
    pub fn transmit(&mut self, side: &mut SendSide<'_>, mem: &mut impl Memory, out: &mut TxBatch<'_>) -> u32 {
        let (mut sent, before) = (0, side.pipeline.next());
        if !matches!(side.common.state(), QpState::Rts | QpState::Sqd) {
            return 0;
        }
        let calm = self.is_calm(side.common);
        while (calm && self.step_straight(side, mem, out)) || matches!(self.step(side, mem, out), Step::Sent)
        {
            sent += 1;
        }
        if sent > 0 {
            self.recovery.sent(before, side);
        }
        sent
    }

    /// As [`Self::transmit`], if one message of one packet is all there is to send, and nothing keeps it.
    #[inline(always)]
    pub fn transmit_one(&mut self, side: &mut SendSide<'_>, mem: &impl Memory, out: &mut impl Sink) -> bool {
        let before = side.pipeline.next();
        let sent =
            side.pipeline.is_at_last() && self.is_calm(side.common) && self.step_straight(side, mem, out);
        if sent {
            self.recovery.sent(before, side);
        }
        sent
    }

    /// Whether new requests leave as they are posted, as far as windows and budget admit.
    #[inline]
    fn is_calm(&self, common: &Common) -> bool {
        common.straight
            && common.state() == QpState::Rts
            && common.is_calm()
            && self.blocked.is_none()
            && self.credits.limit.is_none()
            && self.recovery.is_calm()
    }

    /// As [`Self::step`], for a message of one packet while the requester [is calm](Self::is_calm). `false`:
    /// nothing was done.
    ///
    /// All of it is compiled as one function, in which the operation and its single packet are known: most of
    /// what the shared steps ask is decided then.
    #[inline(always)]
    fn step_straight(&mut self, side: &mut SendSide<'_>, mem: &impl Memory, out: &mut impl Sink) -> bool {
        let SendSide { common, pipeline, .. } = side;
        let Some((piece, request)) = pipeline.single(out.room()) else { return false };
        let waits = (piece.wqe.fence && pipeline.reads_pending() > 0)
            || (self.prefers_direct && piece.wqe.may_be_direct());
        let account = pipeline.data_account();
        if waits
            || !self.recovery.admits_data(&piece, pipeline.flight(), common)
            || !common.budget.take(account, piece.charge, self.turn > 0)
        {
            return false;
        }
        let op = Operation::Rc(RcPacket::Request(request));
        if self.push_op(&piece, op, false, common, pipeline, mem, out).is_err() {
            common.budget.give_back(account, piece.charge);
            return false;
        }
        self.turn = self.turn.saturating_sub(piece.charge);
        self.left(&piece, false, common, pipeline);
        true
    }

    /// A piece left, in its turn. `is_answered`: see [`SendOp::is_answered`].
    #[inline(always)]
    fn left(&mut self, piece: &Piece, is_answered: bool, common: &mut Common, pipeline: &mut Pipeline) {
        common.counters.sent_pkts += 1;
        if !pipeline.sent(piece, is_answered) {
            common.counters.resent_pkts += 1;
        } else if piece.is_last() || matches!(piece.wqe.op, SendOp::Read { .. }) {
            // Each READ request is a message to the responder.
            self.sent_messages = self.sent_messages.next();
            common.counters.rdma_sends += u64::from(!is_answered);
        }
    }

    fn step(&mut self, side: &mut SendSide<'_>, mem: &mut impl Memory, out: &mut TxBatch<'_>) -> Step {
        let SendSide { now, common, pipeline } = side;
        if !self.recovery.may_send(pipeline) {
            return Step::Idle;
        }
        if self.recovery.repeats()
            && let Some(piece) = self.recovery.next_again(pipeline)
        {
            return self.send_again(&piece, side, mem, out);
        }
        if !pipeline.run_local(common.state() == QpState::Rts, mem) {
            return Step::Idle;
        }
        let Some(piece) = pipeline.piece() else { return Step::Idle };
        if piece.wqe.failure.is_some() {
            return Step::Idle;
        }
        if piece.starts
            && let Err(failure) = self.may_start(&piece, common, pipeline, mem)
        {
            if let Some(failure) = failure {
                pipeline.queue.fail(piece.index, failure);
            }
            return Step::Idle;
        }
        match self.admit(*now, &piece, common, pipeline) {
            Ok(()) => {}
            Err(Gate::Answer) => return Step::Idle,
            Err(Gate::Budget) => {
                self.block(*now, pipeline.account(&piece.wqe.op), common);
                return Step::Idle;
            }
        }
        let account = pipeline.account(&piece.wqe.op);
        match self.push(&piece, false, common, pipeline, mem, out) {
            Ok(()) => {}
            Err(PushError::Full) => {
                common.budget.give_back(account, piece.charge);
                give_back_tokens(common, &piece);
                return Step::Full;
            }
            Err(error) => {
                common.budget.give_back(account, piece.charge);
                let status = match error {
                    PushError::Fill(_) => WcStatus::LocProtErr,
                    _ => WcStatus::LocQpOpErr,
                };
                pipeline.queue.fail(piece.index, status);
                return Step::Idle;
            }
        }
        if self.blocked.is_some() && self.has_turns(common) {
            self.turn = TURN;
        }
        self.turn = self.turn.saturating_sub(piece.charge);
        self.unblock(common);
        self.left(&piece, piece.wqe.op.is_answered(), common, pipeline);
        Step::Sent
    }

    /// The budget is used up: tries again soon.
    fn block(&mut self, now: Instant, account: Account, common: &Common) {
        // Xorshift: never 0, and good enough to be out of step.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let least = if self.has_turns(common) { TURN_RETRY } else { BLOCKED_RETRY };
        let wait = least + least * (self.random >> 54) as u32 / 1024;
        let blocked = match self.blocked {
            Some(blocked) if blocked.account == account => blocked,
            _ => {
                self.unblock(common);
                common.budget.wait(account);
                Blocked { account, since: now, retry: None }
            }
        };
        self.turn = 0;
        // A time that has not come yet stands: this try was an extra one.
        self.blocked = Some(Blocked { retry: blocked.retry.or(Some(now + wait)), ..blocked });
    }

    /// Sends a request once more. It is charged as in flight already.
    #[cold]
    fn send_again(
        &mut self,
        piece: &Piece,
        SendSide { common, pipeline, .. }: &mut SendSide<'_>,
        mem: &impl Memory,
        out: &mut TxBatch<'_>,
    ) -> Step {
        match self.push(piece, true, common, pipeline, mem, out) {
            Ok(()) => {}
            Err(PushError::Full) => return Step::Full,
            Err(_) => {
                // The packet was sent before, so its memory was there: the program took it away.
                pipeline.queue.fail(piece.index, WcStatus::LocProtErr);
                return Step::Idle;
            }
        }
        common.counters.sent_pkts += 1;
        common.counters.resent_pkts += 1;
        self.recovery.sent_again(piece, common, pipeline);
        Step::Sent
    }

    pub const fn prefer_direct(&mut self, prefer: bool) {
        self.prefers_direct = prefer;
    }

    /// The process's budget no longer stops it.
    #[inline]
    pub fn unblock(&mut self, common: &Common) {
        if let Some(blocked) = self.blocked.take() {
            common.budget.stop_waiting(blocked.account);
        }
    }

    /// Whether a message may begin. `Err(None)`: not yet.
    fn may_start(
        &self,
        piece: &Piece,
        common: &Common,
        pipeline: &mut Pipeline,
        mem: &impl Memory,
    ) -> Result<(), Option<Failure>> {
        let wqe = &piece.wqe;
        if common.state() != QpState::Rts || (wqe.fence && pipeline.reads_pending() > 0) {
            return Err(None);
        }
        // Beyond the credits one message at a time: its answer brings new ones, or an RNR NAK.
        let beyond = |limit: Ssn| self.sent_messages.next().since(limit) > 0;
        if wqe.op.takes_receive() && self.credits.limit.is_some_and(beyond) && !pipeline.is_quiet() {
            return Err(None);
        }
        // Their answers come soon: nothing delays an acknowledgement that no completion waits for.
        if self.prefers_direct && wqe.may_be_direct() && pipeline.ends_in_direct() {
            return Err(None);
        }
        let incoming = wqe.op.writes_local();
        if wqe.op.is_answered() && common.attr.max_rd_atomic == 0 {
            // Modified in SQD after it was posted: it could never start.
            return Err(Some(WcStatus::LocQpOpErr.into()));
        }
        // So that no half of a message is sent. A single packet is checked while it is built.
        if (incoming || piece.total > 1) && !wqe.checked {
            pipeline
                .queue
                .check_memory(piece.index, incoming, mem)
                .map_err(|_| Some(WcStatus::LocProtErr.into()))?;
            if let Some(wqe) = pipeline.queue.get_mut(piece.index) {
                wqe.checked = true;
            }
        }
        Ok(())
    }

    /// Takes the piece's charge, or says what it waits for.
    fn admit(
        &self,
        now: Instant,
        piece: &Piece,
        common: &mut Common,
        pipeline: &Pipeline,
    ) -> Result<(), Gate> {
        let flight = pipeline.flight();
        let budget = &common.budget;
        let waited = self.blocked.is_some() || self.turn > 0;
        let account = pipeline.account(&piece.wqe.op);
        // A turn begins when there is room for all of it: what comes free in small pieces would be used in
        // small batches.
        let has_turn = self.blocked.is_none() || !self.has_turns(common) || budget.has_room(account, TURN);
        if !self.recovery.admits(piece, flight, common) {
            return Err(Gate::Answer);
        }
        let taken = if piece.wqe.op.is_answered() {
            if flight.read_requests >= u32::from(common.attr.max_rd_atomic).max(1) {
                return Err(Gate::Answer);
            }
            has_turn && budget.take(account, piece.charge, waited)
        } else {
            if let Some(limiter) = &mut common.limiter
                && !limiter.admits(now, Kind::Request, piece.charge, flight.data)
            {
                // An answer may wait as well.
                common.paced = common.paced.or_never().min(limiter.timeout().or_never()).if_ever();
                return Err(Gate::Answer);
            }
            let stopped = self.blocked.map_or(Duration::ZERO, |blocked| now.saturating_since(blocked.since));
            let limit = if self.has_turns(common) { TURN_LIMIT } else { BLOCKED_LIMIT };
            if flight.data == 0 && stopped >= limit {
                budget.force(account, piece.charge);
                true
            } else {
                has_turn && budget.take(account, piece.charge, waited)
            }
        };
        if taken {
            return Ok(());
        }
        give_back_tokens(common, piece);
        Err(Gate::Budget)
    }

    #[inline(never)]
    fn push(
        &mut self,
        piece: &Piece,
        asks: bool,
        common: &Common,
        pipeline: &Pipeline,
        mem: &impl Memory,
        out: &mut impl Sink,
    ) -> Result<(), PushError<crate::MemoryError>> {
        let queue = match common.service() {
            Service::XrcInitiator => pipeline.queue.srq(piece.index),
            Service::Rc
            | Service::Uc
            | Service::Ud
            | Service::RawPacket
            | Service::XrcTarget
            | Service::Iwarp => None,
        };
        let op = common.reliable(RcPacket::Request(piece.request()), queue);
        self.push_op(piece, op, asks, common, pipeline, mem, out)
    }

    /// As [`Self::push`], with the piece's operation.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one queue pair, and what comes with a packet"
    )]
    #[inline(always)]
    fn push_op(
        &mut self,
        piece: &Piece,
        op: Operation<'_>,
        asks: bool,
        common: &Common,
        pipeline: &Pipeline,
        mem: &impl Memory,
        out: &mut impl Sink,
    ) -> Result<(), PushError<crate::MemoryError>> {
        let mut bth = common.bth(piece.psn);
        let since = self.since_ack_req + piece.charge;
        let nears_limit = || {
            // The reaction point may permit less than the window.
            let limited = common.limiter.as_ref().map(|limiter| limiter.flight_limit(piece.charge));
            let window = limited.unwrap_or(u64::MAX).min(self.recovery.window());
            since >= window / ACK_EVERY || pipeline.flight().data + 2 * piece.charge > window
        };
        bth.ack_req = asks
            || piece.is_last()
            || piece.wqe.op.is_answered()
            || self.recovery.is_probing()
            || nears_limit();
        bth.extended = bth.ack_req && common.selective_repeat == SelectiveRepeat::Offered;
        bth.solicited = piece.wqe.solicited && piece.is_last() && piece.wqe.op.takes_receive();
        let head = Packet { bth, op, icrc: IcrcStatus::Checked };
        let len = if piece.wqe.op.writes_local() { 0 } else { piece.len as usize };
        out.push(&common.attr.path, &head, len, |payload| {
            pipeline.queue.gather_of(piece.index, &piece.wqe, u64::from(piece.offset), payload, mem)
        })?;
        self.since_ack_req = if bth.ack_req { 0 } else { since };
        Ok(())
    }

    /// An acknowledgement says how much the responder is ready for. It may come for that alone, and out of
    /// order. The responder cannot have completed more messages than were sent.
    #[inline(always)]
    pub fn grant(&mut self, msn: Msn, credits: CreditCode) {
        if msn.since(self.credits.msn) >= 0 && Ssn::new(msn.value()).since(self.sent_messages) <= 0 {
            let limit = credits.credits().map(|credits| Ssn::new(msn.value()).add(credits));
            self.credits = Credits { msn, limit };
        }
    }

    /// Whether it gets its turn when the process's budget stops it. A peer that may be dead is tried by the
    /// timer, beside the others.
    fn has_turns(&self, common: &Common) -> bool {
        common.budget.gives_turns() && !self.recovery.is_probing()
    }

    /// Whether it waits for its turn.
    pub const fn waits_for_turn(&self) -> bool {
        self.blocked.is_some() && !self.recovery.is_probing()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        if let Some(blocked) = &mut self.blocked {
            blocked.retry.take_if(|retry| *retry <= side.now);
        }
        self.recovery.handle_timeout(self.blocked.is_some(), side)
    }

    /// Time of the next timer; [`Instant::MAX`] if none runs.
    #[inline]
    pub fn timeout(&self) -> Instant {
        let retry = self.blocked.as_ref().map_or(Instant::MAX, |blocked| blocked.retry.or_never());
        retry.min(self.recovery.timeout())
    }

    pub fn stop(&mut self, common: &Common) {
        self.recovery.stop();
        self.unblock(common);
    }
}

/// The packet did not leave: the limiter's tokens for it are there again.
fn give_back_tokens(common: &mut Common, piece: &Piece) {
    if let Some(limiter) = &mut common.limiter
        && !piece.wqe.op.is_answered()
    {
        limiter.give_back(piece.charge);
    }
}
