//! A packet: the headers of its opcode, and the payload.

mod common;
mod emit;
mod parse;

pub(crate) use emit::Layout;

use crate::{Aeth, AtomicEth, Bth, Deth, Feth, Imm, RcOpcode, Reth, Rkey, Service, SrqNumber, WireOpcode};

/// A packet from BTH to ICRC. A `Packet` is always well formed: its opcode is known, its headers are
/// complete, pad and length agree. The state machines check lengths against the path MTU and answer with a
/// NAK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The header of every packet.
    pub bth: Bth,
    /// The request or response.
    pub op: Operation<'a>,
    /// Whether the ICRC was verified.
    pub icrc: IcrcStatus,
}

/// Whether the invariant CRC of a received packet was verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcrcStatus {
    /// The ICRC is correct.
    Checked,
    /// The ICRC is not yet verified: state must not advance because of this packet.
    Pending,
}

/// The operation, by service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// Reliable Connection.
    Rc(RcPacket<'a>),
    /// Unreliable Connection: sends without invalidate, and writes.
    Uc(Request<'a>),
    /// Unreliable Datagram.
    Ud(UdPacket<'a>),
    /// Extended Reliable Connection.
    Xrc {
        /// The shared receive queue: present in every request, absent in responses.
        srq: Option<SrqNumber>,
        /// The packet, with the same operations as on RC.
        packet: RcPacket<'a>,
    },
    /// Congestion notification (RoCEv2 A17.9.3): the peer's traffic from us was marked.
    Cnp,
    /// Selective acknowledgement of a reliable responder, between peers that agreed to it. The PSN is the
    /// expected one.
    Sack {
        /// Syndrome and MSN, as in an ACK.
        aeth: Aeth,
        /// Bit `i`: the request `i + 1` PSNs behind the expected one is held until its turn.
        held: u128,
    },
}

/// A packet of RC or XRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RcPacket<'a> {
    /// From requester to responder.
    Request(Request<'a>),
    /// From responder to requester.
    Response(Response<'a>),
}

/// A request. `payload` is without pad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the variants are the opcodes, the fields their headers")]
pub enum Request<'a> {
    SendFirst { payload: &'a [u8] },
    SendMiddle { payload: &'a [u8] },
    SendLast { payload: &'a [u8], tail: SendTail },
    SendOnly { payload: &'a [u8], tail: SendTail },
    WriteFirst { reth: Reth, payload: &'a [u8] },
    WriteMiddle { payload: &'a [u8] },
    WriteLast { payload: &'a [u8], imm: Option<Imm> },
    WriteOnly { reth: Reth, payload: &'a [u8], imm: Option<Imm> },
    ReadRequest { reth: Reth },
    CompareSwap { atomic: AtomicEth },
    FetchAdd { atomic: AtomicEth },
    Flush { feth: Feth, reth: Reth },
    AtomicWrite { reth: Reth, payload: &'a [u8] },
}

/// The data at the end of a send message in addition to payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendTail {
    /// No additional data.
    None,
    /// Immediate data.
    Imm(Imm),
    /// A key of the receiver that is invalidated by this message.
    Invalidate(Rkey),
}

/// A response. `payload` is without pad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the variants are the opcodes, the fields their headers")]
pub enum Response<'a> {
    ReadFirst { aeth: Aeth, payload: &'a [u8] },
    ReadMiddle { payload: &'a [u8] },
    ReadLast { aeth: Aeth, payload: &'a [u8] },
    ReadOnly { aeth: Aeth, payload: &'a [u8] },
    Acknowledge { aeth: Aeth },
    AtomicAcknowledge { aeth: Aeth, original: u64 },
}

/// A datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdPacket<'a> {
    /// Queue key and sender.
    pub deth: Deth,
    /// The payload without pad.
    pub payload: &'a [u8],
    /// Immediate data.
    pub imm: Option<Imm>,
}

impl<'a> Operation<'a> {
    /// The service.
    pub const fn service(&self) -> Service {
        match self {
            Self::Rc(_) => Service::Rc,
            Self::Uc(_) => Service::Uc,
            Self::Ud(_) => Service::Ud,
            Self::Xrc { .. } => Service::Xrc,
            Self::Cnp => Service::Cnp,
            Self::Sack { .. } => Service::Manufacturer,
        }
    }

    /// The payload without pad; empty where the operation has none.
    pub const fn payload(&self) -> &'a [u8] {
        match self {
            Self::Rc(packet) | Self::Xrc { packet, .. } => packet.payload(),
            Self::Uc(request) => request.payload(),
            Self::Ud(packet) => packet.payload,
            Self::Cnp | Self::Sack { .. } => &[],
        }
    }

    /// The opcode octet; `None` if the service has no such operation, for example READ on UC.
    pub fn opcode(&self) -> Option<WireOpcode> {
        match self {
            Self::Rc(packet) => WireOpcode::of(Service::Rc, packet.opcode()),
            Self::Uc(request) => WireOpcode::of(Service::Uc, request.opcode()),
            Self::Ud(packet) => WireOpcode::of(Service::Ud, packet.opcode()),
            Self::Xrc { srq, packet } => {
                let asks = matches!(packet, RcPacket::Request(_));
                WireOpcode::of(Service::Xrc, packet.opcode()).filter(|_| asks == srq.is_some())
            }
            Self::Cnp => Some(WireOpcode::CNP),
            Self::Sack { .. } => Some(WireOpcode::SACK),
        }
    }
}

impl Operation<'_> {
    /// Whether it is an answer of a reliable service.
    #[inline]
    pub(crate) const fn is_answer(&self) -> bool {
        matches!(self, Self::Rc(RcPacket::Response(_)) | Self::Xrc { packet: RcPacket::Response(_), .. })
    }
}

impl<'a> RcPacket<'a> {
    /// The payload without pad; empty where the operation has none.
    pub const fn payload(&self) -> &'a [u8] {
        match self {
            Self::Request(request) => request.payload(),
            Self::Response(response) => response.payload(),
        }
    }

    /// The opcode on RC.
    pub const fn opcode(&self) -> RcOpcode {
        match self {
            Self::Request(request) => request.opcode(),
            Self::Response(response) => response.opcode(),
        }
    }
}

impl<'a> Request<'a> {
    /// The payload without pad; empty where the operation has none.
    pub const fn payload(&self) -> &'a [u8] {
        match self {
            Self::SendFirst { payload }
            | Self::SendMiddle { payload }
            | Self::SendLast { payload, .. }
            | Self::SendOnly { payload, .. }
            | Self::WriteFirst { payload, .. }
            | Self::WriteMiddle { payload }
            | Self::WriteLast { payload, .. }
            | Self::WriteOnly { payload, .. }
            | Self::AtomicWrite { payload, .. } => payload,
            Self::ReadRequest { .. }
            | Self::CompareSwap { .. }
            | Self::FetchAdd { .. }
            | Self::Flush { .. } => &[],
        }
    }

    /// Whether the opcode allows the payload's length at this path MTU (IBTA C9-92 to C9-94).
    pub fn payload_fits(&self, mtu: u32) -> bool {
        self.opcode().payload_rule().allows(self.payload().len(), mtu as usize)
    }

    /// The opcode on RC.
    pub const fn opcode(&self) -> RcOpcode {
        match self {
            Self::SendFirst { .. } => RcOpcode::SendFirst,
            Self::SendMiddle { .. } => RcOpcode::SendMiddle,
            Self::SendLast { tail: SendTail::None, .. } => RcOpcode::SendLast,
            Self::SendLast { tail: SendTail::Imm(_), .. } => RcOpcode::SendLastImm,
            Self::SendLast { tail: SendTail::Invalidate(_), .. } => RcOpcode::SendLastInvalidate,
            Self::SendOnly { tail: SendTail::None, .. } => RcOpcode::SendOnly,
            Self::SendOnly { tail: SendTail::Imm(_), .. } => RcOpcode::SendOnlyImm,
            Self::SendOnly { tail: SendTail::Invalidate(_), .. } => RcOpcode::SendOnlyInvalidate,
            Self::WriteFirst { .. } => RcOpcode::WriteFirst,
            Self::WriteMiddle { .. } => RcOpcode::WriteMiddle,
            Self::WriteLast { imm: None, .. } => RcOpcode::WriteLast,
            Self::WriteLast { imm: Some(_), .. } => RcOpcode::WriteLastImm,
            Self::WriteOnly { imm: None, .. } => RcOpcode::WriteOnly,
            Self::WriteOnly { imm: Some(_), .. } => RcOpcode::WriteOnlyImm,
            Self::ReadRequest { .. } => RcOpcode::ReadRequest,
            Self::CompareSwap { .. } => RcOpcode::CompareSwap,
            Self::FetchAdd { .. } => RcOpcode::FetchAdd,
            Self::Flush { .. } => RcOpcode::Flush,
            Self::AtomicWrite { .. } => RcOpcode::AtomicWrite,
        }
    }
}

impl<'a> Response<'a> {
    /// The payload without pad; empty where the operation has none.
    pub const fn payload(&self) -> &'a [u8] {
        match self {
            Self::ReadFirst { payload, .. }
            | Self::ReadMiddle { payload }
            | Self::ReadLast { payload, .. }
            | Self::ReadOnly { payload, .. } => payload,
            Self::Acknowledge { .. } | Self::AtomicAcknowledge { .. } => &[],
        }
    }

    /// The AETH; the middle packets of a READ have none.
    pub const fn aeth(&self) -> Option<Aeth> {
        match self {
            Self::ReadFirst { aeth, .. }
            | Self::ReadLast { aeth, .. }
            | Self::ReadOnly { aeth, .. }
            | Self::Acknowledge { aeth }
            | Self::AtomicAcknowledge { aeth, .. } => Some(*aeth),
            Self::ReadMiddle { .. } => None,
        }
    }

    /// The opcode on RC.
    pub const fn opcode(&self) -> RcOpcode {
        match self {
            Self::ReadFirst { .. } => RcOpcode::ReadFirst,
            Self::ReadMiddle { .. } => RcOpcode::ReadMiddle,
            Self::ReadLast { .. } => RcOpcode::ReadLast,
            Self::ReadOnly { .. } => RcOpcode::ReadOnly,
            Self::Acknowledge { .. } => RcOpcode::Acknowledge,
            Self::AtomicAcknowledge { .. } => RcOpcode::AtomicAcknowledge,
        }
    }
}

impl UdPacket<'_> {
    const fn opcode(&self) -> RcOpcode {
        if self.imm.is_some() { RcOpcode::SendOnlyImm } else { RcOpcode::SendOnly }
    }
}

#[cfg(test)]
mod tests;
