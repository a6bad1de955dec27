//! Streams without a copy: FPDUs that leave around payload in registered memory, and payload that the caller
//! receives straight into registered memory.

use ferroce_wire::iwarp::Cause;

use super::out::Out;
use super::outbound::of_read;
use super::{Iwarp, QueuePair};
use crate::iwarp::{Expected, Payload, Payloads, Source};
use crate::{Memory, MemoryError, QpState, WcStatus};

impl QueuePair {
    /// Writes FPDUs to the front of `out`, and returns their octets; 0 if there is nothing to send now. `out`
    /// should have room for 64 KiB (with markers for 160 KiB) or more, and takes whole FPDUs. The octets must
    /// all be sent, in order.
    ///
    /// The memory is mutable because local operations of the send queue (invalidate) happen here, in their
    /// turn.
    pub fn poll_stream(&mut self, mem: &mut impl Memory, out: &mut [u8]) -> usize {
        self.write_stream(mem, Out::new(out, None))
    }

    /// As [`Self::poll_stream`], but leaves payload in registered memory where that saves a copy: `payloads`,
    /// which is empty before, then says what is to be sent between the octets of `out`. Together they have at
    /// most as many octets as `out` has room for.
    ///
    /// The caller reads the memory before it returns to the program, so that nothing is sent behind the end
    /// of a registration. Memory that it cannot read ends the stream, see [`Self::stream_payload_lost`].
    pub fn poll_stream_around(
        &mut self,
        mem: &mut impl Memory,
        out: &mut [u8],
        payloads: &mut Payloads,
    ) -> usize {
        self.write_stream(mem, Out::new(out, Some(payloads)))
    }

    fn write_stream(&mut self, mem: &mut impl Memory, mut out: Out<'_>) -> usize {
        let Some(Iwarp(Some(stream))) = self.roles.stream_mut() else { return 0 };
        if let Some(cause) = stream.outbound.poll(&mut self.common, &mut self.pipeline.queue, mem, &mut out) {
            self.fail_stream(cause);
        }
        self.after_change();
        out.len()
    }

    /// The memory of this payload is gone, so its FPDU and everything behind it cannot be sent. If nothing of
    /// the FPDU was sent, the queue pair still writes a Terminate; if a part was, the caller breaks the
    /// connection.
    pub fn stream_payload_lost(&mut self, payload: &Payload, error: MemoryError) {
        let Some(Iwarp(Some(stream))) = self.roles.stream_mut() else { return };
        stream.outbound.lost = true;
        let cause = match payload.source {
            Source::Request { index, begins } => {
                self.pipeline.queue.fail(index, WcStatus::LocProtErr);
                // A request of which nothing left ends the queue pair in its turn, as any other that cannot
                // succeed.
                (!begins).then_some(Cause::LocalCatastrophic)
            }
            Source::Reply => Some(of_read(error)),
        };
        if let Some(cause) = cause.filter(|_| self.state() == QpState::Rts) {
            self.fail_stream(cause);
        }
        self.after_change();
    }

    /// The octets that the stream is to receive next.
    pub fn stream_expected(&self) -> Expected {
        match self.roles.stream() {
            Some(Iwarp(Some(stream))) if self.state() == QpState::Rts && !stream.outbound.is_closed() => {
                stream.inbound.expected(&self.common.receiving, &self.pipeline.queue)
            }
            _ => Expected::default(),
        }
    }

    /// So many octets were received straight into the memory that [`Self::stream_expected`] named, at most as
    /// many as it has.
    pub fn stream_placed(&mut self, octets: usize) {
        if let Some(Iwarp(Some(stream))) = self.roles.stream_mut() {
            stream.inbound.placed(octets);
        }
    }
}
