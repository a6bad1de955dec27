//! The packets that most traffic consists of: SEND and WRITE in one packet, and the ACK. They are read and
//! written in a few steps, without a look at the table of opcodes. The result is that of the general way, see
//! the tests.

use zerocopy::{FromBytes, IntoBytes};

use super::{IcrcStatus, Operation, Packet, RcPacket, Request, Response, SendTail};
use crate::opcode::{BTH_LEN, ICRC_LEN, RcOpcode};
use crate::{Bth, view};

const SEND_ONLY: u8 = RcOpcode::SendOnly as u8;
const WRITE_ONLY: u8 = RcOpcode::WriteOnly as u8;
const ACKNOWLEDGE: u8 = RcOpcode::Acknowledge as u8;
const RETH_LEN: usize = size_of::<view::Reth>();
const AETH_LEN: usize = size_of::<view::Aeth>();

impl<'a> Packet<'a> {
    /// As [`Packet::parse`] for these packets; `None` says nothing.
    #[inline]
    pub(super) fn parse_common(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<BTH_LEN>()?;
        let raw = view::Bth::ref_from_bytes(head).ok()?;
        if raw.version() != 0 || !bytes.len().is_multiple_of(4) {
            return None;
        }
        let tail = raw.pad() + ICRC_LEN;
        let op = match raw.opcode {
            SEND_ONLY => {
                let payload = rest.get(..rest.len().checked_sub(tail)?)?;
                RcPacket::Request(Request::SendOnly { payload, tail: SendTail::None })
            }
            WRITE_ONLY => {
                let (reth, rest) = rest.split_first_chunk::<RETH_LEN>()?;
                let payload = rest.get(..rest.len().checked_sub(tail)?)?;
                let reth = (*view::Reth::ref_from_bytes(reth).ok()?).into();
                RcPacket::Request(Request::WriteOnly { reth, imm: None, payload })
            }
            ACKNOWLEDGE if rest.len() == AETH_LEN + ICRC_LEN && tail == ICRC_LEN => {
                let aeth = (*view::Aeth::ref_from_bytes(rest.first_chunk::<AETH_LEN>()?).ok()?).into();
                RcPacket::Response(Response::Acknowledge { aeth })
            }
            _ => return None,
        };
        Some(Self { bth: Bth::read(raw), op: Operation::Rc(op), icrc: IcrcStatus::Pending })
    }

    /// Opcode and octets of the headers of these packets.
    #[inline]
    pub(crate) const fn common_head(&self) -> Option<(u8, usize)> {
        match &self.op {
            Operation::Rc(RcPacket::Request(Request::SendOnly { tail: SendTail::None, .. })) => {
                Some((SEND_ONLY, BTH_LEN))
            }
            Operation::Rc(RcPacket::Request(Request::WriteOnly { imm: None, .. })) => {
                Some((WRITE_ONLY, BTH_LEN + RETH_LEN))
            }
            Operation::Rc(RcPacket::Response(Response::Acknowledge { .. })) => {
                Some((ACKNOWLEDGE, BTH_LEN + AETH_LEN))
            }
            _ => None,
        }
    }

    /// As [`Packet::emit_head`] for a packet with this [head](Self::common_head). `false` without room.
    #[inline]
    pub(crate) fn emit_common(&self, opcode: u8, pad: u8, out: &mut [u8]) -> bool {
        let Some((head, rest)) = out.split_first_chunk_mut::<BTH_LEN>() else { return false };
        head.copy_from_slice(self.bth.write(opcode, pad).as_bytes());
        match &self.op {
            Operation::Rc(RcPacket::Request(Request::WriteOnly { reth, .. })) => rest
                .first_chunk_mut::<RETH_LEN>()
                .map(|to| to.copy_from_slice(view::Reth::from(*reth).as_bytes()))
                .is_some(),
            Operation::Rc(RcPacket::Response(Response::Acknowledge { aeth })) => rest
                .first_chunk_mut::<AETH_LEN>()
                .map(|to| to.copy_from_slice(view::Aeth::from(*aeth).as_bytes()))
                .is_some(),
            _ => true,
        }
    }
}
