//! The invariant CRC: it covers the part of a packet that no switch or router may change (IBTA 7.8.1, RoCEv2
//! A17.3.3).
//!
//! It is the CRC-32 of Ethernet over eight octets of ones (for InfiniBand's local route header), the headers
//! from IP on with the fields that change in transit replaced by ones, and everything from BTH to the pad. It
//! stands behind the pad, least significant octet first.
//!
//! `transport` here is always BTH to ICRC, the slice that [`Packet::parse`](crate::Packet::parse) takes; its
//! last four octets are not hashed.

mod checker;
mod solve;

pub use checker::{IcrcChecker, Verdict};
pub use solve::{IdSolver, solve_id};

use crc32fast::Hasher;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::flow::IpHeader;
use crate::opcode::{BTH_LEN, ICRC_LEN};
use crate::{Flow, RoceVersion, view};

/// Offset of the masked octet in a BTH.
const BTH_ECN: usize = 4;

/// Computes the ICRC that a packet of `flow` must carry. `ip_id` is ignored over IPv6.
pub fn compute(flow: &Flow, ip_id: u16, transport: &[u8]) -> u32 {
    Prefix::of_flow(flow).compute(ip_id, transport)
}

/// Whether a packet of `flow` carries its ICRC.
pub fn verify(flow: &Flow, ip_id: u16, transport: &[u8]) -> bool {
    stored(transport) == Some(compute(flow, ip_id, transport))
}

/// Writes the ICRC into the last four octets of a packet of `flow`. Shorter slices stay as they are.
pub fn seal(flow: &Flow, ip_id: u16, segment: &mut [u8]) {
    Prefix::of_flow(flow).seal(ip_id, segment);
}

/// The ICRC that a packet carries; `None` if it is too short for one.
pub fn stored(transport: &[u8]) -> Option<u32> {
    transport.last_chunk().map(|&bytes| u32::from_le_bytes(bytes))
}

/// An ICRC over octets that come in pieces, which may be split anywhere.
///
/// ```
/// # use ferroce_wire::{Flow, icrc::{self, Icrc}};
/// # let flow = Flow { source: [192, 0, 2, 1].into(), destination: [192, 0, 2, 2].into(),
/// #     source_port: 0xc000, traffic_class: 0, hop_limit: 64, link: Default::default() };
/// # let packet = [4u8; 64];
/// let mut icrc = Icrc::new(&flow, 0, packet.len());
/// icrc.update(&packet[..7]);
/// icrc.update(&packet[7..60]); // all but the ICRC itself
/// assert_eq!(icrc.finish(), icrc::compute(&flow, 0, &packet));
/// ```
#[derive(Clone, Debug)]
pub struct Icrc {
    hasher: Hasher,
    /// Octets hashed from BTH on, counted up to the end of the BTH.
    offset: usize,
}

impl Icrc {
    /// Starts a packet of `flow` with `transport_len` octets from BTH to ICRC.
    pub fn new(flow: &Flow, ip_id: u16, transport_len: usize) -> Self {
        Prefix::of_flow(flow).begin(ip_id, transport_len)
    }

    /// Adds the next octets, from BTH to pad.
    pub fn update(&mut self, mut octets: &[u8]) {
        if self.offset < BTH_LEN {
            let (head, rest) = octets.split_at(octets.len().min(BTH_LEN - self.offset));
            let mut bth = [0; BTH_LEN];
            if let Some(copy) = bth.get_mut(..head.len()) {
                copy.copy_from_slice(head);
                if let Some(ecn) = BTH_ECN.checked_sub(self.offset).and_then(|at| copy.get_mut(at)) {
                    *ecn = 0xff;
                }
                self.hasher.update(copy);
            }
            self.offset += head.len();
            octets = rest;
        }
        self.hasher.update(octets);
    }

    /// Returns the ICRC.
    pub fn finish(self) -> u32 {
        self.hasher.finalize()
    }
}

/// The masked headers up to and including the BTH, which are hashed first. Within one flow they differ only
/// in ID, lengths and BTH.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prefix {
    V2Ipv4(Masked<view::Ipv4, view::Udp>),
    V2Ipv6(Masked<view::Ipv6, view::Udp>),
    V1(Masked<view::Ipv6, ()>),
}

/// The pseudo header as it is hashed.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Masked<Network, Udp> {
    /// Ones in place of the local route header.
    lrh: [u8; 8],
    network: Network,
    udp: Udp,
    bth: view::Bth,
}

impl Prefix {
    pub(crate) fn of_flow(flow: &Flow) -> Self {
        if flow.link.version == RoceVersion::V1 {
            return Self::of_grh(&flow.grh().header(0));
        }
        let (ip, udp) = flow.headers(0, 0);
        Self::of_headers(&ip, &udp)
    }

    /// Builds the prefix from received headers; ID and lengths are set later.
    pub(crate) fn of_headers(ip: &IpHeader, udp: &view::Udp) -> Self {
        let udp = view::Udp { checksum: 0xffff.into(), ..*udp };
        match ip {
            IpHeader::V4(ip) => {
                let ip = view::Ipv4 { tos: 0xff, ttl: 0xff, checksum: 0xffff.into(), ..*ip };
                Self::V2Ipv4(Masked::new(ip, udp))
            }
            IpHeader::V6(ip) => Self::V2Ipv6(Masked::new(mask_ipv6(ip), udp)),
        }
    }

    pub(crate) fn of_grh(grh: &view::Ipv6) -> Self {
        Self::V1(Masked::new(mask_ipv6(grh), ()))
    }

    /// Sets the fields that differ between packets. No packet is longer than 65535 octets: above that the
    /// result has no meaning.
    fn set(&mut self, ip_id: u16, transport_len: usize) {
        let transport_len = transport_len as u16;
        let udp_len = transport_len.wrapping_add(size_of::<view::Udp>() as u16);
        match self {
            Self::V2Ipv4(masked) => {
                masked.network.total_len = udp_len.wrapping_add(size_of::<view::Ipv4>() as u16).into();
                masked.network.id = ip_id.into();
                masked.udp.len = udp_len.into();
            }
            Self::V2Ipv6(masked) => {
                masked.network.payload_len = udp_len.into();
                masked.udp.len = udp_len.into();
            }
            Self::V1(masked) => masked.network.payload_len = transport_len.into(),
        }
    }

    /// The octets that are hashed first, with the BTH from [`Prefix::set_bth`].
    fn octets(&self) -> &[u8] {
        match self {
            Self::V2Ipv4(masked) => masked.as_bytes(),
            Self::V2Ipv6(masked) => masked.as_bytes(),
            Self::V1(masked) => masked.as_bytes(),
        }
    }

    fn set_bth(&mut self, bth: &[u8; BTH_LEN]) {
        let bth = view::Bth { ecn: 0xff, ..zerocopy::transmute!(*bth) };
        match self {
            Self::V2Ipv4(masked) => masked.bth = bth,
            Self::V2Ipv6(masked) => masked.bth = bth,
            Self::V1(masked) => masked.bth = bth,
        }
    }

    fn begin(mut self, ip_id: u16, transport_len: usize) -> Icrc {
        self.set(ip_id, transport_len);
        let before_bth = self.octets().split_last_chunk::<BTH_LEN>().map_or(&[][..], |(before, _)| before);
        let mut hasher = Hasher::new();
        hasher.update(before_bth);
        Icrc { hasher, offset: 0 }
    }

    /// Hashes a whole packet: prefix and BTH in one run, the rest in another.
    pub(crate) fn compute(mut self, ip_id: u16, transport: &[u8]) -> u32 {
        let hashed = transport.split_last_chunk::<ICRC_LEN>().map_or(transport, |(hashed, _)| hashed);
        let Some((bth, rest)) = hashed.split_first_chunk::<BTH_LEN>() else {
            let mut icrc = self.begin(ip_id, transport.len());
            icrc.update(hashed);
            return icrc.finish();
        };
        self.set(ip_id, transport.len());
        self.set_bth(bth);
        let mut hasher = Hasher::new();
        hasher.update(self.octets());
        hasher.update(rest);
        hasher.finalize()
    }

    pub(crate) fn seal(self, ip_id: u16, segment: &mut [u8]) {
        let icrc = self.compute(ip_id, segment);
        if let Some(end) = segment.last_chunk_mut::<ICRC_LEN>() {
            *end = icrc.to_le_bytes();
        }
    }
}

/// The CRC of the octets before the BTH, which packets of one flow and length share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    flow: Flow,
    transport_len: usize,
    /// The CRC with ID 0.
    crc: u32,
}

impl Start {
    pub(crate) fn new(flow: &Flow, transport_len: usize) -> Self {
        let crc = Prefix::of_flow(flow).begin(0, transport_len).finish();
        Self { flow: *flow, transport_len, crc }
    }

    fn with_id(&self, ip_id: u16) -> Hasher {
        let change = if ip_id != 0 && self.flow.is_ipv4() { solve::id_change(ip_id) } else { 0 };
        Hasher::new_with_initial(self.crc ^ change)
    }

    /// As [`seal`], in one run over the segment, which has this length.
    pub(crate) fn seal(&self, ip_id: u16, segment: &mut [u8]) {
        let Some((hashed, end)) = segment.split_last_chunk_mut::<ICRC_LEN>() else { return };
        let mut hasher = self.with_id(ip_id);
        // The octet is masked in place while it is hashed.
        let ecn = hashed.get_mut(BTH_ECN).map(|ecn| core::mem::replace(ecn, 0xff));
        hasher.update(hashed);
        if let (Some(to), Some(ecn)) = (hashed.get_mut(BTH_ECN), ecn) {
            *to = ecn;
        }
        *end = hasher.finalize().to_le_bytes();
    }

    /// As [`compute`] with ID 0, in one run over a packet of this length. `mask_change` belongs to this
    /// length. `None`: BTH octet 4 is not 0, so it is wrong here.
    fn compute(&self, transport: &[u8], mask_change: u32) -> Option<u32> {
        let (hashed, _) = transport.split_last_chunk::<ICRC_LEN>()?;
        if *hashed.get(BTH_ECN)? != 0 {
            return None;
        }
        let mut hasher = self.with_id(0);
        hasher.update(hashed);
        Some(hasher.finalize() ^ mask_change)
    }
}

/// The CRCs before the BTH of the last few packets, by length: a request and its acknowledgement alternate,
/// and hashing the common headers costs more than the rest of a short packet. The caller keeps them from
/// batch to batch.
#[derive(Clone, Debug, Default)]
pub struct Starts {
    of_length: [Option<Start>; Self::KEPT],
}

impl Starts {
    /// Lengths kept. A packet's length is a multiple of four, so this number of neighbours do not displace
    /// each other.
    const KEPT: usize = 8;

    /// Creates an empty cache.
    pub const fn new() -> Self {
        Self { of_length: [None; Self::KEPT] }
    }

    /// The entry for a packet, computed if it is missing.
    pub(crate) fn of(&mut self, flow: &Flow, transport_len: usize) -> Start {
        let Some(kept) = self.of_length.get_mut(transport_len / 4 % Self::KEPT) else {
            return Start::new(flow, transport_len);
        };
        match kept {
            Some(start) if start.transport_len == transport_len && start.flow == *flow => *start,
            _ => *kept.insert(Start::new(flow, transport_len)),
        }
    }
}

impl<Network, Udp> Masked<Network, Udp> {
    fn new(network: Network, udp: Udp) -> Self {
        Self { lrh: [0xff; 8], network, udp, bth: view::Bth::default() }
    }
}

fn mask_ipv6(ip: &view::Ipv6) -> view::Ipv6 {
    view::Ipv6 { word0: 0x6fff_ffff.into(), hop_limit: 0xff, ..*ip }
}

#[cfg(test)]
mod tests;
