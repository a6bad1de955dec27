//! The responder: checks requests, executes them once, and answers.

mod checks;
mod replies;
mod resources;

use alloc::collections::VecDeque;

use ferroce_wire::{Bth, Imm, Msn, NakCode, Psn, Qpn, Request, Reth, Rkey, SendTail, Syndrome, TxBatch};

use self::checks::{ACCESS, BAD_INVALIDATE, Fault, INVALID, OWN_FAULT, Refusal, Target};
pub(crate) use self::replies::Drained;
use self::replies::{ReadReply, Replies, Reply};
use self::resources::{Kind, Resource, Resources};
use super::common::Common;
use super::receive_source::Receives;
use super::roles::Received;
use super::send_queue::packets;
use crate::{
    AsyncEvent, Domain, DropReason, Memory, MemoryError, QpState, ReceiveSource, RecvWqe, WcOpcode, WcStatus,
    WorkCompletion,
};

/// Most receive completions that may wait to be fetched, where the receive queue has as many WQEs. A batch of datagrams
/// holds fewer.
pub(crate) const MAX_COMPLETIONS: u32 = 1024;

/// Executes requests. It needs no timer.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The PSN expected next.
    expected: Psn,
    /// Messages completed.
    msn: Msn,
    /// A sequence or RNR NAK was sent for the expected PSN; the next waits until it came.
    nak_sent: bool,
    /// A message whose last packet has not come.
    message: Option<Message>,
    /// The receive WQE in use, if `bound`.
    wqe: RecvWqe,
    bound: bool,
    resources: Resources,
    replies: Replies,
    completions: VecDeque<Received>,
    /// In whose memory the request at hand looks for remote keys, if not in the queue pair's: XRC.
    domain: Option<Domain>,
    max_completions: usize,
}

/// A message in the middle.
#[derive(Clone, Copy, Debug)]
enum Message {
    Send { received: u64 },
    Write { rkey: Rkey, addr: u64, remaining: u32, length: u32 },
}

impl Responder {
    /// For receive WQEs of so many SGEs, of which so many can be there at a time.
    pub fn new(max_recv_sge: u32, max_recv_wr: u32) -> Self {
        let completions = max_recv_wr.clamp(1, MAX_COMPLETIONS) as usize;
        Self {
            expected: Psn::new(0),
            msn: Msn::new(0),
            nak_sent: false,
            message: None,
            wqe: RecvWqe::new(max_recv_sge),
            bound: false,
            resources: Resources::new(0),
            replies: Replies::new(0),
            completions: VecDeque::with_capacity(completions),
            max_completions: completions,
            domain: None,
        }
    }

    /// Begins to serve: the first PSN, and how many reads and atomics the peer may have outstanding.
    pub fn begin(&mut self, psn: Psn, depth: u8) {
        self.reset();
        self.expected = psn;
        self.set_depth(depth);
    }

    /// Changes how many reads and atomics the peer may have outstanding. Rounded up to a power of two as rxe does, which
    /// then sends that many.
    pub fn set_depth(&mut self, depth: u8) {
        let depth = if depth == 0 { 0 } else { usize::from(depth).next_power_of_two() };
        self.resources.resize(depth);
        self.replies.resize(depth);
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        (self.msn, self.nak_sent, self.message, self.bound) = (Msn::new(0), false, None, false);
        self.resources.clear();
        self.replies.clear();
        self.completions.clear();
    }

    pub const fn expected(&self) -> Psn {
        self.expected
    }

    /// Executes a request, or says what becomes of it. `Err` counts it as dropped.
    pub fn handle_request(
        &mut self,
        common: &mut Common,
        bth: &Bth,
        request: &Request<'_>,
        receives: &mut Receives<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        if !self.replies.has_room() || self.completions.len() >= self.max_completions {
            return Err(DropReason::Backlog);
        }
        let refusal = match self.respond(common, bth, request, receives, mem) {
            Ok(()) => {
                self.nak_sent = false;
                if common.state() == QpState::Rtr && !common.established {
                    common.established = true;
                    common.events.raise(AsyncEvent::CommEst);
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
                Err(DropReason::OutOfSequence)
            }
            Refusal::RnrNak => {
                // What follows it was sent too early as well: no sequence NAK for that.
                self.nak_sent = true;
                common.counters.send_rnr_err += 1;
                self.nak(bth.psn, replies::rnr(common.attr.min_rnr_timer));
                Err(DropReason::ReceiverNotReady)
            }
            Refusal::NoSuchQueue => {
                self.nak(bth.psn, Syndrome::Nak(NakCode::InvalidRequest));
                if !self.bound {
                    common.events.raise(AsyncEvent::QpAccessErr);
                }
                common.transition("a request named no queue of the domain", QpState::Error);
                Err(DropReason::Refused)
            }
            Refusal::Nak(fault) => {
                self.nak(bth.psn, Syndrome::Nak(fault.code));
                self.fail(common, fault);
                Err(DropReason::Refused)
            }
        }
    }

    /// The chain of checks, then the effect.
    fn respond(
        &mut self,
        common: &mut Common,
        bth: &Bth,
        request: &Request<'_>,
        receives: &mut Receives<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        self.check_psn(bth.psn)?;
        self.check_op_seq(request)?;
        self.check_op_valid(request, common.attr.access)?;
        self.check_queue(request, receives, mem)?;
        self.check_resource(request, receives)?;
        self.check_length(request, common.mtu())?;
        let target = self.check_rkey(request, mem)?;
        self.execute(common, bth, request, target, mem)
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
                // Its length was checked.
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
            (_, Target::Receive) => self.place_send(request, mem)?,
            (_, Target::Memory { rkey, addr }) => self.place_write(request, rkey, addr, mem)?,
        }
        if let Some(arrival) = Arrival::of(request) {
            if let Some(rkey) = arrival.invalidate {
                mem.invalidate(rkey).map_err(|_| BAD_INVALIDATE)?;
            }
            if self.bound {
                let write = matches!(request, Request::WriteLast { .. } | Request::WriteOnly { .. });
                self.complete(common, bth, &arrival, write);
            }
            self.message = None;
            self.msn = self.msn.next();
        }
        self.advance(1);
        if bth.ack_req {
            self.replies.acknowledge(bth.psn, self.msn);
        }
        Ok(())
    }

    /// The next `count` PSNs, at most 2^23, were executed. Every change of `expected` is made here, because the
    /// resources age with it.
    fn advance(&mut self, count: u32) {
        self.resources.age(self.expected, count);
        self.expected = self.expected.add(count);
    }

    fn place_send(&mut self, request: &Request<'_>, mem: &mut impl Memory) -> Result<(), Refusal> {
        let (offset, payload) = (self.received(), request.payload());
        if !payload.is_empty() {
            self.wqe.scatter(offset, payload, mem).map_err(|_| OWN_FAULT)?;
            if self.domain.is_some() {
                mem.enter(self.domain);
            }
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

    /// A READ counts as completed when it is accepted (IBTA 9.7.7.1, as rxe); its data is read when it is sent.
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
            fresh: true,
            replay: false,
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

    /// Completes the bound receive WQE.
    fn complete(&mut self, common: &mut Common, bth: &Bth, arrival: &Arrival, write: bool) {
        let length = match self.message {
            Some(Message::Send { received }) => received as u32,
            Some(Message::Write { length, .. }) => length,
            None => 0,
        };
        self.bound = false;
        common.counters.rdma_recvs += 1;
        let completion = WorkCompletion {
            wr_id: self.wqe.wr_id,
            status: WcStatus::Success,
            opcode: if write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv },
            byte_len: length,
            imm: arrival.imm,
            invalidated: arrival.invalidate,
            qpn: common.qpn,
            src_qp: common.attr.dest_qp,
            solicited: bth.solicited,
            grh: true,
            header: None,
            vendor_err: 0,
        };
        self.completions.push_back(Received { completion, queue: self.wqe.queue });
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
                // A suffix of the original, beginning at a packet of it.
                let skipped = psn.since(first) as u64 * u64::from(mtu);
                let is_suffix = reth.rkey == rkey
                    && reth.va == addr.wrapping_add(skipped)
                    && skipped + u64::from(reth.dma_len) == u64::from(length);
                if !is_suffix {
                    return DropReason::DuplicateNotFound;
                }
                self.replies.replay(ReadReply {
                    request: first,
                    psn,
                    msn: self.msn,
                    rkey,
                    addr: reth.va,
                    remaining: reth.dma_len,
                    fresh: true,
                    replay: true,
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
        if self.bound && fault.status != WcStatus::WrFlushErr {
            self.bound = false;
            self.completions.push_back(self.ended(fault.status, common.qpn));
        } else if !self.bound {
            match fault.code {
                NakCode::InvalidRequest => common.events.raise(AsyncEvent::QpReqErr),
                NakCode::RemoteAccessError => common.events.raise(AsyncEvent::QpAccessErr),
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
        common: &mut Common,
        mem: &mut impl Memory,
        out: &mut TxBatch<'_>,
    ) -> (u32, Drained) {
        let (mut sent, mut drained) = self.replies.transmit(common, mem, out);
        if drained == Drained::MemoryGone {
            self.fail(common, Fault { code: NakCode::RemoteAccessError, status: WcStatus::WrFlushErr });
            let more;
            (more, drained) = self.replies.transmit(common, mem, out);
            sent += more;
        }
        (sent, drained)
    }

    /// Whether one ACK is all there is to answer.
    pub fn owes_only_ack(&self) -> bool {
        self.replies.is_one_ack()
    }

    /// The application ended the queue pair: no more answers.
    pub fn silence(&mut self) {
        self.replies.clear();
    }

    /// The next receive completion; in the error state, once those of success are out, the flushed.
    pub fn poll_completion(&mut self, common: &Common) -> Option<Received> {
        if let Some(completion) = self.completions.pop_front() {
            return Some(completion);
        }
        if common.state() == QpState::Error && self.bound {
            self.bound = false;
            return Some(self.ended(WcStatus::WrFlushErr, common.qpn));
        }
        None
    }

    /// How the WQE in use ends in error.
    fn ended(&self, status: WcStatus, qpn: Qpn) -> Received {
        Received { completion: failed(self.wqe.wr_id, status, qpn), queue: self.wqe.queue }
    }
}

/// Why a word was not touched, as the peer hears it.
fn refused_word(error: MemoryError) -> Refusal {
    match error {
        MemoryError::Misaligned => INVALID,
        _ => ACCESS,
    }
}

/// A receive completion of error.
pub(crate) fn failed(wr_id: u64, status: WcStatus, qpn: Qpn) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        imm: None,
        invalidated: None,
        qpn,
        src_qp: Qpn::new(0),
        solicited: false,
        grh: false,
        header: None,
        vendor_err: 0,
    }
}

/// What the end of a message brings to a receive completion.
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
