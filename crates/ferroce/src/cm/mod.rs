//! Connecting by IP address, as librdmacm does: no GID index, queue pair number or PSN to exchange by other
//! means.
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
//! Connections over the same device share one [`Context`](crate::Context), unless [`EndOptions::domain`]
//! brings another one. Asynchronous events of all their objects arrive there:
//! `connection.domain().context().wait_event()`.
//!
//! The other end may be any program that uses librdmacm with port space TCP and reliable connections. The
//! address decides whether that is a RoCE or an iWARP device; `FERROCE_TRANSPORT` leaves one of them out.
//!
//! For datagrams there is nothing to connect: [`DatagramConnector`] asks a peer which of its queue pairs
//! takes them, and [`DatagramListener`] says so, to programs with librdmacm's port space UDP as well. The
//! example `udaddy` shows both.
//!
//! Every call that waits has a counterpart that does not; what to wait for is a descriptor
//! ([`std::os::fd::AsFd`]), readable while that would say something.

mod connected;
mod connector;
mod context;
mod datagram_connector;
mod datagram_listener;
mod end;
mod listener;
mod listening_port;

use crate::connect_error::ConnectError;
pub(crate) use connected::fail;
pub use connected::{Connected, Pending};
pub use connector::Connector;
pub use datagram_connector::{DatagramConnector, DatagramPeer, PendingPeer};
pub use datagram_listener::{DatagramListener, DatagramRequest};
pub use end::EndOptions;
pub use listener::{Acceptor, Listener, Request};

/// Octets of private data that go with a request for a connection.
pub const REQUEST_PRIVATE_DATA: usize = 56;
/// Octets of private data in an acceptance.
pub const ACCEPT_PRIVATE_DATA: usize = 196;
/// Octets of private data in a refusal.
pub const REJECT_PRIVATE_DATA: usize = 148;
/// Octets of private data in a SIDR request.
pub const DATAGRAM_REQUEST_PRIVATE_DATA: usize = 180;
/// Octets of private data in the answer to a SIDR request, whether it accepts or refuses.
pub const DATAGRAM_ANSWER_PRIVATE_DATA: usize = 136;
