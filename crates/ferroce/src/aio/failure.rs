//! The errors of operations.

use super::Buffer;
use crate::{Error, Status};

/// The reason why an operation of an [`Endpoint`](super::Endpoint) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The work request, or an earlier one of the endpoint, ended with this status.
    /// [`Status::WrFlushErr`]: the connection is over.
    #[error("the work request ended with {0:?}")]
    Status(Status),
    /// The queue pair refused the work request.
    #[error("the queue pair refused the work request")]
    Refused(#[source] Box<Error>),
}

/// A failed operation. It returns the operation's buffer.
#[derive(Debug, thiserror::Error)]
#[error("an operation failed")]
pub struct Failed {
    /// The reason.
    #[source]
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
