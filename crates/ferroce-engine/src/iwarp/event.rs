//! Events of connections, and their receivers.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::Connection;

/// Something that happened to a connection or at a listener.
///
/// | event | librdmacm |
/// |---|---|
/// | [`Event::Request`] | `RDMA_CM_EVENT_CONNECT_REQUEST` |
/// | [`Event::Established`] | `RDMA_CM_EVENT_ESTABLISHED` |
/// | [`Event::Failed`] | `RDMA_CM_EVENT_REJECTED`, `_UNREACHABLE` or `_CONNECT_ERROR`, by the error |
/// | [`Event::Disconnected`] | `RDMA_CM_EVENT_DISCONNECTED` |
#[derive(Debug)]
pub enum Event {
    /// A peer asks a listener for a connection.
    Request(Box<Request>),
    /// The queue pair can send. At the passive end the depths are those of the queue pair, and there is no
    /// private data.
    Established {
        /// Reads and atomics that the queue pair serves at once, 0 to 128.
        ird: u8,
        /// Reads and atomics that the queue pair may have outstanding, 0 to 128.
        ord: u8,
        /// The private data of the peer, at most 512 octets.
        private: Vec<u8>,
    },
    /// There is no connection: the last event.
    Failed {
        /// ECONNREFUSED: the peer's TCP refused. ECONNRESET: the peer rejected the request, or closed the
        /// connection. ETIMEDOUT: there was no answer. EPROTO: the answer is none of MPA. Others: from TCP,
        /// or the queue pair is not in INIT (EINVAL).
        errno: i32,
        /// The private data of a peer that rejected the request, at most 512 octets.
        private: Vec<u8>,
    },
    /// The connection ended, by this end or by the peer: the last event.
    Disconnected,
}

/// A peer's request.
#[derive(Debug)]
pub struct Request {
    /// The connection that there may be: accept or reject it. Dropped, it is rejected.
    pub connection: Connection,
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// Reads that the peer serves at once; 0 if it does not say.
    pub ird: u16,
    /// Reads that the peer wants to have outstanding; 0 if it does not say.
    pub ord: u16,
    /// The peer's private data, at most 512 octets.
    pub private: Vec<u8>,
}

/// Takes the events of a listener or a connection.
///
/// The engine's background thread calls the sink, one event at a time in order: a sink must not wait, nor
/// call connection management (dropping what an event brought is allowed).
#[derive(Clone)]
pub struct Sink(Arc<dyn Fn(Event) + Send + Sync>);

impl Sink {
    /// Calls `deliver` with each event.
    pub fn new(deliver: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    pub(super) fn deliver(&self, event: Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").finish_non_exhaustive()
    }
}
