//! The end that accepted the TCP connection.

use alloc::vec::Vec;
use core::mem;

use ferroce_wire::iwarp::mpa::{Enhanced, NOT_NEGOTIATED, SetupFrame, SetupKind};

use super::gather::{Gather, emitted};
use super::{
    Failure, MAX_DEPTH, PrivateTooLong, Reason, SetupParams, check_private, limited, named, offered,
};
use crate::iwarp::{Rtr, StreamConfig};

/// Reads the request and answers it.
///
/// Pass the received octets to [`Self::handle`] until it returns something else than [`Heard::Wait`]. After
/// [`Heard::Request`] call [`Self::accept`] or [`Self::reject`] and send the octets. Until then, octets that
/// arrive are a failure.
#[derive(Debug)]
pub struct Responder {
    state: ResponderState,
}

#[derive(Debug)]
enum ResponderState {
    Reading(Gather),
    /// The program decides.
    Answering(Request),
    Over,
}

/// The result of octets from the initiator.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// The request is not complete, or it is and the program decides.
    Wait,
    /// The whole request.
    Request(&'a Request),
    /// The set-up failed. Close the connection without an answer.
    Failed(Failure),
}

/// The initiator's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// 0 to 2.
    pub revision: u8,
    /// The initiator asks for CRCs.
    pub crc: bool,
    /// The initiator asks for markers in the FPDUs that we send.
    pub markers: bool,
    /// The initiator takes FPDUs above the MSS.
    pub gso_hint: bool,
    /// The initiator has immediate data and atomics (RFC 7306).
    pub extensions: bool,
    /// The initiator's depths and its ready-to-receive frames, if it names any.
    pub enhanced: Option<Enhanced>,
    /// The initiator's private data, at most 512 octets.
    pub private: Vec<u8>,
}

/// The program accepted the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The octets to send.
    pub reply: Vec<u8>,
    pub stream: StreamConfig,
}

/// The caller's answer is refused, and changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AnswerError {
    /// There is no request, or it was answered.
    #[error("no request to answer")]
    NoRequest,
    #[error(transparent)]
    Private(#[from] PrivateTooLong),
}

impl Responder {
    /// Creates the responder of a new TCP connection.
    pub const fn new() -> Self {
        Self { state: ResponderState::Reading(Gather::new(SetupKind::Request)) }
    }

    /// Reads octets from the initiator.
    pub fn handle(&mut self, octets: &[u8]) -> Heard<'_> {
        let next = match &mut self.state {
            ResponderState::Reading(gather) => match gather.take(octets) {
                Ok(None) => return Heard::Wait,
                Ok(Some((frame, []))) => Ok(Request::new(&frame)),
                // The initiator waits for the whole reply (RFC 5044 7.1.2).
                Ok(Some(_)) => Err(Reason::OctetsBehindRequest),
                Err(error) => Err(error.into()),
            },
            ResponderState::Answering(_) if octets.is_empty() => return Heard::Wait,
            ResponderState::Answering(_) => Err(Reason::OctetsBehindRequest),
            ResponderState::Over => Err(Reason::Over),
        };
        match next {
            Ok(request) => {
                self.state = ResponderState::Answering(request);
                self.request().map_or(Heard::Wait, Heard::Request)
            }
            Err(reason) => {
                self.state = ResponderState::Over;
                Heard::Failed(Failure { reason, terminate: None })
            }
        }
    }

    /// The request, while it waits for an answer.
    pub const fn request(&self) -> Option<&Request> {
        match &self.state {
            ResponderState::Answering(request) => Some(request),
            ResponderState::Reading(_) | ResponderState::Over => None,
        }
    }

    /// Accepts the request.
    pub fn accept(&mut self, params: &SetupParams<'_>) -> Result<Accepted, AnswerError> {
        check_private(params.private)?;
        let request = self.take_request()?;
        let stream = request.stream(params);
        let reply = request.reply(params.private, request.enhanced.map(|block| answer(&block, &stream)));
        Ok(Accepted { reply: emitted(&SetupFrame { crc: stream.crc, ..reply }), stream })
    }

    /// Rejects the request and returns the octets to send. Close the connection when they are sent.
    pub fn reject(&mut self, private: &[u8]) -> Result<Vec<u8>, AnswerError> {
        check_private(private)?;
        let request = self.take_request()?;
        // Kernel siw removes the block from any private data, so a reject has it as well (siw 6.1 siw_cm.c).
        let reply = request.reply(private, request.enhanced.map(|_| Enhanced::default()));
        Ok(emitted(&SetupFrame { rejected: true, ..reply }))
    }

    fn take_request(&mut self) -> Result<Request, AnswerError> {
        match mem::replace(&mut self.state, ResponderState::Over) {
            ResponderState::Answering(request) => Ok(request),
            state => {
                self.state = state;
                Err(AnswerError::NoRequest)
            }
        }
    }
}

impl Default for Responder {
    fn default() -> Self {
        Self::new()
    }
}

impl Request {
    /// R is a reserved bit of a request (RFC 5044 7.1.1).
    fn new(frame: &SetupFrame<'_>) -> Self {
        Self {
            revision: frame.revision,
            crc: frame.crc,
            markers: frame.markers,
            gso_hint: frame.gso_hint,
            extensions: frame.extensions,
            enhanced: frame.enhanced,
            private: frame.private.to_vec(),
        }
    }

    /// Reads that the initiator serves at once, if it says so.
    pub fn ird(&self) -> Option<u16> {
        self.enhanced.and_then(|block| named(block.ird))
    }

    /// Reads that the initiator will have outstanding, if it says so.
    pub fn ord(&self) -> Option<u16> {
        self.enhanced.and_then(|block| named(block.ord))
    }

    /// The initiator sends a frame first.
    pub fn peer_to_peer(&self) -> bool {
        self.enhanced.is_some_and(|block| block.peer_to_peer)
    }

    /// The frame that we ask the initiator to send first. Without a kind that it offers, kernel siw asks for
    /// a Write, and so do we: the initiator decides whether that fails (siw 6.1 siw_cm.c).
    fn rtr(&self) -> Option<Rtr> {
        let block = self.enhanced.filter(|block| block.peer_to_peer)?;
        Some(match block {
            Enhanced { rtr_write: true, .. } => Rtr::Write,
            Enhanced { rtr_read: true, .. } => Rtr::Read,
            Enhanced { rtr_send: true, .. } => Rtr::Send,
            _ => Rtr::Write,
        })
    }

    fn stream(&self, params: &SetupParams<'_>) -> StreamConfig {
        let rtr = self.rtr();
        // As kernel siw does, serve what the initiator will have outstanding: programs accept with a depth of
        // 0 and expect reads to work (siw 6.1 siw_cm.c).
        let asked = self.ord().map_or(0, |ord| ord.min(MAX_DEPTH.into()) as u8);
        let for_rtr = u8::from(rtr == Some(Rtr::Read));
        StreamConfig {
            initiator: false,
            crc: params.crc || self.crc,
            send_markers: self.markers,
            receive_markers: false,
            ird: offered(params.ird.max(asked).max(for_rtr)),
            ord: limited(offered(params.ord), self.ird().unwrap_or(NOT_NEGOTIATED)),
            rtr,
            large_fpdus: self.gso_hint,
            extensions: self.extensions,
        }
    }

    /// The reply in the revision of the request, with its CRC and size of FPDUs (RFC 5044 7.1.1).
    fn reply<'a>(&self, private: &'a [u8], enhanced: Option<Enhanced>) -> SetupFrame<'a> {
        SetupFrame {
            kind: SetupKind::Reply,
            markers: false,
            crc: self.crc,
            rejected: false,
            gso_hint: self.gso_hint,
            extensions: self.extensions,
            revision: self.revision,
            enhanced,
            private,
        }
    }
}

/// The block of the reply: one kind of ready-to-receive frame, and the depths that the initiator negotiates
/// (RFC 6581 9.1, 9.2).
fn answer(request: &Enhanced, stream: &StreamConfig) -> Enhanced {
    let unless_silent =
        |asked, depth: u8| if asked == NOT_NEGOTIATED { NOT_NEGOTIATED } else { depth.into() };
    Enhanced {
        peer_to_peer: request.peer_to_peer,
        rtr_send: stream.rtr == Some(Rtr::Send),
        rtr_write: stream.rtr == Some(Rtr::Write),
        rtr_read: stream.rtr == Some(Rtr::Read),
        ird: unless_silent(request.ord, stream.ird),
        ord: unless_silent(request.ird, stream.ord),
    }
}
