//! Whole frames, as a capture or a packet socket contains them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::flow::{IpHeader, PROTOCOL_UDP};
use crate::icrc::{Prefix, stored};
use crate::out::Out;
use crate::{Flow, Grh, LinkLayer, ROCE_UDP_PORT, RoceVersion, WireError, view};

/// EtherType of RoCEv1.
pub const ETHERTYPE_ROCE: u16 = 0x8915;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
/// Mask of the more-fragments flag and the fragment offset.
const FRAGMENTED: u16 = 0x3fff;

/// A RoCE frame. Ethernet padding after the packet is removed; the part after the headers is not checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The Ethernet header; `None` if the bytes began with IP.
    pub ethernet: Option<Ethernet>,
    /// The headers between Ethernet and BTH.
    pub encapsulation: Encapsulation,
    /// The octets from BTH to ICRC.
    pub transport: &'a [u8],
}

/// Addresses and tag of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// The receiver's address.
    pub destination: [u8; 6],
    /// The sender's address.
    pub source: [u8; 6],
    /// 802.1Q tag control information, of the innermost tag: PCP:3 DEI:1 VID:12.
    pub vlan: Option<u16>,
}

/// The headers between Ethernet and BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encapsulation {
    /// RoCEv2, with the received IP and UDP headers.
    V2 {
        /// IPv4 or IPv6.
        ip: IpHeader,
        /// Destination port 4791.
        udp: view::Udp,
    },
    /// RoCEv1.
    V1(Grh),
}

/// The frame is not RoCE, or is incomplete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The frame ends within a header, or before the length that a header states.
    #[error("{have} octets, at least {need} needed")]
    Truncated {
        /// Octets needed.
        need: usize,
        /// Octets present.
        have: usize,
    },
    /// The frame is neither IP nor RoCEv1.
    #[error("EtherType {0:#06x}")]
    EtherType(u16),
    /// The version in the IP header or GRH differs from the EtherType's.
    #[error("IP version {0}")]
    IpVersion(u8),
    /// The IPv4 header has options.
    #[error("IPv4 header of {0} octets")]
    IpOptions(u8),
    /// The packet is a fragment: RoCEv2 packets are never fragmented.
    #[error("IPv4 fragment, flags and offset {0:#06x}")]
    Fragment(u16),
    /// The payload is not UDP, or in a GRH not a BTH.
    #[error("protocol {0}")]
    Protocol(u8),
    /// The destination port is not that of RoCEv2.
    #[error("UDP destination port {0}")]
    Port(u16),
    /// The UDP length contradicts the IP length.
    #[error("UDP length {udp} in {ip} octets of IP payload")]
    UdpLength {
        /// Length by the UDP header.
        udp: usize,
        /// Length by the IP header.
        ip: usize,
    },
}

impl<'a> Frame<'a> {
    /// Reads an Ethernet frame, with up to two VLAN tags and without FCS.
    ///
    /// # Errors
    ///
    /// Returns a [`FrameError`] if the frame is not RoCE or ends too early. Checksums of IPv4 and UDP are not
    /// verified: the ICRC covers the same octets.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let mut rest = bytes;
        let addresses: view::EthernetAddresses = take(&mut rest)?;
        let mut vlan = None;
        let mut ethertype = take::<U16>(&mut rest)?.get();
        for _ in 0..2 {
            if !matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ) {
                break;
            }
            vlan = Some(take::<U16>(&mut rest)?.get());
            ethertype = take::<U16>(&mut rest)?.get();
        }
        let (encapsulation, transport) = match ethertype {
            ETHERTYPE_IPV4 => ipv4(rest)?,
            ETHERTYPE_IPV6 => ipv6(rest)?,
            ETHERTYPE_ROCE => grh(rest)?,
            other => return Err(FrameError::EtherType(other)),
        };
        let view::EthernetAddresses { destination, source } = addresses;
        Ok(Self { ethernet: Some(Ethernet { destination, source, vlan }), encapsulation, transport })
    }

    /// Reads an IP packet; its first octet gives the version.
    ///
    /// # Errors
    ///
    /// As [`Frame::parse`].
    pub fn parse_ip(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let first = bytes.first().ok_or(FrameError::Truncated { need: 1, have: 0 })?;
        let (encapsulation, transport) = match first >> 4 {
            4 => ipv4(bytes)?,
            6 => ipv6(bytes)?,
            other => return Err(FrameError::IpVersion(other)),
        };
        Ok(Self { ethernet: None, encapsulation, transport })
    }

    /// Reads a GRH and the packet after it, as in a frame of type [`ETHERTYPE_ROCE`].
    ///
    /// # Errors
    ///
    /// As [`Frame::parse`].
    pub fn parse_grh(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (encapsulation, transport) = grh(bytes)?;
        Ok(Self { ethernet: None, encapsulation, transport })
    }

    /// Builds the frame of a packet. `ip_id` is ignored without an IPv4 header.
    pub fn new(ethernet: Option<Ethernet>, flow: &Flow, ip_id: u16, transport: &'a [u8]) -> Self {
        if flow.link.version == RoceVersion::V1 {
            return Self { ethernet, encapsulation: Encapsulation::V1(flow.grh()), transport };
        }
        let (ip, udp) = flow.headers(ip_id, transport.len());
        Self { ethernet, encapsulation: Encapsulation::V2 { ip, udp }, transport }
    }

    /// Writes the frame, without Ethernet padding. Returns the octets written.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::BufferTooSmall`]; the contents of `out` are then undefined.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let tagged = self.ethernet.is_some_and(|ethernet| ethernet.vlan.is_some());
        let ethernet = if self.ethernet.is_some() { 14 + if tagged { 4 } else { 0 } } else { 0 };
        let (ethertype, network) = match &self.encapsulation {
            Encapsulation::V2 { ip: IpHeader::V4(_), .. } => (ETHERTYPE_IPV4, 20 + 8),
            Encapsulation::V2 { ip: IpHeader::V6(_), .. } => (ETHERTYPE_IPV6, 40 + 8),
            Encapsulation::V1(_) => (ETHERTYPE_ROCE, Grh::LEN),
        };
        let need = ethernet + network + self.transport.len();
        let mut out = Out::new(out, need);
        if let Some(Ethernet { destination, source, vlan }) = self.ethernet {
            out.put(&view::EthernetAddresses { destination, source })?;
            if let Some(tci) = vlan {
                out.put(&[U16::new(ETHERTYPE_VLAN), U16::new(tci)])?;
            }
            out.put(&U16::new(ethertype))?;
        }
        match &self.encapsulation {
            Encapsulation::V2 { ip, udp } => {
                match ip {
                    IpHeader::V4(ip) => out.put(ip)?,
                    IpHeader::V6(ip) => out.put(ip)?,
                }
                out.put(udp)?;
            }
            Encapsulation::V1(grh) => out.put(&grh.header(self.transport.len() as u16))?,
        }
        out.put(self.transport)?;
        Ok(need)
    }

    /// The addresses of the frame; of the link layer only the RoCE version.
    pub fn way(&self) -> Flow {
        match &self.encapsulation {
            Encapsulation::V2 { ip, udp } => flow(ip, udp),
            Encapsulation::V1(grh) => Flow::of_grh(grh, LinkLayer::default()),
        }
    }

    /// The addresses of a RoCEv2 frame; `None` for RoCEv1.
    pub fn flow(&self) -> Option<Flow> {
        Some(self.way()).filter(|way| way.link.version == RoceVersion::V2)
    }

    /// The IPv4 ID; `None` without an IPv4 header.
    pub const fn ip_id(&self) -> Option<u16> {
        match &self.encapsulation {
            Encapsulation::V2 { ip: IpHeader::V4(ip), .. } => Some(ip.id.get()),
            Encapsulation::V2 { ip: IpHeader::V6(_), .. } | Encapsulation::V1(_) => None,
        }
    }

    /// The ICRC that this frame must carry, over its own headers. Unlike [`crate::icrc::compute`] it is also
    /// right for a frame without DF.
    pub fn icrc(&self) -> u32 {
        let prefix = match &self.encapsulation {
            Encapsulation::V2 { ip, udp } => Prefix::of_headers(ip, udp),
            Encapsulation::V1(grh) => Prefix::of_grh(&grh.header(0)),
        };
        prefix.compute(self.ip_id().unwrap_or(0), self.transport)
    }

    /// Whether the frame carries this ICRC.
    pub fn icrc_holds(&self) -> bool {
        stored(self.transport) == Some(self.icrc())
    }
}

fn flow(ip: &IpHeader, udp: &view::Udp) -> Flow {
    let source_port = udp.source_port.get();
    match ip {
        IpHeader::V4(ip) => Flow {
            source: IpAddr::V4(Ipv4Addr::from(ip.source)),
            destination: IpAddr::V4(Ipv4Addr::from(ip.destination)),
            source_port,
            traffic_class: ip.tos,
            hop_limit: ip.ttl,
            link: LinkLayer::default(),
        },
        IpHeader::V6(ip) => Flow {
            source: IpAddr::V6(Ipv6Addr::from(ip.source)),
            destination: IpAddr::V6(Ipv6Addr::from(ip.destination)),
            source_port,
            traffic_class: (ip.word0.get() >> 20) as u8,
            hop_limit: ip.hop_limit,
            link: LinkLayer::default(),
        },
    }
}

fn take<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &mut &[u8]) -> Result<T, FrameError> {
    let (need, have) = (size_of::<T>(), bytes.len());
    let (header, rest) = T::read_from_prefix(bytes).map_err(|_| FrameError::Truncated { need, have })?;
    *bytes = rest;
    Ok(header)
}

/// The number of octets that a header states, without Ethernet padding.
fn exactly(bytes: &[u8], need: usize) -> Result<&[u8], FrameError> {
    bytes.get(..need).ok_or(FrameError::Truncated { need, have: bytes.len() })
}

fn ipv4(mut rest: &[u8]) -> Result<(Encapsulation, &[u8]), FrameError> {
    let ip: view::Ipv4 = take(&mut rest)?;
    match (ip.version_ihl >> 4, ip.version_ihl & 0x0f) {
        (4, 5) => {}
        (4, words) => return Err(FrameError::IpOptions(words * 4)),
        (version, _) => return Err(FrameError::IpVersion(version)),
    }
    if ip.protocol != PROTOCOL_UDP {
        return Err(FrameError::Protocol(ip.protocol));
    }
    if ip.fragment.get() & FRAGMENTED != 0 {
        return Err(FrameError::Fragment(ip.fragment.get()));
    }
    let (need, have) = (size_of::<view::Ipv4>(), usize::from(ip.total_len.get()));
    let len = have.checked_sub(need).ok_or(FrameError::Truncated { need, have })?;
    let (udp, transport) = datagram(exactly(rest, len)?)?;
    Ok((Encapsulation::V2 { ip: IpHeader::V4(ip), udp }, transport))
}

fn ipv6(mut rest: &[u8]) -> Result<(Encapsulation, &[u8]), FrameError> {
    let ip: view::Ipv6 = take(&mut rest)?;
    version_6(&ip)?;
    if ip.next_header != PROTOCOL_UDP {
        return Err(FrameError::Protocol(ip.next_header));
    }
    let (udp, transport) = datagram(exactly(rest, ip.payload_len.get().into())?)?;
    Ok((Encapsulation::V2 { ip: IpHeader::V6(ip), udp }, transport))
}

fn datagram(mut rest: &[u8]) -> Result<(view::Udp, &[u8]), FrameError> {
    let ip = rest.len();
    let udp: view::Udp = take(&mut rest)?;
    if udp.destination_port.get() != ROCE_UDP_PORT {
        return Err(FrameError::Port(udp.destination_port.get()));
    }
    if usize::from(udp.len.get()) != ip {
        return Err(FrameError::UdpLength { udp: udp.len.get().into(), ip });
    }
    Ok((udp, rest))
}

fn grh(mut rest: &[u8]) -> Result<(Encapsulation, &[u8]), FrameError> {
    let raw: view::Ipv6 = take(&mut rest)?;
    version_6(&raw)?;
    if raw.next_header != Grh::NEXT_HEADER {
        return Err(FrameError::Protocol(raw.next_header));
    }
    Ok((Encapsulation::V1(raw.into()), exactly(rest, raw.payload_len.get().into())?))
}

fn version_6(raw: &view::Ipv6) -> Result<(), FrameError> {
    match raw.word0.get() >> 28 {
        6 => Ok(()),
        version => Err(FrameError::IpVersion(version as u8)),
    }
}

#[cfg(test)]
mod tests;
