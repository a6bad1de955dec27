//! Addresses of a packet's source and destination.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::IntoBytes;

use crate::{Gid, Grh, view};

/// UDP destination port of RoCEv2 (RoCEv2 A17.4.3).
pub const ROCE_UDP_PORT: u16 = 4791;

/// Don't fragment, offset 0: RoCEv2 sockets and kernel rxe send this.
const DONT_FRAGMENT: u16 = 0x4000;
pub(crate) const PROTOCOL_UDP: u8 = 17;

/// The encapsulation of RoCE packets; the numbers are those of `enum ibv_gid_type`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum RoceVersion {
    /// A GRH in Ethernet frames of type 0x8915: within one subnet (IBTA A16).
    V1 = 1,
    /// UDP (RoCEv2 A17).
    #[default]
    V2 = 2,
}

/// The link layer of a packet. The ICRC does not cover it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LinkLayer {
    /// The encapsulation of the addresses of a [`Flow`].
    pub version: RoceVersion,
    /// Service level: 0 to 15. Its lower three bits are the priority of frames with a VLAN tag.
    pub sl: u8,
    /// Index of the interface that has the local address; 0 if the addresses alone decide, as with sockets.
    pub ifindex: u32,
}

/// Addressing of one direction. Both addresses are of one family; over UDP the destination port is always
/// [`ROCE_UDP_PORT`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// Local address.
    pub source: IpAddr,
    /// Peer's address.
    pub destination: IpAddr,
    /// UDP source port: entropy for ECMP and the receiver's steering. Covered by the ICRC. Unused in RoCEv1.
    pub source_port: u16,
    /// DSCP in the upper six bits, ECN in the lower two. Not covered by the ICRC.
    pub traffic_class: u8,
    /// TTL or hop limit. Not covered by the ICRC.
    pub hop_limit: u8,
    /// The link layer below.
    pub link: LinkLayer,
}

/// The IP header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpHeader {
    /// Without options.
    V4(view::Ipv4),
    /// Without extension headers.
    V6(view::Ipv6),
}

impl LinkLayer {
    /// A UDP socket with default settings.
    pub const UDP: Self = Self { version: RoceVersion::V2, sl: 0, ifindex: 0 };
}

impl Flow {
    /// Bits of the traffic class by which a router says that the packet met congestion (CE, RFC 3168 section
    /// 5).
    pub const CONGESTION_EXPERIENCED: u8 = 0b11;
    /// Bits of the traffic class by which a sender says that it understands such marks (ECT(0)).
    pub const ECN_CAPABLE: u8 = 0b10;

    /// Whether the packet met congestion on its way.
    pub const fn is_marked(&self) -> bool {
        self.traffic_class & Self::CONGESTION_EXPERIENCED == Self::CONGESTION_EXPERIENCED
    }

    /// Whether the sender says that it understands marks, by ECT(0) or ECT(1) (RFC 3168 section 5).
    pub const fn is_ecn_capable(&self) -> bool {
        matches!(self.traffic_class & Self::CONGESTION_EXPERIENCED, 0b01 | Self::ECN_CAPABLE)
    }

    /// Octets of [`Flow::grh_area`].
    pub const GRH_AREA: usize = 40;

    /// The first octets of a datagram's receive buffer, where InfiniBand has its GRH (IBTA 11.4.1.2, RoCEv2
    /// A17.4.5.1): over IPv6 the IP header, over IPv4 twenty zeros and the IP header behind them; of RoCEv1
    /// the GRH itself. `transport_len` as for [`Flow::headers`].
    ///
    /// Fields that a socket does not report have the values that sockets send: IPv4 identification 0 with DF,
    /// IPv6 flow label 0. The IPv4 checksum is valid, since programs tell the versions apart by it.
    pub fn grh_area(&self, transport_len: usize) -> [u8; Self::GRH_AREA] {
        if self.link.version == RoceVersion::V1 {
            return zerocopy::transmute!(self.grh().header(transport_len as u16));
        }
        match self.headers(0, transport_len).0 {
            IpHeader::V4(ip) => {
                let header: [u8; 20] = zerocopy::transmute!(ip);
                zerocopy::transmute!([[0; 20], header])
            }
            IpHeader::V6(ip) => zerocopy::transmute!(ip),
        }
    }

    /// Whether packets have an IPv4 header, whose ID the ICRC covers.
    pub const fn is_ipv4(&self) -> bool {
        matches!(self.link.version, RoceVersion::V2)
            && matches!((self.source, self.destination), (IpAddr::V4(_), IpAddr::V4(_)))
    }

    /// The GRH, which RoCEv1 has in place of IP and UDP: IPv4 addresses in their mapped form, flow label 0.
    pub fn grh(&self) -> Grh {
        Grh {
            traffic_class: self.traffic_class,
            flow_label: 0,
            hop_limit: self.hop_limit,
            source: Gid::from_ip(self.source),
            destination: Gid::from_ip(self.destination),
        }
    }

    /// The flow of a RoCEv1 packet with this GRH.
    pub fn of_grh(grh: &Grh, link: LinkLayer) -> Self {
        Self {
            source: grh.source.to_ip(),
            destination: grh.destination.to_ip(),
            source_port: 0,
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
            link: LinkLayer { version: RoceVersion::V1, ..link },
        }
    }

    /// Reads an area that [`Flow::grh_area`] or another device wrote; the source port is 0. `None` if it
    /// contains neither UDP over IPv6 or IPv4 nor a BTH after a GRH.
    ///
    /// The first twenty octets before an IPv4 header are not specified; if they look like IPv6, the IPv4
    /// header's checksum decides.
    pub fn from_grh_area(area: &[u8; Self::GRH_AREA]) -> Option<Self> {
        let [_, ip]: [[u8; 20]; 2] = zerocopy::transmute!(*area);
        let v4: view::Ipv4 = zerocopy::transmute!(ip);
        let v6: view::Ipv6 = zerocopy::transmute!(*area);
        let is_v6 = v6.word0.get() >> 28 == 6;
        if is_v6 && v6.next_header == Grh::NEXT_HEADER {
            return Some(Self::of_grh(&Grh::from(v6), LinkLayer::default()));
        }
        if v4.version_ihl == 0x45 && v4.protocol == PROTOCOL_UDP && v4.checksum.get() == v4.sum() {
            return Some(Self {
                source: Ipv4Addr::from(v4.source).into(),
                destination: Ipv4Addr::from(v4.destination).into(),
                source_port: 0,
                traffic_class: v4.tos,
                hop_limit: v4.ttl,
                link: LinkLayer::default(),
            });
        }
        (is_v6 && v6.next_header == PROTOCOL_UDP).then(|| Self {
            source: Ipv6Addr::from(v6.source).into(),
            destination: Ipv6Addr::from(v6.destination).into(),
            source_port: 0,
            traffic_class: (v6.word0.get() >> 20) as u8,
            hop_limit: v6.hop_limit,
            link: LinkLayer::default(),
        })
    }

    /// The IP and UDP headers before `transport_len` octets from BTH to ICRC. `ip_id` is ignored over IPv6.
    /// DF is set, the UDP checksum is 0. Lengths above 16 bits wrap: no IP packet has them.
    pub fn headers(&self, ip_id: u16, transport_len: usize) -> (IpHeader, view::Udp) {
        let udp_len = (transport_len as u16).wrapping_add(size_of::<view::Udp>() as u16);
        let udp = view::Udp {
            source_port: self.source_port.into(),
            destination_port: ROCE_UDP_PORT.into(),
            len: udp_len.into(),
            checksum: 0.into(),
        };
        let ip = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut ip = view::Ipv4 {
                    version_ihl: 0x45,
                    tos: self.traffic_class,
                    total_len: udp_len.wrapping_add(size_of::<view::Ipv4>() as u16).into(),
                    id: ip_id.into(),
                    fragment: DONT_FRAGMENT.into(),
                    ttl: self.hop_limit,
                    protocol: PROTOCOL_UDP,
                    checksum: 0.into(),
                    source: source.octets(),
                    destination: destination.octets(),
                };
                ip.checksum = ip.sum().into();
                IpHeader::V4(ip)
            }
            (source, destination) => IpHeader::V6(view::Ipv6 {
                word0: (6 << 28 | u32::from(self.traffic_class) << 20).into(),
                payload_len: udp_len.into(),
                next_header: PROTOCOL_UDP,
                hop_limit: self.hop_limit,
                source: mapped(source).octets(),
                destination: mapped(destination).octets(),
            }),
        };
        (ip, udp)
    }
}

impl Flow {
    /// Writes [`Flow::headers`], or the GRH of RoCEv1, to the front of `out`. Returns the number of octets.
    pub fn write_headers(&self, ip_id: u16, transport_len: usize, out: &mut [u8; 48]) -> usize {
        if self.link.version == RoceVersion::V1 {
            let header = self.grh().header(transport_len as u16);
            out.iter_mut().zip(header.as_bytes()).for_each(|(to, from)| *to = *from);
            return Grh::LEN;
        }
        let (ip, udp) = self.headers(ip_id, transport_len);
        let network: &[u8] = match &ip {
            IpHeader::V4(ip) => ip.as_bytes(),
            IpHeader::V6(ip) => ip.as_bytes(),
        };
        out.iter_mut().zip(network.iter().chain(udp.as_bytes())).for_each(|(to, from)| *to = *from);
        network.len() + size_of::<view::Udp>()
    }
}

pub(crate) const fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

impl view::Ipv4 {
    /// The valid header checksum (RFC 791), whatever the checksum field holds.
    pub fn sum(&self) -> u16 {
        let word = |pair: [u8; 2]| u32::from(u16::from_be_bytes(pair));
        let [s0, s1, s2, s3] = self.source;
        let [d0, d1, d2, d3] = self.destination;
        let sum = word([self.version_ihl, self.tos])
            + u32::from(self.total_len.get())
            + u32::from(self.id.get())
            + u32::from(self.fragment.get())
            + word([self.ttl, self.protocol])
            + word([s0, s1])
            + word([s2, s3])
            + word([d0, d1])
            + word([d2, d3]);
        // At most nine carries occur, so folding twice removes them.
        let sum = (sum & 0xffff) + (sum >> 16);
        !((sum & 0xffff) + (sum >> 16)) as u16
    }
}
