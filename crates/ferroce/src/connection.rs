//! What two ends must know of each other.

use ferroce_wire::{Gid, PathMtu, Psn, Qpn};

/// One end of a connection: give it to the other end by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Where packets go.
    pub gid: Gid,
    /// Which queue pair they are for.
    pub qpn: Qpn,
    /// Number of the first packet this end sends; chosen at random.
    pub psn: Psn,
    /// Place of `gid` in this end's own GID table; means nothing to the other end.
    pub gid_index: u8,
}

/// A connection as this end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// This end.
    pub local: Address,
    /// The other end.
    pub remote: Address,
    /// Payload of a full packet; both ends must say the same.
    pub path_mtu: PathMtu,
    /// READs and atomics of the peer's that may be in flight, at most 128.
    pub max_dest_rd_atomic: u8,
    /// How long the peer shall wait when no receive is posted: code 0 to 31 of IBTA table 45; 12 is 0.64 ms.
    pub min_rnr_timer: u8,
    /// DSCP and ECN bits of our packets.
    pub traffic_class: u8,
    /// TTL of our packets; 0 means 64.
    pub hop_limit: u8,
}

impl Connection {
    /// With the usual values: path MTU 1024, 16 READs, RNR timer 12.
    pub fn to(local: Address, remote: Address) -> Self {
        Self {
            local,
            remote,
            path_mtu: PathMtu::B1024,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            traffic_class: 0,
            hop_limit: 64,
        }
    }
}

/// How the sending side treats its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendOptions {
    /// Local ACK timeout: 4.096 µs × 2^n, at most 31; 0 waits for ever. 14 is 67 ms.
    pub timeout: u8,
    /// Retries before the connection is given up, 0 to 7.
    pub retry_cnt: u8,
    /// Retries when the peer has no receive posted, 0 to 6; 7 is without end.
    pub rnr_retry: u8,
    /// READs and atomics of ours that may be in flight, at most 128 and no more than the peer admits.
    pub max_rd_atomic: u8,
}

impl Default for SendOptions {
    /// 67 ms, 7 retries, RNR without end, 16 READs.
    fn default() -> Self {
        Self { timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 16 }
    }
}
