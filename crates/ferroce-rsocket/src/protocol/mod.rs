//! The state machine of a stream: it decides which WRITE to send and interprets completions.
//!
//! A [`StreamProtocol`] is one end of a connection whose queue pair exists. Octets to send are copied to a
//! send buffer, a ring, and written behind one another into the granted pieces of the peer's receive buffer:
//! the two halves of that ring in turn. Each such WRITE is a message to the peer. Three counts prevent loss:
//!
//! - **Grants.** The peer grants a half again after it was read whole. At most two grants are open, so two
//!   entries in our table suffice. We read an entry after the message that announces it, which arrives after
//!   the octets.
//! - **Credits.** Every message consumes a receive WQE of the other end. Data and mappings are numbered from
//!   0, and the receiver announces the number up to which it has room. It raises that number when half of its
//!   WQEs were used.
//! - **Control slots.** Credits, disconnect, shutdown and keepalive are not numbered, so that ends without
//!   credits can still exchange credits. At most four are outstanding; if one finds no receive WQE, RNR NAKs
//!   delay it.
//!
//! Memory opened with `riomap` is announced to the peer as a mapping, a numbered message. `riowrite` sends no
//! message; its octets arrive before the data that the peer sends later.
//!
//! Grants and mappings are the peer's memory: wrong ones make our WRITEs fail. The checks here cover only our
//! own state. A peer that breaks a rule ends the stream with a [`Fault`].

mod stream;
mod types;

pub use stream::StreamProtocol;
pub use types::{
    CONTROL_INLINE, Fault, How, Incoming, NoMapping, OwnMemory, Payload, Phase, Sizes, Table, Write,
};

#[cfg(test)]
mod tests;
