//! The responder: checks requests, executes them once, and answers.

mod held;
mod replies;
mod resources;
mod turn;

use core::time::Duration;

use ferroce_wire::{
    Bth, Feth, Imm, Instant, Msn, NakCode, Psn, PushError, Request, Reth, Rkey, SendTail, Sink, Syndrome,
    TxBatch,
};

use self::held::HeldRequests;
pub(crate) use self::replies::Drained;
use self::replies::{ReadReply, Replies, Reply};
use self::resources::{Kind, Resource, Resources};
use super::common::Common;
use super::receiving::{Message, Receiving, SharedQueues};
use super::send_queue::{MAX_MESSAGE, packets};
use crate::counting::CountedOp;
use crate::{
    AsyncEventKind, Budget, Domain, DropReason, Memory, MemoryError, QpAccess, QpState, ReceiveSource,
    RemoteAccess, SelectiveRepeat, Taken, WcStatus,
};

/// Copies of the last ACK when the program ends the queue pair. With 1 % of the packets lost, all three are
/// lost once in a million times.
const LAST_ACK_COPIES: u32 = 2;
/// After this time without a request the last ACK has arrived: otherwise the peer would have repeated the
/// request.
const LAST_ACK_AGE: Duration = Duration::from_secs(1);

/// Executes requests. Its timer gives up requests that it holds.
#[derive(Debug)]
pub(crate) struct Responder {
    expected: Psn,
    msn: Msn,
    /// Time at which the last request came.
    served_at: Instant,
    /// A sequence or RNR NAK was sent for the expected PSN; the next waits until it came.
    nak_sent: bool,
    /// The NAK of `nak_sent` was an RNR NAK: the peer was told to wait, so requests behind it are not held.
    not_ready: bool,
    /// A message whose last packet has not come.
    message: Option<Message>,
    /// Requests ahead of the expected PSN.
    held: HeldRequests,
    /// Time at which the held requests are given up; `None` while no request is held.
    hold_deadline: Option<Instant>,
    /// The peer agreed to reports of what is held.
    reports: bool,
    /// A report of the held requests is waiting to be sent.
    report_due: bool,
    resources: Resources,
    replies: Replies,
    /// In whose memory the request at hand looks for remote keys, if not in the queue pair's: XRC.
    domain: Option<Domain>,
}

impl Responder {
    pub fn new() -> Self {
        Self {
            expected: Psn::new(0),
            msn: Msn::new(0),
            served_at: Instant::ZERO,
            nak_sent: false,
            not_ready: false,
            message: None,
            held: HeldRequests::default(),
            hold_deadline: None,
            reports: false,
            report_due: false,
            resources: Resources::new(0),
            replies: Replies::new(0),
            domain: None,
        }
    }

    /// Begins to serve: the first PSN, and how many reads and atomics the peer may have outstanding.
    pub fn begin(&mut self, psn: Psn, depth: u8, common: &Common) {
        self.reset(&common.budget);
        self.reports = common.selective_repeat == SelectiveRepeat::Agreed;
        self.expected = psn;
        self.set_depth(depth);
    }

    /// Changes how many reads and atomics the peer may have outstanding. Rounded up to a power of two as rxe
    /// does, which then sends that many.
    pub fn set_depth(&mut self, depth: u8) {
        let depth = if depth == 0 { 0 } else { usize::from(depth).next_power_of_two() };
        self.resources.resize(depth);
        self.replies.resize(depth);
    }

    pub fn reset(&mut self, budget: &Budget) {
        self.reports = false;
        self.drop_held(budget);
        (self.msn, self.nak_sent, self.not_ready, self.message) = (Msn::new(0), false, false, None);
        self.resources.clear();
        self.replies.clear();
    }

    pub const fn expected(&self) -> Psn {
        self.expected
    }

    /// Executes or holds a request, or says what becomes of it. `Err` counts it as dropped. Executes held
    /// requests whose turn has come.
    pub fn handle_request(
        &mut self,
        now: Instant,
        common: &mut Common,
        bth: &Bth,
        request: &Request<'_>,
        queues: &mut SharedQueues<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        if !self.has_room(common) {
            return Err(DropReason::Backlog);
        }
        self.served_at = now;
        let result = self.handle_one(common, bth, request, queues, mem);
        if !self.held.is_empty() {
            self.execute_held(now, common, queues, mem);
        }
        result
    }

    /// An executed request has the bit that offers selective repeat. Other requests may come from a sender
    /// that does not know the PSN.
    #[cold]
    fn note_offer(&mut self, common: &mut Common) {
        if common.selective_repeat == SelectiveRepeat::Offered {
            common.announces = true;
            self.reports = true;
        }
    }

    /// As [`Self::handle_request`], for a SEND or WRITE of one packet that is executed.
    pub fn serve_one(
        &mut self,
        now: Instant,
        common: &mut Common,
        bth: &Bth,
        request: &Request<'_>,
        mem: &mut impl Memory,
    ) -> bool {
        let is_turn = bth.psn == self.expected
            && self.message.is_none()
            && self.held.is_empty()
            && common.receiving.bound().is_none()
            && self.has_room(common)
            && (!bth.extended || self.reports && common.announces);
        if !is_turn {
            return false;
        }
        // The rule of both opcodes, see [`Request::payload_fits`].
        let mtu = common.mtu() as usize;
        match request {
            Request::SendOnly { tail: SendTail::None, payload } => {
                let placed = payload.len() <= mtu
                    && common.receiving.take_own(payload.len())
                    && common.receiving.scatter(0, payload, mem).is_ok();
                if !placed || mem.finish_writes().is_err() {
                    return false;
                }
                let message = Message::Send { received: payload.len() as u64 };
                common.complete_message(Some(message), bth, None, None);
            }
            Request::WriteOnly { reth, imm: None, payload } => {
                let len = payload.len() as u64;
                let placed = payload.len() <= mtu
                    && common.attr.access.contains(QpAccess::REMOTE_WRITE)
                    && len == u64::from(reth.dma_len)
                    && (len == 0
                        || (mem.check_remote(reth.rkey, reth.va, len, RemoteAccess::Write).is_ok()
                            && mem.write_remote(reth.rkey, reth.va, payload).is_ok()));
                if !placed || mem.finish_writes().is_err() {
                    return false;
                }
                common.counting.completed(CountedOp::RemoteRdmaWrite, payload.len() as u32);
            }
            _ => return false,
        }
        self.served_at = now;
        self.msn = self.msn.next();
        (self.nak_sent, self.not_ready) = (false, false);
        self.advance(1);
        if bth.ack_req {
            self.replies.acknowledge(bth.psn, self.msn);
        }
        true
    }

    /// Whether any request can be answered and completed now.
    #[inline]
    fn has_room(&self, common: &Common) -> bool {
        self.replies.has_room() && common.receiving.has_room()
    }

    /// Time at which to call [`Self::handle_timeout`] next; `None` if no request is held.
    #[inline]
    pub const fn timeout(&self) -> Option<Instant> {
        self.hold_deadline
    }

    /// Gives up held requests that waited too long for what is missing before them.
    pub fn handle_timeout(&mut self, now: Instant, budget: &Budget) {
        if self.hold_deadline.is_some_and(|deadline| deadline <= now) {
            self.drop_held(budget);
        }
    }

    /// Executes a request if it is its turn.
    fn handle_one(
        &mut self,
        common: &mut Common,
        bth: &Bth,
        request: &Request<'_>,
        queues: &mut SharedQueues<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        let refusal = match self.respond(common, bth, request, queues, mem) {
            Ok(()) => {
                (self.nak_sent, self.not_ready) = (false, false);
                common.processed();
                if bth.extended {
                    self.note_offer(common);
                }
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        match refusal {
            Refusal::Duplicate => {
                common.counters.duplicate_request += 1;
                Err(self.answer_again(bth.psn, request, common.mtu()))
            }
            Refusal::SequenceGap => {
                common.counters.out_of_seq_request += 1;
                if !self.nak_sent {
                    self.nak_sent = true;
                    common.counters.sent_seq_err += 1;
                    self.nak(self.expected, Syndrome::Nak(NakCode::PsnSequenceError));
                }
                if self.hold(common, bth, request, queues) { Ok(()) } else { Err(DropReason::OutOfSequence) }
            }
            Refusal::RnrNak => {
                // The requests behind it were sent too early as well: they get no sequence NAK.
                (self.nak_sent, self.not_ready) = (true, true);
                common.counters.send_rnr_err += 1;
                self.nak(bth.psn, replies::rnr(common.attr.min_rnr_timer));
                Err(DropReason::ReceiverNotReady)
            }
            Refusal::NoSuchQueue => {
                self.nak(bth.psn, Syndrome::Nak(NakCode::InvalidRequest));
                if common.receiving.bound().is_none() {
                    common.events.raise(AsyncEventKind::QpAccessErr);
                }
                self.drop_held(&common.budget);
                common.transition("a request named no queue of the domain", QpState::Error);
                Err(DropReason::Refused)
            }
            Refusal::Nak(fault) => {
                self.nak(bth.psn, Syndrome::Nak(fault.code));
                common.counting.refused(request);
                self.fail(common, fault);
                Err(DropReason::Refused)
            }
        }
    }

    /// The chain of checks that a request must pass before it has any effect, in the order of the
    /// specification; then the effect.
    fn respond(
        &mut self,
        common: &mut Common,
        bth: &Bth,
        request: &Request<'_>,
        queues: &mut SharedQueues<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        self.check_psn(bth.psn)?;
        self.check_op_seq(request)?;
        self.check_op_valid(request, common.attr.access)?;
        self.check_queue(request, &common.receiving, queues, mem)?;
        self.check_resource(request, &mut common.receiving, queues)?;
        self.check_length(request, common)?;
        let target = self.check_rkey(request, mem)?;
        self.execute(common, bth, request, target, mem)
    }

    fn check_psn(&self, psn: Psn) -> Result<(), Refusal> {
        match psn.since(self.expected) {
            0 => Ok(()),
            ..0 => Err(Refusal::Duplicate),
            1.. => Err(Refusal::SequenceGap),
        }
    }

    /// Middle and Last only in a message of their kind, everything else only outside of one (IBTA 9.7.4.1.4).
    fn check_op_seq(&self, request: &Request<'_>) -> Result<(), Refusal> {
        let fits = match request {
            Request::SendMiddle { .. } | Request::SendLast { .. } => {
                matches!(self.message, Some(Message::Send { .. }))
            }
            Request::WriteMiddle { .. } | Request::WriteLast { .. } => {
                matches!(self.message, Some(Message::Write { .. }))
            }
            Request::SendFirst { .. }
            | Request::SendOnly { .. }
            | Request::WriteFirst { .. }
            | Request::WriteOnly { .. }
            | Request::ReadRequest { .. }
            | Request::CompareSwap { .. }
            | Request::FetchAdd { .. }
            | Request::Flush { .. }
            | Request::AtomicWrite { .. } => self.message.is_none(),
        };
        if fits { Ok(()) } else { Err(INVALID) }
    }

    /// Checks that the queue pair supports and admits the operation (IBTA 9.7.4.1.6). A missing permission
    /// here is an invalid request; a missing permission of memory is an access error.
    fn check_op_valid(&self, request: &Request<'_>, access: QpAccess) -> Result<(), Refusal> {
        let needs = match request {
            Request::SendFirst { .. }
            | Request::SendMiddle { .. }
            | Request::SendLast { .. }
            | Request::SendOnly { .. } => QpAccess::empty(),
            Request::WriteFirst { .. }
            | Request::WriteMiddle { .. }
            | Request::WriteLast { .. }
            | Request::WriteOnly { .. } => QpAccess::REMOTE_WRITE,
            Request::ReadRequest { .. } => QpAccess::REMOTE_READ,
            Request::CompareSwap { .. } | Request::FetchAdd { .. } => QpAccess::REMOTE_ATOMIC,
            Request::AtomicWrite { .. } => QpAccess::REMOTE_WRITE,
            Request::Flush { feth, .. } => flush_access(*feth).ok_or(INVALID)?,
        };
        if access.contains(needs) { Ok(()) } else { Err(INVALID) }
    }

    /// The queue that a request of XRC's names (IBTA A14), and with it in whose memory its key is.
    fn check_queue(
        &mut self,
        request: &Request<'_>,
        receiving: &Receiving,
        queues: &SharedQueues<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let continues = matches!(request, Request::SendMiddle { .. } | Request::SendLast { .. });
        self.domain = receiving.check_named(queues, continues).map_err(|_| Refusal::NoSuchQueue)?;
        if self.domain.is_some() {
            mem.enter(self.domain);
        }
        Ok(())
    }

    /// A place to remember reads and atomics; a receive WQE for whatever takes one (IBTA 9.7.4.1.5,
    /// 9.7.5.2.8).
    fn check_resource(
        &mut self,
        request: &Request<'_>,
        receiving: &mut Receiving,
        queues: &mut SharedQueues<'_, impl ReceiveSource>,
    ) -> Result<(), Refusal> {
        match request {
            Request::ReadRequest { .. }
            | Request::CompareSwap { .. }
            | Request::FetchAdd { .. }
            | Request::Flush { .. }
            | Request::AtomicWrite { .. } => {
                if self.replies.reads_pending() < self.resources.depth() {
                    Ok(())
                } else {
                    Err(INVALID)
                }
            }
            Request::SendFirst { .. }
            | Request::SendOnly { .. }
            | Request::WriteLast { imm: Some(_), .. }
            | Request::WriteOnly { imm: Some(_), .. } => {
                // Once taken it is never given back: whatever is wrong from here on is fatal.
                match receiving.take(queues, 0) {
                    Taken::Wqe => Ok(()),
                    Taken::Empty | Taken::TooShort => Err(Refusal::RnrNak),
                    Taken::Failed => Err(OWN_FAULT),
                }
            }
            Request::SendMiddle { .. }
            | Request::SendLast { .. }
            | Request::WriteFirst { .. }
            | Request::WriteMiddle { .. }
            | Request::WriteLast { imm: None, .. }
            | Request::WriteOnly { imm: None, .. } => Ok(()),
        }
    }

    /// Each packet against the path MTU, messages against what was declared and what there is room for
    /// (IBTA C9-92 to C9-94, 9.7.4.1.7).
    fn check_length(&self, request: &Request<'_>, common: &Common) -> Result<(), Refusal> {
        let len = request.payload().len() as u64;
        let room = common.receiving.bound().map_or(0, |wqe| wqe.length.min(MAX_MESSAGE));
        if !request.payload_fits(common.mtu()) {
            return Err(INVALID);
        }
        let declared = |reth: &Reth| u64::from(reth.dma_len);
        let remaining = match self.message {
            Some(Message::Write { remaining, .. }) => u64::from(remaining),
            Some(Message::Send { .. }) | None => 0,
        };
        let message_fits = match request {
            Request::SendFirst { .. } | Request::SendMiddle { .. } => {
                // At least one more packet must follow.
                return if self.received() + len < room { Ok(()) } else { Err(TOO_LONG) };
            }
            Request::SendLast { .. } | Request::SendOnly { .. } => {
                return if self.received() + len <= room { Ok(()) } else { Err(TOO_LONG) };
            }
            Request::WriteFirst { reth, .. } => (len + 1..=MAX_MESSAGE).contains(&declared(reth)),
            Request::WriteMiddle { .. } => len < remaining,
            Request::WriteLast { .. } => len == remaining,
            Request::WriteOnly { reth, .. } => len == declared(reth),
            Request::ReadRequest { reth } => declared(reth) <= MAX_MESSAGE,
            Request::CompareSwap { .. } | Request::FetchAdd { .. } | Request::Flush { .. } => true,
            Request::AtomicWrite { reth, .. } => reth.dma_len == 8,
        };
        if message_fits { Ok(()) } else { Err(INVALID) }
    }

    /// Octets of the send in progress.
    fn received(&self) -> u64 {
        self.message.map_or(0, Message::received)
    }

    /// Key, range and permission of all that the message will touch, at its first packet. Zero length needs
    /// none (IBTA C9-88).
    fn check_rkey(&self, request: &Request<'_>, mem: &impl Memory) -> Result<Target, Refusal> {
        let range = |reth: &Reth, access| {
            let target = Target::Memory { rkey: reth.rkey, addr: reth.va };
            if reth.dma_len == 0 {
                return Ok(target);
            }
            match mem.check_remote(reth.rkey, reth.va, u64::from(reth.dma_len), access) {
                Ok(()) => Ok(target),
                Err(_) => Err(ACCESS),
            }
        };
        let word = |rkey, addr: u64, access| {
            if !addr.is_multiple_of(8) {
                return Err(INVALID);
            }
            match mem.check_remote(rkey, addr, 8, access) {
                Ok(()) => Ok(Target::Memory { rkey, addr }),
                Err(MemoryError::Misaligned) => Err(INVALID),
                Err(_) => Err(ACCESS),
            }
        };
        match request {
            Request::SendFirst { .. }
            | Request::SendMiddle { .. }
            | Request::SendLast { .. }
            | Request::SendOnly { .. } => Ok(Target::Receive),
            // Checked when it is executed, with its key also when its length is zero.
            Request::Flush { reth, .. } => Ok(Target::Memory { rkey: reth.rkey, addr: reth.va }),
            Request::AtomicWrite { reth, .. } => word(reth.rkey, reth.va, RemoteAccess::AtomicWrite),
            Request::WriteMiddle { .. } | Request::WriteLast { .. } => match self.message {
                Some(Message::Write { rkey, addr, .. }) => Ok(Target::Memory { rkey, addr }),
                Some(Message::Send { .. }) | None => Err(INVALID),
            },
            Request::WriteFirst { reth, .. } | Request::WriteOnly { reth, .. } => {
                range(reth, RemoteAccess::Write)
            }
            Request::ReadRequest { reth } => range(reth, RemoteAccess::Read),
            Request::CompareSwap { atomic } | Request::FetchAdd { atomic } => {
                word(atomic.rkey, atomic.va, RemoteAccess::Atomic)
            }
        }
    }

    /// Does what is asked; state advances only behind the effect.
    fn execute(
        &mut self,
        common: &mut Common,
        bth: &Bth,
        request: &Request<'_>,
        target: Target,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        match (request, target) {
            (Request::ReadRequest { reth }, _) => {
                self.accept_read(bth.psn, reth, common.mtu());
                return Ok(());
            }
            (Request::CompareSwap { atomic }, Target::Memory { rkey, addr }) => {
                let original = mem.compare_swap(rkey, addr, atomic.compare, atomic.swap_or_add);
                return self.atomic_done(bth.psn, original);
            }
            (Request::FetchAdd { atomic }, Target::Memory { rkey, addr }) => {
                let original = mem.fetch_add(rkey, addr, atomic.swap_or_add);
                return self.atomic_done(bth.psn, original);
            }
            (Request::AtomicWrite { payload, .. }, Target::Memory { rkey, addr }) => {
                // The length of the payload was checked.
                let octets = <[u8; 8]>::try_from(*payload).map_err(|_| INVALID)?;
                mem.atomic_write(rkey, addr, octets).map_err(refused_word)?;
                self.done(bth.psn, Kind::AtomicWrite);
                return Ok(());
            }
            (Request::Flush { feth, reth }, Target::Memory { rkey, addr }) => {
                mem.flush(rkey, addr, reth.dma_len.into(), *feth).map_err(|_| ACCESS)?;
                self.done(bth.psn, Kind::Flush);
                return Ok(());
            }
            (_, Target::Receive) => self.place_send(common, request, mem)?,
            (_, Target::Memory { rkey, addr }) => self.place_write(request, rkey, addr, mem)?,
        }
        if let Some(arrival) = Arrival::of(request) {
            mem.finish_writes().map_err(|_| if target == Target::Receive { OWN_FAULT } else { ACCESS })?;
            if let Some(rkey) = arrival.invalidate {
                mem.invalidate(rkey).map_err(|_| BAD_INVALIDATE)?;
            }
            if common.receiving.bound().is_some() {
                common.complete_message(self.message, bth, arrival.imm, arrival.invalidate);
            }
            if let Some(Message::Write { length, .. }) = self.message.take() {
                common.counting.completed(CountedOp::RemoteRdmaWrite, length);
            }
            self.msn = self.msn.next();
        }
        self.advance(1);
        if bth.ack_req {
            self.replies.acknowledge(bth.psn, self.msn);
        }
        Ok(())
    }

    /// The next `count` PSNs, at most 2^23, were executed. Every change of `expected` is made here, because
    /// the resources age with it.
    #[inline(always)]
    fn advance(&mut self, count: u32) {
        self.resources.age(self.expected, count);
        if !self.held.is_empty() {
            self.held.advance(self.expected, count);
        }
        self.expected = self.expected.add(count);
    }

    fn place_send(
        &mut self,
        common: &Common,
        request: &Request<'_>,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let (offset, payload) = (self.received(), request.payload());
        common.receiving.scatter(offset, payload, mem).map_err(|_| OWN_FAULT)?;
        if self.domain.is_some() {
            mem.enter(self.domain);
        }
        self.message = Some(Message::Send { received: offset + payload.len() as u64 });
        Ok(())
    }

    fn place_write(
        &mut self,
        request: &Request<'_>,
        rkey: Rkey,
        addr: u64,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let payload = request.payload();
        let (remaining, length) = match (request, self.message) {
            (Request::WriteFirst { reth, .. } | Request::WriteOnly { reth, .. }, _) => {
                (reth.dma_len, reth.dma_len)
            }
            (_, Some(Message::Write { remaining, length, .. })) => (remaining, length),
            (_, Some(Message::Send { .. }) | None) => return Err(INVALID),
        };
        if !payload.is_empty() {
            mem.write_remote(rkey, addr, payload).map_err(|_| ACCESS)?;
        }
        let len = payload.len() as u32;
        self.message = Some(Message::Write {
            rkey,
            addr: addr.wrapping_add(u64::from(len)),
            remaining: remaining.saturating_sub(len),
            length,
        });
        Ok(())
    }

    /// A READ counts as completed when it is accepted (IBTA 9.7.7.1, as rxe); its data is read when it is
    /// sent.
    fn accept_read(&mut self, psn: Psn, reth: &Reth, mtu: u32) {
        let count = packets(reth.dma_len, mtu);
        self.advance(count);
        self.msn = self.msn.next();
        let last = psn.add(count - 1);
        let domain = self.domain;
        let kind = Kind::Read { rkey: reth.rkey, addr: reth.va, length: reth.dma_len, domain };
        self.resources.remember(Resource { first: psn, last, kind });
        self.replies.push(Reply::Read(ReadReply {
            request: psn,
            psn,
            msn: self.msn,
            rkey: reth.rkey,
            addr: reth.va,
            remaining: reth.dma_len,
            beyond: 0,
            fresh: true,
            replay: false,
            counts: Some(reth.dma_len),
            domain,
        }));
    }

    fn atomic_done(&mut self, psn: Psn, original: Result<u64, MemoryError>) -> Result<(), Refusal> {
        let original = original.map_err(refused_word)?;
        self.advance(1);
        self.msn = self.msn.next();
        self.resources.remember(Resource { first: psn, last: psn, kind: Kind::Atomic { original } });
        self.replies.push(Reply::Atomic { psn, msn: self.msn, original, replay: false });
        Ok(())
    }

    /// An atomic write or flush was executed; it is answered by a READ response of nothing.
    fn done(&mut self, psn: Psn, kind: Kind) {
        self.advance(1);
        self.msn = self.msn.next();
        self.resources.remember(Resource { first: psn, last: psn, kind });
        self.replies.push(Reply::Read(ReadReply::of_nothing(psn, self.msn, false)));
    }

    fn nak(&mut self, psn: Psn, syndrome: Syndrome) {
        self.replies.push(Reply::Nak { psn, msn: self.msn, syndrome });
    }

    /// Answers a duplicate without executing it (IBTA 9.7.5.1.5).
    fn answer_again(&mut self, psn: Psn, request: &Request<'_>, mtu: u32) -> DropReason {
        let resource = self.resources.find(psn).copied();
        match (request, resource) {
            (
                Request::SendFirst { .. }
                | Request::SendMiddle { .. }
                | Request::SendLast { .. }
                | Request::SendOnly { .. }
                | Request::WriteFirst { .. }
                | Request::WriteMiddle { .. }
                | Request::WriteLast { .. }
                | Request::WriteOnly { .. },
                None,
            ) => {
                // Not past a read: its answer may be what the peer misses.
                let end = self.resources.first_after(psn, self.expected).unwrap_or(self.expected);
                self.replies.acknowledge(end.add(u32::MAX), self.msn);
                DropReason::DuplicateRequest
            }
            (
                Request::ReadRequest { reth },
                Some(Resource { first, kind: Kind::Read { rkey, addr, length, domain }, .. }),
            ) => {
                // The rest of the original, beginning at a packet of it, or whole packets of it, as rxe
                // permits.
                let skipped = psn.since(first) as u64 * u64::from(mtu);
                let beyond = u64::from(length).checked_sub(skipped + u64::from(reth.dma_len));
                let whole = reth.dma_len > 0 && reth.dma_len.is_multiple_of(mtu);
                let Some(beyond) = beyond.filter(|beyond| *beyond == 0 || whole) else {
                    return DropReason::DuplicateNotFound;
                };
                if reth.rkey != rkey || reth.va != addr.wrapping_add(skipped) {
                    return DropReason::DuplicateNotFound;
                }
                self.replies.replay(ReadReply {
                    request: first,
                    psn,
                    msn: self.msn,
                    rkey,
                    addr: reth.va,
                    remaining: reth.dma_len,
                    beyond: beyond as u32,
                    fresh: true,
                    replay: true,
                    counts: None,
                    domain,
                });
                DropReason::DuplicateRequest
            }
            (
                Request::CompareSwap { .. } | Request::FetchAdd { .. },
                Some(Resource { kind: Kind::Atomic { original }, .. }),
            ) => {
                self.replies.push(Reply::Atomic { psn, msn: self.msn, original, replay: true });
                DropReason::DuplicateRequest
            }
            (Request::AtomicWrite { .. }, Some(Resource { kind: Kind::AtomicWrite, .. }))
            | (Request::Flush { .. }, Some(Resource { kind: Kind::Flush, .. })) => {
                self.replies.replay(ReadReply::of_nothing(psn, self.msn, true));
                DropReason::DuplicateRequest
            }
            _ => DropReason::DuplicateNotFound,
        }
    }

    /// The peer's request ended the queue pair: the WQE in use says why, or an event does.
    fn fail(&mut self, common: &mut Common, fault: Fault) {
        self.drop_held(&common.budget);
        if common.receiving.bound().is_some() {
            // A flush is reported behind the other completions, see `Receiving::poll_completion`.
            if fault.status != WcStatus::WrFlushErr {
                common.receiving.fail(fault.status, common.qpn);
            }
        } else {
            match fault.code {
                NakCode::InvalidRequest => common.events.raise(AsyncEventKind::QpReqErr),
                NakCode::RemoteAccessError => common.events.raise(AsyncEventKind::QpAccessErr),
                NakCode::PsnSequenceError
                | NakCode::RemoteOperationalError
                | NakCode::InvalidRdRequest
                | NakCode::Reserved(_) => {}
            }
        }
        common.transition("refused a request", QpState::Error);
    }

    /// Moves answers into the batch; the number of packets added.
    pub fn transmit(
        &mut self,
        now: Instant,
        common: &mut Common,
        mem: &mut impl Memory,
        out: &mut TxBatch<'_>,
    ) -> (u32, Drained) {
        let (mut sent, mut drained) = self.replies.transmit(now, common, mem, out);
        if drained == Drained::MemoryGone {
            self.fail(common, Fault { code: NakCode::RemoteAccessError, status: WcStatus::WrFlushErr });
            let more;
            (more, drained) = self.replies.transmit(now, common, mem, out);
            sent += more;
        }
        if self.report_due && drained == Drained::Empty {
            match replies::push_report(self.expected, self.msn, self.held.ahead(), common, out) {
                Err(PushError::Full) => return (sent, Drained::Full),
                // A buffer too small for anything.
                Err(PushError::Fill(_) | PushError::Wire(_)) => {}
                Ok(()) => {
                    common.counters.sent_pkts += 1;
                    common.counters.sent_sacks += 1;
                    sent += 1;
                }
            }
            self.report_due = false;
        }
        (sent, drained)
    }

    /// As [`Self::transmit`], where an ACK is all there is to answer.
    #[inline(always)]
    pub fn transmit_ack(&mut self, common: &mut Common, out: &mut impl Sink) -> bool {
        self.replies.transmit_ack(common, out)
    }

    /// Whether there is nothing to answer.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.replies.is_empty() && !self.report_due
    }

    /// Whether one ACK is all there is to answer.
    #[inline]
    pub fn only_ack_pending(&self) -> bool {
        self.replies.is_one_ack() && !self.report_due
    }

    /// Queues copies of the last ACK, see [`crate::QueuePair::repeat_ack`]. The answer to a READ or an atomic
    /// is no ACK, and its copies would be as long.
    pub fn repeat_ack(&mut self, now: Instant) -> bool {
        let last = self.expected.add(u32::MAX);
        let is_recent = now.saturating_since(self.served_at) < LAST_ACK_AGE;
        let repeats =
            is_recent && self.reports && self.msn != Msn::new(0) && self.resources.find(last).is_none();
        if repeats {
            (0..LAST_ACK_COPIES).for_each(|_| self.replies.push(Reply::Ack { psn: last, msn: self.msn }));
        }
        repeats
    }

    /// The queue pair ended: what was to be answered is not.
    pub fn drop_answers(&mut self, budget: &Budget) {
        self.replies.clear();
        self.drop_held(budget);
    }
}

/// The fate of a request that is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// The request was executed before (IBTA C9-105).
    Duplicate,
    /// Requests are missing before this one.
    SequenceGap,
    /// There is no receive WQE for it.
    RnrNak,
    /// The request names a shared receive queue that its XRC domain does not have, or another one than its
    /// message's first packet (IBTA A14).
    NoSuchQueue,
    /// The request can never be executed.
    Nak(Fault),
}

/// A fatal refusal: the NAK that the peer gets and, if a receive WQE is in use, its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fault {
    pub code: NakCode,
    pub status: WcStatus,
}

const INVALID: Refusal = Refusal::Nak(Fault { code: NakCode::InvalidRequest, status: WcStatus::WrFlushErr });
const TOO_LONG: Refusal = Refusal::Nak(Fault { code: NakCode::InvalidRequest, status: WcStatus::LocLenErr });
/// A key or its range is bad. The only WQE that can be in use then is that of a WRITE with immediate, for
/// which the status exists (IBTA 11.6.2).
const ACCESS: Refusal =
    Refusal::Nak(Fault { code: NakCode::RemoteAccessError, status: WcStatus::LocAccessErr });
/// The key that a send ends is bad. The data is there, but the message is not what its sender meant: an error
/// at both ends.
const BAD_INVALIDATE: Refusal =
    Refusal::Nak(Fault { code: NakCode::RemoteAccessError, status: WcStatus::LocAccessErr });
/// Our receive buffer is bad.
const OWN_FAULT: Refusal =
    Refusal::Nak(Fault { code: NakCode::RemoteOperationalError, status: WcStatus::LocProtErr });

/// The checked target of a request's effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Receive,
    /// Remote memory from here on.
    Memory {
        rkey: Rkey,
        addr: u64,
    },
}

/// The access that a queue pair must admit for a flush; `None` if there is no such flush (IBTA A19.4.1).
fn flush_access(feth: Feth) -> Option<QpAccess> {
    let placement = match feth.placement {
        Feth::GLOBAL_VISIBILITY => QpAccess::FLUSH_GLOBAL,
        Feth::PERSISTENCE => QpAccess::FLUSH_PERSISTENT,
        // Both bits, and no others.
        3 => QpAccess::FLUSH_GLOBAL.union(QpAccess::FLUSH_PERSISTENT),
        _ => return None,
    };
    matches!(feth.selectivity, Feth::RANGE | Feth::WHOLE_REGION).then_some(placement)
}

/// The NAK for a word that was not touched.
fn refused_word(error: MemoryError) -> Refusal {
    match error {
        MemoryError::Misaligned => INVALID,
        _ => ACCESS,
    }
}

/// The end of a message, as the receive completion reports it.
struct Arrival {
    imm: Option<Imm>,
    invalidate: Option<Rkey>,
}

impl Arrival {
    /// `None` if the message does not end here.
    fn of(request: &Request<'_>) -> Option<Self> {
        match request {
            Request::SendLast { tail, .. } | Request::SendOnly { tail, .. } => Some(match *tail {
                SendTail::None => Self { imm: None, invalidate: None },
                SendTail::Imm(imm) => Self { imm: Some(imm), invalidate: None },
                SendTail::Invalidate(rkey) => Self { imm: None, invalidate: Some(rkey) },
            }),
            Request::WriteLast { imm, .. } | Request::WriteOnly { imm, .. } => {
                Some(Self { imm: *imm, invalidate: None })
            }
            Request::SendFirst { .. }
            | Request::SendMiddle { .. }
            | Request::WriteFirst { .. }
            | Request::WriteMiddle { .. }
            | Request::ReadRequest { .. }
            | Request::CompareSwap { .. }
            | Request::FetchAdd { .. }
            | Request::Flush { .. }
            | Request::AtomicWrite { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
