//! The messages that leave: requests of the send queue, and answers to the peer's reads and atomics.

use alloc::collections::VecDeque;

use ferroce_wire::iwarp::{
    AtomicKind, AtomicRequest, AtomicResponse, Cause, Opcode, Queue, ReadRequest, SegmentHeader, Stag,
    Terminate,
};
use ferroce_wire::{Imm, Rkey};

use super::super::common::Common;
use super::super::send_queue::{SendQueue, SendWqe};
use super::out::{Full, Out};
use super::writer::Writer;
use crate::counting::CountedOp;
use crate::iwarp::{Rtr, Source, Span, StreamConfig};
use crate::{Memory, MemoryError, QpState, SendOp, WcStatus};

/// Octets of immediate data: those of a completion, and four that are zero (RFC 7306 section 6.1).
pub(super) const IMMEDIATE_LEN: usize = 8;

/// A request that began to leave and did not complete.
#[derive(Clone, Copy, Debug)]
struct Started {
    /// The octet of the stream behind its last one, once that is written.
    end: Option<u64>,
    /// The response came, or the message has none.
    answered: bool,
}

/// A read or an atomic whose response did not come, or not whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    /// Index of the work request in the send queue.
    pub index: u64,
    pub kind: AwaitedKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum AwaitedKind {
    Read {
        sink: Stag,
        sink_offset: u64,
        received: u32,
        length: u32,
    },
    Atomic {
        request: u32,
    },
    /// The read of nothing that is a ready-to-receive frame. No work request stands behind it.
    ReadyToReceive,
}

/// The answer to a read or an atomic of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    Read { request: ReadRequest, sent: u32 },
    Atomic(AtomicResponse),
}

/// A message of which a part left.
#[derive(Clone, Copy, Debug)]
enum Current {
    /// The oldest started request that is not wholly written, and the octets of it that are.
    Request { index: u64, sent: u32 },
    /// The immediate data of a write.
    Immediate { index: u64, imm: Imm },
    /// The oldest reply.
    Reply,
}

/// The sending half of a stream.
#[derive(Debug)]
pub(super) struct Outbound {
    writer: Writer,
    /// Octets that were written for TCP, and those that it took.
    written: u64,
    taken: u64,
    /// The requests are in the order of the send queue, from its `done` on.
    started: VecDeque<Started>,
    awaited: VecDeque<Awaited>,
    ord: usize,
    replies: VecDeque<Reply>,
    ird: usize,
    current: Option<Current>,
    /// The last message that left was a reply: a request is next.
    replied_last: bool,
    send_msn: u32,
    read_msn: u32,
    response_msn: u32,
    atomics: u32,
    /// This end sends nothing yet, see [`crate::QueuePair::release_stream`]: it is the responder, which waits
    /// for the initiator's first FPDU (RFC 5044 section 7.1.2), or an initiator whose peer has another stack.
    pub held: bool,
    rtr: Option<Rtr>,
    terminate: Option<(usize, [u8; Terminate::MAX_LEN])>,
    /// Nothing but a Terminate leaves any more.
    closed: bool,
    /// An FPDU was written and cannot leave, so nothing leaves behind it.
    pub lost: bool,
}

/// Why an FPDU was not written.
enum Stop {
    /// `out` has no room for it.
    Full,
    /// Nothing can leave now.
    Nothing,
    /// The stream ends: memory of ours, or of a read of the peer's, went away.
    Failed(Cause),
}

impl Outbound {
    pub fn new(config: &StreamConfig, segment: u16, max_send_wr: u32) -> Self {
        let (ird, ord) = (usize::from(config.ird), usize::from(config.ord));
        Self {
            writer: Writer::new(config.crc, config.send_markers, config.large_fpdus, segment),
            written: 0,
            taken: 0,
            started: VecDeque::with_capacity(max_send_wr as usize),
            awaited: VecDeque::with_capacity(ord + 1),
            ord,
            replies: VecDeque::with_capacity(ird),
            ird,
            current: None,
            replied_last: false,
            send_msn: 1,
            read_msn: 1,
            response_msn: 1,
            atomics: 0,
            held: !config.initiator || !config.extensions,
            rtr: config.rtr.filter(|_| config.initiator),
            terminate: None,
            closed: false,
            lost: false,
        }
    }

    /// Whether nothing but a Terminate leaves any more.
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// From now on nothing leaves but a Terminate with this cause, if there is one and none was queued
    /// before.
    pub fn close(
        &mut self,
        cause: Option<Cause>,
        segment: Option<(u16, &SegmentHeader)>,
        request: Option<&[u8]>,
    ) {
        if !core::mem::replace(&mut self.closed, true)
            && let Some(cause) = cause
        {
            let mut message = [0; Terminate::MAX_LEN];
            let length = Terminate::emit(cause, segment, request, &mut message);
            self.terminate = Some((length, message));
        }
        self.replies.clear();
        self.awaited.clear();
        self.started.clear();
        self.current = None;
    }

    /// Queues the answer to a read or an atomic; `false` if the peer has more of them outstanding than agreed
    /// on.
    pub fn reply(&mut self, reply: Reply) -> bool {
        let fits = self.replies.len() < self.ird;
        if fits {
            self.replies.push_back(reply);
        }
        fits
    }

    /// The oldest read or atomic whose response is not complete: responses come in order (RFC 5040 section
    /// 5.5).
    pub fn awaited(&mut self) -> Option<&mut Awaited> {
        self.awaited.front_mut()
    }

    /// The oldest awaited response is complete.
    pub fn answered(&mut self, queue: &mut SendQueue) {
        if let Some(awaited) = self.awaited.pop_front()
            && let Some(started) = self.started.get_mut(awaited.index.wrapping_sub(queue.done()) as usize)
        {
            started.answered = true;
        }
        self.complete(queue);
    }

    /// TCP took octets.
    pub fn taken(&mut self, octets: usize, queue: &mut SendQueue) {
        self.taken += octets as u64;
        self.complete(queue);
    }

    fn complete(&mut self, queue: &mut SendQueue) {
        while let Some(Started { end: Some(end), answered: true }) = self.started.front()
            && *end <= self.taken
        {
            self.started.pop_front();
            queue.complete_oldest();
        }
    }

    /// Writes FPDUs to `out` as long as there are any and room for them; the cause if the stream ends.
    pub fn poll(
        &mut self,
        common: &mut Common,
        queue: &mut SendQueue,
        mem: &mut impl Memory,
        out: &mut Out<'_>,
    ) -> Option<Cause> {
        loop {
            match self.write_next(common, queue, mem, out) {
                Ok(octets) => {
                    self.written += octets as u64;
                    common.counters.sent_pkts += 1;
                    self.note_end();
                }
                Err(Stop::Full | Stop::Nothing) => return None,
                Err(Stop::Failed(cause)) => return Some(cause),
            }
        }
    }

    /// A request that is wholly written ends where the stream now ends.
    fn note_end(&mut self) {
        if self.current.is_none()
            && let Some(last) = self.started.back_mut()
        {
            last.end.get_or_insert(self.written);
        }
    }

    fn write_next(
        &mut self,
        common: &mut Common,
        queue: &mut SendQueue,
        mem: &mut impl Memory,
        out: &mut Out<'_>,
    ) -> Result<usize, Stop> {
        if let Some((length, message)) = self.terminate {
            let header = SegmentHeader::untagged(Opcode::Terminate, 1);
            let octets = self.control(&header, message.get(..length).unwrap_or_default(), out)?;
            self.terminate = None;
            return Ok(octets);
        }
        if self.closed || self.held || self.lost {
            return Err(Stop::Nothing);
        }
        if let Some(rtr) = self.rtr {
            let octets = self.ready_to_receive(rtr, out)?;
            self.rtr = None;
            return Ok(octets);
        }
        match self.current {
            Some(Current::Request { index, sent }) => self.go_on(index, sent, common, queue, mem, out),
            Some(Current::Immediate { index, imm }) => self.immediate(index, imm, queue, out),
            Some(Current::Reply) => self.go_on_replying(common, mem, out),
            None if !self.replies.is_empty() && !self.replied_last => self.go_on_replying(common, mem, out),
            None => match self.begin(common, queue, mem, out) {
                Err(Stop::Nothing) if !self.replies.is_empty() => self.go_on_replying(common, mem, out),
                done => done,
            },
        }
    }

    /// Begins the next request of the send queue.
    fn begin(
        &mut self,
        common: &mut Common,
        queue: &mut SendQueue,
        mem: &mut impl Memory,
        out: &mut Out<'_>,
    ) -> Result<usize, Stop> {
        self.run_local(common, queue, mem)?;
        let index = queue.started();
        let wqe = *queue.get(index).ok_or(Stop::Nothing)?;
        let is_answered = wqe.op.is_answered();
        let waits = wqe.failure.is_some()
            || common.state() != QpState::Rts
            || (wqe.fence && !self.awaited.is_empty())
            || (is_answered && self.awaited.len() >= self.ord);
        if waits {
            return Err(Stop::Nothing);
        }
        if queue.check_memory(index, wqe.op.writes_local(), mem).is_err() {
            queue.fail(index, WcStatus::LocProtErr);
            return Err(Stop::Nothing);
        }
        if is_answered {
            return self.ask(index, &wqe, queue, out);
        }
        let octets = self.go_on(index, 0, common, queue, mem, out)?;
        queue.start(wqe.first_psn, 0);
        self.started.push_back(Started { end: None, answered: true });
        Ok(octets)
    }

    /// Executes local operations whose turn it is: everything before them is complete.
    fn run_local(
        &mut self,
        common: &Common,
        queue: &mut SendQueue,
        mem: &mut impl Memory,
    ) -> Result<(), Stop> {
        loop {
            let index = queue.started();
            let wqe = queue.get(index).ok_or(Stop::Nothing)?;
            if !wqe.op.is_local() {
                return Ok(());
            }
            if common.state() != QpState::Rts || wqe.failure.is_some() || queue.done() != index {
                return Err(Stop::Nothing);
            }
            if let Err(status) = wqe.execute(mem) {
                queue.fail(index, status);
                return Err(Stop::Nothing);
            }
            queue.start(wqe.first_psn, 0);
            queue.complete_oldest();
        }
    }

    /// Writes the next segment of a send or write.
    fn go_on(
        &mut self,
        index: u64,
        sent: u32,
        common: &mut Common,
        queue: &mut SendQueue,
        mem: &impl Memory,
        out: &mut Out<'_>,
    ) -> Result<usize, Stop> {
        let wqe = *queue.get(index).filter(|wqe| wqe.failure.is_none()).ok_or(Stop::Nothing)?;
        let (octets, payload) = self.segment(index, &wqe, sent, queue, mem, out)?;
        self.wrote(index, &wqe, sent + payload, common);
        Ok(octets)
    }

    /// So much of a request's payload is written.
    fn wrote(&mut self, index: u64, wqe: &SendWqe, sent: u32, common: &mut Common) {
        self.current = match (sent < wqe.length, wqe.op) {
            (true, _) => Some(Current::Request { index, sent }),
            (false, SendOp::WriteImm { imm, .. }) => Some(Current::Immediate { index, imm }),
            (false, _) => None,
        };
        if sent >= wqe.length {
            self.replied_last = false;
            common.counters.rdma_sends += 1;
            if !matches!(wqe.op, SendOp::Write { .. } | SendOp::WriteImm { .. }) {
                self.send_msn = self.send_msn.wrapping_add(1);
            }
        }
    }

    /// Writes the segment of a send or write that begins behind `sent` octets of payload. Returns its octets
    /// and those of payload.
    fn segment(
        &mut self,
        index: u64,
        wqe: &SendWqe,
        sent: u32,
        queue: &mut SendQueue,
        mem: &impl Memory,
        out: &mut Out<'_>,
    ) -> Result<(usize, u32), Stop> {
        let left = (wqe.length - sent) as usize;
        let write = |remote: crate::Remote, last| SegmentHeader::Tagged {
            opcode: Opcode::Write,
            last,
            // A write without payload touches no memory (RFC 5040 section 5.1).
            stag: Stag(if wqe.length == 0 { 0 } else { remote.rkey.value() }),
            offset: if wqe.length == 0 { 0 } else { remote.addr.wrapping_add(u64::from(sent)) },
        };
        let send = |plain, solicited, invalidate: Option<Rkey>, last| SegmentHeader::Untagged {
            opcode: if wqe.solicited { solicited } else { plain },
            last,
            invalidate: Stag(invalidate.map_or(0, Rkey::value)),
            queue: Queue::SEND,
            msn: self.send_msn,
            offset: sent,
        };
        let header = |last| match wqe.op {
            SendOp::Write { remote } | SendOp::WriteImm { remote, .. } => write(remote, last),
            SendOp::SendInvalidate(rkey) => {
                send(Opcode::SendInvalidate, Opcode::SendSolicitedInvalidate, Some(rkey), last)
            }
            _ => send(Opcode::Send, Opcode::SendSolicited, None, last),
        };
        let payload = left.min(self.writer.most_payload(header(false).len()));
        let header = header(payload == left);
        let spans = queue.part(index, sent.into(), payload).map(|sge| Span::Local(sge, None));
        let source = Source::Request { index, begins: sent == 0 };
        if let Some(octets) = out.write_around(&self.writer, &header, payload, source, spans)? {
            return Ok((octets, payload as u32));
        }
        let octets = self.fpdu(&header, payload, out, |to| {
            queue.gather(index, u64::from(sent), to, mem).map_err(|_| {
                queue.fail(index, WcStatus::LocProtErr);
                if sent == 0 { Stop::Nothing } else { Stop::Failed(Cause::LocalCatastrophic) }
            })
        })?;
        Ok((octets, payload as u32))
    }

    /// Writes the request of a read or an atomic.
    fn ask(
        &mut self,
        index: u64,
        wqe: &SendWqe,
        queue: &mut SendQueue,
        out: &mut Out<'_>,
    ) -> Result<usize, Stop> {
        let header = |opcode| SegmentHeader::untagged(opcode, self.read_msn);
        let (sink, sink_offset) =
            queue.first_sge(index).map_or((Stag(0), 0), |sge| (Stag(sge.lkey.value()), sge.addr));
        let (kind, octets) = match wqe.op {
            SendOp::Read { remote } => {
                let (source, source_offset) = (Stag(remote.rkey.value()), remote.addr);
                let request = ReadRequest { sink, sink_offset, length: wqe.length, source, source_offset };
                let octets = self.control(&header(Opcode::ReadRequest), &request.emit(), out)?;
                (AwaitedKind::Read { sink, sink_offset, received: 0, length: wqe.length }, octets)
            }
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
                let kind = match wqe.op {
                    SendOp::CompareSwap { compare, swap, .. } => AtomicKind::CompareSwap { compare, swap },
                    SendOp::FetchAdd { add, .. } => AtomicKind::FetchAdd { add },
                    _ => return Err(Stop::Nothing),
                };
                let (request, stag) = (self.atomics, Stag(remote.rkey.value()));
                let message = AtomicRequest { request, stag, offset: remote.addr, kind };
                let octets = self.control(&header(Opcode::AtomicRequest), &message.emit(), out)?;
                self.atomics = self.atomics.wrapping_add(1);
                (AwaitedKind::Atomic { request }, octets)
            }
            _ => return Err(Stop::Nothing),
        };
        self.read_msn = self.read_msn.wrapping_add(1);
        queue.start(wqe.first_psn, 0);
        self.started.push_back(Started { end: None, answered: false });
        self.awaited.push_back(Awaited { index, kind });
        self.replied_last = false;
        Ok(octets)
    }

    /// Writes the immediate data of a write (RFC 7306 section 6).
    fn immediate(
        &mut self,
        index: u64,
        imm: Imm,
        queue: &SendQueue,
        out: &mut Out<'_>,
    ) -> Result<usize, Stop> {
        let solicited = queue.get(index).is_some_and(|wqe| wqe.solicited);
        let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
        let mut data = [0; IMMEDIATE_LEN];
        data.iter_mut().zip(imm.0).for_each(|(to, from)| *to = from);
        let octets = self.control(&SegmentHeader::untagged(opcode, self.send_msn), &data, out)?;
        self.send_msn = self.send_msn.wrapping_add(1);
        self.current = None;
        Ok(octets)
    }

    /// Writes the next segment of the oldest reply.
    fn go_on_replying(
        &mut self,
        common: &Common,
        mem: &impl Memory,
        out: &mut Out<'_>,
    ) -> Result<usize, Stop> {
        let (octets, ends) = match self.replies.front().copied() {
            None => return Err(Stop::Nothing),
            Some(Reply::Atomic(response)) => {
                let header = SegmentHeader::untagged(Opcode::AtomicResponse, self.response_msn);
                let octets = self.control(&header, &response.emit(), out)?;
                self.response_msn = self.response_msn.wrapping_add(1);
                (octets, true)
            }
            Some(Reply::Read { request, sent }) => {
                let (octets, payload) = self.read_response(&request, sent, mem, out)?;
                if let Some(Reply::Read { sent, .. }) = self.replies.front_mut() {
                    *sent += payload;
                }
                let ends = sent + payload == request.length;
                if ends {
                    common.counting.completed(CountedOp::RemoteRdmaRead, request.length);
                }
                (octets, ends)
            }
        };
        self.current = (!ends).then_some(Current::Reply);
        if ends {
            self.replies.pop_front();
            self.replied_last = true;
        }
        Ok(octets)
    }

    fn read_response(
        &mut self,
        request: &ReadRequest,
        sent: u32,
        mem: &impl Memory,
        out: &mut Out<'_>,
    ) -> Result<(usize, u32), Stop> {
        let left = (request.length - sent) as usize;
        let payload = left.min(self.writer.most_payload(SegmentHeader::TAGGED_LEN));
        let header = SegmentHeader::Tagged {
            opcode: Opcode::ReadResponse,
            last: payload == left,
            stag: request.sink,
            offset: request.sink_offset.wrapping_add(u64::from(sent)),
        };
        let from = request.source_offset.wrapping_add(u64::from(sent));
        let rkey = Rkey::new(request.source.0);
        let length = payload as u32;
        let span = [Span::Remote { rkey, addr: from, length }].into_iter().filter(|_| length > 0);
        if let Some(octets) = out.write_around(&self.writer, &header, payload, Source::Reply, span)? {
            return Ok((octets, length));
        }
        let octets = self.fpdu(&header, payload, out, |to| {
            let read = mem.read_remote(rkey, from, to, (left - payload) as u64);
            read.map_err(|error| Stop::Failed(of_read(error)))
        })?;
        Ok((octets, payload as u32))
    }

    /// The first frame of a peer-to-peer initiator (RFC 6581 section 9).
    fn ready_to_receive(&mut self, rtr: Rtr, out: &mut Out<'_>) -> Result<usize, Stop> {
        let header = |opcode| SegmentHeader::Tagged { opcode, last: true, stag: Stag(0), offset: 0 };
        match rtr {
            Rtr::Write => self.control(&header(Opcode::Write), &[], out),
            Rtr::Send => {
                let octets = self.control(&SegmentHeader::untagged(Opcode::Send, self.send_msn), &[], out)?;
                self.send_msn = self.send_msn.wrapping_add(1);
                Ok(octets)
            }
            Rtr::Read => {
                let request = ReadRequest {
                    sink: Stag(0),
                    sink_offset: 0,
                    length: 0,
                    source: Stag(0),
                    source_offset: 0,
                };
                let octets = self.control(
                    &SegmentHeader::untagged(Opcode::ReadRequest, self.read_msn),
                    &request.emit(),
                    out,
                )?;
                self.read_msn = self.read_msn.wrapping_add(1);
                self.awaited.push_back(Awaited { index: u64::MAX, kind: AwaitedKind::ReadyToReceive });
                Ok(octets)
            }
        }
    }

    /// Writes a message of one segment whose payload is known.
    fn control(&mut self, header: &SegmentHeader, payload: &[u8], out: &mut Out<'_>) -> Result<usize, Stop> {
        self.fpdu(header, payload.len(), out, |to| {
            to.copy_from_slice(payload);
            Ok(())
        })
    }

    /// Writes an FPDU, if there is room, and returns its octets. `fill` writes the payload, if there is any.
    fn fpdu(
        &mut self,
        header: &SegmentHeader,
        payload: usize,
        out: &mut Out<'_>,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Stop>,
    ) -> Result<usize, Stop> {
        out.write(&mut self.writer, header, payload, fill)
    }
}

impl From<Full> for Stop {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// The cause of a read that may not be, or of a missing right (RFC 5040 section 7.2).
pub(super) const fn of_read(error: MemoryError) -> Cause {
    match error {
        MemoryError::BadKey | MemoryError::Fault => Cause::ReadStag,
        MemoryError::WrongPd => Cause::ReadStagOfOther,
        MemoryError::NoPermission => Cause::AccessRights,
        MemoryError::OutOfRange => Cause::ReadBounds,
        MemoryError::Misaligned => Cause::RemoteProtection,
    }
}
