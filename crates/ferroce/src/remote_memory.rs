//! The peer's memory.

use ferroce_wire::Rkey;

use crate::Error;
use crate::error::Cause;

/// Memory of a peer, for READ, WRITE and atomics: an address and its key. Transfer it by any means, for
/// example as [`Self::to_bytes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteMemory {
    /// Address of the first octet, in the address space of the key.
    pub addr: u64,
    /// The key.
    pub rkey: Rkey,
}

impl RemoteMemory {
    /// Octets of [`Self::to_bytes`].
    pub const LEN: usize = 13;
    /// The first octet: the version of the layout.
    const LAYOUT: u8 = 1;

    /// Address and key for the other end, with numbers in network byte order:
    ///
    /// | octets | content |
    /// |---|---|
    /// | 0 | layout: 1 |
    /// | 1 to 8 | address |
    /// | 9 to 12 | key |
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [Self::LAYOUT; Self::LEN];
        bytes[1..9].copy_from_slice(&self.addr.to_be_bytes());
        bytes[9..].copy_from_slice(&self.rkey.value().to_be_bytes());
        bytes
    }

    /// Parses the octets of the other end's [`Self::to_bytes`].
    ///
    /// # Errors
    ///
    /// [`Peer::Malformed`](crate::error::Peer::Malformed) for another layout.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, Error> {
        let [layout, a0, a1, a2, a3, a4, a5, a6, a7, key @ ..] = *bytes;
        if layout != Self::LAYOUT {
            return Err(Cause::Layout(layout).into());
        }
        let addr = u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        Ok(Self { addr, rkey: Rkey::new(u32::from_be_bytes(key)) })
    }

    pub(crate) const fn engine(self) -> ferroce_engine::Remote {
        ferroce_engine::Remote { addr: self.addr, rkey: self.rkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, Peer};

    #[test]
    fn memory_as_octets() {
        let memory = RemoteMemory { addr: 0x0102_0304_0506_0708, rkey: Rkey::new(0x0a0b_0c0d) };
        let mut bytes = memory.to_bytes();
        assert_eq!(bytes, [1, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13]);
        assert_eq!(RemoteMemory::from_bytes(&bytes).unwrap(), memory);
        bytes[0] = 2;
        let error = RemoteMemory::from_bytes(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Peer(Peer::Malformed));
    }
}
