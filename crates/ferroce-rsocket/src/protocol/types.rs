//! What a stream is told, and what it says.

use crate::message::{Grant, Mapping, NoMessage};
use ferroce_wire::Imm;

use ferroce_proto::{Remote, WcStatus};

/// Grants in a table.
pub(super) const GRANTS: usize = 2;
/// Control messages under way at most.
pub(super) const CONTROL_SLOTS: u16 = 4;
/// Room in the send buffer without which nothing is sent: the smallest first transfer.
pub(super) const LOW_WATER: u32 = 2048;
/// The largest piece that one WRITE carries.
pub(super) const MAX_TRANSFER: u32 = 65_536;
/// Inline octets that the queue pair must have whatever the program asks for.
pub const CONTROL_INLINE: u32 = Mapping::LEN as u32;

/// How large everything is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Octets of the send buffer, at least 4096.
    pub send_buffer: u32,
    /// Octets of the receive buffer, even, at least 4096.
    pub receive_buffer: u32,
    /// Send WQEs, 16 to 65,534.
    pub send_queue: u16,
    /// Receive WQEs, 16 to 65,534.
    pub receive_queue: u16,
    /// Pieces up to so many octets are sent inline.
    pub inline: u32,
    /// Mappings in our own table.
    pub mappings: u16,
}

impl Sizes {
    /// What rdma-core takes where nothing is configured.
    pub const DEFAULT: Self = Self {
        send_buffer: 1 << 17,
        receive_buffer: 1 << 17,
        send_queue: 384,
        receive_queue: 384,
        inline: 64,
        mappings: 0,
    };
    const MIN_BUFFER: u32 = 2 * LOW_WATER;
    const MAX_BUFFER: u32 = 1 << 30;
    const MIN_QUEUE: u16 = 16;

    /// The nearest that is possible, with queues of at most `max_queue` WQEs.
    pub fn possible(self, max_queue: u16) -> Self {
        let buffer = |asked: u32| asked.clamp(Self::MIN_BUFFER, Self::MAX_BUFFER) & !1;
        let queue = |asked: u16| asked.clamp(Self::MIN_QUEUE, max_queue.clamp(Self::MIN_QUEUE, 0xfffe));
        Self {
            send_buffer: buffer(self.send_buffer),
            receive_buffer: buffer(self.receive_buffer),
            send_queue: queue(self.send_queue),
            receive_queue: queue(self.receive_queue),
            ..self
        }
    }

    /// Octets of our table.
    pub fn table_len(&self) -> usize {
        GRANTS * Grant::LEN + usize::from(self.mappings) * Mapping::LEN
    }
}

/// Where our own memory is that the peer writes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnMemory {
    /// The receive buffer.
    pub receive: Remote,
    /// The table.
    pub table: Remote,
}

/// Our own table, which the peer writes to.
pub trait Table {
    /// Reads octets of it from `at` on; within [`Sizes::table_len`].
    fn read(&self, at: usize, out: &mut [u8]);
}

/// A WRITE to post; its completion is for [`super::Stream::sent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// For the work request.
    pub wr_id: u64,
    /// What is written.
    pub payload: Payload,
    /// Where to.
    pub remote: Remote,
    /// What the peer is told; without it the peer does not notice.
    pub imm: Option<Imm>,
}

/// What a WRITE writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// Nothing.
    None,
    /// These octets, inline.
    Grant([u8; Grant::LEN]),
    /// These octets, inline.
    Mapping([u8; Mapping::LEN]),
    /// What the caller puts into the send buffer from `at` on, and, behind its end, from its start on.
    Buffer {
        /// First octet.
        at: u32,
        /// Octets before the end of the buffer.
        first: u32,
        /// Octets from the start of it.
        wrapped: u32,
        /// Captured when posted.
        inline: bool,
    },
}

/// How the end stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Both ends are there.
    Connected,
    /// One of them went, in order.
    Disconnected,
    /// Something broke.
    Failed(Fault),
}

/// What broke a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// A WRITE of ours failed.
    #[error("a write failed: {0:?}")]
    Write(WcStatus),
    /// The peer's table has no room for grants.
    #[error("the peer's table has room for {0} grants")]
    PeerTable(u32),
    /// The peer said something unknown.
    #[error(transparent)]
    Message(#[from] NoMessage),
    /// A message without immediate data.
    #[error("a message without immediate data")]
    Silent,
    /// The octets written are not as many as the message says.
    #[error("{written} octets with a message that stands for {said}")]
    Length {
        /// What the message says.
        said: u32,
        /// What was written.
        written: u32,
    },
    /// More octets than were granted.
    #[error("{said} octets where {granted} were granted")]
    Overrun {
        /// What came.
        said: u32,
        /// What might have come.
        granted: u32,
    },
    /// More messages than credits.
    #[error("a message without credit")]
    Credit,
    /// More grants than the table has places.
    #[error("more grants than places")]
    Grants,
    /// A grant of nothing.
    #[error("a grant of nothing")]
    EmptyGrant,
    /// A mapping that the table does not have.
    #[error("mapping {0} of a table that has fewer")]
    MappingIndex(u16),
}

/// No mapping has this offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer mapped nothing at {0:#x}")]
pub struct NoMapping(pub u64);

/// What ends: `shutdown`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are those of the call")]
pub enum How {
    Read,
    Write,
    Both,
}

/// A message that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// Immediate data.
    pub imm: Option<Imm>,
    /// Octets written with it.
    pub written: u32,
}
