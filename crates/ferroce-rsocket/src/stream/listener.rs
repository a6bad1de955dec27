//! Listening streams, and the streams of their requests.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use crate::message::ConnectData;
use ferroce_wire::Psn;
use ferroce_wire::cm::{IpCmHeader, PrivateData, Req};

use super::{Accepted, Role, Stream};
use crate::device;
use crate::error::{Failure, RsocketError};
use crate::link::Link;
use crate::service::{self, Task};
use crate::settings::Settings;
use ferroce_engine::cm::attributes::ConnectedAttr;
use ferroce_engine::cm::{self, AcceptParams, Connection, attributes, extension, resolve};
use ferroce_engine::half_open::HalfOpen;
use ferroce_engine::{self as engine, AhAttr};
use ferroce_wire::Gid;

/// Connections that are made before the program accepts them.
const MAX_BACKLOG: usize = 1024;
/// Requests that may wait for room, with little cost each: the same limit.
pub(super) const WAITING: u16 = MAX_BACKLOG as u16;
/// Answered requests that are not established yet. Each has a queue pair and buffers.
const MAX_HALF_OPEN: usize = 128;

pub(super) struct Listener {
    /// The program's backlog: established streams that it has not accepted.
    limit: usize,
    /// Requests beyond the limit.
    waiting: VecDeque<Request>,
    answered: HalfOpen<Arc<Stream>>,
    ready: VecDeque<Arc<Stream>>,
}

/// A peer's request.
pub(super) enum Request {
    Roce { connection: Connection, route: cm::Route, starting_psn: Psn, req: Box<Req> },
    Iwarp(Box<engine::iwarp::Request>),
}

impl Request {
    /// The peer's address.
    pub(super) fn from(&self) -> IpAddr {
        match self {
            Self::Roce { route, .. } => route.remote,
            Self::Iwarp(request) => request.remote.ip(),
        }
    }
}

impl Listener {
    pub(super) fn new(backlog: i32) -> Self {
        let limit = usize::try_from(backlog).unwrap_or(0).clamp(1, MAX_BACKLOG);
        let answered = HalfOpen::new(MAX_HALF_OPEN);
        Self { limit, waiting: VecDeque::new(), answered, ready: VecDeque::new() }
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the oldest ready stream; the service may then answer another request of `me`.
    pub(super) fn take(&mut self, me: &Weak<Stream>) -> Option<Arc<Stream>> {
        let taken = self.ready.pop_front()?;
        if !self.waiting.is_empty() {
            service::push(Task::Room(me.clone() as _));
        }
        Some(taken)
    }

    pub(super) fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// Takes the next request if there is room for its stream.
    pub(super) fn next(&mut self) -> Option<Request> {
        let room = self.ready.len() < self.limit;
        if room { self.waiting.pop_front() } else { None }
    }

    /// Returns the half-open stream that makes way, to be dropped without the lock of the listener's state.
    pub(super) fn add_answered(&mut self, from: IpAddr, stream: Arc<Stream>) -> Option<Arc<Stream>> {
        self.answered.push(from, stream)
    }

    /// An answered request is established, or it failed. Returns whether a stream became ready.
    pub(super) fn finish_request(&mut self, stream: &Arc<Stream>, established: bool) -> bool {
        let Some(stream) = self.answered.remove(|known| Arc::ptr_eq(known, stream)) else { return false };
        if established {
            self.ready.push_back(stream);
        }
        established
    }
}

/// Answers a request with a new stream, whose parent is `parent`. Dropping a request rejects it.
pub(super) fn answer(
    parent: &Weak<Stream>,
    settings: Settings,
    request: Request,
) -> Result<Arc<Stream>, RsocketError> {
    let (connection, on, starting_psn, req) = match request {
        Request::Roce { connection, route, starting_psn, req } => (connection, route, starting_psn, req),
        Request::Iwarp(request) => return super::iwarp::answer(parent, settings, *request),
    };
    let no_rsocket = RsocketError::Failed(Failure::NoRsocket(0));
    let Ok((header, private)) = IpCmHeader::parse(&req.private.0) else { return Err(no_rsocket) };
    let Some((_, port)) = req.service_id.port() else { return Err(no_rsocket) };
    let peer = ConnectData::parse(private).map_err(|no| RsocketError::Failed(Failure::NoRsocket(no.0)))?;
    let local = on.local_addr(port);
    let remote = on.remote_addr(header.source_port);
    let route = resolve::back(&on, local, remote)?;
    let mut link = Link::new(device::open(&route.local.device)?, settings.sizes)?;
    let agreed = attributes::passive(&req, starting_psn, 0, 0).ok_or(RsocketError::Invalid)?;
    let ah = AhAttr {
        dgid: Gid::from_ip(on.remote),
        flow_label: req.primary.flow_label,
        sgid_index: route.local.gid.index as u8,
        hop_limit: req.primary.hop_limit,
        traffic_class: req.primary.traffic_class,
        sl: req.primary.sl,
        ..AhAttr::default()
    };
    let connect_data = link.connect_data();
    let guid = u64::from_be_bytes(link.device.context.attr().node_guid);
    let accept = AcceptParams {
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: req.flow_control,
        rnr_retry_count: req.rnr_retry_count,
        ece: extension::answer(req.ece),
        private: PrivateData::new(&connect_data.emit()).map_err(|_| RsocketError::Invalid)?,
        ..AcceptParams::new(guid, link.qp.qpn())
    };
    let selective_repeat = extension::is_agreed(req.ece, accept.ece);
    link.connect(&ConnectedAttr { selective_repeat, ..agreed }, ah, peer)?;
    let stream =
        Stream::accepted(Accepted { local, remote }, settings, link, Role::Accepting(parent.clone()))?;
    connection.set_sink(service::sink(Arc::downgrade(&stream) as _));
    connection.accept(&accept)?;
    stream.own(super::Connection::Roce(connection));
    Ok(stream)
}
