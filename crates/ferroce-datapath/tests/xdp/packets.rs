//! Packets made from their fields.

use std::net::IpAddr;

use ferroce_datapath::xdp::Tx;
use ferroce_wire::RoceVersion;

use crate::bed::SLOT;

/// The fields from which a packet is made.
#[derive(Clone)]
pub struct Made {
    pub version: RoceVersion,
    pub from: IpAddr,
    pub to: IpAddr,
    pub port: u16,
    pub opcode: u8,
    pub qpn: u32,
    pub source_qpn: u32,
    pub payload: usize,
    pub mark: u8,
}

pub const RC_SEND_ONLY: u8 = 0x04;
pub const UD_SEND_ONLY: u8 = 0x64;

impl Made {
    pub fn new(from: &str, to: &str) -> Self {
        Self {
            version: RoceVersion::V2,
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            port: 4791,
            opcode: RC_SEND_ONLY,
            qpn: u32::from(SLOT) << 12 | 5,
            source_qpn: u32::from(SLOT) << 12 | 6,
            payload: 64,
            mark: 0,
        }
    }

    pub fn mark(mut self, mark: u8) -> Self {
        self.mark = mark;
        self
    }

    pub fn segment(&self) -> Vec<u8> {
        let mut bth = vec![self.opcode, 0x40, 0xff, 0xff];
        bth.extend(self.qpn.to_be_bytes());
        bth.extend([0, 0, 0, self.mark]);
        if self.opcode & 0xe0 == 0x60 {
            bth.extend([0x11, 0x11, 0x11, 0x11]);
            bth.extend(self.source_qpn.to_be_bytes());
        }
        bth.resize(bth.len() + self.payload + 4, 0x5a);
        bth
    }

    pub fn headers(&self) -> Vec<u8> {
        let len = self.segment().len() as u16;
        let mut headers = Vec::new();
        let (protocol, inner) = if self.version == RoceVersion::V1 { (0x1b, len) } else { (17, len + 8) };
        match (self.version, self.from, self.to) {
            (RoceVersion::V2, IpAddr::V4(from), IpAddr::V4(to)) => {
                headers.extend([0x45, 0]);
                headers.extend((20 + inner).to_be_bytes());
                headers.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
                headers.extend(from.octets());
                headers.extend(to.octets());
                let sum: u32 =
                    headers.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
                let sum = (sum & 0xffff) + (sum >> 16);
                let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
                headers[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (_, from, to) => {
                let gid = |address| match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                headers.extend([0x60, 0, 0, 0]);
                headers.extend(inner.to_be_bytes());
                headers.extend([protocol, 64]);
                headers.extend(gid(from));
                headers.extend(gid(to));
            }
        }
        if self.version == RoceVersion::V2 {
            headers.extend(0xc123u16.to_be_bytes());
            headers.extend(self.port.to_be_bytes());
            headers.extend(inner.to_be_bytes());
            headers.extend([0, 0]);
        }
        headers
    }

    pub fn packet(&self) -> Vec<u8> {
        [self.headers(), self.segment()].concat()
    }

    pub fn frame(&self, to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
        let kind = match (self.version, self.to) {
            (RoceVersion::V1, _) => [0x89, 0x15],
            (RoceVersion::V2, IpAddr::V4(_)) => [0x08, 0x00],
            (RoceVersion::V2, IpAddr::V6(_)) => [0x86, 0xdd],
        };
        [&to[..], &from, &kind, &self.packet()].concat()
    }

    pub fn send(&self, tx: &mut Tx) {
        tx.push(self.version, &self.headers(), &self.segment()).unwrap();
        tx.flush().unwrap();
    }
}

/// The formats, from the host to the peer.
pub fn formats() -> [Made; 5] {
    let (v4, v6) = (Made::new("10.9.0.1", "10.9.0.2"), Made::new("fd09::1", "fd09::2"));
    let v1 = |made: &Made| Made { version: RoceVersion::V1, ..made.clone() };
    let ud = Made { opcode: UD_SEND_ONLY, ..v4.clone() };
    [v1(&v4), v1(&v6), v4, v6, ud]
}

pub fn back(made: &Made) -> Made {
    Made { from: made.to, to: made.from, ..made.clone() }
}
