//! Errors of parsing and writing packets.

use crate::Service;

/// The bytes are no packet, or a packet cannot be written.
///
/// Received bytes that fail here are dropped and counted, never answered: none of their fields can be
/// trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// The packet is shorter than its headers, pad and ICRC.
    #[error("{have} octets, at least {need} needed")]
    Truncated {
        /// Octets that the headers, the pad and the ICRC need.
        need: usize,
        /// Octets present.
        have: usize,
    },
    /// The packet is longer than an opcode without payload allows.
    #[error("{extra} octets after the headers of opcode {opcode:#04x}, which has no payload")]
    TrailingBytes {
        /// The BTH opcode.
        opcode: u8,
        /// Octets in excess.
        extra: usize,
    },
    /// The length of the packet is no multiple of four, so pad and payload contradict each other (IBTA
    /// 9.2.3).
    #[error("{len} octets are no multiple of four")]
    Unaligned {
        /// Octets from BTH to ICRC.
        len: usize,
    },
    /// No service assigns this opcode (IBTA table 38).
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// The opcode belongs to Reliable Datagram, which is not implemented.
    #[error("opcode {0:#04x} belongs to Reliable Datagram, which is not supported")]
    UnsupportedOpcode(u8),
    /// The transport header version is not 0 (IBTA 9.2.4).
    #[error("transport header version {0}, only 0 is known")]
    Version(u8),
    /// The buffer for writing is too small.
    #[error("{have} octets of buffer, {need} needed")]
    BufferTooSmall {
        /// Octets that the packet needs.
        need: usize,
        /// Octets of the buffer.
        have: usize,
    },
    /// The packet to write has an operation without an opcode in its service, for example READ on UC.
    #[error("{0:?} has no opcode for this operation")]
    NoSuchOperation(Service),
    /// The packet to write has payload, but its operation allows none.
    #[error("{len} octets of payload on an operation that has none")]
    UnexpectedPayload {
        /// Octets of payload given.
        len: usize,
    },
}
