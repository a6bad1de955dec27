//! The parameters of a connection.

use ferroce_wire::{Gid, PathMtu, Psn, Qpn};

use crate::Error;
use crate::declare::setters;
use crate::error::Cause;

/// The address of a connection's end: transfer it to the other end by any means, for example as
/// [`Self::to_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address {
    /// The destination GID of packets to this end.
    pub gid: Gid,
    /// The destination queue pair of packets to this end.
    pub qpn: Qpn,
    /// Number of the first packet this end sends; chosen at random.
    pub psn: Psn,
    /// Largest path MTU of this end: the port's active MTU.
    pub mtu: PathMtu,
    /// Index of `gid` in this end's GID table. It is local, and [`Self::to_bytes`] omits it.
    pub gid_index: u8,
}

impl Address {
    /// Octets of [`Self::to_bytes`].
    pub const LEN: usize = 24;
    /// The first octet: the version of the layout.
    const LAYOUT: u8 = 1;

    /// Creates the address of the other end from what it sent in a layout of its own.
    pub fn new(gid: Gid, qpn: Qpn, psn: Psn, mtu: PathMtu) -> Self {
        Self { gid, qpn, psn, mtu, gid_index: 0 }
    }

    /// The facts that the other end needs, with numbers in network byte order:
    ///
    /// | octets | content |
    /// |---|---|
    /// | 0 | layout: 1 |
    /// | 1 to 16 | GID |
    /// | 17 to 19 | queue pair number |
    /// | 20 to 22 | first PSN |
    /// | 23 | largest path MTU: code 1 (256 octets) to 5 (4096), as in `ibv_mtu` |
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [Self::LAYOUT; Self::LEN];
        bytes[1..17].copy_from_slice(&self.gid.0);
        bytes[17..20].copy_from_slice(&self.qpn.value().to_be_bytes()[1..]);
        bytes[20..23].copy_from_slice(&self.psn.value().to_be_bytes()[1..]);
        bytes[23] = self.mtu as u8;
        bytes
    }

    /// Parses the octets of the other end's [`Self::to_bytes`]. Its `gid_index` is 0.
    ///
    /// # Errors
    ///
    /// [`Peer::Malformed`](crate::error::Peer::Malformed) for another layout or an unknown MTU.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, Error> {
        let [layout, rest @ .., mtu] = bytes;
        if *layout != Self::LAYOUT {
            return Err(Cause::Layout(*layout).into());
        }
        let number = |at: usize| u32::from_be_bytes([0, rest[at], rest[at + 1], rest[at + 2]]);
        let mut gid = Gid([0; 16]);
        gid.0.copy_from_slice(&rest[..16]);
        let mtu = PathMtu::try_from(*mtu).map_err(|_| Cause::Mtu(*mtu))?;
        Ok(Self::new(gid, Qpn::new(number(16)), Psn::new(number(19)), mtu))
    }
}

/// A connection as this end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connection {
    /// This end.
    pub local: Address,
    /// The other end.
    pub remote: Address,
    /// Payload of a full packet; both ends must use the same.
    pub path_mtu: PathMtu,
    /// READs and atomics of the peer's that may be in flight, at most 128.
    pub max_dest_rd_atomic: u8,
    /// The time that the peer waits after an RNR NAK: code 0 to 31 of IBTA table 45; 12 is 0.64 ms.
    pub min_rnr_timer: u8,
    /// DSCP and ECN bits of our packets.
    pub traffic_class: u8,
    /// TTL of our packets; 0 means 64.
    pub hop_limit: u8,
}

impl Connection {
    /// Returns the usual values: the largest path MTU of both ends, 16 READs, RNR timer 12.
    pub fn to(local: Address, remote: Address) -> Self {
        Self {
            local,
            remote,
            path_mtu: local.mtu.min(remote.mtu),
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            traffic_class: 0,
            hop_limit: 64,
        }
    }
}

setters! {
    Connection {
        path_mtu: PathMtu,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        traffic_class: u8,
        hop_limit: u8,
    }
}

/// Parameters of the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendOptions {
    /// Local ACK timeout: 4.096 µs × 2^n, at most 31; 0 disables it. 14 is 67 ms.
    pub timeout: u8,
    /// Retries before the connection fails, 0 to 7.
    pub retry_cnt: u8,
    /// Retries while the peer has no receive posted, 0 to 6; 7 is unlimited.
    pub rnr_retry: u8,
    /// READs and atomics of ours that may be in flight, at most 128 and no more than the peer permits.
    pub max_rd_atomic: u8,
}

impl Default for SendOptions {
    /// 67 ms, 7 retries, unlimited RNR retries, 16 READs.
    fn default() -> Self {
        Self { timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 16 }
    }
}

setters! { SendOptions { timeout: u8, retry_cnt: u8, rnr_retry: u8, max_rd_atomic: u8, } }

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::error::{ErrorKind, Peer};

    fn address() -> Address {
        let gid = Gid(*b"0123456789abcdef");
        let (qpn, psn) = (Qpn::new(0x12_3456), Psn::new(0xab_cdef));
        Address { gid, qpn, psn, mtu: PathMtu::B2048, gid_index: 7 }
    }

    #[test]
    fn an_address_as_octets() {
        let bytes = address().to_bytes();
        assert_eq!(&bytes, b"\x010123456789abcdef\x12\x34\x56\xab\xcd\xef\x04");
        assert_eq!(Address::from_bytes(&bytes).unwrap(), Address { gid_index: 0, ..address() });
        let changed = |at: usize, to: u8| {
            let mut bytes = bytes;
            bytes[at] = to;
            Address::from_bytes(&bytes).unwrap_err()
        };
        for (error, source) in [
            (changed(0, 2), "octets of the unknown layout 2"),
            (changed(23, 0), "0 is no path MTU: 1 (256 octets) to 5 (4096)"),
            (changed(23, 6), "6 is no path MTU: 1 (256 octets) to 5 (4096)"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Peer(Peer::Malformed));
            assert_eq!(error.source().unwrap().to_string(), source);
        }
    }

    /// Both ends of a connection use one path MTU, so both must compute the same from the exchanged
    /// addresses.
    #[test]
    fn both_ends_choose_the_same_mtu() {
        let (large, small) = (Address { mtu: PathMtu::B4096, ..address() }, address());
        for (local, remote) in [(large, small), (small, large)] {
            assert_eq!(Connection::to(local, remote).path_mtu, PathMtu::B2048);
        }
        assert_eq!(Connection::to(large, large).path_mtu, PathMtu::B4096);
    }
}
