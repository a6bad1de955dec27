//! The messages that arrive: placed octet by octet, delivered when they are whole.

use ferroce_wire::iwarp::{
    AtomicKind, AtomicRequest, AtomicResponse, Cause, Opcode, ReadRequest, SegmentHeader, Stag, Terminate,
};
use ferroce_wire::{Imm, Rkey};

use super::super::common::Common;
use super::super::receiving::{Receiving, SharedQueues};
use super::super::send_queue::SendQueue;
use super::framer::{Framer, Part, Rest};
use super::outbound::{AwaitedKind, IMMEDIATE_LEN, Outbound, Reply, of_read};
use crate::counting::CountedOp;
use crate::iwarp::{Expected, Span, StreamConfig};
use crate::{
    Memory, MemoryError, QpAccess, ReceiveSource, RemoteAccess, Taken, WcOpcode, WcStatus, WorkCompletion,
};

/// Octets of the longest message that is kept whole until its end: a Terminate, or an atomic request.
const LONGEST_CONTROL: usize = Terminate::MAX_LEN;

/// The last octets of a segment that are always copied, behind all others: programs wait for the last octet
/// of a message.
const LAST: usize = 64;
/// The least payload that is received straight into its place.
const LEAST_IN_PLACE: usize = 4 << 10;

/// The place of the payload of the present segment.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// The peer's write: the key and the next address.
    Write(Rkey, u64),
    /// The receive WQE in use, from this octet on.
    Receive(u64),
    /// The local memory of a read of ours, from this octet on.
    Sink { index: u64, offset: u64 },
    /// A message of fixed size.
    Control,
}

/// A send of which not all segments came.
#[derive(Clone, Copy, Debug)]
struct Unfinished {
    opcode: Opcode,
    received: u32,
}

/// The part of a message that waits for a receive of the program.
#[derive(Clone, Copy, Debug)]
enum Starved {
    /// The first segment of a send, with its octets of payload.
    Begin(SegmentHeader, u16),
    /// Immediate data.
    End(SegmentHeader),
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(super) struct Inbound {
    framer: Framer,
    extensions: bool,
    header: Option<SegmentHeader>,
    target: Target,
    control: [u8; LONGEST_CONTROL],
    control_len: usize,
    send: Option<Unfinished>,
    /// Octets of the write that comes or came last, for immediate data behind it.
    written: u32,
    /// The write that comes is not the continuation of the one before.
    write_ended: bool,
    send_msn: u32,
    read_msn: u32,
    response_msn: u32,
    /// The initiator's first frame may be a send that takes no receive WQE.
    rtr_is_send: bool,
    has_received: bool,
    /// A message that no receive is there for. Nothing behind it is taken.
    starved: Option<Starved>,
}

/// The things of the queue pair that a message acts on.
pub(super) struct Parts<'a, S, M> {
    pub common: &'a mut Common,
    pub queue: &'a mut SendQueue,
    pub outbound: &'a mut Outbound,
    pub shared: SharedQueues<'a, S>,
    pub mem: &'a mut M,
}

/// The way in which the peer's octets end a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The peer gets a Terminate.
    Error(Cause),
    /// The peer sent one.
    Terminated(Option<Terminate>),
}

impl From<Cause> for End {
    fn from(cause: Cause) -> Self {
        Self::Error(cause)
    }
}

impl Inbound {
    pub const fn new(config: &StreamConfig) -> Self {
        Self {
            framer: Framer::new(config.crc, config.receive_markers),
            extensions: config.extensions,
            header: None,
            target: Target::Control,
            control: [0; LONGEST_CONTROL],
            control_len: 0,
            send: None,
            written: 0,
            write_ended: true,
            send_msn: 1,
            read_msn: 1,
            response_msn: 1,
            rtr_is_send: !config.initiator && matches!(config.rtr, Some(crate::iwarp::Rtr::Send)),
            has_received: false,
            starved: None,
        }
    }

    /// Whether an FPDU came.
    pub const fn has_received(&self) -> bool {
        self.has_received
    }

    /// Whether a message waits for a receive.
    pub const fn is_starved(&self) -> bool {
        self.starved.is_some()
    }

    /// Whether the stream may end here: no FPDU and no message is incomplete.
    pub const fn is_at_boundary(&self) -> bool {
        !self.framer.is_inside() && self.send.is_none() && self.write_ended
    }

    /// The segment in question, for a Terminate.
    pub fn segment(&self) -> Option<(u16, &SegmentHeader)> {
        Some((self.framer.ulpdu(), self.header.as_ref()?))
    }

    /// The read request in question.
    pub fn request(&self) -> Option<&[u8]> {
        let is_read = self.header.is_some_and(|header| header.opcode() == Opcode::ReadRequest);
        self.control.get(..self.control_len).filter(|_| is_read)
    }

    /// Takes octets of the stream, as long as completions find room and messages find receives; their number.
    pub fn take<S: ReceiveSource, M: Memory>(
        &mut self,
        octets: &[u8],
        parts: &mut Parts<'_, S, M>,
    ) -> Result<usize, End> {
        let mut rest = octets;
        while parts.common.receiving.has_room() {
            if self.still_starves(parts)? {
                break;
            }
            match self.framer.next(&mut rest)? {
                None => return Ok(octets.len()),
                Some(Part::Begin(header, payload)) => {
                    self.header = Some(header);
                    self.control_len = 0;
                    self.begin_or_wait(header, payload, parts)?;
                }
                Some(Part::Payload(piece)) => self.place(piece, parts)?,
                Some(Part::End) => {
                    parts.common.counters.rcvd_pkts += 1;
                    self.has_received = true;
                    parts.outbound.held = false;
                    if let Some(header) = self.header {
                        self.end_or_wait(header, parts)?;
                    }
                }
            }
        }
        Ok(octets.len() - rest.len())
    }

    /// Goes on with the message that waits, if one does. Whether it still has no receive.
    fn still_starves<S: ReceiveSource, M: Memory>(
        &mut self,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<bool, End> {
        match self.starved.take() {
            None => {}
            Some(Starved::Begin(header, payload)) => self.begin_or_wait(header, payload, parts)?,
            Some(Starved::End(header)) => self.end_or_wait(header, parts)?,
        }
        Ok(self.is_starved())
    }

    fn begin_or_wait<S: ReceiveSource, M: Memory>(
        &mut self,
        header: SegmentHeader,
        payload: u16,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<(), End> {
        match self.begin(&header, payload, parts) {
            Ok(target) => self.target = target,
            Err(Cause::NoBuffer) => self.starved = Some(Starved::Begin(header, payload)),
            Err(cause) => return Err(cause.into()),
        }
        Ok(())
    }

    fn end_or_wait<S: ReceiveSource, M: Memory>(
        &mut self,
        header: SegmentHeader,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<(), End> {
        match self.end(&header, parts) {
            Ok(()) => self.header = None,
            Err(End::Error(Cause::NoBuffer)) => self.starved = Some(Starved::End(header)),
            Err(end) => return Err(end),
        }
        Ok(())
    }

    /// The octets that come next, as long as the FPDUs are large.
    pub fn expected(&self, receiving: &Receiving, queue: &SendQueue) -> Expected {
        let Some(Rest { payload, octets, next_head }) =
            self.framer.rest_of_large().filter(|_| !self.is_starved())
        else {
            return Expected::default();
        };
        let len = payload.saturating_sub(LAST);
        let memory = match self.target {
            _ if len < LEAST_IN_PLACE => None,
            Target::Write(rkey, addr) => Some(Span::Remote { rkey, addr, length: len as u32 }),
            Target::Receive(offset) => receiving.bound().and_then(|wqe| wqe.span(offset, len)),
            Target::Sink { index, offset } => {
                queue.part(index, offset, len).next().map(|sge| Span::Local(sge, None))
            }
            Target::Control => None,
        };
        Expected { memory, most: Some(octets + next_head - memory.map_or(0, |span| span.len())) }
    }

    /// So many octets of those that were expected in memory are there.
    pub fn placed(&mut self, octets: usize) {
        self.framer.placed(octets);
        self.advance(octets);
    }

    /// So many octets of payload are in their place.
    fn advance(&mut self, octets: usize) {
        match &mut self.target {
            Target::Write(_, next) => *next = next.wrapping_add(octets as u64),
            Target::Receive(next) | Target::Sink { offset: next, .. } => *next += octets as u64,
            Target::Control => {}
        }
    }

    /// Checks a segment before its first octet of payload is placed.
    fn begin<S: ReceiveSource, M: Memory>(
        &mut self,
        header: &SegmentHeader,
        payload: u16,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<Target, Cause> {
        match *header {
            SegmentHeader::Tagged { opcode: Opcode::Write, stag, offset, .. } => {
                self.begin_write(stag, offset, payload, parts)
            }
            SegmentHeader::Tagged { last, stag, offset, .. } => {
                begin_response(last, stag, offset, payload, parts)
            }
            SegmentHeader::Untagged { opcode, last, queue, msn, offset, .. } => {
                // A message has the queue of its kind (RFC 5040 section 5.1).
                if queue != opcode.queue() {
                    return Err(Cause::Queue);
                }
                match opcode {
                    Opcode::Send
                    | Opcode::SendInvalidate
                    | Opcode::SendSolicited
                    | Opcode::SendSolicitedInvalidate => self.begin_send(opcode, msn, offset, payload, parts),
                    Opcode::Immediate | Opcode::ImmediateSolicited => {
                        let next = self.send_msn;
                        self.check_control(opcode, last, (msn, next), offset, payload, IMMEDIATE_LEN)
                    }
                    Opcode::ReadRequest => {
                        let next = self.read_msn;
                        self.check_control(opcode, last, (msn, next), offset, payload, ReadRequest::LEN)
                    }
                    Opcode::AtomicRequest => {
                        let next = self.read_msn;
                        self.check_control(opcode, last, (msn, next), offset, payload, AtomicRequest::LEN)
                    }
                    Opcode::AtomicResponse => {
                        let next = self.response_msn;
                        self.check_control(opcode, last, (msn, next), offset, payload, AtomicResponse::LEN)
                    }
                    // The stream ends with it in any case.
                    Opcode::Terminate => Ok(Target::Control),
                    Opcode::Write | Opcode::ReadResponse => Err(Cause::UnexpectedOpcode),
                }
            }
        }
    }

    fn begin_write<S, M: Memory>(
        &mut self,
        stag: Stag,
        offset: u64,
        payload: u16,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<Target, Cause> {
        if core::mem::take(&mut self.write_ended) {
            self.written = 0;
        }
        let rkey = Rkey::new(stag.0);
        // A segment without payload touches no memory: neither tag nor offset count (RFC 5040 section 5.1).
        if payload > 0 {
            if !parts.common.attr.access.contains(QpAccess::REMOTE_WRITE) {
                return Err(Cause::AccessRights);
            }
            offset.checked_add(u64::from(payload)).ok_or(Cause::TaggedWrap)?;
            parts
                .mem
                .check_remote(rkey, offset, u64::from(payload), RemoteAccess::Write)
                .map_err(of_tagged)?;
        }
        self.written = self.written.wrapping_add(u32::from(payload));
        Ok(Target::Write(rkey, offset))
    }

    fn begin_send<S: ReceiveSource, M: Memory>(
        &mut self,
        opcode: Opcode,
        msn: u32,
        offset: u32,
        payload: u16,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<Target, Cause> {
        if msn != self.send_msn {
            return Err(Cause::MsnRange);
        }
        // The initiator's ready-to-receive frame takes no receive WQE (RFC 6581 section 9).
        if !self.has_received && self.rtr_is_send && payload == 0 {
            return Ok(Target::Control);
        }
        let unfinished = self.send.get_or_insert(Unfinished { opcode, received: 0 });
        if unfinished.opcode != opcode {
            return Err(Cause::UnexpectedOpcode);
        }
        // Segments of a message follow each other without a gap (RFC 5041 section 5.2).
        if offset != unfinished.received {
            return Err(Cause::MessageOffset);
        }
        bind_receive(parts)?;
        let end = u64::from(offset) + u64::from(payload);
        if parts.common.receiving.bound().is_none_or(|wqe| end > wqe.length) {
            let qpn = parts.common.qpn;
            parts.common.receiving.fail(WcStatus::LocLenErr, qpn);
            return Err(Cause::TooLong);
        }
        unfinished.received = u32::try_from(end).map_err(|_| Cause::TooLong)?;
        Ok(Target::Receive(u64::from(offset)))
    }

    /// Checks a message of fixed size and one segment, of which the sequence number comes and is expected.
    fn check_control(
        &self,
        opcode: Opcode,
        last: bool,
        (msn, next): (u32, u32),
        offset: u32,
        payload: u16,
        len: usize,
    ) -> Result<Target, Cause> {
        let of_7306 = matches!(
            opcode,
            Opcode::Immediate | Opcode::ImmediateSolicited | Opcode::AtomicRequest | Opcode::AtomicResponse
        );
        if of_7306 && !self.extensions {
            return Err(Cause::UnexpectedOpcode);
        }
        if msn != next {
            return Err(Cause::MsnRange);
        }
        if offset != 0 {
            return Err(Cause::MessageOffset);
        }
        // Immediate data inside of a send would be a message of its own in the middle of another one.
        let inside = opcode.queue() == Opcode::Send.queue() && self.send.is_some();
        if !last || usize::from(payload) != len || inside {
            return Err(Cause::RemoteOperation);
        }
        Ok(Target::Control)
    }

    fn place<S, M: Memory>(&mut self, piece: &[u8], parts: &mut Parts<'_, S, M>) -> Result<(), Cause> {
        match self.target {
            // The memory may have ended since the segment began.
            Target::Write(rkey, addr) => parts.mem.write_remote(rkey, addr, piece).map_err(of_tagged)?,
            Target::Receive(offset) => {
                parts.common.place(offset, piece, parts.mem).map_err(|_| Cause::LocalCatastrophic)?;
            }
            Target::Sink { index, offset } => scatter(index, offset, piece, parts)?,
            Target::Control => {
                let room = self.control.iter_mut().skip(self.control_len);
                self.control_len += room.zip(piece).map(|(to, from)| *to = *from).count();
            }
        }
        self.advance(piece.len());
        Ok(())
    }

    /// A segment is whole; its message may be.
    fn end<S: ReceiveSource, M: Memory>(
        &mut self,
        header: &SegmentHeader,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<(), End> {
        if !header.is_last() {
            return Ok(());
        }
        self.finish(parts)?;
        let control = self.control.get(..self.control_len).unwrap_or_default();
        match header.opcode() {
            Opcode::Write => {
                self.write_ended = true;
                parts.common.counting.completed(CountedOp::RemoteRdmaWrite, self.written);
            }
            Opcode::ReadResponse => parts.outbound.answered(parts.queue),
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => self.deliver_send(header, parts)?,
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                let imm = control.first_chunk().map(|imm| Imm(*imm));
                self.deliver_immediate(header.opcode(), imm, parts)?;
            }
            Opcode::ReadRequest => {
                let request = ReadRequest::parse(control).ok_or(Cause::RemoteOperation)?;
                self.read_msn = self.read_msn.wrapping_add(1);
                answer_read(request, parts)?;
            }
            Opcode::AtomicRequest => {
                let request = AtomicRequest::parse(control).ok_or(Cause::RemoteProtection)?;
                self.read_msn = self.read_msn.wrapping_add(1);
                answer_atomic(&request, parts)?;
            }
            Opcode::AtomicResponse => {
                let response = AtomicResponse::parse(control).ok_or(Cause::RemoteOperation)?;
                self.response_msn = self.response_msn.wrapping_add(1);
                take_atomic(&response, parts)?;
            }
            Opcode::Terminate => return Err(End::Terminated(Terminate::parse(control))),
        }
        Ok(())
    }

    /// Waits until all octets of a message are in their places.
    fn finish<S, M: Memory>(&self, parts: &mut Parts<'_, S, M>) -> Result<(), Cause> {
        match (parts.mem.finish_writes(), self.target) {
            (Ok(()), _) => Ok(()),
            (Err(error), Target::Write(..)) => Err(of_tagged(error)),
            (Err(_), Target::Sink { index, .. }) => {
                parts.queue.fail(index, WcStatus::LocProtErr);
                Err(Cause::LocalCatastrophic)
            }
            (Err(_), Target::Receive(_) | Target::Control) => Err(Cause::LocalCatastrophic),
        }
    }

    fn deliver_send<S, M: Memory>(
        &mut self,
        header: &SegmentHeader,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<(), Cause> {
        self.send_msn = self.send_msn.wrapping_add(1);
        // None: the ready-to-receive frame.
        let Some(Unfinished { opcode, received }) = self.send.take() else { return Ok(()) };
        let invalidated = match *header {
            SegmentHeader::Untagged { invalidate, .. } if opcode.invalidates() => {
                Some(Rkey::new(invalidate.0))
            }
            _ => None,
        };
        if let Some(Err(_)) = invalidated.map(|rkey| parts.mem.invalidate(rkey)) {
            let qpn = parts.common.qpn;
            parts.common.receiving.fail(WcStatus::RemInvReqErr, qpn);
            return Err(Cause::CannotInvalidate);
        }
        parts.common.complete(WorkCompletion {
            opcode: WcOpcode::Recv,
            byte_len: received,
            invalidated,
            solicited: opcode.is_solicited(),
            ..WorkCompletion::BLANK
        });
        Ok(())
    }

    fn deliver_immediate<S: ReceiveSource, M: Memory>(
        &mut self,
        opcode: Opcode,
        imm: Option<Imm>,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<(), Cause> {
        bind_receive(parts)?;
        self.send_msn = self.send_msn.wrapping_add(1);
        parts.common.complete(WorkCompletion {
            opcode: WcOpcode::RecvRdmaWithImm,
            byte_len: core::mem::take(&mut self.written),
            imm,
            solicited: opcode.is_solicited(),
            ..WorkCompletion::BLANK
        });
        Ok(())
    }
}

/// Binds the next receive WQE, unless one is in use already.
fn bind_receive<S: ReceiveSource, M>(parts: &mut Parts<'_, S, M>) -> Result<(), Cause> {
    match parts.common.receiving.take(&mut parts.shared, 0) {
        Taken::Wqe => Ok(()),
        Taken::Empty | Taken::TooShort => Err(Cause::NoBuffer),
        Taken::Failed => Err(Cause::LocalCatastrophic),
    }
}

/// Copies a part of a response to the local memory of our request. The request fails if that memory went
/// away.
fn scatter<S, M: Memory>(
    index: u64,
    offset: u64,
    piece: &[u8],
    parts: &mut Parts<'_, S, M>,
) -> Result<(), Cause> {
    parts.queue.scatter(index, offset, piece, parts.mem).map_err(|_| {
        parts.queue.fail(index, WcStatus::LocProtErr);
        Cause::LocalCatastrophic
    })
}

/// Checks a segment of a read response against the oldest read that waits for one (RFC 5040 section 5.5).
fn begin_response<S, M>(
    last: bool,
    stag: Stag,
    offset: u64,
    payload: u16,
    parts: &mut Parts<'_, S, M>,
) -> Result<Target, Cause> {
    let awaited = parts.outbound.awaited().ok_or(Cause::UnexpectedOpcode)?;
    let (sink, sink_offset, received, length) = match &mut awaited.kind {
        AwaitedKind::Read { sink, sink_offset, received, length } => (sink, sink_offset, received, length),
        AwaitedKind::ReadyToReceive if payload == 0 && last => return Ok(Target::Control),
        AwaitedKind::ReadyToReceive | AwaitedKind::Atomic { .. } => return Err(Cause::UnexpectedOpcode),
    };
    let next = sink_offset.wrapping_add(u64::from(*received));
    let left = *length - *received;
    if *length > 0 && stag != *sink {
        return Err(Cause::TaggedStag);
    }
    if u32::from(payload) > left || (*length > 0 && offset != next) || last != (u32::from(payload) == left) {
        return Err(Cause::TaggedBounds);
    }
    let target = Target::Sink { index: awaited.index, offset: u64::from(*received) };
    *received += u32::from(payload);
    Ok(target)
}

/// Checks a read of the peer's and queues its answer.
fn answer_read<S, M: Memory>(request: ReadRequest, parts: &mut Parts<'_, S, M>) -> Result<(), Cause> {
    let ReadRequest { length, source, source_offset, .. } = request;
    // A read of nothing needs no memory (RFC 5040 section 5.3).
    if length > 0 {
        if !parts.common.attr.access.contains(QpAccess::REMOTE_READ) {
            return Err(Cause::AccessRights);
        }
        source_offset.checked_add(u64::from(length)).ok_or(Cause::ReadWrap)?;
        let rkey = Rkey::new(source.0);
        parts
            .mem
            .check_remote(rkey, source_offset, u64::from(length), RemoteAccess::Read)
            .map_err(of_read)?;
    }
    queue_reply(Reply::Read { request, sent: 0 }, parts)
}

/// Executes an atomic of the peer's and queues its answer.
fn answer_atomic<S, M: Memory>(request: &AtomicRequest, parts: &mut Parts<'_, S, M>) -> Result<(), Cause> {
    if !parts.common.attr.access.contains(QpAccess::REMOTE_ATOMIC) {
        return Err(Cause::AccessRights);
    }
    let (rkey, addr) = (Rkey::new(request.stag.0), request.offset);
    parts.mem.check_remote(rkey, addr, 8, RemoteAccess::Atomic).map_err(of_read)?;
    let original = match request.kind {
        AtomicKind::FetchAdd { add } => parts.mem.fetch_add(rkey, addr, add),
        AtomicKind::CompareSwap { compare, swap } => parts.mem.compare_swap(rkey, addr, compare, swap),
    };
    let original = original.map_err(of_read)?;
    queue_reply(Reply::Atomic(AtomicResponse { request: request.request, original }), parts)
}

fn queue_reply<S, M>(reply: Reply, parts: &mut Parts<'_, S, M>) -> Result<(), Cause> {
    if parts.outbound.reply(reply) { Ok(()) } else { Err(Cause::StreamCatastrophic) }
}

/// The value before an atomic of ours, to its local memory.
fn take_atomic<S, M: Memory>(response: &AtomicResponse, parts: &mut Parts<'_, S, M>) -> Result<(), Cause> {
    let awaited = parts.outbound.awaited().ok_or(Cause::UnexpectedOpcode)?;
    let index = match awaited.kind {
        AwaitedKind::Atomic { request } if request == response.request => awaited.index,
        _ => return Err(Cause::UnexpectedOpcode),
    };
    scatter(index, 0, &response.original.to_ne_bytes(), parts)?;
    parts.outbound.answered(parts.queue);
    Ok(())
}

/// The cause of a tagged segment that may not be placed (RFC 5041 section 7.2). A missing right is RDMAP's to
/// tell (RFC 5040 section 7.2).
const fn of_tagged(error: MemoryError) -> Cause {
    match error {
        MemoryError::BadKey | MemoryError::Fault | MemoryError::Misaligned => Cause::TaggedStag,
        MemoryError::WrongPd => Cause::TaggedStagOfOther,
        MemoryError::NoPermission => Cause::AccessRights,
        MemoryError::OutOfRange => Cause::TaggedBounds,
    }
}
