//! The end that is asked.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ferroce_engine::cm::resolve::{self, Transports};
use ferroce_engine::cm::{AcceptParams, Event, EventKind, extension};
use ferroce_wire::cm::{PortSpace, RejReason};

use super::connected::{Events, Names};
use super::end::{End, EndOptions};
use super::listening_port::ListeningPort;
use super::{ConnectError, Connected, Pending, context};
use crate::{Context, Error, Init, ProtectionDomain, QueuePair};

/// Takes requests for connections at a port.
#[doc(alias = "rdma_listen")]
pub struct Listener {
    port: ListeningPort,
}

impl Listener {
    /// Listens at an address of this host, or at all of them if it is unspecified; port 0 is any, see
    /// [`Self::local_addr`]. `[::]` takes what comes over IPv4 too. 1024 requests may wait.
    ///
    /// # Errors
    ///
    /// [`Usage::AddressInUse`](crate::error::Usage::AddressInUse),
    /// [`Device::NoAddress`](crate::error::Device::NoAddress),
    /// [`System::Permission`](crate::error::System::Permission) for a port below 1024.
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
        Ok(Self { port: ListeningPort::open(Transports::of_process(), PortSpace::Tcp, local, backlog)? })
    }

    /// The address at which the listener takes requests, with the port that was chosen for port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.port.local_addr()
    }

    /// Waits for a request.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the descriptor was made non-blocking, `Interrupted` by a signal: wait again.
    #[doc(alias = "rdma_get_request")]
    pub fn accept(&self) -> Result<Request, Error> {
        self.port.wait(|event| self.request(event))
    }

    /// A request, if one is there. Never waits.
    pub fn poll(&self) -> Option<Request> {
        self.port.poll(|event| self.request(event))
    }

    /// Requests that cannot be answered are refused here; what happens to one that nobody took up is of no
    /// interest.
    fn request(&self, event: Event) -> Option<Request> {
        let EventKind::Request(asked) = event.kind else { return None };
        asked.connection.was_fetched();
        let events = Events::new().ok()?;
        asked.connection.set_sink(events.sink());
        Some(Request { asked, events })
    }
}

impl AsFd for Listener {
    /// Readable while [`Listener::poll`] may have a request.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }
}

/// A peer asks for a connection. Dropped, it is refused.
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct Request {
    asked: Box<ferroce_engine::cm::Request>,
    events: Arc<Events>,
}

impl Request {
    /// The address that was asked.
    pub fn local_addr(&self) -> SocketAddr {
        self.asked.local
    }

    /// The address of the peer that sent the request.
    pub fn peer_addr(&self) -> SocketAddr {
        self.asked.remote
    }

    /// The private data of the request: [`REQUEST_PRIVATE_DATA`](super::REQUEST_PRIVATE_DATA) octets by RoCE,
    /// zeros at the end; by iWARP those that the peer gave.
    pub fn private_data(&self) -> &[u8] {
        &self.asked.private
    }

    /// The device that was asked, as the context that connections share: for those who share a protection
    /// domain between connections.
    ///
    /// # Errors
    ///
    /// [`Device::NoAddress`](crate::error::Device::NoAddress) if it is gone.
    pub fn device(&self) -> Result<Context, Error> {
        context::shared(&self.route()?.local.device)
    }

    /// Makes a queue pair for the connection. If that fails, the peer is refused.
    ///
    /// # Errors
    ///
    /// [`Device::NoAddress`](crate::error::Device::NoAddress) if the device is gone, and the errors of
    /// creating the objects.
    pub fn prepare(self, options: &EndOptions) -> Result<Acceptor, Error> {
        let end = End::new(self.route()?, options)?;
        Ok(Acceptor { request: self, end, options: options.clone() })
    }

    /// Refuses, with at most [`REJECT_PRIVATE_DATA`](super::REJECT_PRIVATE_DATA) octets for the peer.
    ///
    /// # Errors
    ///
    /// [`Usage::TooLarge`](crate::error::Usage::TooLarge) for more private data;
    /// [`Peer::Ended`](crate::error::Peer::Ended) if the peer gave up.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private: &[u8]) -> Result<(), Error> {
        Ok(self.refuse(private)?)
    }

    fn refuse(&self, private: &[u8]) -> Result<(), ConnectError> {
        Ok(self.asked.connection.reject(RejReason::CONSUMER, private)?)
    }

    fn route(&self) -> Result<resolve::Route, ConnectError> {
        Ok(self.asked.route()?)
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
    /// [`Peer::Rejected`](crate::error::Peer::Rejected) if the peer gave up,
    /// [`Peer::Unreachable`](crate::error::Peer::Unreachable) if it does not answer any more,
    /// [`Usage::TooLarge`](crate::error::Usage::TooLarge) for more private data, and the errors of the queue
    /// pair.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, private: &[u8]) -> Result<Connected, Error> {
        self.start(private)?.wait()
    }

    /// Agrees as [`Self::accept`], and does not wait.
    ///
    /// # Errors
    ///
    /// [`Usage::TooLarge`](crate::error::Usage::TooLarge) for more private data,
    /// [`Peer::Ended`](crate::error::Peer::Ended) if the peer gave up, and the errors of the queue pair.
    pub fn start(self, private: &[u8]) -> Result<Pending, Error> {
        let Self { request: Request { asked, events }, end, options } = self;
        // No more than the peer offers.
        let mut answer = AcceptParams {
            responder_resources: options.responder_resources.min(asked.initiator_depth),
            initiator_depth: options.initiator_depth.min(asked.responder_resources),
            rnr_retry_count: options.rnr_retry.min(7),
            ..AcceptParams::new(end.route.guid(), end.qp.qpn())
        };
        let domain = end.domain.clone();
        let qp = match &asked.roce {
            Some(roce) => {
                answer.ece = extension::answer(roce.req.ece);
                let agreed = roce.attributes(&answer).ok_or(ConnectError::Malformed)?;
                let path = roce.req.primary;
                end.connect(&agreed, path.flow_label, path.traffic_class, path.hop_limit)?
            }
            // iWARP moves the queue pair itself.
            None => end.qp.moved(),
        };
        events.watch(qp.engine());
        asked.connection.accept(&answer, private).map_err(ConnectError::from)?;
        let names = Names { local: asked.local, peer: asked.remote };
        Ok(Pending::answered(qp, domain, asked.connection, events, names))
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Acceptor").field(&self.request).finish()
    }
}
