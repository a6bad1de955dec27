//! The errors of operations.

use std::fmt;

use super::Buffer;
use crate::error::{Cause, ErrorKind};
use crate::{Error, Status};

/// The reason why an operation of an [`Endpoint`](super::Endpoint) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The work request, or an earlier one of the endpoint, ended with this status.
    /// [`Status::WrFlushErr`]: the connection is over.
    #[error("{}", Cause::Status(*.0))]
    Status(Status),
    /// The queue pair refused the work request.
    #[error("the queue pair refused the work request")]
    Refused(#[source] Box<Error>),
}

impl Failure {
    /// Returns the kind of error, as [`Error::kind`]: that of a refusal's error, and for a status that of
    /// [`Completion::ok`](crate::Completion::ok).
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(error) => error.kind(),
            Self::Status(status) => Cause::Status(*status).kind(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) => *error,
            Failure::Status(status) => Cause::Status(status).into(),
        }
    }
}

impl From<Failed> for Error {
    /// Drops the buffer, which its pool then has again.
    fn from(failed: Failed) -> Self {
        failed.failure.into()
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
