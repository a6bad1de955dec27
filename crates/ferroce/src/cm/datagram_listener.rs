//! The end that is asked for a queue pair of datagrams.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use ferroce_engine::cm::resolve::Transports;
use ferroce_engine::cm::{Event, EventKind, Route, SidrAnswer, SidrRequest, resolve};
use ferroce_wire::cm::{Ece, PortSpace, PrivateData, SidrStatus};
use ferroce_wire::{Qkey, Qpn};

use super::listening_port::ListeningPort;
use super::{ConnectError, context};
use crate::service::Ud;
use crate::{Context, Error, QueuePair};

/// Tells whoever asks at a port which queue pair takes datagrams. Ports are those of UDP's port space, apart
/// from those that connections have.
#[doc(alias = "rdma_listen")]
#[doc(alias = "RDMA_PS_UDP")]
pub struct DatagramListener {
    port: ListeningPort,
}

impl DatagramListener {
    /// Listens as [`Listener::bind`](super::Listener::bind).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn bind(local: SocketAddr) -> Result<Self, Error> {
        Self::with_backlog(local, 0)
    }

    /// Listens as [`Listener::with_backlog`](super::Listener::with_backlog).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn with_backlog(local: SocketAddr, backlog: u16) -> Result<Self, Error> {
        Ok(Self { port: ListeningPort::open(Transports::Roce, PortSpace::Udp, local, backlog)? })
    }

    /// The address at which the listener takes requests, with the port that was chosen for port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.port.local_addr()
    }

    /// Waits for somebody to ask.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the descriptor was made non-blocking, `Interrupted` by a signal: wait again.
    #[doc(alias = "rdma_get_request")]
    pub fn accept(&self) -> Result<DatagramRequest, Error> {
        self.port.wait(|event| self.request(event))
    }

    /// A request, if one is there. Never waits.
    pub fn poll(&self) -> Option<DatagramRequest> {
        self.port.poll(|event| self.request(event))
    }

    fn request(&self, event: Event) -> Option<DatagramRequest> {
        let EventKind::SidrRequest { request, route: on, local, remote: peer, private } = event.kind else {
            return None;
        };
        Some(DatagramRequest { request, on, local, peer, private })
    }
}

impl AsFd for DatagramListener {
    /// Readable while [`DatagramListener::poll`] may have a request.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }
}

/// A peer asks for a queue pair of datagrams. Dropped, it is refused.
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct DatagramRequest {
    request: SidrRequest,
    /// How it came.
    on: Route,
    local: SocketAddr,
    peer: SocketAddr,
    private: Box<[u8]>,
}

impl DatagramRequest {
    /// The address that was asked.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The address of the peer that sent the request.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The private data of the request:
    /// [`DATAGRAM_REQUEST_PRIVATE_DATA`](super::DATAGRAM_REQUEST_PRIVATE_DATA) octets, zeros at the end.
    pub fn private_data(&self) -> &[u8] {
        &self.private
    }

    /// The device that was asked, which is to have the queue pair, as the context that connections share.
    ///
    /// # Errors
    ///
    /// [`Device::NoAddress`](crate::error::Device::NoAddress) if it is gone.
    pub fn device(&self) -> Result<Context, Error> {
        let route = resolve::back(Some(&self.on), self.local, self.peer).map_err(ConnectError::from)?;
        context::shared(&route.local.device)
    }

    /// Names a queue pair of [`Self::device`], which has its receives posted, and its key, with at most
    /// [`DATAGRAM_ANSWER_PRIVATE_DATA`](super::DATAGRAM_ANSWER_PRIVATE_DATA) octets for the peer. Any number
    /// of peers may be told the same one.
    ///
    /// # Errors
    ///
    /// [`Usage::TooLarge`](crate::error::Usage::TooLarge) for more private data;
    /// [`Peer::Ended`](crate::error::Peer::Ended) if the peer gave up.
    #[doc(alias = "rdma_accept")]
    pub fn answer<State>(self, with: &QueuePair<State, Ud>, private: &[u8]) -> Result<(), Error> {
        Ok(self.say(SidrStatus::VALID, with.qpn(), with.engine().query().qkey, private)?)
    }

    /// Refuses, with at most [`DATAGRAM_ANSWER_PRIVATE_DATA`](super::DATAGRAM_ANSWER_PRIVATE_DATA) octets for
    /// the peer.
    ///
    /// # Errors
    ///
    /// As [`Self::answer`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private: &[u8]) -> Result<(), Error> {
        Ok(self.say(SidrStatus::REJECTED, Qpn::new(0), Qkey::new(0), private)?)
    }

    fn say(&self, status: SidrStatus, qpn: Qpn, qkey: Qkey, private: &[u8]) -> Result<(), ConnectError> {
        let private = PrivateData::new(private)?;
        Ok(self.request.answer(&SidrAnswer { status, qpn, qkey, ece: Ece::default(), private })?)
    }
}
