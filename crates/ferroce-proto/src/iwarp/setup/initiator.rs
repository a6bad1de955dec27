//! The end that opened the TCP connection.

use alloc::vec::Vec;

use ferroce_wire::iwarp::Cause;
use ferroce_wire::iwarp::mpa::{Enhanced, REVISION_BASIC, REVISION_ENHANCED, SetupFrame, SetupKind};

use super::gather::{Gather, emitted};
use super::{
    Failure, PrivateTooLong, Reason, SetupParams, Terminate, check_private, limited, named, offered,
};
use crate::iwarp::{Rtr, StreamConfig};

/// Sends the request and reads the reply.
///
/// Send [`Self::request`] first. Then pass the received octets to [`Self::handle`] until it returns something
/// else than [`Progress::Wait`].
#[derive(Debug)]
pub struct Initiator {
    offer: Offer,
    request: Vec<u8>,
    /// `None` once the set-up is over.
    reply: Option<Gather>,
}

/// The result of octets from the responder.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The reply is not complete.
    Wait,
    /// The stream is open. The octets behind the reply are the start of the responder's FPDUs: kernel siw
    /// sends as soon as its program posts.
    Agreed(Agreement, &'a [u8]),
    /// The responder refused the connection, with up to 512 octets of private data.
    Rejected { private: Vec<u8> },
    /// The set-up failed.
    Failed(Failure),
}

/// An open stream, as the initiator learns of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreement {
    pub stream: StreamConfig,
    /// The responder's private data, at most 512 octets.
    pub private: Vec<u8>,
    /// Reads that the responder serves at once, if it says so.
    pub peer_ird: Option<u16>,
    /// Reads that the responder has outstanding, if it says so.
    pub peer_ord: Option<u16>,
}

/// The part of the request that the reply is compared with.
#[derive(Clone, Copy, Debug)]
struct Offer {
    revision: u8,
    crc: bool,
    ird: u8,
    ord: u8,
    peer_to_peer: bool,
}

impl Initiator {
    /// Creates the initiator of a stream of revision 2, whose ends exchange their depths (RFC 6581).
    pub fn new(params: &SetupParams<'_>) -> Result<Self, PrivateTooLong> {
        Self::with_revision(params, REVISION_ENHANCED)
    }

    /// Creates the initiator of a stream of revision 1, for a responder that closes the connection on a
    /// request of revision 2 (RFC 6581 10). The ends do not tell each other their depths, and
    /// [`SetupParams::peer_to_peer`] has no effect.
    pub fn basic(params: &SetupParams<'_>) -> Result<Self, PrivateTooLong> {
        Self::with_revision(&SetupParams { peer_to_peer: false, ..*params }, REVISION_BASIC)
    }

    fn with_revision(params: &SetupParams<'_>, revision: u8) -> Result<Self, PrivateTooLong> {
        check_private(params.private)?;
        let offer = Offer {
            revision,
            crc: params.crc,
            ird: offered(params.ird),
            ord: offered(params.ord),
            peer_to_peer: params.peer_to_peer,
        };
        let request = emitted(&offer.frame(params.private));
        Ok(Self { offer, request, reply: Some(Gather::new(SetupKind::Reply)) })
    }

    /// The octets to send first.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Reads octets from the responder.
    pub fn handle<'a>(&mut self, octets: &'a [u8]) -> Progress<'a> {
        let Some(gather) = &mut self.reply else {
            return Progress::Failed(Failure { reason: Reason::Over, terminate: None });
        };
        let progress = match gather.take(octets) {
            Ok(None) => return Progress::Wait,
            Ok(Some((reply, behind))) => self.offer.conclude(&reply, behind),
            // As kernel siw does after a wrong key (siw 6.1 siw_cm.c).
            Err(error) => {
                let terminate = Terminate { cause: Cause::SetUp, crc: self.offer.crc, send_markers: false };
                Progress::Failed(Failure { reason: error.into(), terminate: Some(terminate) })
            }
        };
        self.reply = None;
        progress
    }
}

impl Offer {
    fn frame<'a>(&self, private: &'a [u8]) -> SetupFrame<'a> {
        let enhanced = Enhanced {
            peer_to_peer: self.peer_to_peer,
            // A Send would use up a receive of the peer.
            rtr_send: false,
            rtr_write: self.peer_to_peer,
            // A Read needs room for one (RFC 6581 9.1).
            rtr_read: self.peer_to_peer && self.ord > 0,
            ird: self.ird.into(),
            ord: self.ord.into(),
        };
        SetupFrame {
            kind: SetupKind::Request,
            // The position of markers depends on TCP's octet count, and siw refuses a peer that asks for
            // them.
            markers: false,
            crc: self.crc,
            rejected: false,
            gso_hint: true,
            extensions: true,
            revision: self.revision,
            enhanced: (self.revision >= REVISION_ENHANCED).then_some(enhanced),
            private,
        }
    }

    fn conclude<'a>(&self, reply: &SetupFrame<'_>, behind: &'a [u8]) -> Progress<'a> {
        // A responder may refuse in the revision that it knows.
        if reply.rejected {
            return Progress::Rejected { private: reply.private.to_vec() };
        }
        match self.agree(reply) {
            Ok(stream) => {
                let agreement = Agreement {
                    stream,
                    private: reply.private.to_vec(),
                    peer_ird: reply.enhanced.and_then(|block| named(block.ird)),
                    peer_ord: reply.enhanced.and_then(|block| named(block.ord)),
                };
                Progress::Agreed(agreement, behind)
            }
            Err((reason, cause)) => {
                let terminate = Terminate { cause, crc: self.crc || reply.crc, send_markers: reply.markers };
                Progress::Failed(Failure { reason, terminate: Some(terminate) })
            }
        }
    }

    /// The stream, or the reason against it and the cause that the Terminate message names.
    fn agree(&self, reply: &SetupFrame<'_>) -> Result<StreamConfig, (Reason, Cause)> {
        let (sent, received) = (self.revision, reply.revision);
        if sent != received {
            return Err((Reason::Revision { sent, received }, Cause::SetUp));
        }
        let without_depths = StreamConfig {
            initiator: true,
            crc: self.crc || reply.crc,
            send_markers: reply.markers,
            receive_markers: false,
            ird: self.ird,
            ord: self.ord,
            rtr: None,
            large_fpdus: reply.gso_hint,
            extensions: reply.extensions,
        };
        match reply.enhanced {
            Some(block) => {
                let ord = self.depth(&block)?;
                Ok(StreamConfig { ord, rtr: self.rtr(&block, ord)?, ..without_depths })
            }
            None if sent >= REVISION_ENHANCED => Err((Reason::NoEnhancedBlock, Cause::SetUp)),
            None => Ok(without_depths),
        }
    }

    /// Our ORD. Our IRD stays as offered, because a peer with kernel siw rounds its ORD up (RFC 6581 9.1).
    fn depth(&self, reply: &Enhanced) -> Result<u8, (Reason, Cause)> {
        match named(reply.ord) {
            Some(ord) if ord > self.ird.into() => {
                Err((Reason::InsufficientIrd { ird: self.ird, ord }, Cause::InsufficientIrd))
            }
            _ => Ok(limited(self.ord, reply.ird)),
        }
    }

    /// The frame to send first. A Write needs nothing from the peer, so it is the first choice (RFC 6581
    /// 9.2).
    fn rtr(&self, reply: &Enhanced, ord: u8) -> Result<Option<Rtr>, (Reason, Cause)> {
        match self.peer_to_peer {
            false => Ok(None),
            true if reply.peer_to_peer && reply.rtr_write => Ok(Some(Rtr::Write)),
            true if reply.peer_to_peer && reply.rtr_read && ord > 0 => Ok(Some(Rtr::Read)),
            true => Err((Reason::NoCommonRtr, Cause::NoMatchingRtr)),
        }
    }
}
