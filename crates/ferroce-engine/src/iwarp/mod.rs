//! Connections of iWARP: TCP, the set-up by MPA, and the way to a queue pair (RFC 5044 7.1, RFC 6581).
//!
//! [`Port::bind`] takes a port of TCP. [`Connection::connect`] requests a connection from there, and
//! [`Listener::listen`] takes requests. Everything that happens later comes as an [`Event`] to the given
//! [`Sink`]. The broker has no part in any of this: the ports are the kernel's. [`Ports`] are the ports of an
//! end that takes requests by RoCE as well, by the broker's port of the same number.
//!
//! The background thread does the set-up, with a bound for each wait. When both ends agreed, the queue pair
//! gets the connection and goes to RTS: at the active end on the reply, at the passive end before the reply
//! leaves. From then on its lane receives from it (`lane/streams.rs`). When the queue pair ends, for whatever
//! reason, the connection comes back here: what TCP did not take is sent, the peer's octets are read to their
//! end, so that no RST overtakes our last message, and then the socket is closed.

mod connection;
mod event;
mod lingering;
mod listener;
mod manager;
mod port;
mod ports;
mod setup;

pub use connection::{AcceptParams, ConnectParams, Connection};
pub use event::{Event, Request, Sink};
pub use listener::Listener;
pub use port::Port;
pub use ports::{Ports, PortsError};

/// Reads and atomics that one end serves at once, or may have outstanding, at most.
pub use ferroce_proto::iwarp::setup::MAX_DEPTH;
