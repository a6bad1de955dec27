//! Connection management: the client half of librdmacm.
//!
//! [`Port::bind`] takes a port of a port space, and [`Port::listen`] accepts requests there.
//! [`Connection::connect`] requests a connection from a peer, [`SidrRequest::send`] the UD queue pair behind
//! a port. Later events come as an [`Event`] to the given [`EventSink`]: a [`Queue`] with a descriptor, or a
//! function of the caller's own. The attributes for a connection's queue pair are in [`attributes`].
//!
//! The broker makes all decisions. If it dies, the next broker learns from this process what the process has.

mod connection;
mod directory;
mod error;
mod event;
pub mod extension;
mod port;
pub mod resolve;
pub mod steps;

use std::sync::Arc;

pub use connection::{Connection, SidrRequest};
pub use error::CmError;
pub use event::{Event, EventSink, Incoming, Queue};
pub use ferroce_cm::{
    AcceptParams, CmEventKind, ConnectParams, Disconnect, Route, SidrAnswer, SidrParams, attributes,
};
pub use port::{Bind, Port};

use crate::engine::Engine;

/// The engine, with a slot. A call of connection management does not delay the program's peers.
fn engine() -> Result<Arc<Engine>, CmError> {
    let engine = Engine::global()?;
    engine.start()?;
    engine.flush_all();
    Ok(engine)
}
