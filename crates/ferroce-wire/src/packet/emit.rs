//! Writes packets as bytes.

use zerocopy::byteorder::network_endian::{U32, U128};

use super::{Operation, Packet, RcPacket, Request, Response, SendTail};
use crate::opcode::{ICRC_LEN, OpcodeInfo, PayloadRule};
use crate::out::Out;
use crate::{WireError, view};

/// Octets of pad after `len` octets of payload: 0 to 3.
const fn pad(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// The places of a packet's parts.
pub(crate) struct Layout {
    opcode: u8,
    /// Octets of BTH and extension headers.
    head_len: usize,
    /// Octets of payload.
    pub payload_len: usize,
    /// Octets from BTH to ICRC.
    pub wire_len: usize,
    /// See [`Packet::common_head`].
    is_common: bool,
}

impl Packet<'_> {
    /// Octets of BTH and extension headers.
    ///
    /// # Errors
    ///
    /// [`WireError::NoSuchOperation`]: the service has no such operation.
    pub fn header_len(&self) -> Result<usize, WireError> {
        self.info().map(|(_, info)| info.header_len)
    }

    /// Octets from BTH to ICRC of the packet with `payload_len` octets of payload.
    ///
    /// # Errors
    ///
    /// [`WireError::NoSuchOperation`]: the service has no such operation.
    pub fn wire_len(&self, payload_len: usize) -> Result<usize, WireError> {
        self.layout(payload_len).map(|layout| layout.wire_len)
    }

    /// The layout of the packet with `payload_len` octets of payload.
    ///
    /// # Errors
    ///
    /// As [`Packet::emit_head`], but for the buffer.
    #[inline(always)]
    pub(crate) fn layout(&self, payload_len: usize) -> Result<Layout, WireError> {
        let common = self.common_head().filter(|_| payload_len == 0 || !self.op.is_answer());
        let (opcode, head_len, is_common) = match common {
            Some((opcode, head_len)) => (opcode, head_len, true),
            None => {
                let (opcode, info) = self.info()?;
                (opcode, info.header_len, false)
            }
        };
        let wire_len = payload_len.saturating_add(head_len + pad(payload_len) + ICRC_LEN);
        Ok(Layout { opcode, head_len, payload_len, wire_len, is_common })
    }

    /// As [`Packet::emit_head`], by the layout. Returns the rest of `out`, from the payload on.
    #[inline(never)]
    pub(crate) fn emit_by<'o>(&self, layout: &Layout, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        self.emit_here(layout, out)
    }

    /// As [`Packet::emit_by`], without a call: where the compiler knows the operation, it writes the few
    /// words that this has, and makes no [`Packet`] in memory.
    #[inline(always)]
    pub(crate) fn emit_here<'o>(
        &self,
        layout: &Layout,
        out: &'o mut [u8],
    ) -> Result<&'o mut [u8], WireError> {
        let &Layout { opcode, head_len, payload_len, .. } = layout;
        let small = WireError::BufferTooSmall { need: head_len, have: out.len() };
        if !layout.is_common {
            self.emit_head(payload_len, out)?;
        } else if !self.emit_common(opcode, pad(payload_len) as u8, out) {
            return Err(small);
        }
        out.get_mut(head_len..).ok_or(small)
    }

    /// Writes the whole packet, its pad, and four zero octets in place of the ICRC, which
    /// [`icrc::seal`](crate::icrc::seal) computes. Returns the octets written.
    ///
    /// # Errors
    ///
    /// As [`Packet::emit_head`]; the contents of `out` are then undefined.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let payload = self.op.payload();
        let need = self.wire_len(payload.len())?;
        let have = out.len();
        let small = WireError::BufferTooSmall { need, have };
        let out = out.get_mut(..need).ok_or(small)?;
        let head = self.emit_head(payload.len(), out)?;
        let (body, tail) =
            out.get_mut(head..).and_then(|rest| rest.split_at_mut_checked(payload.len())).ok_or(small)?;
        body.copy_from_slice(payload);
        tail.fill(0);
        Ok(need)
    }

    /// Writes BTH and extension headers as for `payload_len` octets of payload; the payload in `self` is
    /// ignored. Returns the octets written.
    ///
    /// # Errors
    ///
    /// - [`WireError::BufferTooSmall`]: `out` cannot take the headers.
    /// - [`WireError::NoSuchOperation`]: the service has no such operation.
    /// - [`WireError::UnexpectedPayload`]: the operation has no payload and `payload_len` is not 0.
    pub fn emit_head(&self, payload_len: usize, out: &mut [u8]) -> Result<usize, WireError> {
        let (opcode, info) = self.info()?;
        if info.payload == PayloadRule::None && payload_len != 0 {
            return Err(WireError::UnexpectedPayload { len: payload_len });
        }
        let need = info.header_len;
        let mut out = Out::new(out, need);
        out.put(&self.bth.write(opcode, pad(payload_len) as u8))?;
        match &self.op {
            Operation::Rc(packet) => out.rc_packet(packet)?,
            Operation::Uc(request) => out.request(request)?,
            Operation::Ud(packet) => {
                out.put(&view::Deth::from(packet.deth))?;
                if let Some(imm) = packet.imm {
                    out.put(&imm.0)?;
                }
            }
            Operation::Xrc { srq, packet } => {
                if let Some(srq) = srq {
                    out.put(&view::XrcEth { reserved: 0, srq: srq.to_be_bytes() })?;
                }
                out.rc_packet(packet)?;
            }
            Operation::Cnp => out.put(&[0u8; 16])?,
            Operation::Sack { aeth, held } => {
                out.put(&view::Aeth::from(*aeth))?;
                out.put(&U128::new(*held))?;
            }
        }
        Ok(need)
    }

    fn info(&self) -> Result<(u8, &'static OpcodeInfo), WireError> {
        let missing = || WireError::NoSuchOperation(self.op.service());
        let opcode = self.op.opcode().ok_or_else(missing)?;
        Ok((opcode.0, opcode.info().ok_or_else(missing)?))
    }
}

impl Out<'_> {
    fn rc_packet(&mut self, packet: &RcPacket<'_>) -> Result<(), WireError> {
        match packet {
            RcPacket::Request(request) => self.request(request),
            RcPacket::Response(response) => self.response(response),
        }
    }

    fn request(&mut self, request: &Request<'_>) -> Result<(), WireError> {
        match request {
            Request::SendFirst { .. } | Request::SendMiddle { .. } | Request::WriteMiddle { .. } => Ok(()),
            Request::SendLast { tail, .. } | Request::SendOnly { tail, .. } => match tail {
                SendTail::None => Ok(()),
                SendTail::Imm(imm) => self.put(&imm.0),
                SendTail::Invalidate(rkey) => self.put(&U32::new(rkey.value())),
            },
            Request::WriteLast { imm, .. } => imm.map_or(Ok(()), |imm| self.put(&imm.0)),
            Request::WriteOnly { reth, imm, .. } => {
                self.put(&view::Reth::from(*reth))?;
                imm.map_or(Ok(()), |imm| self.put(&imm.0))
            }
            Request::WriteFirst { reth, .. }
            | Request::ReadRequest { reth }
            | Request::AtomicWrite { reth, .. } => self.put(&view::Reth::from(*reth)),
            Request::CompareSwap { atomic } | Request::FetchAdd { atomic } => {
                self.put(&view::AtomicEth::from(*atomic))
            }
            Request::Flush { feth, reth } => {
                self.put(&view::Feth::from(*feth))?;
                self.put(&view::Reth::from(*reth))
            }
        }
    }

    fn response(&mut self, response: &Response<'_>) -> Result<(), WireError> {
        if let Some(aeth) = response.aeth() {
            self.put(&view::Aeth::from(aeth))?;
        }
        match response {
            Response::AtomicAcknowledge { original, .. } => {
                self.put(&view::AtomicAckEth { original: (*original).into() })
            }
            Response::ReadFirst { .. }
            | Response::ReadMiddle { .. }
            | Response::ReadLast { .. }
            | Response::ReadOnly { .. }
            | Response::Acknowledge { .. } => Ok(()),
        }
    }
}
