//! Connected endpoints.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use ferroce_engine::SendOp;

use super::operation::{Atomic, Operation, Recv};
use super::owner::{Link, Owner};
use super::{Buffer, Failed};
use crate::cm::Connected;
use crate::{Error, Imm, RemoteMemory};

/// A connected queue pair on a [`Driver`](super::Driver).
///
/// Send work requests are posted when their future is polled for the first time. If the send queue is full,
/// the future waits for room; futures are served in their order. An endpoint with
/// [`QpOptions::max_send_wr`](crate::QpOptions::max_send_wr) 0 refuses them. All futures fail if the
/// connection ends or the endpoint is dropped. Dropping the endpoint disconnects.
pub struct Endpoint {
    owner: Box<Owner>,
}

impl Endpoint {
    /// The owner's link is a connection.
    pub(super) fn new(owner: Box<Owner>) -> Self {
        Self { owner }
    }

    fn connected(&self) -> &Connected {
        match &self.owner.link {
            Link::Connected(connected) => connected,
            _ => unreachable!("an endpoint is connected"),
        }
    }

    fn operation(&self, buffer: Buffer, len: usize, op: SendOp) -> Operation {
        let all = buffer.len();
        assert!(len <= all, "{len} octets of a buffer of {all}");
        Operation::new(Arc::clone(&self.owner.end), buffer, len, op)
    }

    /// Sends the first `len` octets of `buffer` to the peer's next receive. The future is ready when the peer
    /// has acknowledged them.
    ///
    /// # Panics
    ///
    /// If the buffer is shorter.
    pub fn send(&self, buffer: Buffer, len: usize) -> Operation {
        self.operation(buffer, len, SendOp::Send)
    }

    /// As [`Self::send`], with immediate data for the peer's completion.
    pub fn send_imm(&self, buffer: Buffer, len: usize, imm: Imm) -> Operation {
        self.operation(buffer, len, SendOp::SendImm(imm))
    }

    /// Writes the first `len` octets of `buffer` to the peer's memory.
    ///
    /// # Panics
    ///
    /// If the buffer is shorter.
    pub fn write(&self, buffer: Buffer, len: usize, to: RemoteMemory) -> Operation {
        self.operation(buffer, len, SendOp::Write { remote: to.engine() })
    }

    /// As [`Self::write`], and completes the peer's next receive with `imm`.
    pub fn write_imm(&self, buffer: Buffer, len: usize, to: RemoteMemory, imm: Imm) -> Operation {
        self.operation(buffer, len, SendOp::WriteImm { remote: to.engine(), imm })
    }

    /// Reads `len` octets of the peer's memory to the start of `buffer`.
    ///
    /// # Panics
    ///
    /// If the buffer is shorter.
    pub fn read(&self, buffer: Buffer, len: usize, from: RemoteMemory) -> Operation {
        self.operation(buffer, len, SendOp::Read { remote: from.engine() })
    }

    /// Adds to eight octets of the peer's memory, at an address that is a multiple of 8, and returns their
    /// previous value.
    ///
    /// # Panics
    ///
    /// If the buffer has fewer than 8 octets.
    pub fn fetch_add(&self, buffer: Buffer, at: RemoteMemory, add: u64) -> Atomic {
        Atomic(self.operation(buffer, 8, SendOp::FetchAdd { remote: at.engine(), add }))
    }

    /// Replaces eight octets of the peer's memory, at an address that is a multiple of 8, by `swap` if they
    /// equal `compare`, and returns their previous value.
    ///
    /// # Panics
    ///
    /// If the buffer has fewer than 8 octets.
    pub fn compare_swap(&self, buffer: Buffer, at: RemoteMemory, compare: u64, swap: u64) -> Atomic {
        Atomic(self.operation(buffer, 8, SendOp::CompareSwap { remote: at.engine(), compare, swap }))
    }

    /// Posts `buffer` for a message of the peer, which [`Self::recv`] returns. It does not wait: at most
    /// [`QpOptions::max_recv_wr`](crate::QpOptions::max_recv_wr) receives are posted, or have completed since
    /// the last [`Driver::turn`](super::Driver::turn).
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`](super::Failure::Refused) if the receive queue is full, and
    /// [`Failure::Status`](super::Failure::Status) if the connection is over.
    pub fn post_recv(&self, buffer: Buffer) -> Result<(), Failed> {
        self.owner.end.receive(buffer)
    }

    /// Waits for the next message in a buffer of [`Self::post_recv`]. Messages are returned in the order of
    /// their arrival, and tasks receive them in the order of their first polls. Dropping the future loses no
    /// message: the next call returns it.
    ///
    /// # Errors
    ///
    /// [`Failure::Status`](super::Failure::Status) if the connection is over and all messages were returned.
    pub fn recv(&self) -> Recv {
        Recv::new(Arc::clone(&self.owner.end))
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.connected().peer_addr()
    }

    /// Our address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.connected().local_addr()
    }

    /// The private data of the peer's acceptance, see [`Connected::private_data`].
    pub fn private_data(&self) -> &[u8] {
        self.connected().private_data()
    }

    /// Ends the connection: outstanding work requests complete with
    /// [`Status::WrFlushErr`](crate::Status::WrFlushErr), and the peer is told. To lose nothing, wait for the
    /// futures of the sends first.
    ///
    /// # Errors
    ///
    /// As [`Connected::disconnect`].
    pub fn disconnect(&self) -> Result<(), Error> {
        let disconnected = self.connected().disconnect();
        self.owner.end();
        disconnected
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, peer) = (self.local_addr(), self.peer_addr());
        f.debug_struct("Endpoint").field("local", &local).field("peer", &peer).finish_non_exhaustive()
    }
}
