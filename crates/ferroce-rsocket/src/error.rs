//! Why calls on rsockets fail, and what can be done with one without waiting.

use std::io;

use ferroce_engine::cm::CmError;
use ferroce_engine::cm::resolve::ResolveError;
use ferroce_engine::error::{EventError, OpenError};
use ferroce_engine::{RegMrError, Sleep};

use crate::protocol::{Fault, NoMapping};

/// Why a stream is not connected any more, or never came to be: what `SO_ERROR` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody listens, or the peer does not want: ECONNREFUSED.
    #[error("refused")]
    Refused,
    /// The peer does not answer: ETIMEDOUT.
    #[error("no answer")]
    NoAnswer,
    /// The peer is no rsocket, or one of this version: ENOTSUP.
    #[error("the peer is no rsocket of a version that is known, but {0}")]
    NoRsocket(u8),
    /// The peer broke a rule, or a WRITE failed: EIO.
    #[error(transparent)]
    Broken(#[from] Fault),
    /// The queue pair could not be set up: EIO.
    #[error("the queue pair could not be set up")]
    QueuePair,
}

/// Why a call on an rsocket failed.
#[derive(Debug, thiserror::Error)]
pub enum RsocketError {
    /// It would have to wait: EAGAIN.
    #[error("it would have to wait")]
    WouldBlock,
    /// It has to wait: the caller sleeps, and calls again.
    #[error("it has to wait")]
    Suspended(Box<Sleep>),
    /// The connection is being made: EINPROGRESS.
    #[error("the connection is being made")]
    InProgress,
    /// There is no connection: ENOTCONN.
    #[error("not connected")]
    NotConnected,
    /// Not in this state, or an argument makes no sense: EINVAL.
    #[error("not in this state")]
    Invalid,
    /// It was closed meanwhile: EBADF.
    #[error("it is closed")]
    Closed,
    /// The peer went: ECONNRESET.
    #[error("the peer is gone")]
    Reset,
    /// The program itself stopped sending: EPIPE.
    #[error("sending was shut down")]
    ShutDown,
    /// A datagram is longer than one can be: EMSGSIZE.
    #[error("the datagram is too long")]
    TooLong,
    /// A signal handler ran: EINTR.
    #[error("interrupted by a signal")]
    Interrupted,
    /// The connection failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The peer's data make no sense: EIO.
    #[error(transparent)]
    Peer(Fault),
    /// The peer mapped nothing there: EINVAL.
    #[error(transparent)]
    NoMapping(#[from] NoMapping),
    /// As many as the peer has room for: ENOMEM.
    #[error("the peer has no room for another mapping")]
    Full,
    /// No such address or way.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// Connection management refused.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Memory could not be registered.
    #[error(transparent)]
    Memory(#[from] RegMrError),
    /// An object of the device could not be made: ENOMEM.
    #[error("no more of it")]
    Resource(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The system refused.
    #[error("the system refused")]
    System(#[from] io::Error),
}

impl RsocketError {
    pub(crate) fn resource(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Resource(Box::new(error))
    }
}

impl From<EventError> for RsocketError {
    fn from(error: EventError) -> Self {
        match error {
            EventError::WouldBlock => Self::WouldBlock,
            EventError::Interrupted => Self::Interrupted,
            EventError::Io(error) => Self::System(error),
        }
    }
}

/// What can be done without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// Reading, or accepting: POLLIN.
    pub readable: bool,
    /// Sending: POLLOUT.
    pub writable: bool,
    /// Both ends are done, and all was read: POLLHUP. (rdma-core says so while something can be read, and programs stop.)
    pub hang_up: bool,
    /// It failed: POLLERR.
    pub error: bool,
}
