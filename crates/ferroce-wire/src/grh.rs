//! The global route header of RoCEv1.

use crate::{Gid, view};

/// Global route header: RoCEv1 has it in place of IP and UDP (IBTA 8.3). It contains IPv4 GIDs in their
/// mapped form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grh {
    /// Not covered by the ICRC.
    pub traffic_class: u8,
    /// 20 bits; not covered by the ICRC.
    pub flow_label: u32,
    /// Not covered by the ICRC.
    pub hop_limit: u8,
    /// The sender's GID.
    pub source: Gid,
    /// The receiver's GID.
    pub destination: Gid,
}

impl Grh {
    /// Octets of the header.
    pub const LEN: usize = 40;
    /// Next header: a BTH follows.
    pub const NEXT_HEADER: u8 = 0x1b;

    /// The header before `transport_len` octets from BTH to ICRC.
    pub fn header(&self, transport_len: u16) -> view::Ipv6 {
        let word0 = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xf_ffff);
        view::Ipv6 {
            word0: word0.into(),
            payload_len: transport_len.into(),
            next_header: Self::NEXT_HEADER,
            hop_limit: self.hop_limit,
            source: self.source.0,
            destination: self.destination.0,
        }
    }
}

impl From<view::Ipv6> for Grh {
    /// Version, length and next header are not checked.
    fn from(raw: view::Ipv6) -> Self {
        let word0 = raw.word0.get();
        Self {
            traffic_class: (word0 >> 20) as u8,
            flow_label: word0 & 0xf_ffff,
            hop_limit: raw.hop_limit,
            source: Gid(raw.source),
            destination: Gid(raw.destination),
        }
    }
}
