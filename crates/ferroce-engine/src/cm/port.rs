//! Ports, where connections of either transport begin and requests for them arrive.

use std::fmt;
use std::net::SocketAddr;

use ferroce_cm::{ConnectParams, SidrParams};
use ferroce_wire::cm::{CmTime, IpCmHeader, PortSpace, PrivateData, Req, ServiceId};
use parking_lot::Mutex;

use super::broker_port::BrokerPort;
use super::connection::{Connection, SidrRequest, Transport};
use super::iwarp::{self, Listener, TcpPort};
use super::resolve::{Route, Transports};
use super::{CmError, EventSink};
use crate::device::DeviceInfo;
use crate::engine::devices;

/// Attempts to find a number that is free with the broker and with TCP.
const TRIES: usize = 64;
/// The time in which a SIDR request is answered, 4.3 s, before it is repeated (rxe 6.12,
/// `CMA_CM_RESPONSE_TIMEOUT`).
const RESPONSE_TIMEOUT: CmTime = CmTime::saturating(20);
/// Repetitions of a SIDR request (rxe 6.12, `CMA_MAX_CM_RETRIES`).
const RETRIES: u8 = 15;

/// The port to bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The transports that use the port; RoCE alone by default, see [`Transports::at`].
    pub transports: Transports,
    /// The port space. iWARP has the ports of TCP whatever is said here.
    pub space: PortSpace,
    /// The address, perhaps unspecified; port 0 is any that is free. A link-local address has its interface.
    pub address: SocketAddr,
    /// Others that say so too may have the same port, as long as none listens. For TCP this is always so.
    pub reuse: bool,
    /// `::` does not mean the addresses of IPv4.
    pub v6_only: bool,
}

impl Bind {
    /// A RoCE port for one's own use.
    pub const fn new(space: PortSpace, address: SocketAddr) -> Self {
        Self { transports: Transports::Roce, space, address, reuse: false, v6_only: false }
    }
}

/// A port of this process, until it is dropped: the broker's for RoCE, TCP's for iWARP, or both with the same
/// number.
#[doc(alias = "rdma_bind_addr")]
pub struct Port {
    listener: Mutex<Option<Listener>>,
    space: PortSpace,
    number: u16,
    broker: Option<BrokerPort>,
    tcp: Option<TcpPort>,
}

impl Port {
    /// Takes a port. For [`Transports::Any`] the broker's suffices unless all devices are of iWARP: a warning
    /// says that TCP's cannot be taken.
    ///
    /// # Errors
    /// [`CmError::InUse`], [`CmError::NoAddress`], [`CmError::Permission`], and those of a process without
    /// broker or slot.
    pub fn bind(bind: &Bind) -> Result<Self, CmError> {
        let new =
            |number, broker, tcp| Self { listener: Mutex::default(), space: bind.space, number, broker, tcp };
        if bind.transports == Transports::Iwarp {
            let tcp = TcpPort::bind(bind.address, bind.v6_only)?;
            return Ok(new(tcp.number(), None, Some(tcp)));
        }
        // The numbers that TCP did not have free. They are held, so that the broker does not choose them
        // again.
        let mut passed = Vec::new();
        loop {
            let broker = BrokerPort::bind(bind)?;
            let number = broker.number();
            if bind.transports == Transports::Roce {
                return Ok(new(number, Some(broker), None));
            }
            let mut at = bind.address;
            at.set_port(number);
            match TcpPort::bind(at, bind.v6_only) {
                Ok(tcp) => return Ok(new(number, Some(broker), Some(tcp))),
                Err(CmError::InUse(_)) if bind.address.port() == 0 && passed.len() < TRIES => {
                    passed.push(broker)
                }
                Err(error) => {
                    by_roce_alone(number, error)?;
                    return Ok(new(number, Some(broker), None));
                }
            }
        }
    }

    /// Number of the port.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The service id it stands for.
    pub fn service_id(&self) -> ServiceId {
        self.space.service_id(self.number)
    }

    /// Takes requests from now on, and gives each to `sink`; by iWARP those whose local address is one of an
    /// iWARP device. `backlog` of them may wait for an answer; 0, or more than 1024, mean 1024. Further ones
    /// are dropped and come again by RoCE; by iWARP they wait for a place until the time for a request is
    /// over. If TCP cannot listen, RoCE goes on alone as for [`Self::bind`].
    ///
    /// # Errors
    /// [`CmError::InUse`] if the port is shared, or another socket listens there. [`CmError::Invalid`] if a
    /// connection or listener has the port of TCP.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u16, sink: EventSink) -> Result<(), CmError> {
        if let Some(broker) = &self.broker {
            broker.listen(backlog, sink.clone())?;
        }
        let Some(tcp) = &self.tcp else { return Ok(()) };
        match Listener::listen(tcp, backlog, sink) {
            Ok(listener) => *self.listener.lock() = Some(listener),
            Err(error) if self.broker.is_some() => by_roce_alone(self.number, error)?,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Takes no more requests by iWARP.
    pub fn close_tcp(&self) {
        let listener = self.listener.lock().take();
        drop(listener);
    }

    /// Asks the peer at the end of `route` for a connection, by the transport of the route. Events go to
    /// `sink`. Of `params`, which [`Route::request`] makes, RoCE replaces the addresses, the service and the
    /// private data; iWARP uses the queue pair, which is in INIT, and the depths, which are rounded up to a
    /// power of two, at most 128. There are at most 56 octets of `private` by RoCE, and 251 by iWARP. Returns
    /// the REQ of RoCE as well, see [`Connection::send`]. After an error the port can be used again.
    ///
    /// # Errors
    /// [`CmError::PrivateData`]. By RoCE those of [`Connection::send`]. By iWARP [`CmError::Invalid`] if the
    /// queue pair is not one of iWARP or the port of TCP is in use already, and errors of TCP.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        &self,
        route: &Route,
        params: &ConnectParams,
        private: &[u8],
        sink: EventSink,
    ) -> Result<(Connection, Option<Req>), CmError> {
        if route.is_iwarp() {
            let taken;
            let port = match &self.tcp {
                Some(port) => port,
                None => {
                    let mut local = route.source;
                    local.set_port(self.number);
                    taken = TcpPort::bind(local, true)?;
                    &taken
                }
            };
            let connection = iwarp::Connection::connect(port, route.destination, params, private, sink)?;
            return Ok((Connection(Transport::Iwarp(connection)), None));
        }
        let params = ConnectParams {
            route: route.on(),
            service_id: self.space.service_id(route.destination.port()),
            private: self.private(route, private)?,
            ..*params
        };
        let (connection, req) = Connection::send(&params, sink)?;
        Ok((connection, Some(req)))
    }

    /// Asks the peer at the end of a RoCE route for its UD queue pair, with at most 180 octets of private
    /// data.
    ///
    /// # Errors
    /// [`CmError::PrivateData`], and those of [`SidrRequest::send`].
    #[doc(alias = "rdma_connect")]
    pub fn ask(
        &self,
        route: &Route,
        traffic_class: u8,
        private: &[u8],
        sink: EventSink,
    ) -> Result<SidrRequest, CmError> {
        let params = SidrParams {
            route: route.on(),
            service_id: self.space.service_id(route.destination.port()),
            response_timeout: RESPONSE_TIMEOUT,
            max_cm_retries: RETRIES,
            traffic_class,
            private: self.private(route, private)?,
        };
        SidrRequest::send(&params, sink)
    }

    /// The private data of a request by RoCE, which say from which port it comes.
    fn private<const N: usize>(&self, route: &Route, private: &[u8]) -> Result<PrivateData<N>, CmError> {
        let (source, destination) = (route.source.ip(), route.destination.ip());
        let header = IpCmHeader { source_port: self.number, source, destination };
        Ok(PrivateData::concat(&header.emit(), private)?)
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("number", &self.number).finish_non_exhaustive()
    }
}

/// TCP refused a port that the broker gave: RoCE goes on alone, unless no device has it.
fn by_roce_alone(number: u16, error: CmError) -> Result<(), CmError> {
    if devices()?.iter().all(DeviceInfo::is_iwarp) {
        return Err(error);
    }
    tracing::warn!(number, %error, "iWARP peers cannot connect: TCP refuses the port");
    Ok(())
}
