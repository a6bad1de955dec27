//! Rsockets: sockets over queue pairs. `crate::message` has the wire format, `crate::protocol` the state
//! machine of a stream; this level adds the queue pairs, the waiting and the connections.
//!
//! - A [`Stream`] has one lock over all its state. Each call takes the completions and posts the work that
//!   follows from them (`Link::pump`). Without a call a stream makes no progress, except that the peer writes
//!   into its receive buffer.
//! - **Waiting.** One waiting thread of a stream sleeps on the completion channel, and so receives packets
//!   itself. The others sleep on a [`Waker`] each, which is in the stream's list. A thread that changes the
//!   state wakes all of them. `rpoll` adds its waker to the list of every stream it waits for.
//! - A call that blocks does not sleep itself: it prepares a [`ferroce_engine::Sleep`] and fails with
//!   [`RsocketError::Suspended`]. The C call then sleeps where it can be cancelled, and calls again.
//! - **Connections** are made and ended by the service thread (`service.rs`): it accepts requests at
//!   listening streams before the program does, as TCP does, and finishes nonblocking connects.
//!
//! A forked child has none of its parent's streams.

mod datagram;
mod device;
mod error;
mod link;
pub mod message;
pub mod protocol;
mod region;
mod service;
mod settings;
mod stream;
mod waker;

pub use datagram::Datagram;
pub use error::{Failure, Ready, RsocketError};
pub use protocol::{Fault, How, Sizes};
pub use settings::Settings;
pub use stream::{Accepted, Progress, Stream};
pub use waker::Waker;
