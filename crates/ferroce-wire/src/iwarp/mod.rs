//! iWARP: the octets of MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040, RFC 7306).
//!
//! A TCP stream carries the set-up frames of MPA first ([`mpa`]). FPDUs follow: a length, one DDP segment, a
//! pad and a CRC ([`crc`]). The header of a segment with its RDMAP control octet is a [`SegmentHeader`]. The
//! fixed messages inside untagged segments are [`ReadRequest`], [`AtomicRequest`], [`AtomicResponse`] and
//! [`Terminate`]. All fields are big-endian, except the CRC.

pub mod crc;
mod message;
pub mod mpa;
mod segment;
mod terminate;

pub use message::{AtomicKind, AtomicRequest, AtomicResponse, ReadRequest};
pub use segment::{Opcode, Queue, SegmentError, SegmentHeader, Stag};
pub use terminate::{Cause, Layer, Terminate};

/// Octets of the length field in front of a ULPDU (RFC 5044 section 4.1).
pub const LENGTH_LEN: usize = 2;
/// Octets of the CRC field, which is there with CRC switched off as well (RFC 5044 section 4.4).
pub const CRC_LEN: usize = 4;
/// Octets of a marker (RFC 5044 section 4.3).
pub const MARKER_LEN: usize = 4;
/// Octets of the TCP stream from one marker to the next (RFC 5044 section 4.3).
pub const MARKER_INTERVAL: u64 = 512;

/// Octets of the pad behind a ULPDU of `ulpdu` octets, which makes the FPDU a multiple of four octets (RFC
/// 5044 section 4.1).
pub const fn pad(ulpdu: usize) -> usize {
    (4 - (LENGTH_LEN + ulpdu) % 4) % 4
}
