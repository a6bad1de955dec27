//! How a stream comes to be connected.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::message::ConnectData;
use ferroce_wire::Gid;
use ferroce_wire::cm::{Info, IpCmHeader, PortSpace, PrivateData, RejReason, Rep};

use super::listener::{self, Listener, Request};
use super::{Role, State, Stream, wildcard};
use crate::error::{Failure, RsocketError};
use crate::link::Link;
use crate::waker::Patience;
use crate::{place, service};
use ferroce_engine::AhAttr;
use ferroce_engine::cm::{Bind, ConnectParams, Connection, EventKind, Port, attributes, resolve};

impl Stream {
    /// Takes an address and a port; port 0 is any.
    ///
    /// # Errors
    ///
    /// [`RsocketError::Invalid`] if it has one; those of addresses and ports.
    #[doc(alias = "rbind")]
    pub fn bind(&self, address: SocketAddr) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        if !matches!(state.role, Role::Idle) || state.port.is_some() {
            return Err(RsocketError::Invalid);
        }
        resolve::local(address)?;
        state.take_port(address)
    }

    /// Takes requests from now on, at any port if it has none. So many, at most 1024, are answered before the program
    /// accepts them; others wait. A second call changes nothing.
    ///
    /// # Errors
    ///
    /// [`RsocketError::Invalid`] if it has a connection; those of ports.
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
        // Before, because the first request may be as fast as the answer; the service waits for this lock.
        state.role = Role::Listening(listener);
        let listening = match &state.port {
            Some(port) => port.listen(listener::WAITING, service::target(self.me.clone() as _)),
            None => return Err(RsocketError::Invalid),
        };
        if let Err(error) = listening {
            state.role = Role::Idle;
            return Err(error.into());
        }
        Ok(())
    }

    /// The oldest connection that was made and not accepted.
    ///
    /// # Errors
    ///
    /// [`RsocketError::Invalid`] if it does not listen; [`RsocketError::WouldBlock`] if it must not wait.
    #[doc(alias = "raccept")]
    pub fn accept(&self, nonblocking: bool) -> Result<Arc<Self>, RsocketError> {
        let mut state = self.state.lock();
        if !matches!(state.role, Role::Listening(_)) {
            return Err(RsocketError::Invalid);
        }
        loop {
            let ready =
                |state: &State| !matches!(&state.role, Role::Listening(listener) if !listener.is_ready());
            state = self.wait(state, Patience::unless(nonblocking), ready)?;
            let Role::Listening(listener) = &mut state.role else { return Err(RsocketError::Closed) };
            if let Some(stream) = listener.take(&self.me) {
                return Ok(stream);
            }
        }
    }

    /// Asks a peer for a connection. If it must not wait, the service makes it; if it has to, [`Self::finish_connect`] goes on.
    ///
    /// # Errors
    ///
    /// [`RsocketError::InProgress`] if it must not wait; [`RsocketError::Failed`] if there will be no connection;
    /// [`RsocketError::NotConnected`] if it failed before.
    #[doc(alias = "rconnect")]
    pub fn connect(&self, address: SocketAddr, nonblocking: bool) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        match state.role {
            Role::Connected => return Ok(()),
            Role::Failed => return Err(RsocketError::NotConnected),
            Role::Idle => state.ask(self, address)?,
            Role::Connecting { .. } => {}
            Role::Listening(_) | Role::Accepting(_) => return Err(RsocketError::Invalid),
            Role::Closed => return Err(RsocketError::Closed),
        }
        if nonblocking {
            return Err(RsocketError::InProgress);
        }
        drop(state);
        self.finish_connect()
    }

    /// Waits until a connection that was asked for is there: what [`Self::connect`] does last.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn finish_connect(&self) -> Result<(), RsocketError> {
        let settled = |state: &State| !matches!(state.role, Role::Connecting { .. });
        let mut state = self.wait(self.state.lock(), Patience::Suspend, settled)?;
        match state.failure.take() {
            _ if matches!(state.role, Role::Connected) => Ok(()),
            Some(failure) => Err(failure.into()),
            None => Err(RsocketError::NotConnected),
        }
    }

    /// Something happened to its port or connection; on the service's thread.
    pub(super) fn take_event(self: &Arc<Self>, kind: EventKind) {
        if let EventKind::Request { connection, route, starting_psn, req } = kind {
            if let Role::Listening(listener) = &mut self.state.lock().role {
                listener.ask(Request { connection, route, starting_psn, req });
            }
            return self.answer_waiting_requests();
        }
        let mut state = self.state.lock();
        match &state.role {
            Role::Connecting { .. } => state.replied(kind),
            Role::Accepting(parent) => {
                let parent = parent.upgrade();
                let established = matches!(kind, EventKind::Established);
                state.role = if established { Role::Connected } else { Role::Failed };
                if let Some(link) = state.link.as_mut().filter(|_| established) {
                    link.tell();
                }
                drop(state);
                if let Some(parent) = parent {
                    parent.settle(self, established);
                }
            }
            Role::Connected if matches!(kind, EventKind::Disconnected(_) | EventKind::Lost) => {
                state.pump();
                if let Some(link) = &mut state.link {
                    if let Some(books) = &mut link.books {
                        books.hang_up();
                    }
                    link.break_off();
                }
                state.wake();
            }
            _ => {}
        }
    }

    /// Answers requests as long as there is room for what comes of them; on the service's thread.
    pub(super) fn answer_waiting_requests(&self) {
        loop {
            let (request, settings) = {
                let mut state = self.state.lock();
                let settings = state.settings;
                let Role::Listening(listener) = &mut state.role else { return };
                let Some(request) = listener.next() else { return };
                (request, settings)
            };
            match listener::answer(&self.me, settings, request) {
                Ok(stream) => {
                    if let Role::Listening(listener) = &mut self.state.lock().role {
                        listener.raise(stream);
                    }
                }
                Err(error) => tracing::debug!(%error, "a request at an rsocket was refused"),
            }
        }
    }

    /// A stream that came of a request here is established, or came to nothing.
    fn settle(&self, stream: &Arc<Stream>, established: bool) {
        {
            let mut state = self.state.lock();
            if let Role::Listening(listener) = &mut state.role {
                listener.settle(stream, established);
            }
            state.wake();
        }
        self.answer_waiting_requests();
    }
}

impl State {
    fn take_port(&mut self, mut address: SocketAddr) -> Result<(), RsocketError> {
        let Self { settings, .. } = self;
        let bind =
            Bind { reuse: settings.reuse, v6_only: settings.v6_only, ..Bind::new(PortSpace::Tcp, address) };
        let port = Port::bind(&bind)?;
        address.set_port(port.number());
        self.local = Some(address);
        self.port = Some(port);
        Ok(())
    }

    /// Asks the peer.
    fn ask(&mut self, stream: &Stream, address: SocketAddr) -> Result<(), RsocketError> {
        service::start()?;
        let mut route = resolve::route(self.local, address)?;
        if self.port.is_none() {
            self.take_port(route.source)?;
        }
        let number = self.port.as_ref().map_or(0, Port::number);
        route.source.set_port(number);
        let link = Link::new(place::home(&route.local.device)?, self.settings.sizes)?;
        let (local, remote) = (route.source.ip(), route.destination.ip());
        let header = IpCmHeader { source_port: number, source: local, destination: remote };
        let introduction = link.introduction().emit();
        let guid = u64::from_be_bytes(link.home.context.attr().node_guid);
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
            private: PrivateData::concat(&header.emit(), &introduction).map_err(|_| RsocketError::Invalid)?,
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
        let (connection, req) = Connection::connect(&params, service::target(stream.me.clone() as _))?;
        (self.local, self.remote, self.mtu) = (Some(route.source), Some(route.destination), Some(route.mtu));
        self.settings.sizes = link.sizes;
        (self.link, self.connection) = (Some(link), Some(connection));
        self.role = Role::Connecting { req: Box::new(req), ah, life: params.packet_life };
        Ok(())
    }

    /// The peer answered, or will not.
    fn replied(&mut self, kind: EventKind) {
        let failure = match kind {
            EventKind::Reply(rep) => match self.agree(&rep) {
                Ok(()) => {
                    self.role = Role::Connected;
                    if let Some(link) = &mut self.link {
                        link.tell();
                    }
                    return self.wake();
                }
                Err(error) => {
                    tracing::debug!(%error, "an rsocket cannot be connected");
                    if let Some(connection) = &self.connection {
                        let _ = connection.reject(RejReason::CONSUMER, Info::NONE, PrivateData::EMPTY);
                    }
                    match error {
                        RsocketError::Failed(failure) => failure,
                        RsocketError::Peer(fault) => fault.into(),
                        _ => Failure::QueuePair,
                    }
                }
            },
            EventKind::Rejected(_) => Failure::Refused,
            EventKind::Unreachable | EventKind::Disconnected(_) | EventKind::Lost => Failure::NoAnswer,
            _ => return,
        };
        self.failure = Some(failure);
        self.role = Role::Failed;
        self.wake();
    }

    /// Sets the queue pair up, and tells the peer.
    fn agree(&mut self, rep: &Rep) -> Result<(), RsocketError> {
        let (Role::Connecting { req, ah, life }, Some(link), Some(connection)) =
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
