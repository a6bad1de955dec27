//! The stream of an iWARP endpoint: the connection that its queue pair sends by and receives from.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ferroce_host::fork::Guarded;
use ferroce_paths::clock;
use ferroce_paths::faults::{self, Moment};
use ferroce_paths::streams::{Found, Held, StreamHarm, StreamPort, StreamSocket, Streams};
use ferroce_proto::iwarp::StreamConfig;
use ferroce_proto::{ModifyQpError, QpAttr, QpAttrMask, QpState, StreamState};
use ferroce_wire::Instant;

use super::attachment::{Attachment, StreamEvents, TcpConnection};
use super::locked::{Core, Locked, Receives};
use super::{Endpoint, Published};
use crate::lane::Lane;
use ferroce_ipc::ledger::DeviceCounters;

/// Receive calls of one look at a connection that receives into registered memory.
const TURNS: u32 = 4;

/// A connection whose set-up is over.
pub(crate) struct Agreed<'a> {
    pub(crate) config: StreamConfig,
    /// Octets of data in a TCP segment.
    pub(crate) segment: u16,
    pub(crate) socket: Guarded<OwnedFd>,
    /// The last octets of the set-up, which leave before all FPDUs: the reply of the responder.
    pub(crate) reply: &'a [u8],
    /// Octets that came behind the set-up: FPDUs of the peer.
    pub(crate) arrived: &'a [u8],
    pub(crate) events: Arc<dyn StreamEvents>,
    /// All streams, and their lane.
    pub(crate) by: &'a (Arc<Streams>, Arc<Lane>),
}

/// Why a stream did not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BeginError {
    /// The state of the queue pair does not allow it.
    #[error(transparent)]
    State(#[from] ModifyQpError),
    /// The connection broke, or the system has no memory. The queue pair is in the error state.
    #[error("the connection cannot be used")]
    Connection(#[source] std::io::Error),
}

impl Endpoint {
    /// Goes from INIT to RTS with a connection whose set-up is over, joins the lane of the streams, and sends
    /// the reply.
    pub(crate) fn begin_stream(&self, agreed: Agreed<'_>) -> Result<(), BeginError> {
        let Agreed { config, segment, socket, reply, arrived, events, by: (streams, lane) } = agreed;
        let mut locked = self.lock();
        let core = &mut *locked.core;
        if core.destroyed {
            return Err(ModifyQpError::Transition { from: QpState::Reset, to: QpState::Rts }.into());
        }
        core.transport.begin_stream(&config, segment)?;
        let now = clock::now();
        let socket = streams.add(self.qpn, socket).and_then(|socket| {
            // The first octets of this direction: TCP takes them all.
            let sent = if reply.is_empty() { Ok(0) } else { socket.send(reply) };
            match sent {
                Ok(sent) if sent == reply.len() => Ok(socket),
                Ok(_) => Err((socket, rustix::io::Errno::AGAIN)),
                Err(errno) => Err((socket, errno)),
            }
            .map_err(|(socket, errno)| {
                streams.forget(&socket);
                errno.into()
            })
        });
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                core.transport.stream_ended();
                locked.finish_batch(now);
                return Err(BeginError::Connection(error));
            }
        };
        let announces = !config.initiator && config.rtr.is_some();
        let held = match (config.initiator, config.rtr) {
            (true, _) => (!config.extensions).then_some(Held::Initiator(now)),
            (false, None) => Some(Held::Responder(now)),
            (false, Some(_)) => None,
        };
        if !config.initiator && config.rtr.is_none() {
            events.established();
        }
        let harm = StreamHarm::new(self.name.clone(), config.send_markers);
        let port = StreamPort::new(socket, Arc::clone(streams), held, announces, !config.extensions, harm);
        let connection = TcpConnection { port, events, lane: Arc::clone(lane) };
        self.change_lanes(core, |attachment| *attachment = Attachment::Tcp(Some(connection)));
        faults::moment(Moment::Rts, Some(&self.name), None);
        let published = self.take_octets(core, arrived, now);
        locked.finish_after(now, published);
        Ok(())
    }

    /// Gives octets of the stream to the transport. Where it has no room for further completions, they are
    /// published first. Those behind a message without a receive are kept.
    fn take_octets(&self, core: &mut Core, mut octets: &[u8], now: Instant) -> Published {
        let mut published = Published::default();
        while !octets.is_empty() && published.overrun == 0 {
            let Core { transport, memory, .. } = core;
            let taken = transport.handle_stream(octets, &mut Receives(&*self.outputs), memory);
            octets = octets.get(taken..).unwrap_or_default();
            if core.transport.stream_starves()
                && let Some(connection) = core.connection()
            {
                connection.port.stall(octets, now);
                break;
            }
            if !octets.is_empty() {
                published.join(self.outputs.publish(&mut core.transport, &self.entry, now));
            }
            debug_assert!(taken > 0 || published.receives > 0 || published.overrun > 0, "no progress");
        }
        published
    }

    /// Ends the stream, if there is one: its manager gets the connection.
    pub(crate) fn end_stream(&self, core: &mut Core) {
        let ended = self.change_lanes(core, |attachment| match attachment {
            Attachment::Tcp(connection) => connection.take(),
            _ => None,
        });
        if let Some(TcpConnection { port, events, .. }) = ended {
            if matches!(core.transport.stream_state(), StreamState::Open { .. }) {
                core.transport.stream_ended();
            }
            events.ended(port.end(&mut core.transport, &mut core.memory));
        }
    }

    /// Ends the stream that `events` manages, and takes the queue pair to the error state.
    pub(crate) fn disconnect_stream(&self, events: &Arc<dyn StreamEvents>) {
        let mut locked = self.lock();
        if locked.core.connection().is_some_and(|connection| Arc::ptr_eq(&connection.events, events)) {
            let error = QpAttr { state: QpState::Error, ..QpAttr::default() };
            if let Err(error) = locked.core.transport.modify(&error, QpAttrMask::STATE) {
                tracing::debug!(%error, "a queue pair could not be ended");
            }
            locked.finish_batch(clock::now());
        }
    }

    /// Follows what happened to the stream. Returns when its next timer is due.
    pub(super) fn follow_stream(&self, core: &mut Core) -> Option<Instant> {
        let state = core.transport.stream_state();
        let connection = core.connection()?;
        if connection.port.follow(state) {
            connection.events.established();
        }
        match state {
            StreamState::Open { .. } => connection.port.deadline(),
            StreamState::Idle | StreamState::Closing => {
                self.end_stream(core);
                None
            }
        }
    }
}

impl Locked<'_> {
    /// The port of this connection, unless the endpoint gave it up meanwhile.
    fn port(&mut self, socket: &StreamSocket) -> Option<&mut StreamPort> {
        self.core.connection().map(|connection| &mut connection.port).filter(|port| port.is_of(socket))
    }

    /// Receives from this connection as its queue pair expects it; nothing if the endpoint gave it up.
    fn receive_in_place(&mut self, socket: &StreamSocket, buffer: &mut [u8]) -> Found {
        match &mut *self.core {
            Core {
                attachment: Attachment::Tcp(Some(TcpConnection { port, .. })), transport, memory, ..
            } if port.is_of(socket) => port.receive(transport, memory, buffer),
            _ => Found::Nothing,
        }
    }

    /// Gives it what was found on this connection, and finishes the batch. If there is `room`, TCP takes
    /// octets again. Returns when that was, or `None` if nothing had come.
    pub(crate) fn receive_stream(
        mut self,
        socket: &StreamSocket,
        mut found: Found,
        room: bool,
        buffer: &mut [u8],
    ) -> Option<Instant> {
        if found == Found::InPlace {
            found = self.receive_in_place(socket, buffer);
        }
        if found == Found::Nothing && !room {
            return None;
        }
        let now = clock::now();
        if let Some(port) = self.port(socket) {
            if room {
                port.has_room();
            }
            match found {
                Found::Octets { total, behind } => {
                    let published = self.take_arrived(socket, (total, behind), buffer, now);
                    self.finish_after(now, published);
                    return Some(now);
                }
                Found::End => _ = self.core.transport.stream_ended(),
                Found::Nothing | Found::InPlace => {}
            }
        }
        self.finish_batch(now);
        Some(now)
    }

    /// Gives it octets that arrived on this connection: `total` of them, the last `behind` of which are in
    /// `buffer`. Receives what belongs into registered memory and came too.
    fn take_arrived(
        &mut self,
        socket: &StreamSocket,
        (mut total, mut behind): (usize, usize),
        buffer: &mut [u8],
        now: Instant,
    ) -> Published {
        let counters = self.endpoint.counters();
        let mut published = Published::default();
        self.port(socket).into_iter().for_each(|port| port.has_received(now));
        for turn in 1.. {
            DeviceCounters::count(&counters.rx_calls);
            DeviceCounters::add(&counters.rcvd_octets, total as u64);
            let octets = buffer.get(..behind).unwrap_or_default();
            if let Some(port) = self.port(socket).filter(|port| port.is_stalled()) {
                // The octets were received while the connection stalled.
                port.stall(octets, now);
                break;
            }
            published.join(self.endpoint.take_octets(&mut self.core, octets, now));
            let expected = self.core.transport.stream_expected();
            let in_place = self.port(socket).is_some_and(|port| port.expect(&expected));
            if !in_place || turn == TURNS || published.overrun > 0 {
                break;
            }
            // The next look sees the end of the stream.
            let Found::Octets { total: more, behind: last } = self.receive_in_place(socket, buffer) else {
                break;
            };
            (total, behind) = (more, last);
        }
        published
    }

    /// Sends what TCP takes until `limit` is over, because the process ends. Returns the time before which
    /// the process should not end.
    pub(super) fn flush_stream_at_exit(
        core: &mut Core,
        limit: Duration,
        counters: &DeviceCounters,
    ) -> Instant {
        let Core { attachment, transport, memory, .. } = core;
        match attachment {
            Attachment::Tcp(Some(TcpConnection { port, .. })) => {
                port.flush_at_exit(transport, memory, limit, counters)
            }
            _ => Instant::ZERO,
        }
    }

    /// Runs the stream's timers that are due.
    pub(super) fn expire_stream(&mut self, now: Instant) {
        let Core { attachment, transport, memory, .. } = &mut *self.core;
        if let Attachment::Tcp(Some(TcpConnection { port, .. })) = attachment {
            port.expire(transport, now, |transport, octets| {
                transport.handle_stream(octets, &mut Receives(&*self.endpoint.outputs), memory)
            });
        }
    }
}
