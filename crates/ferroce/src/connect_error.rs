//! The error of connecting by IP address.

use std::io;

use ferroce_engine::cm::CmError;
use ferroce_engine::cm::resolve::ResolveError;
use ferroce_wire::cm::{PrivateDataTooLong, RejReason, SidrStatus};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Cm(CmError),
    /// No device reaches the address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
    #[error("the peer refused: {reason}")]
    Rejected { reason: RejReason, private: Box<[u8]> },
    /// The peer named no queue pair for datagrams.
    #[error("the peer refused: {status}")]
    Refused { status: SidrStatus, private: Box<[u8]> },
    #[error("the peer does not answer")]
    Unreachable,
    #[error("the connection is over")]
    Over,
    /// The peer's request has no addresses, or an unknown code of its MTU.
    #[error("the peer's request makes no sense")]
    Malformed,
    /// More READs and atomics at once than the device has.
    #[error("{given} reads at once, the device has {max}")]
    Depth { given: u8, max: u8 },
    /// The descriptor for events failed.
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
