//! Events of connections, and their receivers.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ferroce_cm::CmEventKind;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::connection::Owned;
use super::{Connection, SidrRequest};
use crate::engine;
use crate::notify::NotifyQueue;

/// Something that happened to a connection, a SIDR request or at a port.
///
/// | event | librdmacm |
/// |---|---|
/// | [`CmEventKind::Request`], [`CmEventKind::SidrRequest`] | `RDMA_CM_EVENT_CONNECT_REQUEST` |
/// | [`CmEventKind::Reply`] | `RDMA_CM_EVENT_CONNECT_RESPONSE` |
/// | [`CmEventKind::Established`] | `RDMA_CM_EVENT_ESTABLISHED` |
/// | [`CmEventKind::Rejected`] | `RDMA_CM_EVENT_REJECTED` |
/// | [`CmEventKind::Unreachable`] | `RDMA_CM_EVENT_UNREACHABLE` |
/// | [`CmEventKind::Disconnected`] | `RDMA_CM_EVENT_DISCONNECTED` |
/// | [`CmEventKind::TimeWaitOver`] | `RDMA_CM_EVENT_TIMEWAIT_EXIT` |
#[derive(Debug)]
pub struct Event {
    /// The context of the [`EventSink`] that got the event: of the connection, or for requests of the port.
    pub context: u64,
    /// The kind of the event.
    pub kind: CmEventKind,
    /// The request that came to a port, if it is one. Until the connection has a sink of its own, that of the
    /// port is told of it.
    pub incoming: Option<Incoming>,
}

/// A peer's request to a port. Dropped, it is refused.
#[derive(Debug)]
pub struct Incoming(pub(super) Owned);

impl Incoming {
    /// The connection there may be: accept or reject it. For [`CmEventKind::Request`].
    pub fn connection(self) -> Connection {
        Connection(self.0)
    }

    /// The means to answer a [`CmEventKind::SidrRequest`].
    pub fn sidr_request(self) -> SidrRequest {
        SidrRequest(self.0)
    }
}

/// Takes the events of a port or a connection.
///
/// The engine's background thread calls the sink, one event at a time in order: a sink must not wait, nor
/// call connection management (dropping what an event brought is allowed).
#[derive(Clone)]
pub struct EventSink {
    deliver: Arc<dyn Fn(Event) + Send + Sync>,
    context: u64,
}

impl EventSink {
    /// Calls `deliver` with each event.
    pub fn new(deliver: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self { deliver: Arc::new(deliver), context: 0 }
    }

    /// Appends each event to `queue`, with this context.
    pub fn queue(queue: &Arc<Queue>, context: u64) -> Self {
        let queue = Arc::clone(queue);
        Self { context, ..Self::new(move |event| queue.push(event)) }
    }

    pub(super) fn deliver(&self, kind: CmEventKind, incoming: Option<Incoming>) {
        (self.deliver)(Event { context: self.context, kind, incoming });
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSink").field("context", &self.context).finish_non_exhaustive()
    }
}

/// Events in the order of their coming, with a descriptor that is readable while there is one.
#[doc(alias = "rdma_event_channel")]
pub struct Queue {
    events: NotifyQueue<Event>,
}

impl Queue {
    /// An empty one.
    ///
    /// # Errors
    /// Without another descriptor.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { events: NotifyQueue::new()? }))
    }

    /// Appends an event.
    pub fn push(&self, event: Event) {
        self.events.push(event);
    }

    /// Readable while an event is there. O_NONBLOCK, if the program sets it, is honoured by [`Queue::get`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// The next event, if one is there.
    pub fn poll(&self) -> Option<Event> {
        self.events.pop(|event| event)
    }

    /// The next event; waits for it.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking; `Interrupted` by a signal.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn get(&self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.poll() {
                return Ok(event);
            }
            if self.events.is_nonblocking() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            engine::flush_all();
            poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
        }
    }
}
