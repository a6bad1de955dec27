//! The end that is asked.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ferroce_engine::cm::attributes::ConnectedAttr;
use ferroce_engine::cm::{AcceptParams, CmEventKind, Connection, Event, attributes, extension, resolve};
use ferroce_wire::Psn;
use ferroce_wire::cm::{Info, IpCmHeader, PortSpace, PrivateData, RejReason, Req};

use super::connected::{Events, Names};
use super::door::Door;
use super::end::{End, EndOptions};
use super::{ConnectError, Connected, Pending, context};
use crate::{Context, Error, Init, ProtectionDomain, QueuePair};

/// Takes requests for connections at a port.
#[doc(alias = "rdma_listen")]
pub struct Listener {
    door: Door,
}

impl Listener {
    /// Listens at an address of this host, or at all of them if it is unspecified; port 0 is any, see
    /// [`Self::local_addr`]. `[::]` takes what comes over IPv4 too. 1024 requests may wait.
    ///
    /// # Errors
    ///
    /// [`super::CmError::InUse`], [`super::CmError::NoAddress`], [`super::CmError::Permission`] for a port
    /// below 1024.
    pub fn bind(local: SocketAddr) -> Result<Self, Error> {
        Self::with_backlog(local, 0)
    }

    /// Listens as [`Self::bind`] does. `backlog` is the number of requests that may wait, 1 to 1024; 0 and
    /// larger values mean 1024. Further requests are dropped, and their senders repeat them.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn with_backlog(local: SocketAddr, backlog: u16) -> Result<Self, Error> {
        Ok(Self { door: Door::open(PortSpace::Tcp, local, backlog)? })
    }

    /// The address at which the listener takes requests, with the port that was chosen for port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.door.local_addr()
    }

    /// Waits for a request.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the descriptor was made non-blocking, `Interrupted` by a signal: wait again.
    #[doc(alias = "rdma_get_request")]
    pub fn accept(&self) -> Result<Request, Error> {
        self.door.wait(|event| self.request(event))
    }

    /// A request, if one is there. Never waits.
    pub fn poll(&self) -> Option<Request> {
        self.door.poll(|event| self.request(event))
    }

    /// Requests that cannot be answered are refused here; what happens to one that nobody took up is of no
    /// interest.
    fn request(&self, event: Event) -> Option<Request> {
        let CmEventKind::Request { route, starting_psn, req, .. } = event.kind else { return None };
        let connection = event.incoming?.connection();
        connection.was_fetched();
        let events = Events::new().ok()?;
        connection.set_sink(events.sink());
        let (header, _) = IpCmHeader::parse(&req.private.0).ok()?;
        let (local, peer) = self.door.names(&route, header.source_port);
        let names = Names { local, peer };
        Some(Request { connection, events, names, on: route, psn: starting_psn, req })
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.local_addr()).finish_non_exhaustive()
    }
}

impl AsFd for Listener {
    /// Readable while [`Listener::poll`] may have a request.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.fd()
    }
}

/// A peer asks for a connection. Dropped, it is refused.
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct Request {
    connection: Connection,
    events: Arc<Events>,
    names: Names,
    /// How it came.
    on: ferroce_engine::cm::Route,
    psn: Psn,
    req: Box<Req>,
}

impl Request {
    /// The address that was asked.
    pub fn local_addr(&self) -> SocketAddr {
        self.names.local
    }

    /// The address of the peer that sent the request.
    pub fn peer_addr(&self) -> SocketAddr {
        self.names.peer
    }

    /// The private data of the request: [`REQUEST_PRIVATE_DATA`](super::REQUEST_PRIVATE_DATA) octets, zeros
    /// at the end.
    pub fn private_data(&self) -> &[u8] {
        self.req.private.0.get(IpCmHeader::LEN..).unwrap_or_default()
    }

    /// The device that was asked, as the context that connections share: for those who share a protection
    /// domain between connections.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Resolve`] if it is gone.
    pub fn device(&self) -> Result<Context, Error> {
        context::shared(&self.route()?.local.device)
    }

    /// Makes a queue pair for the connection. If that fails, the peer is refused.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Resolve`], and those of what has to be made.
    pub fn prepare(self, options: &EndOptions) -> Result<Acceptor, Error> {
        let end = End::new(self.route()?, options)?;
        Ok(Acceptor { request: self, end, options: options.clone() })
    }

    /// Refuses, with at most [`REJECT_PRIVATE_DATA`](super::REJECT_PRIVATE_DATA) octets for the peer.
    ///
    /// # Errors
    ///
    /// [`ConnectError::PrivateData`]; [`super::CmError::Gone`] if the peer gave up.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private: &[u8]) -> Result<(), Error> {
        Ok(self.refuse(private)?)
    }

    fn refuse(&self, private: &[u8]) -> Result<(), ConnectError> {
        let private = PrivateData::new(private)?;
        Ok(self.connection.reject(RejReason::CONSUMER, Info::NONE, private)?)
    }

    fn route(&self) -> Result<resolve::Route, ConnectError> {
        let mut route = resolve::back(&self.on, self.names.local, self.names.peer)?;
        route.source = self.names.local;
        Ok(route)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Names { local, peer } = self.names;
        f.debug_struct("Request").field("local", &local).field("peer", &peer).finish_non_exhaustive()
    }
}

/// An end that will agree to a request: there is a queue pair that takes receives. Dropped, the peer is
/// refused.
pub struct Acceptor {
    request: Request,
    end: End,
    options: EndOptions,
}

impl Acceptor {
    /// The queue pair's protection domain: where to register memory.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.end.domain
    }

    /// The queue pair. Post receives now: the peer may send as soon as it is told.
    pub fn queue_pair(&self) -> &QueuePair<Init> {
        &self.end.qp
    }

    /// The request that this answers.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Agrees, with at most [`ACCEPT_PRIVATE_DATA`](super::ACCEPT_PRIVATE_DATA) octets for the peer, and
    /// waits until the peer knows.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Rejected`] if it gave up, [`ConnectError::Unreachable`] if it is silent now,
    /// [`ConnectError::PrivateData`], and those of the queue pair.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, private: &[u8]) -> Result<Connected, Error> {
        self.start(private)?.wait()
    }

    /// Agrees as [`Self::accept`], and does not wait.
    ///
    /// # Errors
    ///
    /// [`ConnectError::PrivateData`], [`ConnectError::Cm`], and those of the queue pair.
    pub fn start(self, private: &[u8]) -> Result<Pending, Error> {
        let Self { request, end, options } = self;
        let private = PrivateData::new(private).map_err(ConnectError::from)?;
        let req = &*request.req;
        // No more than the peer offers.
        let answer = AcceptParams {
            responder_resources: options.responder_resources.min(req.initiator_depth),
            initiator_depth: options.initiator_depth.min(req.responder_resources),
            rnr_retry_count: options.rnr_retry.min(7),
            ece: extension::answer(req.ece),
            private,
            ..AcceptParams::new(end.guid(), end.qp.qpn())
        };
        let (depth, resources) = (answer.initiator_depth, answer.responder_resources);
        let agreed =
            attributes::passive(req, request.psn, depth, resources).ok_or(ConnectError::Malformed)?;
        let agreed = ConnectedAttr { selective_repeat: extension::is_agreed(req.ece, answer.ece), ..agreed };
        let domain = end.domain.clone();
        let path = req.primary;
        let qp = end.connect(&agreed, path.flow_label, path.traffic_class, path.hop_limit)?;
        request.events.watch(qp.engine());
        request.connection.accept(&answer).map_err(ConnectError::from)?;
        let Request { connection, events, names, .. } = request;
        Ok(Pending::answered(qp, domain, connection, events, names))
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Acceptor").field(&self.request).finish()
    }
}
