//! The error of connecting by IP address.

use std::io;

use ferroce_engine::cm::CmError;
use ferroce_engine::cm::resolve::ResolveError;
use ferroce_wire::cm::{PrivateDataTooLong, RejReason, SidrStatus};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Connection management did not do as asked.
    #[error(transparent)]
    Cm(CmError),
    /// There is no device that reaches the address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// More private data than a message carries.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
    /// The peer refused.
    #[error("the peer refused: {reason:?}")]
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected {
        /// The code of the refusal (IBTA 12.6.7): 28 for a program's own reasons, 8 if no program listens.
        reason: RejReason,
        /// The private data of its answer: [`REJECT_PRIVATE_DATA`](crate::cm::REJECT_PRIVATE_DATA) octets,
        /// zeros at the end.
        private: Box<[u8]>,
    },
    /// The peer names no queue pair of datagrams.
    #[error("the peer refused: {status:?}")]
    Refused {
        /// The code of the refusal (IBTA 12.11): 1 if no program listens, 2 for a program's own reasons.
        status: SidrStatus,
        /// The private data of its answer:
        /// [`DATAGRAM_ANSWER_PRIVATE_DATA`](crate::cm::DATAGRAM_ANSWER_PRIVATE_DATA) octets, zeros at the
        /// end.
        private: Box<[u8]>,
    },
    /// The peer does not answer.
    #[error("the peer does not answer")]
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable,
    /// The connection ended before it was used.
    #[error("the connection is over")]
    Over,
    /// The peer's request is invalid: for example, it has no addresses, or the code of its MTU is unknown.
    #[error("the peer's request makes no sense")]
    Malformed,
    /// A depth larger than [`EndOptions`](crate::cm::EndOptions) allows.
    #[error("{0} reads at once, the device has 128")]
    Depth(u8),
    /// The descriptor for events cannot be had.
    #[error(transparent)]
    Events(#[from] io::Error),
}

impl From<CmError> for ConnectError {
    fn from(error: CmError) -> Self {
        match error {
            CmError::PrivateData(error) => Self::PrivateData(error),
            error => Self::Cm(error),
        }
    }
}
