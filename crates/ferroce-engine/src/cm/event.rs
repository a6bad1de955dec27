//! What happens to connections, and who is told.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ferroce_ipc::CmEnd;
use ferroce_proto::cm::Route;
use ferroce_wire::Psn;
use ferroce_wire::cm::{Rej, Rep, Req, SidrRep, SidrReq};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Connection, Question};
use crate::engine;
use crate::notify::NotifyQueue;

/// Something that happened.
#[derive(Debug)]
pub struct Event {
    /// The context of the [`Target`] that was told: of the connection, or for requests of the port.
    pub context: u64,
    /// What.
    pub kind: EventKind,
}

/// What happened. Names of librdmacm's events stand as aliases.
#[derive(Debug)]
pub enum EventKind {
    /// Somebody wants a connection: accept or reject it. Until it has a target of its own, that of the port is told of
    /// it. Dropped, it is rejected.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    Request {
        /// The connection there may be.
        connection: Connection,
        /// Between whom, as the packet said.
        route: Route,
        /// The PSN that our queue pair is to expect first.
        starting_psn: Psn,
        /// What they want; private data with the header of the IP CM service.
        req: Box<Req>,
    },
    /// The peer we asked asked us at the same time: answer as if we had listened.
    CrossingRequest {
        /// The PSN that our queue pair is to expect first.
        starting_psn: Psn,
        /// What they want.
        req: Box<Req>,
    },
    /// The peer agreed: set up the queue pair, then [`Connection::establish`].
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
    Reply(Box<Rep>),
    /// The connection is there at both ends.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established,
    /// The peer refused, or took back what it had asked for.
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected(Box<Rej>),
    /// The peer does not answer.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable,
    /// The connection ends; comes once.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected(CmEnd),
    /// Time-wait is over: packets of the connection are no more under way.
    #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
    TimeWaitOver,
    /// Somebody asks for a queue pair of datagrams: answer. Dropped, it is refused.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    Asked {
        /// What answers it.
        question: Question,
        /// Between whom, as the packet said.
        route: Route,
        /// What they want.
        req: Box<SidrReq>,
    },
    /// The answer to our question; its status says whether the peer agreed.
    Answered(Box<SidrRep>),
    /// The connection is no more, because a new broker did not take it over or this process lost its slot.
    Lost,
}

/// Who wants to hear what happens. Called on the engine's background thread, one event at a time in order: it must not
/// wait, nor call connection management (dropping what an event brought is allowed).
pub trait Sink: Send + Sync {
    /// Something happened.
    fn deliver(&self, event: Event);
}

/// Who is told of what happens to a port or connection.
#[derive(Clone)]
pub struct Target {
    /// Who.
    pub sink: Arc<dyn Sink>,
    /// Given back in each event.
    pub context: u64,
}

impl Target {
    /// Names a sink, and what it is given back.
    pub fn new(sink: Arc<dyn Sink>, context: u64) -> Self {
        Self { sink, context }
    }

    pub(super) fn tell(&self, kind: EventKind) {
        self.sink.deliver(Event { context: self.context, kind });
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("context", &self.context).finish_non_exhaustive()
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
            engine::flush_delayed_acks();
            poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
        }
    }
}

impl Sink for Queue {
    fn deliver(&self, event: Event) {
        self.events.push(event);
    }
}
