//! What can go wrong in connection management.

use ferroce_wire::cm::{CommId, ServiceId};
use ferroce_wire::mad::MadError;

/// Why a command changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmError {
    /// No connection, question or request of this id.
    #[error("no connection {0:?}")]
    UnknownId(CommId),
    /// Its state does not allow this.
    #[error("a connection in state {0} does not do this")]
    State(&'static str),
    /// Somebody listens there, or asks the same peer for the same service.
    #[error("{0:?} is in use")]
    InUse(ServiceId),
    /// As many connections as there may be, of this owner or of all.
    #[error("all {0} connections are in use")]
    Full(usize),
}

/// Why a MAD had no effect beyond an answer. These are for counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmDropReason {
    /// No message of the CM.
    #[error("no CM message")]
    Malformed(#[source] MadError),
    /// A value that no sender of the message may have: an id of 0, an IP CM header that is none.
    #[error("invalid message")]
    Invalid,
    /// It was handled before, and answered again where that helps the peer.
    #[error("duplicate")]
    Duplicate,
    /// Names a connection that there is not.
    #[error("unknown communication id")]
    UnknownId,
    /// Names a connection, but is not from its peer.
    #[error("not from the peer")]
    WrongPeer,
    /// The connection's state has no use for it.
    #[error("unexpected in this state")]
    State,
    /// The listener's backlog, or a limit, is full, or too many connections ended as stale of late; the peer tries again.
    #[error("no room for another request")]
    Backlog,
    /// Refused with a REJ or a SIDR_REP.
    #[error("refused")]
    Refused,
}

impl CmDropReason {
    /// Names of the counters, in their order.
    pub const NAMES: [&'static str; 8] =
        ["malformed", "invalid", "duplicate", "unknown_id", "wrong_peer", "state", "backlog", "refused"];

    /// Which of the counters counts it.
    pub(super) const fn place(self) -> usize {
        match self {
            Self::Malformed(_) => 0,
            Self::Invalid => 1,
            Self::Duplicate => 2,
            Self::UnknownId => 3,
            Self::WrongPeer => 4,
            Self::State => 5,
            Self::Backlog => 6,
            Self::Refused => 7,
        }
    }
}

/// Why a record was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImportError {
    /// Not what `export` writes, or it contradicts itself.
    #[error("no record of a connection")]
    Invalid,
    /// Of another owner.
    #[error("the record's communication id belongs to another owner")]
    Owner,
    /// The id, or the remote queue pair, is in use.
    #[error("the record's communication id or remote queue pair is in use")]
    InUse,
    /// As many connections as there may be.
    #[error("all {0} connections are in use")]
    Full(usize),
}
