//! How a stream is connected.

use std::net::SocketAddr;
use std::sync::Arc;

use ferroce_engine::cm::resolve::{self, Transports};
use ferroce_engine::cm::{Bind, CmError, ConnectParams, Connection, Event, EventKind, Port, attributes};
use ferroce_wire::cm::{PortSpace, RejReason, Rep};

use super::listener::{self, Listener};
use super::{Asked, Role, Stream, StreamState, sink, wildcard};
use crate::error::{Failure, RsocketError};
use crate::link::Link;
use crate::message::ConnectData;
use crate::settings::Settings;
use crate::waker::Blocking;
use crate::{device, service};

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
        let of_process = Transports::of_process();
        let local = resolve::local_by(of_process, address)?;
        state.take_port(address, of_process.at(local.as_ref())?)
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
            state.take_port(any, Transports::of_process().at(None)?)?;
        }
        service::start()?;
        let listener = Listener::new(backlog);
        // Set first, because a request may arrive before `listen` returns; the service waits for this lock.
        state.role = Role::Listening(listener);
        let sink = sink(self.me.clone());
        let listening = state.port.as_ref().ok_or(RsocketError::Invalid)?.listen(listener::WAITING, sink);
        if listening.is_err() {
            state.role = Role::Idle;
        }
        Ok(listening?)
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
            let ready = |state: &StreamState| !matches!(&state.role, Role::Listening(listener) if !listener.is_ready());
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
        let finished = |state: &StreamState| !matches!(state.role, Role::Connecting(_));
        let mut state = self.wait(self.state.lock(), Blocking::Suspend, finished)?;
        match state.failure.take() {
            _ if matches!(state.role, Role::Connected) => Ok(()),
            Some(failure) => Err(failure.into()),
            None => Err(RsocketError::NotConnected),
        }
    }

    /// Handles an event of the port or connection; runs on the service's thread.
    pub(super) fn take_event(self: &Arc<Self>, event: Event) {
        let mut state = self.state.lock();
        match (&mut state.role, event.kind) {
            (Role::Listening(listener), EventKind::Request(request)) => {
                listener.push(request);
                drop(state);
                self.answer_waiting_requests();
            }
            (Role::Connecting(_), kind) => state.replied(kind),
            (Role::Accepting(parent), kind) => {
                let parent = parent.upgrade();
                let established = matches!(kind, EventKind::Established(_));
                self.was_answered(state, parent, established);
            }
            (Role::Connected, EventKind::Disconnected(_) | EventKind::Lost) => state.hang_up(),
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
            let from = request.remote.ip();
            match listener::answer(&self.me, settings, *request) {
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

impl StreamState {
    fn take_port(&mut self, mut address: SocketAddr, transports: Transports) -> Result<(), RsocketError> {
        let Settings { reuse, v6_only, .. } = self.settings;
        let port = Port::bind(&Bind { transports, reuse, v6_only, ..Bind::new(PortSpace::Tcp, address) })?;
        address.set_port(port.number());
        (self.local, self.port) = (Some(address), Some(port));
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
        if self.port.is_none() {
            self.take_port(route.source, route.transports())?;
        }
        let port = self.port.as_ref().ok_or(RsocketError::Invalid)?;
        route.source.set_port(port.number());
        let link = Link::new(device::open(&route.local.device)?, self.settings.sizes)?;
        let params = ConnectParams {
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: true,
            ..route.request(link.queues.qp.qpn(), self.settings.tos)
        };
        let ah = route.address(params.flow_label, params.traffic_class, params.hop_limit);
        let sink = sink(stream.me.clone());
        let (connection, req) = port.connect(&route, &params, &link.connect_data().emit(), sink)?;
        (self.local, self.remote, self.mtu) = (Some(route.source), Some(route.destination), Some(route.mtu));
        self.settings.sizes = link.sizes;
        (self.link, self.connection) = (Some(link), Some(connection));
        let asked = req.map(|req| Asked { req: Box::new(req), ah, life: params.packet_life });
        self.role = Role::Connecting(asked);
        Ok(())
    }

    /// The peer answered, or the attempt ended without an answer.
    fn replied(&mut self, kind: EventKind) {
        let begun = match kind {
            EventKind::Reply { rep } => self.establish(&rep).inspect_err(|_| {
                let _ = self.connection.as_ref().map(|known| known.reject(RejReason::CONSUMER, &[]));
            }),
            // iWARP has set up the queue pair.
            EventKind::Established(terms) => self.begin(&terms.private).inspect_err(|_| {
                let _ = self.connection.as_ref().map(Connection::disconnect);
            }),
            EventKind::Rejected { .. } => Err(Failure::Refused.into()),
            EventKind::Failed(CmError::Protocol) => Err(Failure::NoRsocket(0).into()),
            EventKind::Unreachable | EventKind::Failed(_) | EventKind::Disconnected(_) | EventKind::Lost => {
                Err(Failure::NoAnswer.into())
            }
            _ => return,
        };
        match begun {
            Ok(()) => {
                self.role = Role::Connected;
                if let Some(link) = &mut self.link {
                    link.post_control();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "an rsocket is not connected");
                self.failure = Some(match error {
                    RsocketError::Failed(failure) => failure,
                    RsocketError::Peer(fault) => fault.into(),
                    _ => Failure::QueuePair,
                });
                self.role = Role::Failed;
            }
        }
        self.wake();
    }

    /// The private data of the peer that agreed begin the protocol.
    fn begin(&mut self, private: &[u8]) -> Result<(), RsocketError> {
        let peer = ConnectData::parse(private).map_err(|no| Failure::NoRsocket(no.0))?;
        self.link.as_mut().ok_or(RsocketError::Invalid)?.begin(peer)
    }

    /// Moves the queue pair to RTS, and sends RTU.
    fn establish(&mut self, rep: &Rep) -> Result<(), RsocketError> {
        let (Role::Connecting(Some(Asked { req, ah, life })), Some(link), Some(connection)) =
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
