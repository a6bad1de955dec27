//! Rsockets: sockets over queue pairs. What they say to each other is `crate::message`, what a stream does when is
//! `crate::protocol`; here are the queue pairs, the waiting and the connections.
//!
//! - A [`Stream`] has one lock over everything it knows. Whoever calls takes the completions that are there and posts what
//!   follows from them (`Link::pump`); nobody else does, so a stream whose program is inside no call stands still but
//!   for what the peer writes into its buffer.
//! - **Waiting.** One thread of those that wait for a stream sleeps on the completion channel, and so receives packets itself;
//!   all others sleep on a descriptor of their own, a [`Waker`], which is in the stream's list meanwhile. Whoever changes
//!   something wakes all of that list. `rpoll` puts its waker into the list of every stream it waits for.
//! - A call that may block does not sleep itself: it prepares a [`ferroce_engine::Sleep`] and fails with
//!   [`RsocketError::Suspended`], so that the C call sleeps where it can be cancelled, and calls again.
//! - **Connections** are made and ended by a thread of their own, the service (`service.rs`): it answers requests at
//!   listening streams before the program accepts them, as TCP does, and finishes connects that do not block.
//!
//! A forked child has none of its parent's streams.

mod datagram;
mod error;
mod link;
pub mod message;
mod place;
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
