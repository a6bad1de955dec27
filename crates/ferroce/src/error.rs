//! The error of every call.

use std::io;

use ferroce_engine::QpState;
pub use ferroce_engine::RegMrError;
pub use ferroce_engine::error::{
    AllocDmError, AnswerError, AttachError, CqError, CreateAhError, CreateChannelError, CreateQpError,
    CreateSrqError, DeviceError, DmAccessError, EventError, LimitReached, ModifyQpError, ModifySrqError,
    NotAttached, OpenError, OpenXrcdError, Overrun, PostRecvError, PostSendError, QueryError,
};
use ferroce_wire::Gid;

use crate::connect_error::ConnectError;

/// The reason of a failed call. The object of the call is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The devices cannot be listed.
    #[error(transparent)]
    Devices(#[from] DeviceError),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No such port, GID or P_Key.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The entry of the GID table is empty.
    #[error("entry {index} of the GID table is empty")]
    EmptyGid {
        /// The requested index.
        index: u32,
    },
    /// The process has as many protection domains or memory windows as it may have.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// The memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegMrError),
    /// Device memory cannot be allocated.
    #[error(transparent)]
    DeviceMemory(#[from] AllocDmError),
    /// A copy to or from device memory is impossible.
    #[error(transparent)]
    DeviceMemoryAccess(#[from] DmAccessError),
    /// A completion channel cannot be created.
    #[error(transparent)]
    Channel(#[from] CreateChannelError),
    /// A completion queue cannot be created, or not be resized; then its size is unchanged.
    #[error(transparent)]
    CompletionQueue(#[from] CqError),
    /// The queue overflowed, and completions were lost.
    #[error(transparent)]
    Poll(#[from] Overrun),
    /// Waiting for an event failed.
    #[error(transparent)]
    Event(#[from] EventError),
    /// A queue pair cannot be created.
    #[error(transparent)]
    QueuePair(#[from] CreateQpError),
    /// The queue pair refuses these attributes; the message names the wrong one.
    #[error(transparent)]
    Modify(#[from] ModifyQpError),
    /// A shared receive queue cannot be created.
    #[error(transparent)]
    SharedReceiveQueue(#[from] CreateSrqError),
    /// The shared receive queue cannot be modified; it is unchanged.
    #[error(transparent)]
    ModifySrq(#[from] ModifySrqError),
    /// An XRC domain cannot be opened.
    #[error(transparent)]
    XrcDomain(#[from] OpenXrcdError),
    /// The queue pair refused a send work request.
    #[error("send work request {index} of the list")]
    PostSend {
        /// Index of the refused request in the list, from 0; the earlier requests are posted.
        index: usize,
        /// The reason.
        #[source]
        source: PostSendError,
    },
    /// The queue refused a receive work request.
    #[error("receive work request {index} of the list")]
    PostRecv {
        /// Index of the refused request in the list, from 0; the earlier requests are posted.
        index: usize,
        /// The reason.
        #[source]
        source: PostRecvError,
    },
    /// An address handle cannot be created.
    #[error(transparent)]
    AddressHandle(#[from] CreateAhError),
    /// A datagram cannot be answered.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// A multicast group cannot be joined.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The queue pair is not attached to the group.
    #[error(transparent)]
    Detach(#[from] NotAttached),
    /// The two ends' GIDs are of different families.
    #[error("{local} and {remote} are not of one address family")]
    Families {
        /// The local GID.
        local: Gid,
        /// The peer's GID.
        remote: Gid,
    },
    /// The octets of the other end's address are invalid.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The connection could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The kernel refused a call.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Error {
    /// Returns whether the queue was full: poll completions, then post the work request again.
    pub fn is_queue_full(&self) -> bool {
        match self {
            Self::PostSend { source, .. } => matches!(source, PostSendError::QueueFull { .. }),
            Self::PostRecv { source, .. } => matches!(source, PostRecvError::QueueFull { .. }),
            _ => false,
        }
    }
}

/// The octets are no [`Address`](crate::Address).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The version of the layout is unknown.
    #[error("an address of the unknown layout {0}")]
    Layout(u8),
    /// The code of the MTU is invalid.
    #[error("{0} is no path MTU: 1 (256 octets) to 5 (4096)")]
    Mtu(u8),
}

/// A queue pair that failed to change its state. It is unchanged and returned in the error.
#[derive(Debug, thiserror::Error)]
#[error("the queue pair stays in {state:?}")]
pub struct QpError<Q> {
    /// The unchanged queue pair.
    pub queue_pair: Q,
    /// The state that the queue pair is still in.
    pub state: QpState,
    /// The reason.
    #[source]
    pub source: Error,
}

impl<Q> From<QpError<Q>> for Error {
    fn from(error: QpError<Q>) -> Self {
        error.source
    }
}
