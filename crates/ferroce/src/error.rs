//! One error for everything, naming what was wrong.

use std::io;

use ferroce_engine::error as engine;
use ferroce_engine::{QpState, RegMrError};
use ferroce_wire::Gid;

use crate::cm::ConnectError;

/// Why a call failed. The object it was called on is as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The devices cannot be listed.
    #[error(transparent)]
    Devices(#[from] engine::DeviceError),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] engine::OpenError),
    /// No such port, GID or P_Key.
    #[error(transparent)]
    Query(#[from] engine::QueryError),
    /// The GID table has nothing at this index.
    #[error("entry {index} of the GID table is empty")]
    EmptyGid {
        /// What was asked for.
        index: u32,
    },
    /// No protection domain can be made.
    #[error(transparent)]
    ProtectionDomain(#[from] engine::AllocPdError),
    /// The memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegMrError),
    /// No memory window can be made.
    #[error(transparent)]
    MemoryWindow(#[from] engine::AllocMwError),
    /// No completion channel can be made.
    #[error(transparent)]
    Channel(#[from] engine::CreateChannelError),
    /// No completion queue can be made.
    #[error(transparent)]
    CompletionQueue(#[from] engine::CreateCqError),
    /// The completion queue stays as large as it was.
    #[error(transparent)]
    Resize(#[from] engine::ResizeCqError),
    /// Completions were lost.
    #[error(transparent)]
    Poll(#[from] engine::CqError),
    /// A completion event could not be had.
    #[error(transparent)]
    Event(#[from] engine::EventError),
    /// The queue reports to no channel.
    #[error("the completion queue was made without a channel")]
    NoChannel,
    /// No queue pair can be made.
    #[error(transparent)]
    QueuePair(#[from] engine::CreateQpError),
    /// The queue pair cannot take these attributes; the message names the one that is wrong.
    #[error(transparent)]
    Modify(#[from] engine::ModifyQpError),
    /// No shared receive queue can be made.
    #[error(transparent)]
    SharedReceiveQueue(#[from] engine::CreateSrqError),
    /// The shared receive queue stays as it was.
    #[error(transparent)]
    ModifySrq(#[from] engine::ModifySrqError),
    /// No XRC domain can be opened.
    #[error(transparent)]
    XrcDomain(#[from] engine::OpenXrcdError),
    /// A send work request was refused.
    #[error("send work request {index} of the list")]
    PostSend {
        /// Its place; those before it are posted.
        index: usize,
        /// Why.
        #[source]
        source: engine::PostSendError,
    },
    /// A receive work request was refused.
    #[error("receive work request {index} of the list")]
    PostRecv {
        /// Its place; those before it are posted.
        index: usize,
        /// Why.
        #[source]
        source: engine::PostRecvError,
    },
    /// No address handle can be made.
    #[error(transparent)]
    AddressHandle(#[from] engine::CreateAhError),
    /// A datagram cannot be answered.
    #[error(transparent)]
    Answer(#[from] engine::AnswerError),
    /// A multicast group cannot be joined.
    #[error(transparent)]
    Attach(#[from] engine::AttachError),
    /// The queue pair is not attached to the group.
    #[error(transparent)]
    Detach(#[from] engine::DetachError),
    /// The two ends' GIDs are of different families.
    #[error("{local} and {remote} are not of one address family")]
    Families {
        /// Ours.
        local: Gid,
        /// The peer's.
        remote: Gid,
    },
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A queue pair that did not make a transition, and why. It is unharmed and given back.
#[derive(thiserror::Error)]
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

impl<Q> std::fmt::Debug for QpError<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QpError")
            .field("state", &self.state)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl<Q> From<QpError<Q>> for Error {
    fn from(error: QpError<Q>) -> Self {
        error.source
    }
}
