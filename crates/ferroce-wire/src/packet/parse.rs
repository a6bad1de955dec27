//! Parses bytes to packets.

use zerocopy::byteorder::network_endian::{U32, U128};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{IcrcStatus, Operation, Packet, RcPacket, Request, Response, SendTail, UdPacket};
use crate::opcode::{BTH_LEN, Headers, ICRC_LEN, PayloadRule, RcOpcode, Service, WireOpcode};
use crate::{Aeth, Bth, Imm, Rkey, SrqNumber, WireError, view};

impl<'a> Packet<'a> {
    /// Reads one packet, BTH to ICRC. The ICRC is not verified: the result has [`IcrcStatus::Pending`].
    ///
    /// # Errors
    ///
    /// On any error the caller drops and counts the bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        match Self::parse_common(bytes) {
            Some(packet) => Ok(packet),
            None => Self::parse_any(bytes),
        }
    }

    /// As [`Packet::parse`], for packets of all kinds.
    #[inline(never)]
    pub(super) fn parse_any(bytes: &'a [u8]) -> Result<Self, WireError> {
        let have = bytes.len();
        let (raw, after_bth) = view::Bth::ref_from_prefix(bytes)
            .map_err(|_| WireError::Truncated { need: BTH_LEN + ICRC_LEN, have })?;
        let info = WireOpcode(raw.opcode).info().ok_or(WireError::UnknownOpcode(raw.opcode))?;
        if raw.version() != 0 {
            return Err(WireError::Version(raw.version()));
        }
        // The length is checked before any other octet is read.
        let need = info.header_len + raw.pad() + ICRC_LEN;
        let payload_len = have.checked_sub(need).ok_or(WireError::Truncated { need, have })?;
        if !have.is_multiple_of(4) {
            return Err(WireError::Unaligned { len: have });
        }
        if info.payload == PayloadRule::None && raw.pad() + payload_len != 0 {
            return Err(WireError::TrailingBytes { opcode: raw.opcode, extra: raw.pad() + payload_len });
        }
        let mut rest = Rest { bytes: after_bth, payload_len, have };
        let op = match (info.service, info.operation) {
            (Service::Rc, Some(operation)) => Operation::Rc(rest.rc_packet(operation)?),
            (Service::Uc, Some(operation)) => match rest.rc_packet(operation)? {
                RcPacket::Request(request) => Operation::Uc(request),
                RcPacket::Response(_) => return Err(WireError::UnknownOpcode(raw.opcode)),
            },
            (Service::Ud, Some(operation)) => Operation::Ud(rest.ud_packet(operation)?),
            (Service::Xrc, Some(operation)) => {
                let srq = if info.headers.contains(Headers::XRCETH) {
                    Some(rest.take::<view::XrcEth>()?)
                } else {
                    None
                };
                let srq = srq.map(|header| SrqNumber::from_be_bytes(header.srq));
                Operation::Xrc { srq, packet: rest.rc_packet(operation)? }
            }
            (Service::Cnp, _) => Operation::Cnp,
            (Service::Manufacturer, _) => {
                let aeth = rest.aeth()?;
                Operation::Sack { aeth, held: rest.take::<U128>()?.get() }
            }
            (Service::Rd, _) | (_, None) => return Err(WireError::UnsupportedOpcode(raw.opcode)),
        };
        Ok(Self { bth: Bth::read(raw.words()), op, icrc: IcrcStatus::Pending })
    }
}

/// The unread part of the packet: extension headers, payload, pad, ICRC.
struct Rest<'a> {
    bytes: &'a [u8],
    payload_len: usize,
    have: usize,
}

impl<'a> Rest<'a> {
    fn take<T: FromBytes + Immutable + KnownLayout + Unaligned + Copy>(&mut self) -> Result<T, WireError> {
        let have = self.have;
        let (header, rest) = T::read_from_prefix(self.bytes)
            .map_err(|_| WireError::Truncated { need: have + size_of::<T>(), have })?;
        self.bytes = rest;
        Ok(header)
    }

    fn payload(&self) -> Result<&'a [u8], WireError> {
        let (need, have) = (self.have + self.payload_len, self.have);
        self.bytes.get(..self.payload_len).ok_or(WireError::Truncated { need, have })
    }

    fn imm(&mut self) -> Result<Imm, WireError> {
        Ok(Imm(self.take()?))
    }

    fn invalidate(&mut self) -> Result<SendTail, WireError> {
        Ok(SendTail::Invalidate(Rkey::new(self.take::<U32>()?.get())))
    }

    fn aeth(&mut self) -> Result<Aeth, WireError> {
        Ok(self.take::<view::Aeth>()?.into())
    }

    fn ud_packet(&mut self, operation: RcOpcode) -> Result<UdPacket<'a>, WireError> {
        let deth = self.take::<view::Deth>()?.into();
        let imm = if operation == RcOpcode::SendOnlyImm { Some(self.imm()?) } else { None };
        Ok(UdPacket { deth, payload: self.payload()?, imm })
    }

    fn rc_packet(&mut self, operation: RcOpcode) -> Result<RcPacket<'a>, WireError> {
        use RcPacket::{Request as Asks, Response as Answers};
        Ok(match operation {
            RcOpcode::SendFirst => Asks(Request::SendFirst { payload: self.payload()? }),
            RcOpcode::SendMiddle => Asks(Request::SendMiddle { payload: self.payload()? }),
            RcOpcode::SendLast => Asks(self.send_last(SendTail::None)?),
            RcOpcode::SendLastImm => {
                let tail = SendTail::Imm(self.imm()?);
                Asks(self.send_last(tail)?)
            }
            RcOpcode::SendLastInvalidate => {
                let tail = self.invalidate()?;
                Asks(self.send_last(tail)?)
            }
            RcOpcode::SendOnly => Asks(self.send_only(SendTail::None)?),
            RcOpcode::SendOnlyImm => {
                let tail = SendTail::Imm(self.imm()?);
                Asks(self.send_only(tail)?)
            }
            RcOpcode::SendOnlyInvalidate => {
                let tail = self.invalidate()?;
                Asks(self.send_only(tail)?)
            }
            RcOpcode::WriteFirst => {
                let reth = self.take::<view::Reth>()?.into();
                Asks(Request::WriteFirst { reth, payload: self.payload()? })
            }
            RcOpcode::WriteMiddle => Asks(Request::WriteMiddle { payload: self.payload()? }),
            RcOpcode::WriteLast => Asks(Request::WriteLast { imm: None, payload: self.payload()? }),
            RcOpcode::WriteLastImm => {
                let imm = Some(self.imm()?);
                Asks(Request::WriteLast { imm, payload: self.payload()? })
            }
            RcOpcode::WriteOnly => {
                let reth = self.take::<view::Reth>()?.into();
                Asks(Request::WriteOnly { reth, imm: None, payload: self.payload()? })
            }
            RcOpcode::WriteOnlyImm => {
                let reth = self.take::<view::Reth>()?.into();
                let imm = Some(self.imm()?);
                Asks(Request::WriteOnly { reth, imm, payload: self.payload()? })
            }
            RcOpcode::ReadRequest => Asks(Request::ReadRequest { reth: self.take::<view::Reth>()?.into() }),
            RcOpcode::CompareSwap => {
                Asks(Request::CompareSwap { atomic: self.take::<view::AtomicEth>()?.into() })
            }
            RcOpcode::FetchAdd => Asks(Request::FetchAdd { atomic: self.take::<view::AtomicEth>()?.into() }),
            RcOpcode::Flush => {
                let feth = self.take::<view::Feth>()?.into();
                Asks(Request::Flush { feth, reth: self.take::<view::Reth>()?.into() })
            }
            RcOpcode::AtomicWrite => {
                let reth = self.take::<view::Reth>()?.into();
                Asks(Request::AtomicWrite { reth, payload: self.payload()? })
            }
            RcOpcode::ReadFirst => {
                let aeth = self.aeth()?;
                Answers(Response::ReadFirst { aeth, payload: self.payload()? })
            }
            RcOpcode::ReadMiddle => Answers(Response::ReadMiddle { payload: self.payload()? }),
            RcOpcode::ReadLast => {
                let aeth = self.aeth()?;
                Answers(Response::ReadLast { aeth, payload: self.payload()? })
            }
            RcOpcode::ReadOnly => {
                let aeth = self.aeth()?;
                Answers(Response::ReadOnly { aeth, payload: self.payload()? })
            }
            RcOpcode::Acknowledge => Answers(Response::Acknowledge { aeth: self.aeth()? }),
            RcOpcode::AtomicAcknowledge => {
                let aeth = self.aeth()?;
                let original = self.take::<view::AtomicAckEth>()?.original.get();
                Answers(Response::AtomicAcknowledge { aeth, original })
            }
        })
    }

    fn send_last(&self, tail: SendTail) -> Result<Request<'a>, WireError> {
        Ok(Request::SendLast { payload: self.payload()?, tail })
    }

    fn send_only(&self, tail: SendTail) -> Result<Request<'a>, WireError> {
        Ok(Request::SendOnly { payload: self.payload()?, tail })
    }
}
