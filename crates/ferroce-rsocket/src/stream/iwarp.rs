//! Streams over iWARP: their connections are TCP's, and the broker has no part in them.

use std::sync::Arc;

use ferroce_engine::cm::resolve::{self, Route, Transports};
use ferroce_engine::iwarp::{self, AcceptParams, ConnectParams, Event};
use rustix::io::Errno;

use super::listener::Request;
use super::{Accepted, Connection, Role, State, Stream};
use crate::error::{Failure, RsocketError};
use crate::link::Link;
use crate::message::ConnectData;
use crate::{device, service};

/// An rsocket's reads and atomics: none.
const DEPTH: u8 = 0;

/// The peer's request for a stream, see [`super::listener::answer`].
pub(super) fn answer(
    parent: &std::sync::Weak<Stream>,
    settings: crate::settings::Settings,
    request: iwarp::Request,
) -> Result<Arc<Stream>, RsocketError> {
    let iwarp::Request { connection, local, remote, private, .. } = request;
    let peer = ConnectData::parse(&private).map_err(|no| RsocketError::Failed(Failure::NoRsocket(no.0)))?;
    let found = resolve::local_by(Transports::Iwarp, local)?;
    let at = found.ok_or(RsocketError::Invalid)?;
    let mut link = Link::new(device::open(&at.device)?, settings.sizes)?;
    link.begin(peer)?;
    let private = link.connect_data().emit();
    let qpn = link.qp.qpn();
    let stream =
        Stream::accepted(Accepted { local, remote }, settings, link, Role::Accepting(parent.clone()))?;
    connection.set_sink(service::iwarp_sink(Arc::downgrade(&stream) as _));
    connection.accept(&AcceptParams { qpn, ird: DEPTH, ord: DEPTH, private: &private })?;
    stream.own(Connection::Iwarp(connection));
    Ok(stream)
}

impl State {
    /// Sends the connection request along a route of iWARP.
    pub(super) fn send_iwarp_request(
        &mut self,
        stream: &Stream,
        mut route: Route,
    ) -> Result<(), RsocketError> {
        let number = self.port.as_ref().map_or(0, |port| port.number);
        route.source.set_port(number);
        let port = match self.port.as_mut().and_then(|port| port.ports.tcp.take()) {
            Some(port) => port,
            None => Arc::new(iwarp::Port::bind(route.source, true)?),
        };
        route.source.set_port(port.number());
        let link = Link::new(device::open(&route.local.device)?, self.settings.sizes)?;
        let params = ConnectParams {
            destination: route.destination,
            qpn: link.qp.qpn(),
            ird: DEPTH,
            ord: DEPTH,
            private: &link.connect_data().emit(),
        };
        let sink = service::iwarp_sink(stream.me.clone() as _);
        let connection = iwarp::Connection::connect(&port, &params, sink)?;
        (self.local, self.remote, self.mtu) = (Some(route.source), Some(route.destination), Some(route.mtu));
        self.settings.sizes = link.sizes;
        (self.link, self.connection) = (Some(link), Some(Connection::Iwarp(connection)));
        self.role = Role::Connecting(None);
        Ok(())
    }

    /// The peer answered, or the attempt ended without an answer.
    fn iwarp_replied(&mut self, event: Event) {
        let begun = match event {
            Event::Established { private, .. } => self.begin(&private),
            Event::Failed { errno, .. } => Err(match Errno::from_raw_os_error(errno) {
                Errno::CONNREFUSED | Errno::CONNRESET => Failure::Refused,
                Errno::PROTO => Failure::NoRsocket(0),
                _ => Failure::NoAnswer,
            }),
            Event::Disconnected => Err(Failure::NoAnswer),
            Event::Request(_) => return,
        };
        match begun {
            Ok(()) => {
                self.role = Role::Connected;
                if let Some(link) = &mut self.link {
                    link.post_control();
                }
            }
            Err(failure) => {
                self.failure = Some(failure);
                self.role = Role::Failed;
                if let Some(connection) = &self.connection {
                    let _ = connection.disconnect();
                }
            }
        }
        self.wake();
    }

    /// The private data of the peer that agreed begin the protocol. The queue pair is in RTS already.
    fn begin(&mut self, private: &[u8]) -> Result<(), Failure> {
        let peer = ConnectData::parse(private).map_err(|no| Failure::NoRsocket(no.0))?;
        let link = self.link.as_mut().ok_or(Failure::QueuePair)?;
        link.begin(peer).map_err(|error| match error {
            RsocketError::Peer(fault) => fault.into(),
            _ => Failure::QueuePair,
        })
    }
}

impl Stream {
    /// Handles an event of iWARP; runs on the service's thread.
    pub(super) fn take_iwarp_event(self: &Arc<Self>, event: Event) {
        let mut state = self.state.lock();
        match (&mut state.role, event) {
            (Role::Listening(listener), Event::Request(request)) => {
                listener.push(Request::Iwarp(request));
                drop(state);
                self.answer_waiting_requests();
            }
            (Role::Connecting(_), event) => state.iwarp_replied(event),
            (Role::Accepting(parent), event) => {
                let parent = parent.upgrade();
                let established = matches!(event, Event::Established { .. });
                self.was_answered(state, parent, established);
            }
            (Role::Connected, Event::Disconnected) => state.hang_up(),
            _ => {}
        }
    }
}
