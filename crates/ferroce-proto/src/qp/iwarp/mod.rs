//! The stream of an iWARP queue pair: RDMAP (RFC 5040, RFC 7306) over DDP (RFC 5041) over the FPDUs of MPA
//! (RFC 5044).
//!
//! The caller has the TCP connection. It gives the octets that arrive to [`QueuePair::handle_stream`], in
//! pieces of any size. It sends the octets of [`QueuePair::poll_stream`], and says by
//! [`QueuePair::stream_taken`] how many of them TCP took: that is when sends and writes are complete (RFC
//! 5040 section 5.5). Payload goes from the caller's buffer to registered memory at once, also when an FPDU
//! is not whole yet; a message is delivered when all its FPDUs are whole and their CRCs right (RFC 5041
//! section 5.3).
//!
//! Streams also work without a copy: FPDUs leave around payload in registered memory
//! ([`QueuePair::poll_stream_around`]), and the caller receives payload straight into registered memory
//! ([`QueuePair::stream_expected`]).

mod framer;
mod inbound;
mod out;
mod outbound;
mod writer;

use ferroce_wire::iwarp::{Cause, Layer, Opcode, Terminate};

use self::inbound::{End, Inbound, Parts};
use self::out::Out;
use self::outbound::{Outbound, of_read};
use super::receiving::SharedQueues;
use super::{QueuePair, StreamState};
use crate::counting::CountedOp;
use crate::iwarp::{Expected, Payload, Payloads, Source, StreamConfig};
use crate::{
    AsyncEventKind, Memory, MemoryError, ModifyQpError, PostSendError, QpState, ReceiveSource, SendOp,
    SendWr, Service, WcStatus,
};

/// The role of an iWARP queue pair: its stream, from RTS on.
#[derive(Debug, Default)]
pub(crate) struct Iwarp(Option<OpenStream>);

#[derive(Debug)]
struct OpenStream {
    inbound: Inbound,
    outbound: Outbound,
    extensions: bool,
}

impl QueuePair {
    /// The set-up of the stream is over: goes from INIT to RTS. `segment` is the number of octets that TCP
    /// sends in one segment (RFC 5044 section 5.1), which bounds the FPDUs.
    ///
    /// # Errors
    ///
    /// [`ModifyQpError::Transition`] in another state than INIT, and for another service.
    pub fn begin_stream(&mut self, config: &StreamConfig, segment: u16) -> Result<(), ModifyQpError> {
        let from = self.state();
        let Some(Iwarp(stream)) = self.roles.stream_mut().filter(|_| from == QpState::Init) else {
            return Err(ModifyQpError::Transition { from, to: QpState::Rts });
        };
        let outbound = Outbound::new(config, segment, self.common.caps.max_send_wr);
        *stream = Some(OpenStream { inbound: Inbound::new(config), outbound, extensions: config.extensions });
        self.common.attr.max_rd_atomic = config.ord;
        self.common.attr.max_dest_rd_atomic = config.ird;
        self.common.transition("the stream begins", QpState::Rts);
        Ok(())
    }

    /// Takes octets of the stream, in order, and returns how many. If they are not all, completions have to
    /// be fetched by [`Self::poll_event`] first; then the rest is to be given again. A stream that ended
    /// takes everything, and does nothing with it.
    pub fn handle_stream(
        &mut self,
        octets: &[u8],
        source: &mut impl ReceiveSource,
        mem: &mut impl Memory,
    ) -> usize {
        let Some(Iwarp(Some(OpenStream { inbound, outbound, .. }))) = self.roles.stream_mut() else {
            return octets.len();
        };
        if outbound.is_closed() || self.common.state() != QpState::Rts {
            return octets.len();
        }
        let mut parts = Parts {
            common: &mut self.common,
            queue: &mut self.pipeline.queue,
            outbound,
            shared: SharedQueues { source, named: None },
            mem,
        };
        let taken = match inbound.take(octets, &mut parts) {
            Ok(taken) => taken,
            Err(end) => {
                self.end_by_peer(end);
                octets.len()
            }
        };
        self.after_change();
        taken
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

    /// Whether a message of the peer waits for a receive of the program's. [`Self::handle_stream`] takes no
    /// octet behind the message's header, or its immediate data, before there is one; it also takes up the
    /// wait where it was if it gets no octets.
    ///
    /// RFC 5041 section 7.2 lets such a message end the stream. Programs that were written for InfiniBand
    /// rely on RNR NAKs instead, and a peer whose octets nobody reads is slowed down by TCP.
    /// [`Self::stream_waited_in_vain`] ends the wait.
    pub fn stream_starves(&self) -> bool {
        self.roles.stream().is_some_and(|Iwarp(stream)| {
            self.common.state() == QpState::Rts
                && stream.as_ref().is_some_and(|stream| stream.inbound.is_starved())
        })
    }

    /// No receive came for a message that waits: the peer gets a Terminate.
    pub fn stream_waited_in_vain(&mut self) {
        if self.stream_starves() {
            self.end_by_peer(End::Error(Cause::NoBuffer));
            self.after_change();
        }
    }

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

    /// TCP took this many further octets of those that [`Self::poll_stream`] wrote, or that were to leave
    /// with them.
    pub fn stream_taken(&mut self, octets: usize) {
        if let Some(Iwarp(Some(stream))) = self.roles.stream_mut() {
            stream.outbound.taken(octets, &mut self.pipeline.queue);
        }
        self.after_change();
    }

    /// Allows this end to send, although no FPDU of the peer came yet. A responder waits for one (RFC 5044
    /// section 7.1.2). An initiator waits too if its peer has not [`StreamConfig::extensions`]: the kernel's
    /// siw can miss an FPDU that arrives while it accepts.
    pub fn release_stream(&mut self) {
        if let Some(Iwarp(Some(stream))) = self.roles.stream_mut() {
            stream.outbound.held = false;
        }
    }

    /// The connection ended: the peer sent FIN or RST, or the caller gave up. The queue pair goes to the
    /// error state. Whether the stream ended between two messages, as it should.
    pub fn stream_ended(&mut self) -> bool {
        let Some(Iwarp(Some(stream))) = self.roles.stream_mut() else { return true };
        let in_order = stream.inbound.is_at_boundary();
        if self.common.state() != QpState::Error {
            self.close_stream(None);
            self.common.transition("the stream ended", QpState::Error);
        }
        self.after_change();
        in_order
    }

    /// How the stream is.
    pub fn stream_state(&self) -> StreamState {
        match self.roles.stream() {
            Some(Iwarp(Some(stream))) if self.state() == QpState::Rts && !stream.outbound.is_closed() => {
                StreamState::Open { has_received: stream.inbound.has_received() }
            }
            Some(Iwarp(Some(_))) => StreamState::Closing,
            _ => StreamState::Idle,
        }
    }

    /// Refuses requests that the stream cannot carry, before they are posted.
    pub(super) fn check_stream(&self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        if self.service != Service::Iwarp {
            return Ok(());
        }
        let extended =
            matches!(wr.op, SendOp::WriteImm { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        let has = |Iwarp(stream): &Iwarp| stream.as_ref().is_none_or(|stream| stream.extensions);
        if extended && !self.roles.stream().is_some_and(has) {
            return Err(PostSendError::Operation(self.service));
        }
        // A read response names one piece of memory (RFC 5040 section 5.5).
        if wr.op.writes_local() && wr.sges.len() > 1 {
            return Err(PostSendError::TooManySges { given: wr.sges.len(), max: 1 });
        }
        Ok(())
    }

    /// From now on nothing but a Terminate leaves; it names `cause`, if that is given.
    pub(super) fn close_stream(&mut self, cause: Option<Cause>) {
        if let Some(Iwarp(Some(OpenStream { inbound, outbound, .. }))) = self.roles.stream_mut() {
            let layer = cause.map(|cause| cause.codes().0);
            let segment = inbound.segment().filter(|_| layer != Some(Layer::Mpa));
            let request = inbound.request().filter(|_| layer == Some(Layer::Rdmap));
            outbound.close(cause, segment, request);
        }
    }

    /// The stream cannot go on, because of memory of ours.
    fn fail_stream(&mut self, cause: Cause) {
        self.common.events.raise(AsyncEventKind::QpFatal);
        self.close_stream(Some(cause));
        self.common.transition("memory of the stream went away", QpState::Error);
    }

    /// Ends the stream, because the peer broke the protocol or sent a Terminate.
    fn end_by_peer(&mut self, end: End) {
        match end {
            End::Error(cause) => {
                tracing::debug!(qpn = self.qpn().value(), ?cause, "the stream ends");
                self.common.counters.dropped_pkts += 1;
                // As siw: an access that is not allowed, or anything else.
                let event = match cause.codes() {
                    (Layer::Rdmap, 1, _) | (Layer::Ddp, 1, _) => AsyncEventKind::QpAccessErr,
                    _ => AsyncEventKind::QpFatal,
                };
                self.common.events.raise(event);
                self.count_refused();
                self.close_stream(Some(cause));
                self.common.transition("the peer's message is refused", QpState::Error);
            }
            End::Terminated(terminate) => {
                tracing::debug!(qpn = self.qpn().value(), ?terminate, "the peer ends the stream");
                self.blame_oldest(terminate);
                self.close_stream(None);
                self.common.transition("the peer sent Terminate", QpState::Error);
            }
        }
    }

    /// The peer's operation that ends the stream counts as failed.
    fn count_refused(&self) {
        let segment = self.roles.stream().and_then(|Iwarp(stream)| stream.as_ref()?.inbound.segment());
        match segment.map(|(_, header)| header.opcode()) {
            Some(Opcode::Write) => self.common.counting.failed(CountedOp::RemoteRdmaWrite),
            Some(Opcode::ReadRequest) => self.common.counting.failed(CountedOp::RemoteRdmaRead),
            _ => {}
        }
    }

    /// The peer refused a read or an atomic: the oldest that waits for its response has that status. Sends
    /// and writes are complete when TCP has them, so nothing is known of those.
    fn blame_oldest(&mut self, terminate: Option<Terminate>) {
        let status = match terminate {
            Some(Terminate { layer: 0, kind: 1, .. }) => WcStatus::RemAccessErr,
            Some(Terminate { layer: 0, kind: 2, .. }) => WcStatus::RemInvReqErr,
            Some(Terminate { layer: 0, kind: 0, .. }) => WcStatus::RemOpErr,
            _ => return,
        };
        let Some(Iwarp(Some(stream))) = self.roles.stream_mut() else { return };
        if let Some(awaited) = stream.outbound.awaited() {
            self.pipeline.queue.fail(awaited.index, status);
        }
    }
}
