//! The properties of a packet, a call or a completion that rules look at.

use std::net::IpAddr;

use ferroce_wire::iwarp::{Opcode, SegmentHeader};
use ferroce_wire::{Operation, Packet, Psn, RcPacket, Request, Response, Syndrome, UdPacket};

use crate::words::{Moment, Verb, words};

words! {
    /// The direction of a packet, as the process that holds the judge sees it.
    pub enum Dir {
        /// Received.
        Rx = "rx",
        /// Sent.
        Tx = "tx",
    }
}

words! {
    /// The operation of a packet.
    pub enum Op {
        /// SEND, with or without immediate data or invalidate.
        Send = "send",
        /// RDMA WRITE, with or without immediate data.
        Write = "write",
        /// RDMA READ request.
        Read = "read",
        /// RDMA READ response.
        ReadResp = "readresp",
        /// Acknowledgement.
        Ack = "ack",
        /// NAK of any code.
        Nak = "nak",
        /// RNR NAK.
        Rnr = "rnr",
        /// Atomic request.
        Atomic = "atomic",
        /// Answer to an atomic request.
        AtomicAck = "atomicack",
        /// ATOMIC WRITE request.
        AtomicWrite = "atomicwrite",
        /// FLUSH request.
        Flush = "flush",
        /// Report of held packets, by which ferroce repeats selectively.
        Sack = "sack",
        /// Congestion notification packet.
        Cnp = "cnp",
        /// Management datagram of connection management, whatever its attribute.
        Mad = "mad",
        /// REQ: the request for a connection.
        Req = "req",
        /// MRA: its sender needs more time.
        Mra = "mra",
        /// REJ: a refusal.
        Rej = "rej",
        /// REP: the answer to a REQ.
        Rep = "rep",
        /// RTU: the active end is ready to use.
        Rtu = "rtu",
        /// DREQ: the request to end a connection.
        Dreq = "dreq",
        /// DREP: the answer to a DREQ.
        Drep = "drep",
        /// SIDR_REQ: the question for a datagram queue pair.
        SidrReq = "sidrreq",
        /// SIDR_REP: the answer to a SIDR_REQ.
        SidrRep = "sidrrep",
        /// LAP: the proposal of another path.
        Lap = "lap",
        /// APR: the answer to a LAP.
        Apr = "apr",
    }
}

words! {
    /// The place of a packet in its message.
    pub enum Pos {
        /// The first of several.
        First = "first",
        /// Neither first nor last.
        Middle = "middle",
        /// The last of several.
        Last = "last",
        /// The message is this packet.
        Only = "only",
    }
}

/// Packets whose PSNs count in one sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Requests and datagrams.
    Request,
    /// READ responses.
    ReadResp,
    /// ACK, NAK, RNR NAK, answers to atomics.
    Ack,
    /// Without a PSN that counts.
    Other,
}

impl Op {
    /// The places of `mad` and of the attributes in the list of words.
    pub(crate) const MADS: std::ops::RangeInclusive<u64> = Self::Mad as u64..=Self::Apr as u64;

    /// Whether it is a management datagram, which the broker sends and receives for the program.
    pub fn is_mad(self) -> bool {
        Self::MADS.contains(&(self as u64))
    }

    pub(crate) const fn class(self) -> Class {
        match self {
            Self::Send
            | Self::Write
            | Self::Read
            | Self::Atomic
            | Self::AtomicWrite
            | Self::Flush
            | Self::Mad
            | Self::Req
            | Self::Mra
            | Self::Rej
            | Self::Rep
            | Self::Rtu
            | Self::Dreq
            | Self::Drep
            | Self::SidrReq
            | Self::SidrRep
            | Self::Lap
            | Self::Apr => Class::Request,
            Self::ReadResp => Class::ReadResp,
            Self::Ack | Self::Nak | Self::Rnr | Self::AtomicAck => Class::Ack,
            Self::Sack | Self::Cnp => Class::Other,
        }
    }
}

/// A packet, as rules see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts<'a> {
    /// The direction of the packet.
    pub dir: Dir,
    /// The name of the device; `None` if the caller does not know it, so that no rule with `dev` applies.
    pub dev: Option<&'a str>,
    /// The address of the other end.
    pub peer: IpAddr,
    /// The local queue pair by its order of creation in the process, from 0.
    pub qp: u32,
    /// The operation of the packet.
    pub op: Op,
    /// The place of the packet in its message.
    pub pos: Pos,
    /// The PSN of the packet.
    pub psn: Psn,
    /// The MSN of an answer, 0 without one.
    pub msn: u32,
    /// Octets of payload without pad.
    pub len: u32,
    /// Octets from BTH to ICRC.
    pub wire_len: u32,
    /// The AckReq bit of the packet.
    pub ack: bool,
    /// The ECN field of its IP header, 0 to 3.
    pub ecn: u8,
    /// The packet is an FPDU in a TCP connection of iWARP, which cannot be lost, doubled or overtaken alone.
    /// Only [`Act::Cut`](crate::Act::Cut), `Act::Delay` and `Act::Corrupt` without a new checksum act on it.
    /// A drop says that the connection breaks within it.
    pub stream: bool,
}

/// An FPDU of iWARP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The header of its segment.
    pub header: SegmentHeader,
    /// The segment is the first of its message.
    pub begins: bool,
    /// Number of the FPDU among the requests of its direction, or among the responses, from 0: used in place
    /// of a PSN.
    pub number: u32,
    /// Octets of payload.
    pub payload: u32,
    /// Octets from the length field to the CRC.
    pub wire_len: u32,
}

/// The end of a connection at which a packet is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side<'a> {
    /// The direction of the packet there.
    pub dir: Dir,
    /// As [`Facts::dev`].
    pub dev: Option<&'a str>,
    /// As [`Facts::qp`].
    pub qp: u32,
    /// The address of the other end.
    pub peer: IpAddr,
}

impl<'a> Facts<'a> {
    /// The facts of a packet of `wire_len` octets from BTH to ICRC. `traffic_class` is that of its IP header.
    pub fn of(packet: &Packet<'_>, side: &Side<'a>, traffic_class: u8, wire_len: usize) -> Self {
        let Side { dir, dev, qp, peer } = *side;
        let (op, pos, msn) = describe(&packet.op);
        Self {
            dir,
            dev,
            peer,
            qp,
            op,
            pos,
            psn: packet.bth.psn,
            msn,
            len: packet.op.payload().len() as u32,
            wire_len: wire_len as u32,
            ack: packet.bth.ack_req,
            ecn: traffic_class & 3,
            stream: false,
        }
    }

    /// The facts of an FPDU; `None` for a Terminate, with which the stream ends anyway.
    pub fn of_segment(segment: &Segment, side: &Side<'a>) -> Option<Self> {
        let Segment { header, begins, number, payload, wire_len } = *segment;
        let Side { dir, dev, qp, peer } = *side;
        let op = match header.opcode() {
            Opcode::Write => Op::Write,
            Opcode::ReadRequest => Op::Read,
            Opcode::ReadResponse => Op::ReadResp,
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate
            | Opcode::Immediate
            | Opcode::ImmediateSolicited => Op::Send,
            Opcode::AtomicRequest => Op::Atomic,
            Opcode::AtomicResponse => Op::AtomicAck,
            Opcode::Terminate => return None,
        };
        let pos = match (begins, header.is_last()) {
            (true, true) => Pos::Only,
            (true, false) => Pos::First,
            (false, false) => Pos::Middle,
            (false, true) => Pos::Last,
        };
        let psn = Psn::new(number);
        Some(Self {
            dir,
            dev,
            peer,
            qp,
            op,
            pos,
            psn,
            msn: 0,
            len: payload,
            wire_len,
            ack: false,
            ecn: 0,
            stream: true,
        })
    }
}

fn describe(operation: &Operation<'_>) -> (Op, Pos, u32) {
    match operation {
        Operation::Rc(packet) | Operation::Xrc { packet, .. } => match packet {
            RcPacket::Request(request) => request_of(request),
            RcPacket::Response(response) => response_of(response),
        },
        Operation::Uc(request) => request_of(request),
        Operation::Ud(UdPacket { .. }) => (Op::Send, Pos::Only, 0),
        Operation::Sack { .. } => (Op::Sack, Pos::Only, 0),
        Operation::Cnp => (Op::Cnp, Pos::Only, 0),
    }
}

fn request_of(request: &Request<'_>) -> (Op, Pos, u32) {
    let (op, pos) = match request {
        Request::SendFirst { .. } => (Op::Send, Pos::First),
        Request::SendMiddle { .. } => (Op::Send, Pos::Middle),
        Request::SendLast { .. } => (Op::Send, Pos::Last),
        Request::SendOnly { .. } => (Op::Send, Pos::Only),
        Request::WriteFirst { .. } => (Op::Write, Pos::First),
        Request::WriteMiddle { .. } => (Op::Write, Pos::Middle),
        Request::WriteLast { .. } => (Op::Write, Pos::Last),
        Request::WriteOnly { .. } => (Op::Write, Pos::Only),
        Request::ReadRequest { .. } => (Op::Read, Pos::Only),
        Request::CompareSwap { .. } | Request::FetchAdd { .. } => (Op::Atomic, Pos::Only),
        Request::Flush { .. } => (Op::Flush, Pos::Only),
        Request::AtomicWrite { .. } => (Op::AtomicWrite, Pos::Only),
    };
    (op, pos, 0)
}

fn response_of(response: &Response<'_>) -> (Op, Pos, u32) {
    match response {
        Response::ReadFirst { aeth, .. } => (Op::ReadResp, Pos::First, aeth.msn.value()),
        Response::ReadMiddle { .. } => (Op::ReadResp, Pos::Middle, 0),
        Response::ReadLast { aeth, .. } => (Op::ReadResp, Pos::Last, aeth.msn.value()),
        Response::ReadOnly { aeth, .. } => (Op::ReadResp, Pos::Only, aeth.msn.value()),
        Response::AtomicAcknowledge { aeth, .. } => (Op::AtomicAck, Pos::Only, aeth.msn.value()),
        Response::Acknowledge { aeth } => {
            let op = match aeth.syndrome {
                Syndrome::Ack { .. } => Op::Ack,
                Syndrome::RnrNak(_) => Op::Rnr,
                _ => Op::Nak,
            };
            (op, Pos::Only, aeth.msn.value())
        }
    }
}

/// A call of the program, as rules see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerbFacts<'a> {
    /// The call.
    pub verb: Verb,
    /// The device that it is for, if it is known.
    pub dev: Option<&'a str>,
    /// The queue pair that it is for, if there is one.
    pub qp: Option<u32>,
}

/// A moment in the life of a queue pair or a connection, as rules see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionFacts<'a> {
    /// The moment.
    pub at: Moment,
    /// The device, if it is known.
    pub dev: Option<&'a str>,
    /// The queue pair, if there is one.
    pub qp: Option<u32>,
    /// For a completion of the send queue: the number of its work request, from 0 in order of posting.
    pub msg: Option<u64>,
}
