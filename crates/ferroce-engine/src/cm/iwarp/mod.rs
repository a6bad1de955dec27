//! Connections of iWARP: TCP, the set-up by MPA, and the way to a queue pair (RFC 5044 7.1, RFC 6581).
//!
//! Everything that happens comes as a [`super::Event`] to the given [`super::EventSink`]. The broker has no
//! part in any of this: the ports are the kernel's.
//!
//! The background thread does the set-up, with a bound for each wait. When both ends agreed, the queue pair
//! gets the connection and goes to RTS: at the active end on the reply, at the passive end before the reply
//! leaves. From then on its lane receives from it (`lane/streams.rs`). When the queue pair ends, for whatever
//! reason, the connection comes back here: what TCP did not take is sent, the peer's octets are read to their
//! end, so that no RST overtakes our last message, and then the socket is closed.

mod backlog;
mod connection;
mod listener;
mod manager;
mod port;
mod setup;

pub(super) use connection::Connection;
pub(super) use listener::Listener;
pub(super) use port::TcpPort;
