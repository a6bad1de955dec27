//! Headers as typed values.

use zerocopy::byteorder::network_endian::U32;

use crate::{Pkey, Psn, Qkey, Qpn, Rkey, view};

/// Base transport header (IBTA 9.2) without the fields that follow from the operation: opcode, pad count,
/// version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// SE: the receiver's completion is a solicited event.
    pub solicited: bool,
    /// M: path migration state. Ignored on RoCE; cards set it, kernel rxe clears it.
    pub mig_req: bool,
    /// Partition key.
    pub pkey: Pkey,
    /// Forward congestion notification; not covered by the ICRC.
    pub fecn: bool,
    /// Backward congestion notification: set in a CNP; not covered by the ICRC.
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// A: the requester requests an acknowledgement.
    pub ack_req: bool,
    /// A reserved bit in front of the PSN, the first behind A. Ferroce offers selective repeat by it; every
    /// other peer leaves it clear and ignores it.
    pub extended: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// A bit of the first of the three words, as the next one.
    const SE: u32 = 1 << 23;
    const M: u32 = 1 << 22;
    /// A bit of the second word, as the next one.
    const FECN: u32 = 1 << 31;
    const BECN: u32 = 1 << 30;
    /// A bit of the third word, as the next one.
    const A: u32 = 1 << 31;
    const EXTENDED: u32 = 1 << 30;

    /// A BTH in the default partition with all flags clear.
    pub const fn new(dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            solicited: false,
            mig_req: false,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            extended: false,
            psn,
        }
    }

    /// Reads the three words of a header.
    #[inline(always)]
    pub(crate) const fn read([first, second, third]: [u32; 3]) -> Self {
        Self {
            solicited: first & Self::SE != 0,
            mig_req: first & Self::M != 0,
            pkey: Pkey::new(first as u16),
            fecn: second & Self::FECN != 0,
            becn: second & Self::BECN != 0,
            dest_qp: Qpn::new(second),
            ack_req: third & Self::A != 0,
            extended: third & Self::EXTENDED != 0,
            psn: Psn::new(third),
        }
    }

    /// The three words of the header. `pad` is below 4.
    #[inline(always)]
    pub(crate) fn write(&self, opcode: u8, pad: u8) -> [U32; 3] {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let flags = bit(self.solicited, Self::SE) | bit(self.mig_req, Self::M);
        let first = u32::from(opcode) << 24 | flags | u32::from(pad) << 20 | u32::from(self.pkey.value());
        let ecn = bit(self.fecn, Self::FECN) | bit(self.becn, Self::BECN);
        let third = bit(self.ack_req, Self::A) | bit(self.extended, Self::EXTENDED) | self.psn.value();
        [first, ecn | self.dest_qp.value(), third].map(U32::new)
    }
}

impl view::Bth {
    /// Pad octets after the payload: 0 to 3.
    pub const fn pad(&self) -> usize {
        (self.flags >> 4 & 3) as usize
    }

    /// The header as three words, whose fields are masks and shifts of registers.
    pub(crate) fn words(&self) -> [u32; 3] {
        let words: [U32; 3] = zerocopy::transmute!(*self);
        words.map(U32::get)
    }

    /// Transport header version: 0.
    pub const fn version(&self) -> u8 {
        self.flags & 0x0f
    }
}

/// RDMA extended transport header (IBTA 9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Virtual address in the responder's memory.
    pub va: u64,
    /// Remote key of that memory.
    pub rkey: Rkey,
    /// Octets of the whole message, at most 2^31.
    pub dma_len: u32,
}

impl From<view::Reth> for Reth {
    fn from(raw: view::Reth) -> Self {
        Self { va: raw.va.get(), rkey: Rkey::new(raw.rkey.get()), dma_len: raw.dma_len.get() }
    }
}

impl From<Reth> for view::Reth {
    fn from(reth: Reth) -> Self {
        Self { va: reth.va.into(), rkey: reth.rkey.value().into(), dma_len: reth.dma_len.into() }
    }
}

/// Atomic extended transport header (IBTA 9.3.4). The operands are numbers; memory holds them in the host's
/// byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Virtual address in the responder's memory, a multiple of 8.
    pub va: u64,
    /// Remote key of that memory.
    pub rkey: Rkey,
    /// CmpSwap: the value to store. FetchAdd: the value to add.
    pub swap_or_add: u64,
    /// CmpSwap: the value to compare with. FetchAdd: sent as 0, ignored on receipt (rxe sends its old value).
    pub compare: u64,
}

impl From<view::AtomicEth> for AtomicEth {
    fn from(raw: view::AtomicEth) -> Self {
        Self {
            va: raw.va.get(),
            rkey: Rkey::new(raw.rkey.get()),
            swap_or_add: raw.swap_or_add.get(),
            compare: raw.compare.get(),
        }
    }
}

impl From<AtomicEth> for view::AtomicEth {
    fn from(atomic: AtomicEth) -> Self {
        Self {
            va: atomic.va.into(),
            rkey: atomic.rkey.value().into(),
            swap_or_add: atomic.swap_or_add.into(),
            compare: atomic.compare.into(),
        }
    }
}

/// Datagram extended transport header (IBTA 9.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// The queue key, which must equal the receiver's.
    pub qkey: Qkey,
    /// The sender's queue pair, to which an answer is sent.
    pub src_qp: Qpn,
}

impl From<view::Deth> for Deth {
    fn from(raw: view::Deth) -> Self {
        Self { qkey: Qkey::new(raw.qkey.get()), src_qp: Qpn::from_be_bytes(raw.src_qp) }
    }
}

impl From<Deth> for view::Deth {
    fn from(deth: Deth) -> Self {
        Self { qkey: deth.qkey.value().into(), reserved: 0, src_qp: deth.src_qp.to_be_bytes() }
    }
}

/// Flush extended transport header (annex A19): the state of the memory that the answer guarantees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feth {
    /// A set of [`Feth::GLOBAL_VISIBILITY`] and [`Feth::PERSISTENCE`]; 4 bits.
    pub placement: u8,
    /// [`Feth::RANGE`] or [`Feth::WHOLE_REGION`]; 2 bits.
    pub selectivity: u8,
}

impl Feth {
    /// Placement: visible to every reader.
    pub const GLOBAL_VISIBILITY: u8 = 1;
    /// Placement: survives loss of power.
    pub const PERSISTENCE: u8 = 2;
    /// Selectivity: the range of RETH.
    pub const RANGE: u8 = 0;
    /// Selectivity: the whole memory region.
    pub const WHOLE_REGION: u8 = 1;
}

impl From<view::Feth> for Feth {
    fn from(raw: view::Feth) -> Self {
        let word = raw.word.get();
        Self { placement: (word & 0xf) as u8, selectivity: (word >> 4 & 3) as u8 }
    }
}

impl From<Feth> for view::Feth {
    fn from(feth: Feth) -> Self {
        let word = u32::from(feth.placement & 0xf) | u32::from(feth.selectivity & 3) << 4;
        Self { word: word.into() }
    }
}
