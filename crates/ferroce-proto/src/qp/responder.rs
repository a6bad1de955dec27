//! The responder: checks requests, executes them once, and answers.

mod checks;
mod replies;
mod resources;

use ferroce_wire::{Bth, Imm, Msn, NakCode, Psn, Request, Reth, Rkey, SendTail, Syndrome, TxBatch};

use self::checks::{ACCESS, BAD_INVALIDATE, Fault, INVALID, OWN_FAULT, Refusal, Target};
pub(crate) use self::replies::Drained;
use self::replies::{ReadReply, Replies, Reply};
use self::resources::{Kind, Resource, Resources};
use super::common::Common;
use super::receiving::{Message, SharedQueues};
use super::send_queue::packets;
use crate::{AsyncEvent, Domain, DropReason, Memory, MemoryError, QpState, ReceiveSource, WcStatus};

/// Executes requests. It needs no timer.
#[derive(Debug)]
pub(crate) struct Responder {
    expected: Psn,
    msn: Msn,
    /// A sequence or RNR NAK was sent for the expected PSN; the next waits until it came.
    nak_sent: bool,
    /// A message whose last packet has not come.
    message: Option<Message>,
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
            nak_sent: false,
            message: None,
            resources: Resources::new(0),
            replies: Replies::new(0),
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

    pub fn reset(&mut self) {
        (self.msn, self.nak_sent, self.message) = (Msn::new(0), false, None);
        self.resources.clear();
        self.replies.clear();
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
        queues: &mut SharedQueues<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        if !self.replies.has_room() || !common.receiving.has_room() {
            return Err(DropReason::Backlog);
        }
        let refusal = match self.respond(common, bth, request, queues, mem) {
            Ok(()) => {
                self.nak_sent = false;
                common.processed();
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
                // The requests behind it were sent too early as well: they get no sequence NAK.
                self.nak_sent = true;
                common.counters.send_rnr_err += 1;
                self.nak(bth.psn, replies::rnr(common.attr.min_rnr_timer));
                Err(DropReason::ReceiverNotReady)
            }
            Refusal::NoSuchQueue => {
                self.nak(bth.psn, Syndrome::Nak(NakCode::InvalidRequest));
                if common.receiving.bound().is_none() {
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
            (_, Target::Receive) => self.place_send(common, request, mem)?,
            (_, Target::Memory { rkey, addr }) => self.place_write(request, rkey, addr, mem)?,
        }
        if let Some(arrival) = Arrival::of(request) {
            if let Some(rkey) = arrival.invalidate {
                mem.invalidate(rkey).map_err(|_| BAD_INVALIDATE)?;
            }
            if common.receiving.bound().is_some() {
                common.complete_message(self.message, bth, arrival.imm, arrival.invalidate);
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
        if common.receiving.bound().is_some() {
            // A flush is reported behind the other completions, see `Receiving::poll_completion`.
            if fault.status != WcStatus::WrFlushErr {
                common.receiving.fail(fault.status, common.qpn);
            }
        } else {
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
    pub fn only_ack_pending(&self) -> bool {
        self.replies.is_one_ack()
    }

    /// The queue pair ended: what was to be answered is not.
    pub fn drop_answers(&mut self) {
        self.replies.clear();
    }
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
