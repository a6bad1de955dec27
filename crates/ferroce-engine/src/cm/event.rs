//! Events of connections, and their receivers.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ferroce_cm::attributes::{self, ConnectedAttr};
use ferroce_cm::{AcceptParams, CmEventKind, Disconnect, Route, extension};
use ferroce_wire::Psn;
use ferroce_wire::cm::{IpCmHeader, RejReason, Rep, Req, ServiceId, SidrRep, SidrReq};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::resolve::{self, ResolveError};
use super::{CmError, Connection, SidrRequest};
use crate::engine;
use crate::notify::NotifyQueue;

/// An event of a connection, a SIDR request or a port.
#[derive(Debug)]
pub struct Event {
    /// The context of the [`EventSink`] that got the event: of the connection, or for requests of the port.
    pub context: u64,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kind of an event.
///
/// | event | librdmacm |
/// |---|---|
/// | [`EventKind::Request`], [`EventKind::SidrRequest`] | `RDMA_CM_EVENT_CONNECT_REQUEST` |
/// | [`EventKind::Reply`] | `RDMA_CM_EVENT_CONNECT_RESPONSE` |
/// | [`EventKind::Established`] | `RDMA_CM_EVENT_ESTABLISHED` |
/// | [`EventKind::Rejected`] | `RDMA_CM_EVENT_REJECTED` |
/// | [`EventKind::Unreachable`] | `RDMA_CM_EVENT_UNREACHABLE` |
/// | [`EventKind::Failed`] | `RDMA_CM_EVENT_UNREACHABLE` or `_CONNECT_ERROR`, by the error |
/// | [`EventKind::Disconnected`] | `RDMA_CM_EVENT_DISCONNECTED` |
/// | [`EventKind::TimeWaitOver`] | `RDMA_CM_EVENT_TIMEWAIT_EXIT` |
#[derive(Debug)]
pub enum EventKind {
    /// A peer asks a port for a connection. Until the connection has a sink of its own, that of the port gets
    /// its events.
    Request(Box<Request>),
    /// A peer asks a port for a UD queue pair.
    SidrRequest {
        /// The means to answer. Dropped, it refuses.
        request: SidrRequest,
        /// The addresses of the packet.
        route: Route,
        /// The local address and port that the peer asked.
        local: SocketAddr,
        /// The peer's address and port.
        remote: SocketAddr,
        /// The peer's private data: 180 octets.
        private: Box<[u8]>,
    },
    /// A RoCE peer accepted: set up the queue pair, then establish or reject. iWARP has no such event: its
    /// queue pair is in RTS when [`EventKind::Established`] comes.
    Reply {
        /// The REP as the peer sent it.
        rep: Box<Rep>,
    },
    /// The connection is established at both ends.
    Established(Terms),
    /// The peer refused, or no program listens there.
    Rejected {
        /// The reason (IBTA 12.6.7). Of a peer with iWARP, [`RejReason::INVALID_SERVICE_ID`] means that TCP
        /// refused, and [`RejReason::CONSUMER`] that the peer rejected the request or closed the connection.
        reason: RejReason,
        /// The private data of the peer: 148 octets of a REJ, 0 to 512 of an MPA reply.
        private: Box<[u8]>,
    },
    /// The peer did not answer.
    Unreachable,
    /// The set-up by iWARP failed at this end, or the peer answered with something else than MPA.
    Failed(CmError),
    /// The connection ends. Reported once. A connection of iWARP always reports [`Disconnect::ByPeer`].
    Disconnected(Disconnect),
    /// Time-wait of a RoCE connection is over.
    TimeWaitOver,
    /// The answer to our SIDR request.
    SidrReply {
        /// The peer's answer; its status says whether the peer agreed.
        rep: Box<SidrRep>,
    },
    /// The connection or SIDR request ended with its broker.
    Lost,
}

/// The terms of an established connection of iWARP. A RoCE connection has them in REQ and REP, and these are
/// empty.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Reads that the queue pair serves at once, 0 to 128.
    pub responder_resources: u8,
    /// Reads that the queue pair may have outstanding, 0 to 128.
    pub initiator_depth: u8,
    /// The private data of the peer's reply, 0 to 512 octets; empty at the passive end.
    pub private: Box<[u8]>,
}

/// A peer's request for a connection. Dropped, it is refused.
#[derive(Debug)]
pub struct Request {
    /// The means to accept or reject it.
    pub connection: Connection,
    /// The local address and port that the peer asked.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Reads and atomics that the peer serves at once; 0 if an iWARP peer does not say.
    pub responder_resources: u8,
    /// Reads and atomics that the peer wants to have outstanding; 0 if an iWARP peer does not say.
    pub initiator_depth: u8,
    /// The peer's private data: 56 octets of a REQ, 0 to 512 of an MPA request.
    pub private: Box<[u8]>,
    /// The rest of a RoCE peer's request; `None` for iWARP.
    pub roce: Option<Box<RoceRequest>>,
}

/// The part of a request that only RoCE has.
#[derive(Debug)]
pub struct RoceRequest {
    /// The addresses of the packet.
    pub route: Route,
    /// The REQ as the peer sent it.
    pub req: Req,
    /// The first PSN that our queue pair has to expect.
    pub starting_psn: Psn,
}

impl Request {
    /// A REQ; `None` if it names no port or no address.
    pub(super) fn by_roce(connection: Connection, roce: Box<RoceRequest>) -> Option<Self> {
        let RoceRequest { route, req, .. } = &*roce;
        let (local, remote, private) = sender(route, req.service_id, &req.private.0)?;
        let (responder_resources, initiator_depth) = (req.responder_resources, req.initiator_depth);
        let roce = Some(roce);
        Some(Self { connection, local, remote, responder_resources, initiator_depth, private, roce })
    }

    /// The way back to the peer.
    ///
    /// # Errors
    /// There is no device, or no way.
    pub fn route(&self) -> Result<resolve::Route, ResolveError> {
        resolve::back(self.roce.as_ref().map(|roce| &roce.route), self.local, self.remote)
    }
}

/// Both ends' addresses of a request by RoCE, and the rest of its private data.
fn sender(route: &Route, service: ServiceId, private: &[u8]) -> Option<(SocketAddr, SocketAddr, Box<[u8]>)> {
    let (header, rest) = IpCmHeader::parse(private).ok()?;
    let (_, port) = service.port()?;
    Some((route.local_addr(port), route.remote_addr(header.source_port), rest.into()))
}

impl RoceRequest {
    /// The attributes of the queue pair that `answer` agrees to; `None` if the request makes no sense.
    pub fn attributes(&self, answer: &AcceptParams) -> Option<ConnectedAttr> {
        let (depth, resources) = (answer.initiator_depth, answer.responder_resources);
        let agreed = attributes::passive(&self.req, self.starting_psn, depth, resources)?;
        let selective_repeat = extension::is_agreed(self.req.ece, answer.ece);
        Some(ConnectedAttr { selective_repeat, ..agreed })
    }
}

impl EventKind {
    /// A SIDR_REQ; `None` if it names no port or no address.
    pub(super) fn of_sidr(request: SidrRequest, route: Route, req: &SidrReq) -> Option<Self> {
        let (local, remote, private) = sender(&route, req.service_id, &req.private.0)?;
        Some(Self::SidrRequest { request, route, local, remote, private })
    }

    /// An event of a connection or SIDR request that exists already; `None` for a request.
    pub(super) fn of_roce(kind: CmEventKind) -> Option<Self> {
        Some(match kind {
            CmEventKind::Request { .. } | CmEventKind::SidrRequest { .. } => return None,
            CmEventKind::Reply { rep } => Self::Reply { rep },
            CmEventKind::Established => Self::Established(Terms::default()),
            CmEventKind::Rejected { reason, private, .. } => {
                Self::Rejected { reason, private: Box::new(private.0) }
            }
            CmEventKind::Unreachable => Self::Unreachable,
            CmEventKind::Disconnected(end) => Self::Disconnected(end),
            CmEventKind::TimeWaitOver => Self::TimeWaitOver,
            CmEventKind::SidrReply { rep } => Self::SidrReply { rep },
            CmEventKind::Lost => Self::Lost,
        })
    }
}

/// Takes the events of a port or a connection.
///
/// The engine's background thread calls the sink, one event at a time in order: a sink must not wait, nor
/// call connection management (dropping what an event brought is allowed).
#[derive(Clone)]
pub struct EventSink {
    deliver: Arc<dyn Fn(Event) + Send + Sync>,
    context: u64,
}

impl EventSink {
    /// Calls `deliver` with each event.
    pub fn new(deliver: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self { deliver: Arc::new(deliver), context: 0 }
    }

    /// Appends each event to `queue`, with this context.
    pub fn queue(queue: &Arc<Queue>, context: u64) -> Self {
        let queue = Arc::clone(queue);
        Self { context, ..Self::new(move |event| queue.push(event)) }
    }

    pub(super) fn deliver(&self, kind: EventKind) {
        (self.deliver)(Event { context: self.context, kind });
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSink").field("context", &self.context).finish_non_exhaustive()
    }
}

/// Events in the order of their coming, with a descriptor that is readable while there is one.
#[doc(alias = "rdma_event_channel")]
pub struct Queue {
    events: NotifyQueue<Event>,
}

impl Queue {
    /// An empty one.
    ///
    /// # Errors
    /// Without another descriptor.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { events: NotifyQueue::new()? }))
    }

    /// Appends an event.
    pub fn push(&self, event: Event) {
        self.events.push(event);
    }

    /// Readable while an event is there. O_NONBLOCK, if the program sets it, is honoured by [`Queue::get`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// The next event, if one is there.
    pub fn poll(&self) -> Option<Event> {
        self.events.pop(|event| event)
    }

    /// The next event; waits for it.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking; `Interrupted` by a signal.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn get(&self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.poll() {
                return Ok(event);
            }
            if self.events.is_nonblocking() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            engine::flush_all();
            poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
        }
    }
}
