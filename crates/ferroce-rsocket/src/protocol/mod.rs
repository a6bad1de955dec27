//! Streams of rsockets: which WRITE leaves when, and what a completion means. The bytes are `crate::message`'s.
//!
//! A [`Stream`] is one end of a connection whose queue pair is there. Octets to send are copied to a send buffer, a ring,
//! and written behind one another into the pieces of the peer's receive buffer that it granted: halves of that ring, in
//! turn. Each such WRITE is a message of the peer's completion queue. Three things are counted so that nothing is lost:
//!
//! - **Grants.** The peer grants a half again when all of it was read. At most two grants are open, so two places in our
//!   table suffice; a place is read when the message came that says it was written, which is after the octets.
//! - **Credits.** Every message takes a receive WQE of the other end. Data and mappings are numbered from 0, and the
//!   receiver says up to which number it has room; it moves that up when half of its WQEs were used.
//! - **Control slots.** Credits, disconnect, shutdown and keepalive are not numbered, so that ends without credits can still
//!   give each other some. Four of an end's are under way at most; should they find no receive WQE, RNR NAKs hold them.
//!
//! What a program opened with `riomap` is told to the peer as a mapping, a numbered message; what comes by `riowrite`
//! goes there without any message, before the data that the peer sends after it.
//!
//! The peer's grants and mappings are the peer's memory: wrong ones make our WRITEs fail. What is checked here is all that
//! could confuse our own books. A peer that breaks a rule ends the stream with a [`Fault`].

mod stream;
mod types;

pub use stream::Stream;
pub use types::{
    CONTROL_INLINE, Fault, How, Incoming, NoMapping, OwnMemory, Payload, Phase, Sizes, Table, Write,
};

#[cfg(test)]
mod tests;
