//! Errors of rsocket calls, and their readiness.

use std::io;

use ferroce_engine::cm::CmError;
use ferroce_engine::cm::resolve::ResolveError;
use ferroce_engine::error::{DeviceError, EventError, OpenError};
use ferroce_engine::{RegMrError, Sleep};

use crate::protocol::{Fault, NoMapping};

/// The reason why a stream lost its connection or never had one: `SO_ERROR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// No stream listens there, or the peer rejected the request: ECONNREFUSED.
    #[error("refused")]
    Refused,
    /// The peer does not answer: ETIMEDOUT.
    #[error("no answer")]
    NoAnswer,
    /// The peer is no rsocket, or has another version: ENOTSUP.
    #[error("the peer is no rsocket of a version that is known, but {0}")]
    NoRsocket(u8),
    /// The peer broke the protocol, or a WRITE failed: EIO.
    #[error(transparent)]
    Broken(#[from] Fault),
    /// EIO.
    #[error("the queue pair could not be set up")]
    QueuePair,
}

#[derive(Debug, thiserror::Error)]
pub enum RsocketError {
    /// EAGAIN.
    #[error("it would have to wait")]
    WouldBlock,
    /// The caller sleeps and calls again.
    #[error("it has to wait")]
    Suspended(Box<Sleep>),
    /// EINPROGRESS.
    #[error("the connection is being made")]
    InProgress,
    /// ENOTCONN.
    #[error("not connected")]
    NotConnected,
    /// The state of the socket or an argument does not permit the call: EINVAL.
    #[error("not in this state")]
    Invalid,
    /// Another thread closed the socket during the call: EBADF.
    #[error("it is closed")]
    Closed,
    /// The peer has disconnected: ECONNRESET.
    #[error("the peer is gone")]
    Reset,
    /// The program has shut down sending: EPIPE.
    #[error("sending was shut down")]
    ShutDown,
    /// EMSGSIZE.
    #[error("the datagram is too long")]
    TooLong,
    /// EINTR.
    #[error("interrupted by a signal")]
    Interrupted,
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The peer's connection data are invalid: EIO.
    #[error(transparent)]
    Peer(Fault),
    /// The peer mapped no memory at this offset: EINVAL.
    #[error(transparent)]
    NoMapping(#[from] NoMapping),
    /// ENOMEM.
    #[error("the peer has no room for another mapping")]
    Full,
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Cm(#[from] CmError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Memory(#[from] RegMrError),
    /// The device could not create an object: ENOMEM.
    #[error("no more of it")]
    Resource(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the system refused")]
    System(#[from] io::Error),
}

impl RsocketError {
    pub(crate) fn resource(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Resource(Box::new(error))
    }
}

impl From<DeviceError> for RsocketError {
    fn from(error: DeviceError) -> Self {
        Self::Resolve(error.into())
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

/// Operations that would not block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// Read or accept: POLLIN.
    pub readable: bool,
    /// POLLOUT.
    pub writable: bool,
    /// Both directions have ended, and all data were read: POLLHUP. (rdma-core reports it while data are
    /// left, and programs stop reading.)
    pub hang_up: bool,
    /// POLLERR.
    pub error: bool,
}
