//! The requester: sends what was posted, in order, as far as windows allow.

mod again;
mod cuts;
mod headers;
mod reordering;
mod repair;
mod window;

use core::time::Duration;

use ferroce_wire::{CreditCode, IcrcStatus, Instant, Msn, Packet, Psn, PushError, RcPacket, Ssn, TxBatch};

pub(super) use self::headers::request;
pub(crate) use self::reordering::RoundTrips;
pub(crate) use self::repair::REPORTED;
use self::repair::Repair;
use self::window::Window;
use super::common::Common;
use super::congestion::Kind;
use super::local_operations;
use super::pipeline::{PACKET_OVERHEAD, Piece, Pipeline};
use super::send_queue::Failure;
use crate::budget::Account;
use crate::{Memory, QpState, SelectiveRepeat, SendOp, Service, WcStatus};

/// Largest first window in octets; at most an eighth of the receive buffer.
const START_WINDOW: u64 = 64 << 10;
/// Most octets that one READ request asks for.
const READ_REQUEST: u64 = 64 << 10;
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

/// Sends requests. The timers are the wait after an RNR NAK and the retry after the budget was used up.
#[derive(Debug)]
pub(crate) struct Requester {
    data: Window,
    reads: Window,
    /// The windows of data and of reads before the last cut, restored if the cut proves needless.
    before: (Window, Window),
    /// The last cut was for one packet, which was sent again alone.
    cut_for_one: bool,
    /// A loss before this PSN belongs to the last cut of the windows: one cut a round trip.
    recovery: Psn,
    /// Packets lost since the last cut, with selective repeat.
    losses: u32,
    /// The newest answer came late: packets wait in queues.
    queueing: bool,
    /// The requests that the peer reports to hold, and those that are sent again for it.
    pub repair: Repair,
    /// The newest packet is sent once more, to learn what is missing before it.
    probe_newest: bool,
    /// Responses from the first PSN to before the second are missing and asked for again.
    reread: (Psn, Psn),
    /// After a timeout: one packet, then wait for an answer.
    probing: bool,
    /// The answer to a probe did not come: nothing is sent until the next timeout.
    parked: bool,
    rnr_until: Option<Instant>,
    /// The request that the receiver was not ready for.
    refused: Psn,
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
            data: Window::new(0, 0, 0),
            reads: Window::new(0, 0, 0),
            before: (Window::new(0, 0, 0), Window::new(0, 0, 0)),
            cut_for_one: false,
            recovery: Psn::new(0),
            losses: 0,
            queueing: false,
            repair: Repair::new(Psn::new(0), false),
            probe_newest: false,
            reread: (Psn::new(0), Psn::new(0)),
            probing: false,
            parked: false,
            rnr_until: None,
            refused: Psn::new(0),
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
        let granted = common.budget.granted();
        let start = START_WINDOW.min(granted / 8);
        let packet = u64::from(common.mtu());
        *self = Self {
            data: Window::new(start, packet, common.budget.destination_limit()),
            reads: Window::new(
                START_WINDOW.min(common.budget.read_limit()),
                packet,
                common.budget.read_limit(),
            ),
            recovery: common.attr.sq_psn,
            repair: Repair::new(common.attr.sq_psn, common.selective_repeat == SelectiveRepeat::Agreed),
            ..Self::new(self.random)
        };
        self.keep_two_reads(common);
    }

    /// Packets that one READ request may ask for: four requests fill the budget, so that queue pairs can
    /// share it, and one is no longer than what the responder's kernel takes at once.
    pub fn read_chunk(common: &Common) -> u32 {
        let octets = (common.budget.read_limit() / 4).min(READ_REQUEST);
        (octets / u64::from(common.mtu())).max(1) as u32
    }

    /// Fills the batch; the number of packets it added.
    pub fn transmit(
        &mut self,
        now: Instant,
        common: &mut Common,
        pipeline: &mut Pipeline,
        mem: &mut impl Memory,
        out: &mut TxBatch<'_>,
    ) -> u32 {
        let mut sent = 0;
        if !matches!(common.state(), QpState::Rts | QpState::Sqd) {
            return 0;
        }
        while let Step::Sent = self.step(now, common, pipeline, mem, out) {
            sent += 1;
        }
        sent
    }

    fn step(
        &mut self,
        now: Instant,
        common: &mut Common,
        pipeline: &mut Pipeline,
        mem: &mut impl Memory,
        out: &mut TxBatch<'_>,
    ) -> Step {
        let is_refused = self.waits_for_receiver() && self.is_refused(pipeline.cursor_psn());
        if is_refused || self.parked || (self.probing && !pipeline.is_rewound()) {
            return Step::Idle;
        }
        if self.repeats()
            && let Some(piece) = self.next_again(pipeline)
        {
            return self.send_again(&piece, common, pipeline, mem, out);
        }
        if !local_operations::run(common, pipeline, mem) {
            return Step::Idle;
        }
        let Some(piece) = pipeline.piece() else { return Step::Idle };
        if piece.wqe.failure.is_some() {
            return Step::Idle;
        }
        if piece.starts
            && let Err(failure) = self.may_start(&piece, common, pipeline, mem)
        {
            if let (Some(failure), Some(wqe)) = (failure, pipeline.queue.get_mut(piece.index)) {
                wqe.failure = Some(failure);
            }
            return Step::Idle;
        }
        match self.admit(now, &piece, common, pipeline) {
            Ok(()) => {}
            Err(Gate::Answer) => return Step::Idle,
            Err(Gate::Budget) => {
                self.block(now, account(&piece, pipeline), common);
                return Step::Idle;
            }
        }
        let account = account(&piece, pipeline);
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
                if let Some(wqe) = pipeline.queue.get_mut(piece.index) {
                    wqe.failure = Some(status.into());
                }
                return Step::Idle;
            }
        }
        if self.blocked.is_some() && self.has_turns(common) {
            self.turn = TURN;
        }
        self.turn = self.turn.saturating_sub(piece.charge);
        self.unblock(common);
        common.counters.sent_pkts += 1;
        let is_read = matches!(piece.wqe.op, SendOp::Read { .. });
        if !pipeline.sent(&piece) {
            common.counters.resent_pkts += 1;
        } else if piece.is_last() || is_read {
            // Each READ request is a message to the responder.
            self.sent_messages = self.sent_messages.next();
            common.counters.rdma_sends += u64::from(!piece.wqe.op.is_answered());
        }
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

    /// Whether no wait or retry of anything sent is under way.
    pub const fn is_idle(&self) -> bool {
        self.rnr_until.is_none() && !self.parked && !self.probing
    }

    pub const fn prefer_direct(&mut self, prefer: bool) {
        self.prefers_direct = prefer;
    }

    /// The process's budget no longer stops it.
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
        let account = account(piece, pipeline);
        // A turn begins when there is room for all of it: what comes free in small pieces would be used in
        // small batches.
        let has_turn = self.blocked.is_none() || !self.has_turns(common) || budget.has_room(account, TURN);
        let taken = if piece.wqe.op.is_answered() {
            if flight.read_requests >= u32::from(common.attr.max_rd_atomic).max(1)
                || !self.reads.admits(flight.reads, piece.charge)
            {
                return Err(Gate::Answer);
            }
            has_turn && budget.take(account, piece.charge, waited)
        } else {
            // The peer holds a part of what is charged as in flight.
            let held = u64::from(self.repair.held()) * full_charge(common);
            if !self.data.admits(flight.data.saturating_sub(held), piece.charge)
                || self.repair.is_beyond(piece.psn)
            {
                return Err(Gate::Answer);
            }
            if let Some(limiter) = &mut common.limiter
                && !limiter.admits(now, Kind::Request, piece.charge, flight.data)
            {
                // An answer may wait as well.
                common.paced = Instant::first_of([common.paced, limiter.timeout()]);
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

    fn push(
        &mut self,
        piece: &Piece,
        asks: bool,
        common: &Common,
        pipeline: &Pipeline,
        mem: &impl Memory,
        out: &mut TxBatch<'_>,
    ) -> Result<(), PushError<crate::MemoryError>> {
        let mut bth = common.bth(piece.psn);
        let since = self.since_ack_req + piece.charge;
        // The reaction point may permit less than the window.
        let window = common
            .limiter
            .as_ref()
            .map_or(u64::MAX, |limiter| limiter.flight_limit(piece.charge))
            .min(self.data.size());
        bth.ack_req = asks
            || piece.is_last()
            || piece.wqe.op.is_answered()
            || self.probing
            || since >= window / ACK_EVERY
            || pipeline.flight().data + 2 * piece.charge > window;
        bth.extended = bth.ack_req && common.selective_repeat == SelectiveRepeat::Offered;
        bth.solicited = piece.wqe.solicited && piece.is_last() && piece.wqe.op.takes_receive();
        let queue = match common.service() {
            Service::XrcInitiator => pipeline.queue.srq(piece.index),
            Service::Rc
            | Service::Uc
            | Service::Ud
            | Service::RawPacket
            | Service::XrcTarget
            | Service::Iwarp => None,
        };
        let op = common.reliable(RcPacket::Request(request(piece)), queue);
        let head = Packet { bth, op, icrc: IcrcStatus::Checked };
        let len = if piece.wqe.op.writes_local() { 0 } else { piece.len as usize };
        out.push(&common.attr.path, &head, len, |payload| {
            pipeline.queue.gather(piece.index, u64::from(piece.offset), payload, mem)
        })?;
        self.since_ack_req = if bth.ack_req { 0 } else { since };
        Ok(())
    }

    /// An acknowledgement says how much the responder is ready for. It may come for that alone, and out of
    /// order. The responder cannot have completed more messages than were sent.
    pub fn grant(&mut self, msn: Msn, credits: CreditCode) {
        if msn.since(self.credits.msn) >= 0 && Ssn::new(msn.value()).since(self.sent_messages) <= 0 {
            let limit = credits.credits().map(|credits| Ssn::new(msn.value()).add(credits));
            self.credits = Credits { msn, limit };
        }
    }

    /// Answers came for `data` octets of sends and writes and `reads` octets of reads; `queueing` if they
    /// came late.
    pub fn answered(&mut self, oldest: Psn, data: u64, reads: u64, queueing: bool, common: &Common) {
        if oldest.since(self.recovery) > 0 {
            self.recovery = oldest;
        }
        (self.probing, self.parked) = (false, false);
        if oldest.since(self.refused) > 0 {
            // An answer to what the receiver was not ready for: a duplicate of it got through.
            self.rnr_until = None;
        }
        self.probe_newest = false;
        self.unblock(common);
        self.queueing = queueing;
        self.data.grow(data, queueing);
        self.reads.grow(reads, queueing);
    }

    /// Octets of sends and writes that may be on their way.
    pub const fn window(&self) -> u64 {
        self.data.size()
    }

    /// A timeout: from now on one packet until there is an answer.
    pub fn probe(&mut self) {
        self.forget_again();
        (self.probing, self.parked) = (true, false);
    }

    /// Everything is sent again, in order.
    const fn forget_again(&mut self) {
        self.probe_newest = false;
        self.reread.0 = self.reread.1;
    }

    /// Silence: the newest packet once more, or what the peer's last report says is lost.
    pub fn probe_newest(&mut self) {
        self.probe_newest = !self.repair.retry();
    }

    /// The answer to a probe did not come: nothing more until the next timeout.
    pub fn park(&mut self) {
        self.parked = true;
    }

    pub const fn is_probing(&self) -> bool {
        self.probing
    }

    /// A NAK asks for everything from the oldest: no more probing.
    pub fn resume(&mut self) {
        self.forget_again();
        (self.probing, self.parked) = (false, false);
    }

    /// The receiver was not ready for the request `refused`: that one and those behind it are not sent before
    /// `until`.
    pub fn wait_for_receiver(&mut self, until: Instant, refused: Psn) {
        (self.rnr_until, self.refused) = (Some(until), refused);
        self.resume();
    }

    pub const fn waits_for_receiver(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Whether a request must wait for the receiver.
    pub const fn is_refused(&self, psn: Psn) -> bool {
        self.rnr_until.is_some() && psn.since(self.refused) >= 0
    }

    /// Whether it gets its turn when the process's budget stops it. A peer that may be dead is tried by the
    /// timer, beside the others.
    fn has_turns(&self, common: &Common) -> bool {
        common.budget.gives_turns() && !self.probing
    }

    /// Whether it waits for its turn.
    pub const fn waits_for_turn(&self) -> bool {
        self.blocked.is_some() && !self.probing
    }

    /// Whether the process's budget is what stops it.
    pub const fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Whether the wait after an RNR NAK ended.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        if let Some(blocked) = &mut self.blocked
            && blocked.retry.is_some_and(|retry| retry <= now)
        {
            blocked.retry = None;
        }
        self.repair.handle_timeout(now);
        self.rnr_until.take_if(|until| *until <= now).is_some()
    }

    pub fn timeout(&self) -> Option<Instant> {
        let retry = self.blocked.and_then(|blocked| blocked.retry);
        Instant::first_of([self.rnr_until, retry, self.repair.timeout()])
    }

    pub fn stop(&mut self, common: &Common) {
        self.repair.clear();
        self.rnr_until = None;
        self.resume();
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

/// The charge of a full packet.
fn full_charge(common: &Common) -> u64 {
    u64::from(common.mtu()) + PACKET_OVERHEAD
}

fn account(piece: &Piece, pipeline: &Pipeline) -> Account {
    if piece.wqe.op.is_answered() { Account::Reads } else { pipeline.destination() }
}
