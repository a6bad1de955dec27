//! iWARP's agreement of two ends about a stream, by the set-up frames of MPA (RFC 5044, RFC 6581).

pub mod setup;
mod span;

pub(crate) use span::Source;
pub use span::{Expected, Payload, Payloads, Span};

/// The terms of a stream that the two ends agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamConfig {
    /// This end sent the request. The other end sends no FPDU before it has received one (RFC 5044 section
    /// 7.1.2).
    pub initiator: bool,
    /// Both directions carry a CRC that counts.
    pub crc: bool,
    /// The peer wants markers in what it receives.
    pub send_markers: bool,
    /// The peer puts markers into what it sends.
    pub receive_markers: bool,
    /// Reads and atomics of the peer that this end answers at a time, at most 128.
    pub ird: u8,
    /// Reads and atomics that this end may have outstanding, at most 128.
    pub ord: u8,
    /// Peer-to-peer (RFC 6581 section 9): the initiator sends this frame at once, and the responder may send
    /// after it.
    pub rtr: Option<Rtr>,
    /// FPDUs may be longer than a TCP segment.
    pub large_fpdus: bool,
    /// Both ends have immediate data and atomics (RFC 7306).
    pub extensions: bool,
}

/// A ready-to-receive frame, without payload (RFC 6581 section 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rtr {
    /// A send, which takes no receive work request.
    Send,
    /// A write.
    Write,
    /// A read.
    Read,
}
