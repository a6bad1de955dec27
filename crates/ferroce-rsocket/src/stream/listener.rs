//! Streams that take requests, and those that come of them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::message::ConnectData;
use ferroce_wire::Psn;
use ferroce_wire::cm::{IpCmHeader, PrivateData, Req};

use super::{Accepted, Role, Stream};
use crate::error::{Failure, RsocketError};
use crate::link::Link;
use crate::place;
use crate::service::{self, Task};
use crate::settings::Settings;
use ferroce_engine::AhAttr;
use ferroce_engine::cm::{self, AcceptParams, Connection, attributes, resolve};
use ferroce_wire::Gid;

/// Connections that are made before the program accepts them.
const MAX_BACKLOG: usize = 1024;
/// Requests that may wait for one of those to be accepted, which costs little: as many as at any port.
pub(super) const WAITING: u16 = MAX_BACKLOG as u16;

/// What a listening stream has.
#[derive(Default)]
pub(super) struct Listener {
    limit: usize,
    /// Requests that there was no room for.
    waiting: VecDeque<Request>,
    /// Those that were answered, and are not established yet.
    raising: Vec<Arc<Stream>>,
    ready: VecDeque<Arc<Stream>>,
}

/// Somebody wants a connection.
pub(super) struct Request {
    pub(super) connection: Connection,
    pub(super) route: cm::Route,
    pub(super) starting_psn: Psn,
    pub(super) req: Box<Req>,
}

impl Listener {
    pub(super) fn new(backlog: i32) -> Self {
        let limit = usize::try_from(backlog).unwrap_or(0).clamp(1, MAX_BACKLOG);
        Self { limit, ..Self::default() }
    }

    /// One that can be accepted.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the oldest that is ready; the service may then answer another request of `me`.
    pub(super) fn take(&mut self, me: &Weak<Stream>) -> Option<Arc<Stream>> {
        let taken = self.ready.pop_front()?;
        if !self.waiting.is_empty() {
            service::push(Task::Room(me.clone() as _));
        }
        Some(taken)
    }

    pub(super) fn ask(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// A request that there is room for.
    pub(super) fn next(&mut self) -> Option<Request> {
        let room = self.ready.len() + self.raising.len() < self.limit;
        if room { self.waiting.pop_front() } else { None }
    }

    pub(super) fn raise(&mut self, stream: Arc<Stream>) {
        self.raising.push(stream);
    }

    /// One that was answered is established, or came to nothing. Whether one became ready.
    pub(super) fn settle(&mut self, stream: &Arc<Stream>, established: bool) -> bool {
        let Some(index) = self.raising.iter().position(|known| Arc::ptr_eq(known, stream)) else {
            return false;
        };
        let stream = self.raising.swap_remove(index);
        if established {
            self.ready.push_back(stream);
        }
        established
    }
}

/// Answers a request by a stream of its own, which is `parent`'s. A request that is dropped is refused.
pub(super) fn answer(
    parent: &Weak<Stream>,
    settings: Settings,
    request: Request,
) -> Result<Arc<Stream>, RsocketError> {
    let Request { connection, route: on, starting_psn, req } = request;
    let not_one = RsocketError::Failed(Failure::NoRsocket(0));
    let Ok((header, private)) = IpCmHeader::parse(&req.private.0) else { return Err(not_one) };
    let Some((_, port)) = req.service_id.port() else { return Err(not_one) };
    let peer = ConnectData::parse(private).map_err(|no| RsocketError::Failed(Failure::NoRsocket(no.0)))?;
    let local = on.local_addr(port);
    let remote = on.remote_addr(header.source_port);
    let route = resolve::back(&on, local, remote)?;
    let mut link = Link::new(place::home(&route.local.device)?, settings.sizes)?;
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
    let introduction = link.introduction();
    let guid = u64::from_be_bytes(link.home.context.attr().node_guid);
    let accept = AcceptParams {
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: req.flow_control,
        rnr_retry_count: req.rnr_retry_count,
        private: PrivateData::new(&introduction.emit()).map_err(|_| RsocketError::Invalid)?,
        ..AcceptParams::new(guid, link.qp.qpn())
    };
    link.connect(&agreed, ah, peer)?;
    let stream =
        Stream::accepted(Accepted { local, remote }, settings, link, Role::Accepting(parent.clone()))?;
    connection.set_target(service::target(Arc::downgrade(&stream) as _));
    connection.accept(&accept, &req)?;
    stream.own(connection);
    Ok(stream)
}
