//! The invariant CRC: what of a packet no switch or router may change (IBTA 7.8.1, RoCEv2 A17.3.3).
//!
//! It is the CRC-32 of Ethernet over eight octets of ones (for InfiniBand's local route header), the headers from IP
//! on with the fields that change in transit replaced by ones, and everything from BTH to the pad. It stands behind the
//! pad, least significant octet first.
//!
//! `transport` here is always BTH to ICRC, the slice that [`Packet::parse`](crate::Packet::parse) takes; its last four
//! octets are not hashed.

mod solve;
mod tracker;

pub use solve::{IdSolver, solve_id};
pub use tracker::{IdState, IdTracker, IdVerdict, SourceTable, Verdict};

use core::net::IpAddr;

use crc32fast::Hasher;
use zerocopy::IntoBytes;

use crate::flow::{IpHeader, mapped};
use crate::opcode::{BTH_LEN, ICRC_LEN};
use crate::{Flow, Grh, ROCE_UDP_PORT, view};

/// Where the masked octet of a BTH lies.
const BTH_ECN: usize = 4;
/// Octets of ones before the headers.
const LRH_LEN: usize = 8;
const IPV4_LEN: usize = size_of::<view::Ipv4>();
const IPV6_LEN: usize = size_of::<view::Ipv6>();
const UDP_LEN: usize = size_of::<view::Udp>();
const PREFIX_MAX: usize = LRH_LEN + IPV6_LEN + UDP_LEN;

/// The ICRC that a packet of `flow` must carry. `ip_id` means nothing over IPv6.
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

/// As [`compute`], for RoCEv1.
pub fn compute_v1(grh: &Grh, transport: &[u8]) -> u32 {
    Prefix::of_grh(&grh.header(0)).compute(0, transport)
}

/// As [`verify`], for RoCEv1.
pub fn verify_v1(grh: &Grh, transport: &[u8]) -> bool {
    stored(transport) == Some(compute_v1(grh, transport))
}

/// As [`seal`], for RoCEv1.
pub fn seal_v1(grh: &Grh, segment: &mut [u8]) {
    Prefix::of_grh(&grh.header(0)).seal(0, segment);
}

/// The ICRC that a packet carries; `None` if it is too short for one.
pub fn stored(transport: &[u8]) -> Option<u32> {
    transport.last_chunk().map(|&bytes| u32::from_le_bytes(bytes))
}

/// An ICRC under way, over octets that come in pieces. Cuts may lie anywhere.
///
/// ```
/// # use ferroce_wire::{Flow, icrc::{self, Icrc}};
/// # let flow = Flow { source: [192, 0, 2, 1].into(), destination: [192, 0, 2, 2].into(), source_port: 0xc000,
/// #     traffic_class: 0, hop_limit: 64 };
/// # let packet = [4u8; 64];
/// let mut icrc = Icrc::new(&flow, 0, packet.len());
/// icrc.update(&packet[..7]);
/// icrc.update(&packet[7..60]); // all but the ICRC itself
/// assert_eq!(icrc.finish(), icrc::compute(&flow, 0, &packet));
/// ```
#[derive(Clone, Debug)]
pub struct Icrc {
    hasher: Hasher,
    /// Octets from BTH on that were hashed, counted up to the end of the BTH.
    offset: usize,
}

impl Icrc {
    /// Begins a packet of `flow` that takes `transport_len` octets from BTH to ICRC.
    pub fn new(flow: &Flow, ip_id: u16, transport_len: usize) -> Self {
        Prefix::of_flow(flow).begin(ip_id, transport_len)
    }

    /// Begins a packet of RoCEv1.
    pub fn new_v1(grh: &Grh, transport_len: usize) -> Self {
        Prefix::of_grh(&grh.header(0)).begin(0, transport_len)
    }

    /// The next octets, BTH to pad.
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

    /// The ICRC.
    pub fn finish(self) -> u32 {
        self.hasher.finalize()
    }
}

/// Everything that is hashed before the BTH. Packets of one flow differ here only in ID and lengths.
#[derive(Clone, Debug)]
pub(crate) struct Prefix {
    /// Ones, IP or GRH, UDP: masked.
    bytes: [u8; PREFIX_MAX],
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    V2Ipv4,
    V2Ipv6,
    V1,
}

impl Prefix {
    pub(crate) fn of_flow(flow: &Flow) -> Self {
        let udp = view::Udp {
            source_port: flow.source_port.into(),
            destination_port: ROCE_UDP_PORT.into(),
            len: 0.into(),
            checksum: 0.into(),
        };
        match (flow.source, flow.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Self::of_ipv4(
                &view::Ipv4 {
                    version_ihl: 0x45,
                    fragment: 0x4000.into(),
                    protocol: crate::flow::PROTOCOL_UDP,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Default::default()
                },
                &udp,
            ),
            (source, destination) => Self::of_ipv6(
                &view::Ipv6 {
                    next_header: crate::flow::PROTOCOL_UDP,
                    source: mapped(source).octets(),
                    destination: mapped(destination).octets(),
                    ..Default::default()
                },
                &udp,
            ),
        }
    }

    /// Of headers as they were received; lengths and ID are put in later.
    pub(crate) fn of_headers(ip: &IpHeader, udp: &view::Udp) -> Self {
        match ip {
            IpHeader::V4(ip) => Self::of_ipv4(ip, udp),
            IpHeader::V6(ip) => Self::of_ipv6(ip, udp),
        }
    }

    fn of_ipv4(ip: &view::Ipv4, udp: &view::Udp) -> Self {
        let masked = view::Ipv4 { tos: 0xff, ttl: 0xff, checksum: 0xffff.into(), ..*ip };
        Self::build(Kind::V2Ipv4, masked.as_bytes(), udp)
    }

    fn of_ipv6(ip: &view::Ipv6, udp: &view::Udp) -> Self {
        Self::build(Kind::V2Ipv6, mask_ipv6(ip).as_bytes(), udp)
    }

    pub(crate) fn of_grh(grh: &view::Ipv6) -> Self {
        Self::build(Kind::V1, mask_ipv6(grh).as_bytes(), &view::Udp::default())
    }

    fn build(kind: Kind, network: &[u8], udp: &view::Udp) -> Self {
        let mut bytes = [0xff; PREFIX_MAX];
        let udp = view::Udp { checksum: 0xffff.into(), ..*udp };
        let headers = network.iter().chain(udp.as_bytes());
        bytes.iter_mut().skip(LRH_LEN).zip(headers).for_each(|(to, from)| *to = *from);
        Self { bytes, kind }
    }

    /// Octets that are hashed before the BTH.
    const fn len(&self) -> usize {
        match self.kind {
            Kind::V2Ipv4 => LRH_LEN + IPV4_LEN + UDP_LEN,
            Kind::V2Ipv6 => LRH_LEN + IPV6_LEN + UDP_LEN,
            Kind::V1 => LRH_LEN + IPV6_LEN,
        }
    }

    /// The prefix of one packet, and room for its BTH.
    fn of_packet(&self, ip_id: u16, transport_len: usize) -> [u8; PREFIX_MAX + BTH_LEN] {
        let mut buf = [0; PREFIX_MAX + BTH_LEN];
        if let Some(prefix) = buf.first_chunk_mut() {
            *prefix = self.bytes;
        }
        // Longer packets than 65535 octets do not exist; callers get the ICRC of nonsense for nonsense.
        let transport_len = transport_len as u16;
        let udp_len = transport_len.wrapping_add(UDP_LEN as u16);
        match self.kind {
            Kind::V2Ipv4 => {
                [buf[10], buf[11]] = udp_len.wrapping_add(IPV4_LEN as u16).to_be_bytes();
                [buf[12], buf[13]] = ip_id.to_be_bytes();
                [buf[32], buf[33]] = udp_len.to_be_bytes();
            }
            Kind::V2Ipv6 => {
                [buf[12], buf[13]] = udp_len.to_be_bytes();
                [buf[52], buf[53]] = udp_len.to_be_bytes();
            }
            Kind::V1 => [buf[12], buf[13]] = transport_len.to_be_bytes(),
        }
        buf
    }

    fn begin(&self, ip_id: u16, transport_len: usize) -> Icrc {
        let mut hasher = Hasher::new();
        hasher.update(self.of_packet(ip_id, transport_len).get(..self.len()).unwrap_or_default());
        Icrc { hasher, offset: 0 }
    }

    /// Over a whole packet: prefix and BTH in one run, the rest in another.
    pub(crate) fn compute(&self, ip_id: u16, transport: &[u8]) -> u32 {
        let hashed = transport.split_last_chunk::<ICRC_LEN>().map_or(transport, |(hashed, _)| hashed);
        let Some((bth, rest)) = hashed.split_first_chunk::<BTH_LEN>() else {
            let mut icrc = self.begin(ip_id, transport.len());
            icrc.update(hashed);
            return icrc.finish();
        };
        let mut buf = self.of_packet(ip_id, transport.len());
        let mut hasher = Hasher::new();
        if let Some(buf) = buf.get_mut(..self.len() + BTH_LEN) {
            if let Some(end) = buf.last_chunk_mut::<BTH_LEN>() {
                *end = *bth;
                end[BTH_ECN] = 0xff;
            }
            hasher.update(buf);
        }
        hasher.update(rest);
        hasher.finalize()
    }

    pub(crate) fn seal(&self, ip_id: u16, segment: &mut [u8]) {
        let icrc = self.compute(ip_id, segment);
        if let Some(end) = segment.last_chunk_mut::<ICRC_LEN>() {
            *end = icrc.to_le_bytes();
        }
    }
}

const fn mask_ipv6(ip: &view::Ipv6) -> view::Ipv6 {
    view::Ipv6 {
        word0: zerocopy::byteorder::network_endian::U32::from_bytes([0x6f, 0xff, 0xff, 0xff]),
        hop_limit: 0xff,
        ..*ip
    }
}

#[cfg(test)]
mod tests;
