//! Memory of a peer.

use ferroce_engine::Remote;
use ferroce_wire::Rkey;

/// A location in the peer's memory, as received from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Address of the memory at the peer.
    pub addr: u64,
    /// The peer's key.
    pub rkey: Rkey,
}

impl From<RemoteMemory> for Remote {
    fn from(RemoteMemory { addr, rkey }: RemoteMemory) -> Self {
        Self { addr, rkey }
    }
}
