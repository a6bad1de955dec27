//! The end that asks.

use std::fmt;
use std::net::SocketAddr;

use ferroce_engine::cm::resolve::{self, Route, Transports};
use ferroce_engine::cm::{Bind, ConnectParams, Port};
use ferroce_wire::cm::PortSpace;

use super::connected::Events;
use super::end::{End, EndOptions};
use super::{ConnectError, Connected, Pending, context};
use crate::{Context, Error, Init, ProtectionDomain, QueuePair};

/// An end that will ask a peer for a connection: there is a way to it, and a queue pair that takes receives.
#[doc(alias = "rdma_resolve_addr")]
pub struct Connector {
    end: End,
    port: Port,
    options: EndOptions,
}

impl Connector {
    /// Finds the device that reaches `peer`, and makes a queue pair there.
    ///
    /// # Errors
    ///
    /// [`Device::NoAddress`](crate::error::Device::NoAddress) if there is no such device,
    /// [`System::NoRoute`](crate::error::System::NoRoute) if the kernel has no route to the peer, and the
    /// errors of creating the objects.
    pub fn new(peer: SocketAddr, options: &EndOptions) -> Result<Self, Error> {
        Self::from(None, peer, options)
    }

    /// As [`Self::new`], from a local address and port; port 0 is any.
    ///
    /// # Errors
    ///
    /// As there; [`Usage::AddressInUse`](crate::error::Usage::AddressInUse) if the port is taken.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bound(local: SocketAddr, peer: SocketAddr, options: &EndOptions) -> Result<Self, Error> {
        Self::from(Some(local), peer, options)
    }

    /// The device that reaches `peer`, as the context that connections share: for those who share a
    /// protection domain between connections.
    ///
    /// # Errors
    ///
    /// [`Device::NoAddress`](crate::error::Device::NoAddress) if there is no such device,
    /// [`System::NoRoute`](crate::error::System::NoRoute) if the kernel has no route to the peer.
    pub fn device_for(peer: SocketAddr) -> Result<Context, Error> {
        crate::device::offer_a_broker();
        let route = way(None, peer)?;
        context::shared(&route.local.device)
    }

    fn from(local: Option<SocketAddr>, peer: SocketAddr, options: &EndOptions) -> Result<Self, Error> {
        crate::device::offer_a_broker();
        let mut route = way(local, peer)?;
        route.source.set_port(local.map_or(0, |local| local.port()));
        let transports = route.transports();
        let end = End::new(route, options)?;
        let bind = Bind { transports, ..Bind::new(PortSpace::Tcp, end.route.source) };
        let port = Port::bind(&bind).map_err(ConnectError::from)?;
        Ok(Self { end, port, options: options.clone() })
    }

    /// The queue pair's protection domain: where to register memory.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.end.domain
    }

    /// The queue pair. Post receives now if the peer may send at once.
    pub fn queue_pair(&self) -> &QueuePair<Init> {
        &self.end.qp
    }

    /// Our address and port.
    pub fn local_addr(&self) -> SocketAddr {
        let mut local = self.end.route.source;
        local.set_port(self.port.number());
        local
    }

    /// Asks the peer, with at most [`REQUEST_PRIVATE_DATA`](super::REQUEST_PRIVATE_DATA) octets for it, and
    /// waits for its answer: at once if nobody listens there, 74 seconds if the host does not answer.
    ///
    /// # Errors
    ///
    /// [`Peer::Rejected`](crate::error::Peer::Rejected) with [`Error::private_data`],
    /// [`Peer::Unreachable`](crate::error::Peer::Unreachable),
    /// [`Usage::TooLarge`](crate::error::Usage::TooLarge) for more private data, and the errors of creating
    /// the objects.
    #[doc(alias = "rdma_connect")]
    pub fn connect(self, private: &[u8]) -> Result<Connected, Error> {
        self.start(private)?.wait()
    }

    /// Asks the peer as [`Self::connect`], and does not wait.
    ///
    /// # Errors
    ///
    /// [`Usage::TooLarge`](crate::error::Usage::TooLarge) for more private data,
    /// [`Device::NoBroker`](crate::error::Device::NoBroker) if the broker of the process is gone.
    pub fn start(self, private: &[u8]) -> Result<Pending, Error> {
        Ok(self.ask(private)?)
    }

    fn ask(self, private: &[u8]) -> Result<Pending, ConnectError> {
        let local = self.local_addr();
        let Self { mut end, port, options } = self;
        end.route.source = local;
        let params = ConnectParams {
            responder_resources: options.responder_resources,
            initiator_depth: options.initiator_depth,
            retry_count: options.retry_cnt,
            rnr_retry_count: options.rnr_retry,
            ..end.route.request(end.qp.qpn(), options.traffic_class)
        };
        let events = Events::new()?;
        let (connection, req) = port.connect(&end.route, &params, private, events.sink())?;
        Ok(Pending::asked(end, connection, port, events, req, params.packet_life))
    }
}

/// The way to a peer, by a device of either transport.
fn way(local: Option<SocketAddr>, peer: SocketAddr) -> Result<Route, ConnectError> {
    Ok(resolve::route_by(Transports::of_process(), local, peer)?)
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, peer) = (self.local_addr(), self.end.route.destination);
        f.debug_struct("Connector").field("local", &local).field("peer", &peer).finish_non_exhaustive()
    }
}
