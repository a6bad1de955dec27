//! The end that asks for a queue pair of datagrams.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ferroce_engine::cm::resolve::{self, Route};
use ferroce_engine::cm::{Bind, EventKind, EventSink, Port, Queue, SidrRequest, attributes};
use ferroce_wire::cm::{PortSpace, SidrRep, SidrStatus};
use ferroce_wire::{Qkey, Qpn};

use super::{ConnectError, context};
use crate::{AddressHandle, Context, Error, ProtectionDomain};

/// Will ask a peer which of its queue pairs takes datagrams: there is a way to it.
#[doc(alias = "rdma_resolve_addr")]
#[doc(alias = "RDMA_PS_UDP")]
pub struct DatagramConnector {
    route: Route,
    port: Port,
    traffic_class: Option<u8>,
}

impl DatagramConnector {
    /// Finds the device that reaches `peer`.
    ///
    /// # Errors
    ///
    /// [`Device::NoAddress`](crate::error::Device::NoAddress) if there is no such device,
    /// [`System::NoRoute`](crate::error::System::NoRoute) if the kernel has no route to the peer.
    pub fn new(peer: SocketAddr) -> Result<Self, Error> {
        Ok(Self::from(None, peer)?)
    }

    /// As [`Self::new`], from a local address and port; port 0 is any.
    ///
    /// # Errors
    ///
    /// As there; [`Usage::AddressInUse`](crate::error::Usage::AddressInUse) if the port is taken.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bound(local: SocketAddr, peer: SocketAddr) -> Result<Self, Error> {
        Ok(Self::from(Some(local), peer)?)
    }

    fn from(local: Option<SocketAddr>, peer: SocketAddr) -> Result<Self, ConnectError> {
        crate::device::offer_a_broker();
        let mut route = resolve::route(local, peer)?;
        route.source.set_port(local.map_or(0, |local| local.port()));
        let port = Port::bind(&Bind::new(PortSpace::Udp, route.source))?;
        route.source.set_port(port.number());
        Ok(Self { route, port, traffic_class: None })
    }

    /// DSCP and ECN bits of the question, and of datagrams by [`DatagramPeer::address_handle`]; otherwise the
    /// device's default.
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = Some(class);
        self
    }

    /// The device that reaches the peer, which is to have the queue pair at this end, as the context that
    /// connections share.
    ///
    /// # Errors
    ///
    /// Fails as opening the device does.
    pub fn device(&self) -> Result<Context, Error> {
        context::shared(&self.route.local.device)
    }

    /// Our address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.route.source
    }

    /// Asks the peer, with at most [`DATAGRAM_REQUEST_PRIVATE_DATA`](super::DATAGRAM_REQUEST_PRIVATE_DATA)
    /// octets for it, and waits for its answer: at once if nobody listens there, 69 seconds if the host does
    /// not answer.
    ///
    /// # Errors
    ///
    /// [`Peer::Refused`](crate::error::Peer::Refused) with [`Error::private_data`],
    /// [`Peer::Unreachable`](crate::error::Peer::Unreachable),
    /// [`Usage::TooLarge`](crate::error::Usage::TooLarge) for more private data.
    #[doc(alias = "rdma_connect")]
    pub fn ask(self, private: &[u8]) -> Result<DatagramPeer, Error> {
        self.start(private)?.wait()
    }

    /// Asks the peer as [`Self::ask`], and does not wait.
    ///
    /// # Errors
    ///
    /// [`Usage::TooLarge`](crate::error::Usage::TooLarge) for more private data,
    /// [`Device::NoBroker`](crate::error::Device::NoBroker) if the broker of the process is gone.
    pub fn start(self, private: &[u8]) -> Result<PendingPeer, Error> {
        Ok(self.send(private)?)
    }

    fn send(self, private: &[u8]) -> Result<PendingPeer, ConnectError> {
        let Self { route, port, traffic_class } = self;
        let class = route.type_of_service(traffic_class);
        let events = Queue::new()?;
        let request = port.ask(&route, class, private, EventSink::queue(&events, 0))?;
        Ok(PendingPeer { events, asked: Some(Asked { _request: request, route, port, class }) })
    }
}

impl fmt::Debug for DatagramConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, peer) = (self.route.source, self.route.destination);
        f.debug_struct("DatagramConnector")
            .field("local", &local)
            .field("peer", &peer)
            .finish_non_exhaustive()
    }
}

/// Until it is answered.
struct Asked {
    _request: SidrRequest,
    route: Route,
    port: Port,
    class: u8,
}

/// A peer that was asked and did not answer yet. Dropped, the request is given up.
pub struct PendingPeer {
    events: Arc<Queue>,
    asked: Option<Asked>,
}

impl PendingPeer {
    /// The answer, if it is there. Never waits; after it said something else than `None`, it says
    /// [`Peer::Ended`](crate::error::Peer::Ended).
    ///
    /// # Errors
    ///
    /// [`Peer::Refused`](crate::error::Peer::Refused),
    /// [`Peer::Unreachable`](crate::error::Peer::Unreachable), [`Peer::Ended`](crate::error::Peer::Ended).
    pub fn poll(&mut self) -> Result<Option<DatagramPeer>, Error> {
        match self.events.poll() {
            Some(event) => Ok(self.take_event(event.kind)?),
            None if self.asked.is_none() => Err(ConnectError::Over.into()),
            None => Ok(None),
        }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    ///
    /// As [`Self::poll`]; `WouldBlock` if the descriptor was made non-blocking, `Interrupted` by a signal:
    /// wait again.
    pub fn wait(&mut self) -> Result<DatagramPeer, Error> {
        loop {
            if self.asked.is_none() {
                return Err(ConnectError::Over.into());
            }
            let event = self.events.get().map_err(ConnectError::Events)?;
            if let Some(peer) = self.take_event(event.kind)? {
                return Ok(peer);
            }
        }
    }

    fn take_event(&mut self, kind: EventKind) -> Result<Option<DatagramPeer>, ConnectError> {
        let outcome = match kind {
            EventKind::SidrReply { rep } if rep.status == SidrStatus::VALID => Ok(rep),
            EventKind::SidrReply { rep } => {
                Err(ConnectError::Refused { status: rep.status, private: Box::new(rep.private.0) })
            }
            EventKind::Unreachable => Err(ConnectError::Unreachable),
            EventKind::Lost => Err(ConnectError::Over),
            _ => return Ok(None),
        };
        let asked = self.asked.take().ok_or(ConnectError::Over)?;
        outcome.map(|rep| Some(DatagramPeer::new(asked, &rep)))
    }
}

impl AsFd for PendingPeer {
    /// Readable while [`PendingPeer::poll`] would say something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }
}

/// A peer's queue pair that takes datagrams. The two queue pairs are not connected: the peer's may end
/// without notice, and can reply only to [`Completion::src_qp`](crate::Completion::src_qp).
pub struct DatagramPeer {
    /// The number of the queue pair at the peer.
    pub qpn: Qpn,
    /// The Q_Key that the queue pair expects in datagrams.
    pub qkey: Qkey,
    route: Route,
    class: u8,
    private: Box<[u8]>,
    _port: Port,
}

impl DatagramPeer {
    fn new(asked: Asked, rep: &SidrRep) -> Self {
        let Asked { route, port, class, .. } = asked;
        Self { qpn: rep.qpn, qkey: rep.qkey, route, class, private: Box::new(rep.private.0), _port: port }
    }

    /// The way there, for queue pairs of a domain of [`DatagramConnector::device`].
    ///
    /// # Errors
    ///
    /// Fails as creating an address handle does.
    #[doc(alias = "ibv_create_ah")]
    pub fn address_handle(&self, domain: &ProtectionDomain) -> Result<AddressHandle, Error> {
        let (local, peer) = (self.route.source, self.route.destination);
        let label = attributes::flow_label(local.port(), peer.port());
        let attr = self.route.address(label, self.class, self.route.hop_limit);
        AddressHandle::new(domain, attr)
    }

    /// Our address and port, which nobody else has as long as this is kept.
    pub fn local_addr(&self) -> SocketAddr {
        self.route.source
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.route.destination
    }

    /// The private data of the peer's answer:
    /// [`DATAGRAM_ANSWER_PRIVATE_DATA`](super::DATAGRAM_ANSWER_PRIVATE_DATA) octets, zeros at the end.
    pub fn private_data(&self) -> &[u8] {
        &self.private
    }
}
