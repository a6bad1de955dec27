//! Connection management of both transports: the client half of librdmacm.
//!
//! [`Port::bind`] takes a port, and [`Port::listen`] accepts requests there. [`Port::connect`] requests a
//! connection from a peer, [`Port::ask`] the UD queue pair behind a port. Later events come as an [`Event`]
//! to the given [`EventSink`]: a [`Queue`] with a descriptor, or a function of the caller's own. The route
//! says which transport it is. The attributes for a RoCE connection's queue pair are in [`attributes`].
//!
//! The broker makes all decisions about RoCE. If it dies, the next broker learns from this process what the
//! process has. iWARP connections are TCP's (`iwarp`), and the broker has no part in them.

mod broker_port;
mod connection;
mod directory;
mod error;
mod event;
mod iwarp;
mod port;
pub mod resolve;
pub mod steps;

use std::sync::Arc;

pub use connection::{Connection, SidrRequest};
pub use error::CmError;
pub use event::{Event, EventKind, EventSink, Queue, Request, RoceRequest, Terms};
pub use ferroce_cm::{AcceptParams, ConnectParams, Disconnect, Route, SidrAnswer, SidrParams, attributes};
pub use port::{Bind, Port};

use crate::engine::Engine;

/// Extensions: the offers and agreements beyond the specification, for queue pairs that connection
/// management connects.
pub mod extension {
    pub use ferroce_cm::extension::is_agreed;

    pub use crate::selective_repeat::{answer, offer};
}

/// The engine, with a slot. A call of connection management does not delay the program's peers.
fn engine() -> Result<Arc<Engine>, CmError> {
    let engine = Engine::global()?;
    engine.start()?;
    engine.flush_all();
    Ok(engine)
}
