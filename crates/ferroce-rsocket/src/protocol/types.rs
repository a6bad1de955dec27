//! Inputs and outputs of a stream.

use crate::message::{Grant, Mapping, NoMessage};
use ferroce_wire::Imm;

use ferroce_proto::{Remote, WcStatus};

pub(super) const GRANTS: usize = 2;
/// Limit of outstanding control messages.
pub(super) const CONTROL_SLOTS: u16 = 4;
/// Free octets in the send buffer without which nothing is sent: the smallest first transfer.
pub(super) const LOW_WATER: u32 = 2048;
/// The largest payload of one WRITE, in octets.
pub(super) const MAX_TRANSFER: u32 = 65_536;
/// Inline octets that the queue pair needs whatever the program asks for.
pub const CONTROL_INLINE: u32 = Mapping::LEN as u32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// In octets, at least 4096.
    pub send_buffer: u32,
    /// In octets, even, at least 4096.
    pub receive_buffer: u32,
    /// Send WQEs, 16 to 65,534.
    pub send_queue: u16,
    /// Receive WQEs, 16 to 65,534.
    pub receive_queue: u16,
    /// Pieces of at most this many octets are sent inline.
    pub inline: u32,
    /// Mappings in our table.
    pub mappings: u16,
}

impl Sizes {
    /// The defaults of rdma-core.
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

    /// Rounds to permitted values, with queues of at most `max_queue` WQEs.
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

    /// In octets.
    pub fn table_len(&self) -> usize {
        GRANTS * Grant::LEN + usize::from(self.mappings) * Mapping::LEN
    }
}

/// Our memory that the peer writes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnMemory {
    pub receive: Remote,
    pub table: Remote,
}

/// Our table, which the peer writes to.
pub trait Table {
    /// Reads from offset `at`; the caller stays within [`Sizes::table_len`].
    fn read(&self, at: usize, out: &mut [u8]);
    /// Sets octets from offset `at` on to zero; the caller stays within [`Sizes::table_len`].
    fn clear(&self, at: usize, len: usize);
}

/// A WRITE to post; its completion is passed to [`super::StreamProtocol::sent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    pub wr_id: u64,
    pub payload: Payload,
    pub remote: Remote,
    /// The message; without it the peer does not notice the WRITE.
    pub imm: Option<Imm>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    None,
    /// Sent inline.
    Grant([u8; Grant::LEN]),
    /// Sent inline.
    Mapping([u8; Mapping::LEN]),
    /// The caller copies its octets to the send buffer from `at` on, and past the end of the ring to its
    /// start.
    Buffer {
        at: u32,
        /// Octets before the end of the ring.
        first: u32,
        /// Octets from its start.
        wrapped: u32,
        /// Captured when posted.
        inline: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Connected,
    /// This end or the peer disconnected in order.
    Disconnected,
    Failed(Fault),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    #[error("a write failed: {0:?}")]
    Write(WcStatus),
    #[error("the device is gone")]
    DeviceGone,
    #[error("the peer's table has room for {0} grants")]
    PeerTable(u32),
    #[error(transparent)]
    Message(#[from] NoMessage),
    #[error("a message without immediate data")]
    NoImmediate,
    /// The length of the WRITE differs from that in its message.
    #[error("{written} octets with a message that announces {announced}")]
    Length { announced: u32, written: u32 },
    /// The peer wrote more octets than were granted.
    #[error("{announced} octets where {granted} were granted")]
    Overrun { announced: u32, granted: u32 },
    /// The peer sent more messages than it had credits for.
    #[error("a message without credit")]
    Credit,
    /// The peer announced more grants than the table has entries.
    #[error("more grants than places")]
    Grants,
    #[error("a grant of nothing")]
    EmptyGrant,
    #[error("mapping {0} of a table that has fewer")]
    MappingIndex(u16),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer mapped nothing at {0:#x}")]
pub struct NoMapping(pub u64);

/// The directions to end, as in `shutdown(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are those of the call")]
pub enum How {
    Read,
    Write,
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    pub imm: Option<Imm>,
    /// Octets of its WRITE; `None` if the message came as a SEND of its own behind the WRITE, which says
    /// nothing of that (iWARP).
    pub written: Option<u32>,
}
