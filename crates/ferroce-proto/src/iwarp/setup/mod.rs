//! The set-up of a stream: one MPA request, one reply (RFC 5044 7.1, RFC 6581 9).
//!
//! The caller owns the TCP connection. It passes the received octets to [`Initiator::handle`] or
//! [`Responder::handle`], in pieces of any size, and sends the octets that it is given. Neither end keeps
//! more than one frame. The caller also runs the timers, and closes the connection after a failure or a
//! reject.

mod gather;
mod initiator;
mod responder;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::time::Duration;

use ferroce_wire::iwarp::crc::Crc32c;
use ferroce_wire::iwarp::mpa::{MAX_SENT_PRIVATE, NOT_NEGOTIATED, SetupError};
use ferroce_wire::iwarp::{self, CRC_LEN, Cause, LENGTH_LEN, Opcode, SegmentHeader, pad};

pub use self::initiator::{Agreement, Initiator, Progress};
pub use self::responder::{Accepted, AnswerError, Heard, Request, Responder};

/// The time in which the initiator expects the whole reply after it sent the request (siw 6.1 siw_cm.h).
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time in which the responder expects the whole request after the TCP connection is there (siw 6.1
/// siw_cm.h).
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest IRD and ORD of this end, as of kernel siw.
pub const MAX_DEPTH: u8 = 128;

/// The side of one end in the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SetupParams<'a> {
    /// This end asks for CRCs. They are used if one end asks (RFC 5044 7.1.1).
    pub crc: bool,
    /// Reads and atomics that this end serves at once. Rounded up to a power of two, at most [`MAX_DEPTH`].
    pub ird: u8,
    /// Reads and atomics that this end will have outstanding. Rounded as `ird`.
    pub ord: u8,
    /// Private data for the peer, at most 251 octets.
    pub private: &'a [u8],
    /// The initiator sends a frame first, so that the responder may send at once (RFC 6581 9.2). The
    /// responder does as the initiator asks, whatever its own parameter says.
    pub peer_to_peer: bool,
}

/// The caller gave more private data than [`MAX_SENT_PRIVATE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} octets of private data, {MAX_SENT_PRIVATE} allowed")]
pub struct PrivateTooLong(pub usize);

/// The set-up failed. The caller sends the Terminate message, if there is one, and closes the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    pub reason: Reason,
    /// Only the initiator sends one: behind the request nothing but a reply is allowed.
    pub terminate: Option<Terminate>,
}

/// The reason of a failed set-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reason {
    /// The peer sent no set-up frame.
    #[error(transparent)]
    Frame(#[from] SetupError),
    /// The initiator sent more than its request before the reply (RFC 5044 7.1.2).
    #[error("octets behind the request")]
    OctetsBehindRequest,
    /// The reply has another revision than the request.
    #[error("a reply of revision {received} to a request of revision {sent}")]
    Revision { sent: u8, received: u8 },
    /// The reply to an enhanced request has no enhanced block (RFC 6581 6).
    #[error("a reply without the enhanced block")]
    NoEnhancedBlock,
    /// The responder will have more reads outstanding than the initiator serves (RFC 6581 9.1).
    #[error("the peer has {ord} reads outstanding, and {ird} are served")]
    InsufficientIrd { ird: u8, ord: u16 },
    /// The responder takes no ready-to-receive frame that the initiator can send (RFC 6581 9.2).
    #[error("no common ready-to-receive frame")]
    NoCommonRtr,
    /// Octets came after the set-up was over.
    #[error("the set-up is over")]
    Over,
}

/// The Terminate message for a failure of the set-up (RFC 5044 8, RFC 6581 8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// [`Cause::SetUp`], [`Cause::InsufficientIrd`] or [`Cause::NoMatchingRtr`].
    pub cause: Cause,
    /// The message carries a CRC.
    pub crc: bool,
    /// The message has markers.
    pub send_markers: bool,
}

impl Terminate {
    /// The FPDU of the message (RFC 5040 4.8): the first of the stream. `None` if the peer asked for markers,
    /// of which one would stand before it: FIN says as much.
    pub fn fpdu(&self) -> Option<Vec<u8>> {
        let header = SegmentHeader::untagged(Opcode::Terminate, 1);
        let mut message = [0; iwarp::Terminate::MAX_LEN];
        let len = iwarp::Terminate::emit(self.cause, None, None, &mut message);
        let ulpdu = header.len() + len;
        let mut octets = (ulpdu as u16).to_be_bytes().to_vec();
        octets.extend(header.emit().iter().take(header.len()));
        octets.extend(message.iter().take(len));
        octets.resize(LENGTH_LEN + ulpdu + pad(ulpdu), 0);
        let mut crc = Crc32c::new();
        crc.update(&octets);
        octets.extend(if self.crc { crc.octets() } else { [0; CRC_LEN] });
        (!self.send_markers).then_some(octets)
    }
}

/// The depth to offer. Kernel siw rounds depths up to powers of two and then has as many reads outstanding,
/// so siw would exceed any other depth.
fn offered(depth: u8) -> u8 {
    if depth == 0 { 0 } else { depth.min(MAX_DEPTH).next_power_of_two() }
}

/// Our ORD if the peer serves `ird` reads (RFC 6581 9.1).
fn limited(ord: u8, ird: u16) -> u8 {
    if ird == NOT_NEGOTIATED { ord } else { u8::try_from(ird).map_or(ord, |ird| ord.min(ird)) }
}

fn check_private(private: &[u8]) -> Result<(), PrivateTooLong> {
    if private.len() > MAX_SENT_PRIVATE { Err(PrivateTooLong(private.len())) } else { Ok(()) }
}

/// A depth that the peer named.
fn named(depth: u16) -> Option<u16> {
    (depth != NOT_NEGOTIATED).then_some(depth)
}
