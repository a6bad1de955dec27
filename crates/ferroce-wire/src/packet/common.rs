//! The packets that most traffic consists of: SEND and WRITE in one packet, and the ACK. They are read and
//! written in a few steps, without a look at the table of opcodes. The result is that of the general way, see
//! the tests.

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::{IcrcStatus, Operation, Packet, RcPacket, Request, Response, SendTail};
use crate::opcode::{BTH_LEN, ICRC_LEN, RcOpcode};
use crate::{Aeth, Bth, CreditCode, Msn, Reth, Rkey, Syndrome, view};

const SEND_ONLY: u8 = RcOpcode::SendOnly as u8;
const WRITE_ONLY: u8 = RcOpcode::WriteOnly as u8;
const ACKNOWLEDGE: u8 = RcOpcode::Acknowledge as u8;
const RETH_LEN: usize = size_of::<view::Reth>();
const AETH_LEN: usize = size_of::<view::Aeth>();
/// The bits of the version in the first word of a BTH.
const VERSION: u32 = 0x000f_0000;

impl<'a> Packet<'a> {
    /// As [`Packet::parse`], for the packets that most traffic consists of: SEND and WRITE in one packet, and
    /// the ACK, without marks of congestion. `None` says nothing: [`Packet::parse`] follows.
    ///
    /// [`Packet::parse`] calls it too. A caller that returns its result at once saves a copy of the packet.
    #[inline(always)]
    pub fn parse_common(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<BTH_LEN>()?;
        let [first, second, third] = <[U32; 3]>::ref_from_bytes(head).ok()?.map(U32::get);
        let marks = second >> 24;
        if first & VERSION | marks != 0 || !bytes.len().is_multiple_of(4) {
            return None;
        }
        let tail = (first >> 20 & 3) as usize + ICRC_LEN;
        let op = match (first >> 24) as u8 {
            SEND_ONLY => {
                let payload = rest.get(..rest.len().checked_sub(tail)?)?;
                RcPacket::Request(Request::SendOnly { payload, tail: SendTail::None })
            }
            WRITE_ONLY => {
                let (reth, rest) = rest.split_first_chunk::<RETH_LEN>()?;
                let payload = rest.get(..rest.len().checked_sub(tail)?)?;
                let raw = view::Reth::ref_from_bytes(reth).ok()?;
                let (va, rkey, dma_len) = (raw.va.get(), Rkey::new(raw.rkey.get()), raw.dma_len.get());
                let reth = Reth { va, rkey, dma_len };
                RcPacket::Request(Request::WriteOnly { reth, imm: None, payload })
            }
            ACKNOWLEDGE if rest.len() == AETH_LEN + ICRC_LEN && tail == ICRC_LEN => {
                let word = U32::ref_from_bytes(rest.first_chunk::<AETH_LEN>()?).ok()?.get();
                let credits = CreditCode::new((word >> 24) as u8)?;
                let aeth = Aeth { syndrome: Syndrome::Ack { credits }, msn: Msn::new(word) };
                RcPacket::Response(Response::Acknowledge { aeth })
            }
            _ => return None,
        };
        let bth = Bth::read([first, second, third]);
        Some(Self { bth, op: Operation::Rc(op), icrc: IcrcStatus::Pending })
    }

    /// Opcode and octets of the headers of these packets.
    #[inline(always)]
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
    #[inline(always)]
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
                .map(|to| *to = (u32::from(aeth.syndrome.to_byte()) << 24 | aeth.msn.value()).to_be_bytes())
                .is_some(),
            _ => true,
        }
    }
}
