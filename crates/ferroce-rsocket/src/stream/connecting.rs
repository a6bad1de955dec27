//! How a stream is connected.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::message::ConnectData;
use ferroce_wire::Gid;
use ferroce_wire::cm::{Info, IpCmHeader, PortSpace, PrivateData, RejReason, Rep};

use super::listener::{self, Listener, Request};
use super::{Asked, Connection, Port, Role, State, Stream, wildcard};
use crate::error::{Failure, RsocketError};
use crate::link::Link;
use crate::settings::Settings;
use crate::waker::Blocking;
use crate::{device, service};
use ferroce_engine::AhAttr;
use ferroce_engine::cm::resolve::Transports;
use ferroce_engine::cm::{self, Bind, CmEventKind, ConnectParams, Event, attributes, extension, resolve};
use ferroce_engine::iwarp::Ports;

impl Stream {
    /// Binds an address and a port; port 0 is any.
    ///
    /// # Errors
    ///
    /// [`RsocketError::Invalid`] if the stream has a port; errors of addresses and ports.
    #[doc(alias = "rbind")]
    pub fn bind(&self, address: SocketAddr) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        if !matches!(state.role, Role::Idle) || state.port.is_some() {
            return Err(RsocketError::Invalid);
        }
        resolve::local_by(Transports::of_process(), address)?;
        state.take_port(address)
    }

    /// Listens, at any port if the stream has none. The service accepts up to `backlog` connections, at most
    /// 1024, before the program does; further requests wait. A second call changes nothing.
    ///
    /// # Errors
    ///
    /// [`RsocketError::Invalid`] if the stream has a connection; errors of ports.
    #[doc(alias = "rlisten")]
    pub fn listen(&self, backlog: i32) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        match state.role {
            Role::Listening(_) => return Ok(()),
            Role::Idle => {}
            _ => return Err(RsocketError::Invalid),
        }
        if state.port.is_none() {
            let any = wildcard(state.v6);
            state.take_port(any)?;
        }
        service::start()?;
        let listener = Listener::new(backlog);
        // Set first, because a request may arrive before `listen` returns; the service waits for this lock.
        state.role = Role::Listening(listener);
        let listening = state.listen(self);
        if listening.is_err() {
            state.role = Role::Idle;
        }
        listening
    }

    /// Returns the oldest connection that was not accepted yet.
    ///
    /// # Errors
    ///
    /// [`RsocketError::Invalid`] if the stream does not listen; [`RsocketError::WouldBlock`] if `nonblocking`
    /// is set and none is ready.
    #[doc(alias = "raccept")]
    pub fn accept(&self, nonblocking: bool) -> Result<Arc<Self>, RsocketError> {
        let mut state = self.state.lock();
        if !matches!(state.role, Role::Listening(_)) {
            return Err(RsocketError::Invalid);
        }
        loop {
            let ready =
                |state: &State| !matches!(&state.role, Role::Listening(listener) if !listener.is_ready());
            state = self.wait(state, Blocking::unless(nonblocking), ready)?;
            let Role::Listening(listener) = &mut state.role else { return Err(RsocketError::Closed) };
            if let Some(stream) = listener.take(&self.me) {
                return Ok(stream);
            }
        }
    }

    /// Connects to a peer. With `nonblocking` the service finishes the connect; otherwise the call waits in
    /// [`Self::finish_connect`].
    ///
    /// # Errors
    ///
    /// [`RsocketError::InProgress`] with `nonblocking`; [`RsocketError::Failed`] if this attempt failed;
    /// [`RsocketError::NotConnected`] if an earlier one did.
    #[doc(alias = "rconnect")]
    pub fn connect(&self, address: SocketAddr, nonblocking: bool) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        match state.role {
            Role::Connected => return Ok(()),
            Role::Failed => return Err(RsocketError::NotConnected),
            Role::Idle => state.send_request(self, address)?,
            Role::Connecting(_) => {}
            Role::Listening(_) | Role::Accepting(_) => return Err(RsocketError::Invalid),
            Role::Closed => return Err(RsocketError::Closed),
        }
        if nonblocking {
            return Err(RsocketError::InProgress);
        }
        drop(state);
        self.finish_connect()
    }

    /// Waits for the end of the attempt that [`Self::connect`] began.
    ///
    /// # Errors
    ///
    /// See [`Self::connect`].
    pub fn finish_connect(&self) -> Result<(), RsocketError> {
        let finished = |state: &State| !matches!(state.role, Role::Connecting(_));
        let mut state = self.wait(self.state.lock(), Blocking::Suspend, finished)?;
        match state.failure.take() {
            _ if matches!(state.role, Role::Connected) => Ok(()),
            Some(failure) => Err(failure.into()),
            None => Err(RsocketError::NotConnected),
        }
    }

    /// Handles an event of the port or connection; runs on the service's thread.
    pub(super) fn take_event(self: &Arc<Self>, event: Event) {
        let kind = match (event.kind, event.incoming) {
            (CmEventKind::Request { route, starting_psn, req, .. }, Some(incoming)) => {
                if let Role::Listening(listener) = &mut self.state.lock().role {
                    let connection = incoming.connection();
                    listener.push(Request::Roce { connection, route, starting_psn, req });
                }
                return self.answer_waiting_requests();
            }
            (kind, _) => kind,
        };
        let mut state = self.state.lock();
        match &state.role {
            Role::Connecting(_) => state.replied(kind),
            Role::Accepting(parent) => {
                let parent = parent.upgrade();
                let established = matches!(kind, CmEventKind::Established);
                self.was_answered(state, parent, established);
            }
            Role::Connected if matches!(kind, CmEventKind::Disconnected(_) | CmEventKind::Lost) => {
                state.hang_up();
            }
            _ => {}
        }
    }

    /// The peer knows the answer to its request, or the connection failed: `parent` is told.
    pub(super) fn was_answered(
        self: &Arc<Self>,
        mut state: super::Guard<'_>,
        parent: Option<Arc<Self>>,
        established: bool,
    ) {
        state.role = if established { Role::Connected } else { Role::Failed };
        if let Some(link) = state.link.as_mut().filter(|_| established) {
            link.post_control();
        }
        drop(state);
        if let Some(parent) = parent {
            parent.finish_request(self, established);
        }
    }

    /// Accepts queued requests while there is room; runs on the service's thread.
    pub(super) fn answer_waiting_requests(&self) {
        loop {
            let (request, settings) = {
                let mut state = self.state.lock();
                let settings = state.settings;
                let Role::Listening(listener) = &mut state.role else { return };
                let Some(request) = listener.next() else { return };
                (request, settings)
            };
            let from = request.from();
            match listener::answer(&self.me, settings, request) {
                Ok(stream) => {
                    let ended = match &mut self.state.lock().role {
                        Role::Listening(listener) => listener.add_answered(from, stream),
                        _ => Some(stream),
                    };
                    if ended.is_some() {
                        tracing::debug!("a half-open rsocket makes way for another one");
                    }
                }
                Err(error) => tracing::debug!(%error, "an rsocket refused a request"),
            }
        }
    }

    /// An answered request is established, or it failed.
    fn finish_request(&self, stream: &Arc<Stream>, established: bool) {
        {
            let mut state = self.state.lock();
            if let Role::Listening(listener) = &mut state.role {
                listener.finish_request(stream, established);
            }
            state.wake();
        }
        self.answer_waiting_requests();
    }
}

impl State {
    fn take_port(&mut self, mut address: SocketAddr) -> Result<(), RsocketError> {
        let Settings { reuse, v6_only, .. } = self.settings;
        let among = Transports::of_process();
        let local = match among {
            Transports::Iwarp => None,
            Transports::Roce | Transports::Any => resolve::local_by(among, address)?,
        };
        let transports = match Ports::transports(among, local.as_ref())? {
            // A listener takes TCP's port later.
            Transports::Any => Transports::Roce,
            one => one,
        };
        let bind = Bind { reuse, v6_only, ..Bind::new(PortSpace::Tcp, address) };
        let ports = Ports::bind(&bind, transports)?;
        let number = ports.number().unwrap_or(0);
        address.set_port(number);
        self.local = Some(address);
        self.port = Some(Port { ports, listener: None, number });
        Ok(())
    }

    /// Takes requests at the port from now on.
    fn listen(&mut self, stream: &Stream) -> Result<(), RsocketError> {
        let (Some(Port { ports, listener, .. }), Some(local)) = (&mut self.port, self.local) else {
            return Err(RsocketError::Invalid);
        };
        if ports.broker.is_some()
            && local.ip().is_unspecified()
            && Ports::transports(Transports::of_process(), None)? == Transports::Any
        {
            ports.add_tcp(local, self.settings.v6_only)?;
        }
        let sink = service::sink(stream.me.clone() as _);
        let by_tcp = service::iwarp_sink(stream.me.clone() as _);
        *listener = ports.listen(listener::WAITING, sink, by_tcp, false)?;
        Ok(())
    }

    /// The peer disconnected.
    pub(super) fn hang_up(&mut self) {
        self.pump();
        if let Some(link) = &mut self.link {
            if let Some(protocol) = &mut link.protocol {
                protocol.hang_up();
            }
            link.move_to_error();
        }
        self.wake();
    }

    /// Sends the connection request.
    fn send_request(&mut self, stream: &Stream, address: SocketAddr) -> Result<(), RsocketError> {
        service::start()?;
        let mut route = resolve::route_by(Transports::of_process(), self.local, address)?;
        if route.is_iwarp() {
            return self.send_iwarp_request(stream, route);
        }
        if self.port.is_none() {
            self.take_port(route.source)?;
        }
        let number = self.port.as_ref().map_or(0, |port| port.number);
        route.source.set_port(number);
        let link = Link::new(device::open(&route.local.device)?, self.settings.sizes)?;
        let (local, remote) = (route.source.ip(), route.destination.ip());
        let header = IpCmHeader { source_port: number, source: local, destination: remote };
        let connect_data = link.connect_data().emit();
        let guid = u64::from_be_bytes(link.device.context.attr().node_guid);
        let on = route.on();
        let service_id = PortSpace::Tcp.service_id(route.destination.port());
        let tos = route.type_of_service(self.settings.tos);
        let params = ConnectParams {
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: true,
            path_mtu: route.mtu,
            traffic_class: tos,
            sl: attributes::service_level(tos),
            hop_limit: route.hop_limit,
            flow_label: attributes::flow_label(number, route.destination.port()),
            ece: extension::offer(),
            private: PrivateData::concat(&header.emit(), &connect_data).map_err(|_| RsocketError::Invalid)?,
            ..ConnectParams::new(on, service_id, guid, link.qp.qpn())
        };
        let ah = AhAttr {
            dgid: Gid::from_ip(on.remote),
            flow_label: params.flow_label,
            sgid_index: route.local.gid.index as u8,
            hop_limit: params.hop_limit,
            traffic_class: params.traffic_class,
            sl: params.sl,
            ..AhAttr::default()
        };
        let (connection, req) = cm::Connection::connect(&params, service::sink(stream.me.clone() as _))?;
        (self.local, self.remote, self.mtu) = (Some(route.source), Some(route.destination), Some(route.mtu));
        self.settings.sizes = link.sizes;
        (self.link, self.connection) = (Some(link), Some(Connection::Roce(connection)));
        self.role = Role::Connecting(Some(Asked { req: Box::new(req), ah, life: params.packet_life }));
        Ok(())
    }

    /// The peer answered, or the attempt ended without an answer.
    fn replied(&mut self, kind: CmEventKind) {
        let failure = match kind {
            CmEventKind::Reply { rep } => match self.establish(&rep) {
                Ok(()) => {
                    self.role = Role::Connected;
                    if let Some(link) = &mut self.link {
                        link.post_control();
                    }
                    return self.wake();
                }
                Err(error) => {
                    tracing::debug!(%error, "an rsocket cannot use the peer's reply");
                    if let Some(Connection::Roce(connection)) = &self.connection {
                        let _ = connection.reject(RejReason::CONSUMER, Info::NONE, PrivateData::EMPTY);
                    }
                    match error {
                        RsocketError::Failed(failure) => failure,
                        RsocketError::Peer(fault) => fault.into(),
                        _ => Failure::QueuePair,
                    }
                }
            },
            CmEventKind::Rejected { .. } => Failure::Refused,
            CmEventKind::Unreachable | CmEventKind::Disconnected(_) | CmEventKind::Lost => Failure::NoAnswer,
            _ => return,
        };
        self.failure = Some(failure);
        self.role = Role::Failed;
        self.wake();
    }

    /// Moves the queue pair to RTS, and sends RTU.
    fn establish(&mut self, rep: &Rep) -> Result<(), RsocketError> {
        let (Role::Connecting(Some(Asked { req, ah, life })), Some(link), Some(Connection::Roce(connection))) =
            (&self.role, &mut self.link, &self.connection)
        else {
            return Err(RsocketError::Invalid);
        };
        let peer = ConnectData::parse(&rep.private.0).map_err(|no| Failure::NoRsocket(no.0))?;
        let agreed = attributes::active(req, rep, *life).ok_or(RsocketError::Invalid)?;
        link.connect(&agreed, *ah, peer)?;
        connection.establish()?;
        Ok(())
    }
}
