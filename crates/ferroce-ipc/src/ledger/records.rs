//! The records of objects: each kind has a type that lies in the ledger as it is.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{QP_COUNTERS, Table, WORD};

/// An object's record, or a part of it. Any octets are a valid one.
pub trait Fields: FromBytes + IntoBytes + Immutable {
    const TABLE: Table;
    /// Word of the record at which it begins.
    const AT: usize = 0;
}

/// The block of the object's device. Every record begins with one; a first word of 0 means no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Block {
    number: u16,
    present: u16,
}

impl Block {
    pub const fn new(number: usize) -> Self {
        Self { number: number as u16, present: 1 }
    }

    pub fn number(self) -> usize {
        self.number.into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct ContextRecord {
    /// Block of its device.
    pub block: Block,
}

impl Fields for ContextRecord {
    const TABLE: Table = Table::Context;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct PdRecord {
    /// Block of its device.
    pub block: Block,
    /// Number of its context.
    pub context: u32,
}

impl Fields for PdRecord {
    const TABLE: Table = Table::Pd;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct CqRecord {
    /// Block of its device.
    pub block: Block,
    /// Number of its context.
    pub context: u32,
    /// Capacity in entries.
    pub cqe: u32,
}

impl Fields for CqRecord {
    const TABLE: Table = Table::Cq;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct SrqRecord {
    /// Block of its device.
    pub block: Block,
    /// Number of its protection domain.
    pub pd: u32,
    /// Number of the queue on the wire.
    pub srqn: u32,
    /// Whether it is an XRC SRQ, as 0 or 1.
    pub is_xrc: u32,
    /// Number of its completion queue, if it is an XRC SRQ.
    pub cq: u32,
}

impl Fields for SrqRecord {
    const TABLE: Table = Table::Srq;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct MrRecord {
    /// Block of its device.
    pub block: Block,
    pub rkey: u32,
    pub lkey: u32,
    /// Number of its protection domain.
    pub pd: u32,
    /// Octets.
    pub length: u64,
}

impl Fields for MrRecord {
    const TABLE: Table = Table::Mr;
}

/// The changing part of a queue pair's record. The engine stores it whenever it releases the queue pair's
/// lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct QpProgress {
    /// Block of its device.
    pub block: Block,
    /// Service of the queue pair, of `enum ibv_qp_type`.
    pub service: u16,
    /// State of the queue pair, of `enum ibv_qp_state`.
    pub state: u16,
    /// Number of the queue pair.
    pub qpn: u32,
    /// The number of the peer's queue pair.
    pub remote_qpn: u32,
    pub psns: QpPsns,
}

/// The PSNs of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct QpPsns {
    /// The PSN expected next.
    pub rq_psn: u32,
    /// The PSN sent next.
    pub sq_psn: u32,
}

impl Fields for QpProgress {
    const TABLE: Table = Table::Qp;
}

/// The constant part of a queue pair's record: the objects that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct QpParts {
    /// Number of its protection domain.
    pub pd: u32,
    /// Number of its send completion queue, 0 for none.
    pub send_cq: u32,
    /// Number of its receive completion queue, 0 for none.
    pub recv_cq: u32,
}

impl Fields for QpParts {
    const TABLE: Table = Table::Qp;
    const AT: usize = size_of::<QpProgress>() / WORD;
}

/// A queue pair, without its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct QpRecord {
    pub progress: QpProgress,
    pub parts: QpParts,
}

impl Fields for QpRecord {
    const TABLE: Table = Table::Qp;
}

/// The ends of a connection, as the program set them. All zero before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Ends {
    /// Block of its device.
    pub block: Block,
    /// The number of the queue pair; 0 for none.
    pub qpn: u32,
    pub remote_qpn: u32,
    /// Service, of `enum ibv_qp_type`.
    pub service: u8,
    /// Path MTU, of `enum ibv_mtu`.
    pub path_mtu: u8,
    pub sgid_index: u8,
    /// The code of the ACK timeout: 4.096 µs times two to its power; 0 for none.
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    /// Hop limit of its packets, or time to live.
    pub hop_limit: u8,
    pub spare: [u8; 5],
    /// GIDs.
    pub local: [u8; 16],
    pub remote: [u8; 16],
}

const _: () = assert!(size_of::<Ends>().is_multiple_of(WORD));
const _: () = assert!(size_of::<QpProgress>().is_multiple_of(WORD));
const _: () = assert!(size_of::<QpRecord>() <= QP_COUNTERS * WORD);
