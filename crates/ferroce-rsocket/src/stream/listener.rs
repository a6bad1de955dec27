//! Listening streams, and the streams of their requests.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use crate::message::ConnectData;

use super::{Accepted, Role, Stream, later, sink};
use crate::device;
use crate::error::{Failure, RsocketError};
use crate::link::Link;
use crate::settings::Settings;
use ferroce_engine::cm::{AcceptParams, Request, extension};
use ferroce_engine::half_open::HalfOpen;

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
    waiting: VecDeque<Box<Request>>,
    answered: HalfOpen<Arc<Stream>>,
    ready: VecDeque<Arc<Stream>>,
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
            later(me, |stream| stream.answer_waiting_requests());
        }
        Some(taken)
    }

    pub(super) fn push(&mut self, request: Box<Request>) {
        self.waiting.push_back(request);
    }

    /// Takes the next request if there is room for its stream.
    pub(super) fn next(&mut self) -> Option<Box<Request>> {
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
    let Request { connection, local, remote, private, roce, .. } = &request;
    let peer = ConnectData::parse(private).map_err(|no| RsocketError::Failed(Failure::NoRsocket(no.0)))?;
    let route = request.route()?;
    let mut link = Link::new(device::open(&route.local.device)?, settings.sizes)?;
    let connect_data = link.connect_data().emit();
    let mut answer = AcceptParams {
        responder_resources: 0,
        initiator_depth: 0,
        ..AcceptParams::new(route.guid(), link.queues.qp.qpn())
    };
    match roce {
        Some(roce) => {
            answer.flow_control = roce.req.flow_control;
            answer.rnr_retry_count = roce.req.rnr_retry_count;
            answer.ece = extension::answer(roce.req.ece);
            let agreed = roce.attributes(&answer).ok_or(RsocketError::Invalid)?;
            let path = roce.req.primary;
            link.connect(&agreed, route.address(path.flow_label, path.traffic_class, path.hop_limit), peer)?;
        }
        // iWARP sets up the queue pair itself.
        None => link.begin(peer)?,
    }
    let addresses = Accepted { local: *local, remote: *remote };
    let stream = Stream::accepted(addresses, settings, link, Role::Accepting(parent.clone()))?;
    connection.set_sink(sink(Arc::downgrade(&stream)));
    connection.accept(&answer, &connect_data)?;
    stream.own(request.connection);
    Ok(stream)
}
