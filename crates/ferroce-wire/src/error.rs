//! Errors of bytes.

use crate::Service;

/// Why bytes are no packet, or a packet cannot be written.
///
/// Received bytes that fail here are dropped and counted, never answered: nothing in them can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// Shorter than its headers, pad and ICRC need.
    #[error("{have} octets, at least {need} needed")]
    Truncated {
        /// Octets that the headers, the pad and the ICRC need.
        need: usize,
        /// Octets there were.
        have: usize,
    },
    /// Longer than an opcode without payload allows.
    #[error("{extra} octets after the headers of opcode {opcode:#04x}, which has no payload")]
    TrailingBytes {
        /// The BTH opcode.
        opcode: u8,
        /// Octets too many.
        extra: usize,
    },
    /// Length of the packet is no multiple of four, so pad and payload contradict each other (IBTA 9.2.3).
    #[error("{len} octets are no multiple of four")]
    Unaligned {
        /// Octets from BTH to ICRC.
        len: usize,
    },
    /// No service assigns this opcode (IBTA table 38).
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// An opcode of Reliable Datagram, which is not implemented.
    #[error("opcode {0:#04x} belongs to Reliable Datagram, which is not supported")]
    UnsupportedOpcode(u8),
    /// Transport header version is not 0 (IBTA 9.2.4).
    #[error("transport header version {0}, only 0 is known")]
    Version(u8),
    /// To emit: the buffer is too small.
    #[error("{have} octets of buffer, {need} needed")]
    BufferTooSmall {
        /// Octets the packet needs.
        need: usize,
        /// Octets the buffer has.
        have: usize,
    },
    /// To emit: the service has no opcode for this operation, as READ on UC.
    #[error("{0:?} has no opcode for this operation")]
    NoSuchOperation(Service),
    /// To emit: payload on an operation that has none.
    #[error("{len} octets of payload on an operation that has none")]
    UnexpectedPayload {
        /// Octets of payload given.
        len: usize,
    },
}
