//! Where a packet comes from and goes to.

use core::net::IpAddr;

/// UDP destination port of RoCEv2 (RoCEv2 A17.4.3).
pub const ROCE_UDP_PORT: u16 = 4791;

/// Addressing of one direction of RoCEv2. Both addresses are of one family; the destination port is always
/// [`ROCE_UDP_PORT`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// Local address.
    pub source: IpAddr,
    /// Peer's address.
    pub destination: IpAddr,
    /// UDP source port: entropy for ECMP and the receiver's steering. Covered by the ICRC.
    pub source_port: u16,
    /// DSCP in the upper six bits, ECN in the lower two. Not covered by the ICRC.
    pub traffic_class: u8,
    /// TTL or hop limit. Not covered by the ICRC.
    pub hop_limit: u8,
}
