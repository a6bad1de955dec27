//! Errors of connection management.

use ferroce_wire::cm::{CommId, ServiceId};
use ferroce_wire::mad::MadError;

/// A command failed and changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmError {
    /// No connection, SIDR request or pending request has this id.
    #[error("no connection {0:?}")]
    UnknownId(CommId),
    /// The state of the connection does not allow this command.
    #[error("a connection in state {0} does not do this")]
    State(&'static str),
    /// Another listener uses it, or a peer-to-peer REQ to the same peer for the same service is outstanding.
    #[error("{0:?} is in use")]
    InUse(ServiceId),
    /// The owner, or all owners together, have reached the limit.
    #[error("all {0} connections are in use")]
    Full(usize),
}

/// The reason why a MAD had no effect beyond an answer; used for counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmDropReason {
    /// The MAD is no CM message.
    #[error("no CM message")]
    Malformed(#[source] MadError),
    /// The message has a value that no sender may use: an id of 0, or an invalid IP CM header.
    #[error("invalid message")]
    Invalid,
    /// The message was handled before; it is answered again where that helps the peer.
    #[error("duplicate")]
    Duplicate,
    /// The message names an unknown connection.
    #[error("unknown communication id")]
    UnknownId,
    /// The message names a connection, but is not from its peer.
    #[error("not from the peer")]
    WrongPeer,
    /// The connection's state does not expect this message.
    #[error("unexpected in this state")]
    State,
    /// The listener's backlog or another limit is reached, or too many connections ended as stale recently;
    /// the peer retries.
    #[error("no room for another request")]
    Backlog,
    /// The request was refused with a REJ or a SIDR_REP.
    #[error("refused")]
    Refused,
}

impl CmDropReason {
    /// The names of the counters, in their order.
    pub const NAMES: [&'static str; 8] =
        ["malformed", "invalid", "duplicate", "unknown_id", "wrong_peer", "state", "backlog", "refused"];

    /// The index of the counter for this reason.
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

/// The reason why a record was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImportError {
    /// The record is not one that `export` writes, or it contradicts itself.
    #[error("no record of a connection")]
    Invalid,
    /// The record belongs to another owner.
    #[error("the record's communication id belongs to another owner")]
    Owner,
    /// The id or the remote queue pair is in use.
    #[error("the record's communication id or remote queue pair is in use")]
    InUse,
    /// The limit of connections is reached.
    #[error("all {0} connections are in use")]
    Full(usize),
}
