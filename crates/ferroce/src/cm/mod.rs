//! Connecting by IP address, as librdmacm does: no GID index, queue pair number or PSN to exchange by other means.
//!
//! ```no_run
//! use ferroce::cm::{Connector, EndOptions, Listener};
//! use ferroce::{Access, Error};
//!
//! # fn main() -> Result<(), Error> {
//! // One end …
//! let listener = Listener::bind("0.0.0.0:7471".parse().unwrap())?;
//! let end = listener.accept()?.prepare(&EndOptions::default())?;
//! let buffer = end.domain().register(vec![0; 4096], Access::LOCAL_WRITE)?;
//! end.queue_pair().post_recv(1, &[buffer.slice(..)])?;
//! let connection = end.accept(b"welcome")?;
//! let received = connection.queue_pair().receive_queue().wait()?;
//! println!("{:?}: {} octets", received.status, received.len);
//!
//! // … and the other.
//! let end = Connector::new("192.0.2.1:7471".parse().unwrap(), &EndOptions::default())?;
//! let buffer = end.domain().register(*b"hello", Access::empty())?;
//! let connection = end.connect(b"who I am")?;
//! connection.queue_pair().send(1, &[buffer.slice(..)])?;
//! # Ok(())
//! # }
//! ```
//!
//! Connections over the same device share one [`Context`](crate::Context), unless [`EndOptions::domain`] brings another one.
//! Asynchronous events of all their objects arrive there: `connection.domain().context().wait_event()`.
//!
//! The other end may be any program that uses librdmacm with port space TCP and reliable connections.
//!
//! For datagrams there is nothing to connect: [`DatagramConnector`] asks a peer which of its queue pairs takes them, and
//! [`DatagramListener`] says so, to programs with librdmacm's port space UDP as well. The example `udaddy` shows both.
//!
//! Every call that waits has a counterpart that does not; what to wait for is a descriptor ([`std::os::fd::AsFd`]), readable
//! while that would say something.

mod connected;
mod connector;
mod context;
mod datagram_connector;
mod datagram_listener;
mod door;
mod end;
mod listener;

use std::io;

use ferroce_engine::cm::resolve::ResolveError;
use ferroce_wire::cm::{PrivateDataTooLong, RejReason, SidrStatus};

pub use connected::{Connected, Pending};
pub use connector::Connector;
pub use datagram_connector::{DatagramConnector, DatagramPeer, PendingPeer};
pub use datagram_listener::{DatagramListener, DatagramRequest};
pub use end::EndOptions;
pub use ferroce_engine::cm::CmError;
pub use listener::{Acceptor, Listener, Request};

/// Octets of private data that go with a request for a connection.
pub const REQUEST_PRIVATE_DATA: usize = 56;
/// Those that come back with an agreement.
pub const ACCEPT_PRIVATE_DATA: usize = 196;
/// Those that come back with a refusal.
pub const REJECT_PRIVATE_DATA: usize = 148;
/// Those that go with a question for a queue pair of datagrams.
pub const DATAGRAM_REQUEST_PRIVATE_DATA: usize = 180;
/// Those that come back with the answer, be it a refusal.
pub const DATAGRAM_ANSWER_PRIVATE_DATA: usize = 136;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Connection management did not do as asked.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// There is no device that reaches the address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// More private data than a message carries.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
    /// The peer refused.
    #[error("the peer refused: {reason:?}")]
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected {
        /// Its code (IBTA 12.6.7): 28 for a program's own reasons, 8 if nobody listens.
        reason: RejReason,
        /// What it had to say: [`REJECT_PRIVATE_DATA`] octets, zeros at the end.
        private: Box<[u8]>,
    },
    /// The peer names no queue pair of datagrams.
    #[error("the peer refused: {status:?}")]
    Refused {
        /// Its code (IBTA 12.11): 1 if nobody listens, 2 for a program's own reasons.
        status: SidrStatus,
        /// What it had to say: [`DATAGRAM_ANSWER_PRIVATE_DATA`] octets, zeros at the end.
        private: Box<[u8]>,
    },
    /// The peer does not answer.
    #[error("the peer does not answer")]
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable,
    /// The connection ended before it was used.
    #[error("the connection is over")]
    Over,
    /// A request that makes no sense to connections: without addresses, or with an MTU that is none.
    #[error("the peer's request makes no sense")]
    Malformed,
    /// A depth larger than [`EndOptions`] allows.
    #[error("{0} reads at once, the device has 128")]
    Depth(u8),
    /// The descriptor for events cannot be had.
    #[error(transparent)]
    Events(#[from] io::Error),
}
