//! The errors of operations.

use std::fmt;

use super::Buffer;
use crate::error::{Device, ErrorKind, Peer, Usage};
use crate::{Error, Status};

/// The reason why an operation of an [`Endpoint`](super::Endpoint) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The work request, or an earlier one of the endpoint, ended with this status.
    /// [`Status::WrFlushErr`]: the connection is over.
    #[error("{}", text(*.0))]
    Status(Status),
    /// The queue pair refused the work request.
    #[error("the queue pair refused the work request")]
    Refused(#[source] Box<Error>),
}

fn text(status: Status) -> String {
    match status {
        Status::WrFlushErr => "the connection is over".to_owned(),
        status => format!("the work request ended with {status:?}"),
    }
}

impl Failure {
    /// Returns the kind of error, as [`Error::kind`](crate::Error::kind): [`Peer::Ended`] if the connection
    /// is over or the peer could not execute the request, [`Peer::Unreachable`] if the peer does not answer
    /// or has no receive posted, [`Peer::Malformed`] for its invalid response, [`Device::Gone`] if the device
    /// failed, and [`Usage::Invalid`] if the work request, or the peer's memory for it, was wrong. A refusal
    /// has the kind of its error.
    pub fn kind(&self) -> ErrorKind {
        let status = match self {
            Self::Refused(error) => return error.kind(),
            Self::Status(status) => *status,
        };
        match status {
            Status::WrFlushErr | Status::RemOpErr | Status::RemAbortErr => ErrorKind::Peer(Peer::Ended),
            Status::RetryExcErr | Status::RnrRetryExcErr | Status::RespTimeoutErr => {
                ErrorKind::Peer(Peer::Unreachable)
            }
            Status::BadRespErr => ErrorKind::Peer(Peer::Malformed),
            Status::FatalErr => ErrorKind::Device(Device::Gone),
            _ => ErrorKind::Usage(Usage::Invalid),
        }
    }
}

/// A failed operation. It returns the operation's buffer, and reads as its failure.
#[derive(Debug)]
pub struct Failed {
    /// The reason.
    pub failure: Failure,
    /// The buffer of the operation. After a failed receive, READ or atomic its content is undefined.
    pub buffer: Buffer,
}

impl Failed {
    pub(super) fn status(status: Status, buffer: Buffer) -> Self {
        Self { failure: Failure::Status(status), buffer }
    }

    pub(super) fn refused(error: Error, buffer: Buffer) -> Self {
        Self { failure: Failure::Refused(Box::new(error)), buffer }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure.fmt(f)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.failure.source()
    }
}
