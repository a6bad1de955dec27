//! The stream of an iWARP queue pair: RDMAP (RFC 5040, RFC 7306) over DDP (RFC 5041) over the FPDUs of MPA (RFC 5044).
//!
//! The caller has the TCP connection. It gives the octets that arrive to [`QueuePair::handle_stream`], in pieces of any size. It
//! sends the octets of [`QueuePair::poll_stream`], and says by [`QueuePair::stream_taken`] how many of them TCP took: that is when sends and
//! writes are complete (RFC 5040 section 5.5).

use super::{QueuePair, StreamState};
use crate::iwarp::StreamConfig;
use crate::{Memory, ModifyQpError, ReceiveSource};

/// The role of an iWARP queue pair.
#[derive(Debug, Default)]
pub(crate) struct Iwarp {}

impl QueuePair {
    /// The set-up of the stream is over: goes from INIT to RTS. `segment` is the number of octets that TCP sends in one segment (RFC 5044
    /// section 5.1), which bounds the FPDUs.
    ///
    /// # Errors
    ///
    /// [`ModifyQpError::Transition`] in another state than INIT, and for another service.
    pub fn begin_stream(&mut self, config: &StreamConfig, segment: u16) -> Result<(), ModifyQpError> {
        let _ = (config, segment);
        Ok(())
    }

    /// Takes octets of the stream, in order. Returns when the queue pair has taken them all, or has ended: the rest of the stream then
    /// means nothing.
    pub fn handle_stream(&mut self, octets: &[u8], source: &mut impl ReceiveSource, mem: &mut impl Memory) {
        let _ = (octets, source, mem);
    }

    /// Writes FPDUs to the front of `out`, and returns their octets; 0 if there is nothing to send now. `out` should have room for 64 KiB or
    /// more, and takes whole FPDUs. The octets must all be sent, in order.
    ///
    /// The memory is mutable because local operations of the send queue (invalidate) happen here, in their turn.
    pub fn poll_stream(&mut self, mem: &mut impl Memory, out: &mut [u8]) -> usize {
        let _ = (mem, out);
        0
    }

    /// TCP took this many further octets of those that [`Self::poll_stream`] wrote.
    pub fn stream_taken(&mut self, octets: usize) {
        let _ = octets;
    }

    /// The responder of a connection may send from now on, although the peer's first FPDU did not come yet.
    pub fn release_stream(&mut self) {}

    /// The connection ended: the peer sent FIN or RST, or the caller gave up.
    pub fn stream_ended(&mut self) {}

    /// How the stream is.
    pub fn stream_state(&self) -> StreamState {
        StreamState::Idle
    }
}
