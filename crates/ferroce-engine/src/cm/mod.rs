//! Connection management: the client half of librdmacm.
//!
//! [`Port::bind`] takes a port of a port space, [`Port::listen`] takes requests at it, [`Connection::connect`] asks a peer
//! for a connection, [`SidrRequest::send`] for the UD queue pair behind a port. What happens then comes as an [`Event`] to
//! the [`EventSink`] that was given: a [`Queue`] with a descriptor, or a function of the caller's own.
//! What a connection's queue pair has to be set to is in [`attributes`].
//!
//! Everything that decides is in the broker; it may die and be followed by another one, which is told what this
//! process has.

mod blocks;
mod connection;
mod directory;
mod error;
mod event;
mod port;
pub mod resolve;
mod routes;
pub mod steps;

use std::sync::Arc;

pub use connection::{Connection, SidrRequest};
pub use error::CmError;
pub use event::{Event, EventSink, Incoming, Queue};
pub use ferroce_proto::cm::{
    AcceptParams, CmEventKind, ConnectParams, Disconnect, Route, SidrAnswer, SidrParams, attributes,
};
pub use port::{Bind, Port};

use crate::engine::Engine;

/// The engine, with a slot. A call of connection management does not delay the program's peers.
fn engine() -> Result<Arc<Engine>, CmError> {
    let engine = Engine::global()?;
    engine.start()?;
    engine.flush_delayed_acks();
    Ok(engine)
}
