//! The error of every call, which names what was wrong, and the reasons that it names.

use std::io;

use ferroce_engine::QpState;
pub use ferroce_engine::RegMrError;
pub use ferroce_engine::error::{
    AllocMwError, AllocPdError, AnswerError, AttachError, CqError, CreateAhError, CreateChannelError,
    CreateCqError, CreateQpError, CreateSrqError, DetachError, DeviceError, EventError, ModifyQpError,
    ModifySrqError, OpenError, OpenXrcdError, PostRecvError, PostSendError, QueryError, ResizeCqError,
};
use ferroce_wire::Gid;

use crate::cm::ConnectError;

/// Why a call failed. The object it was called on is as before.
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
    /// The GID table has nothing at this index.
    #[error("entry {index} of the GID table is empty")]
    EmptyGid {
        /// What was asked for.
        index: u32,
    },
    /// No protection domain can be made.
    #[error(transparent)]
    ProtectionDomain(#[from] AllocPdError),
    /// The memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegMrError),
    /// No memory window can be made.
    #[error(transparent)]
    MemoryWindow(#[from] AllocMwError),
    /// No completion channel can be made.
    #[error(transparent)]
    Channel(#[from] CreateChannelError),
    /// No completion queue can be made.
    #[error(transparent)]
    CompletionQueue(#[from] CreateCqError),
    /// The completion queue stays as large as it was.
    #[error(transparent)]
    Resize(#[from] ResizeCqError),
    /// Completions were lost.
    #[error(transparent)]
    Poll(#[from] CqError),
    /// A completion event could not be had.
    #[error(transparent)]
    Event(#[from] EventError),
    /// No queue pair can be made.
    #[error(transparent)]
    QueuePair(#[from] CreateQpError),
    /// The queue pair cannot take these attributes; the message names the one that is wrong.
    #[error(transparent)]
    Modify(#[from] ModifyQpError),
    /// No shared receive queue can be made.
    #[error(transparent)]
    SharedReceiveQueue(#[from] CreateSrqError),
    /// The shared receive queue stays as it was.
    #[error(transparent)]
    ModifySrq(#[from] ModifySrqError),
    /// No XRC domain can be opened.
    #[error(transparent)]
    XrcDomain(#[from] OpenXrcdError),
    /// A send work request was refused.
    #[error("send work request {index} of the list")]
    PostSend {
        /// Its place; those before it are posted.
        index: usize,
        /// Why.
        #[source]
        source: PostSendError,
    },
    /// A receive work request was refused.
    #[error("receive work request {index} of the list")]
    PostRecv {
        /// Its place; those before it are posted.
        index: usize,
        /// Why.
        #[source]
        source: PostRecvError,
    },
    /// No address handle can be made.
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
    Detach(#[from] DetachError),
    /// The two ends' GIDs are of different families.
    #[error("{local} and {remote} are not of one address family")]
    Families {
        /// Ours.
        local: Gid,
        /// The peer's.
        remote: Gid,
    },
    /// The other end's address cannot be read.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Error {
    /// Whether a work request was refused only because its queue is full: poll completions, then post it again.
    pub fn is_queue_full(&self) -> bool {
        match self {
            Self::PostSend { source, .. } => matches!(source, PostSendError::QueueFull { .. }),
            Self::PostRecv { source, .. } => matches!(source, PostRecvError::QueueFull { .. }),
            _ => false,
        }
    }
}

/// Octets that are no [`Address`](crate::Address).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// They begin with the number of a layout that this version does not know.
    #[error("an address of the unknown layout {0}")]
    Layout(u8),
    /// The MTU is none.
    #[error("{0} is no path MTU: 1 (256 octets) to 5 (4096)")]
    Mtu(u8),
}

/// A queue pair that did not make a transition, and why. It is unharmed and given back.
#[derive(Debug, thiserror::Error)]
#[error("the queue pair stays in {state:?}")]
pub struct QpError<Q> {
    /// The queue pair as it was.
    pub queue_pair: Q,
    /// The state it is in.
    pub state: QpState,
    /// What was wrong.
    #[source]
    pub source: Error,
}

impl<Q> From<QpError<Q>> for Error {
    fn from(error: QpError<Q>) -> Self {
        error.source
    }
}
