//! The fixed messages that untagged segments carry.

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Stag;

macro_rules! layout {
    ($name:ident, $len:literal { $($field:ident: $ty:ty,)* }) => {
        #[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        struct $name { $($field: $ty,)* }

        const _: () = assert!(size_of::<$name>() == $len);
    };
}

layout!(ReadView, 28 {
    sink: U32,
    sink_offset: U64,
    length: U32,
    source: U32,
    source_offset: U64,
});

layout!(AtomicView, 52 {
    kind: U32,
    request: U32,
    stag: U32,
    offset: U64,
    operand: U64,
    operand_mask: U64,
    compare: U64,
    compare_mask: U64,
});

layout!(AtomicResponseView, 12 {
    request: U32,
    original: U64,
});

/// An RDMA Read Request (RFC 5040 section 4.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// The requester's memory, which the responses name.
    pub sink: Stag,
    /// The address of the first octet there.
    pub sink_offset: u64,
    /// Octets to read.
    pub length: u32,
    /// The responder's memory.
    pub source: Stag,
    /// The address of the first octet there.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Octets of the message.
    pub const LEN: usize = 28;

    /// Reads one of [`Self::LEN`] octets; `None` for any other number of them.
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let raw = ReadView::ref_from_bytes(octets).ok()?;
        Some(Self {
            sink: Stag(raw.sink.get()),
            sink_offset: raw.sink_offset.get(),
            length: raw.length.get(),
            source: Stag(raw.source.get()),
            source_offset: raw.source_offset.get(),
        })
    }

    /// The octets of the message.
    pub fn emit(&self) -> [u8; Self::LEN] {
        zerocopy::transmute!(ReadView {
            sink: self.sink.0.into(),
            sink_offset: self.sink_offset.into(),
            length: self.length.into(),
            source: self.source.0.into(),
            source_offset: self.source_offset.into(),
        })
    }
}

/// An atomic operation on 64 bits (RFC 7306 section 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicKind {
    /// Adds, and returns the value before. The sum is one field of 64 bits.
    FetchAdd {
        /// The number to add.
        add: u64,
    },
    /// Stores `swap` if the value equals `compare`, and returns the value before. All bits are compared and
    /// swapped.
    CompareSwap {
        /// The value to compare with.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
}

/// An Atomic Request (RFC 7306 section 5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequest {
    /// The number that the response repeats.
    pub request: u32,
    /// The responder's memory.
    pub stag: Stag,
    /// The address of the eight octets there.
    pub offset: u64,
    /// The operation.
    pub kind: AtomicKind,
}

const FETCH_ADD: u32 = 0;
const COMPARE_SWAP: u32 = 2;

impl AtomicRequest {
    /// Octets of the message.
    pub const LEN: usize = 52;

    /// Reads one of [`Self::LEN`] octets. `None` for any other number of them, for another operation, and for
    /// masks that leave bits out.
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let raw = AtomicView::ref_from_bytes(octets).ok()?;
        let kind = match raw.kind.get() & 0xf {
            // A bit of the mask ends a field of the sum; the highest bit always does.
            FETCH_ADD if raw.operand_mask.get() & (u64::MAX >> 1) == 0 => {
                AtomicKind::FetchAdd { add: raw.operand.get() }
            }
            COMPARE_SWAP if raw.operand_mask.get() & raw.compare_mask.get() == u64::MAX => {
                AtomicKind::CompareSwap { compare: raw.compare.get(), swap: raw.operand.get() }
            }
            _ => return None,
        };
        let (stag, offset) = (Stag(raw.stag.get()), raw.offset.get());
        Some(Self { request: raw.request.get(), stag, offset, kind })
    }

    /// The octets of the message.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let (kind, operand, mask, compare) = match self.kind {
            AtomicKind::FetchAdd { add } => (FETCH_ADD, add, 0, 0),
            AtomicKind::CompareSwap { compare, swap } => (COMPARE_SWAP, swap, u64::MAX, compare),
        };
        zerocopy::transmute!(AtomicView {
            kind: kind.into(),
            request: self.request.into(),
            stag: self.stag.0.into(),
            offset: self.offset.into(),
            operand: operand.into(),
            operand_mask: mask.into(),
            compare: compare.into(),
            compare_mask: mask.into(),
        })
    }
}

/// An Atomic Response (RFC 7306 section 5.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResponse {
    /// The number of the request.
    pub request: u32,
    /// The value before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Octets of the message.
    pub const LEN: usize = 12;

    /// Reads one of [`Self::LEN`] octets; `None` for any other number of them.
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let raw = AtomicResponseView::ref_from_bytes(octets).ok()?;
        Some(Self { request: raw.request.get(), original: raw.original.get() })
    }

    /// The octets of the message.
    pub fn emit(&self) -> [u8; Self::LEN] {
        zerocopy::transmute!(AtomicResponseView {
            request: self.request.into(),
            original: self.original.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The read request of rping on siw.
    #[test]
    fn a_read_request_of_siw() {
        let octets = [
            0xd6, 0xa1, 0xc0, 0x00, 0x00, 0x00, 0x55, 0xbc, 0x71, 0xf4, 0x01, 0x30, 0x00, 0x00, 0x00, 0x40,
            0xe3, 0x81, 0x2f, 0x00, 0x00, 0x00, 0x55, 0x5a, 0x17, 0x51, 0xe4, 0x50,
        ];
        let request = ReadRequest::parse(&octets).unwrap();
        assert_eq!(request.sink, Stag(0xd6a1_c000));
        assert_eq!(request.sink_offset, 0x55bc_71f4_0130);
        assert_eq!(request.length, 64);
        assert_eq!(request.source, Stag(0xe381_2f00));
        assert_eq!(request.source_offset, 0x555a_1751_e450);
        assert_eq!(request.emit(), octets);
        assert_eq!(ReadRequest::parse(&octets[..27]), None);
    }

    #[test]
    fn atomics() {
        for kind in [AtomicKind::FetchAdd { add: 7 }, AtomicKind::CompareSwap { compare: 1, swap: 2 }] {
            let request = AtomicRequest { request: 9, stag: Stag(5), offset: 8, kind };
            let mut octets = request.emit();
            assert_eq!(AtomicRequest::parse(&octets), Some(request));
            // A mask that makes fields of the sum, or leaves a bit out of the swap.
            octets[31] ^= 1;
            assert_eq!(AtomicRequest::parse(&octets), None);
        }
        let response = AtomicResponse { request: 9, original: 1 << 40 };
        assert_eq!(AtomicResponse::parse(&response.emit()), Some(response));
    }
}
