//! Captures for Wireshark.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::Path;

use ferroce_wire::{Flow, Instant, ROCE_UDP_PORT};

/// LINKTYPE_RAW: packets begin with their IPv4 or IPv6 header.
const LINKTYPE_RAW: u32 = 101;
const UDP_HEADER: usize = 8;

/// A capture file with nanosecond times.
#[derive(Debug)]
pub struct PcapFile<W: Write = BufWriter<File>> {
    out: W,
}

impl PcapFile {
    /// Creates or replaces a file.
    ///
    /// # Errors
    ///
    /// As the file system says.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::new(BufWriter::new(File::create(path)?))
    }
}

impl<W: Write> PcapFile<W> {
    /// Begins a capture.
    ///
    /// # Errors
    ///
    /// As the writer says.
    pub fn new(mut out: W) -> io::Result<Self> {
        for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 0xffff, LINKTYPE_RAW] {
            out.write_all(&word.to_le_bytes())?;
        }
        Ok(Self { out })
    }

    /// Adds a packet, BTH to ICRC, with the headers it travels in.
    ///
    /// # Errors
    ///
    /// As the writer says.
    pub fn packet(&mut self, now: Instant, flow: &Flow, ip_id: u16, transport: &[u8]) -> io::Result<()> {
        let header = ip_header(flow, ip_id, (UDP_HEADER + transport.len()) as u16);
        let len = (header.len() + UDP_HEADER + transport.len()) as u32;
        let nanos = now.as_nanos();
        for word in [(nanos / 1_000_000_000) as u32, (nanos % 1_000_000_000) as u32, len, len] {
            self.out.write_all(&word.to_le_bytes())?;
        }
        self.out.write_all(&header)?;
        for half in [flow.source_port, ROCE_UDP_PORT, (UDP_HEADER + transport.len()) as u16, 0] {
            self.out.write_all(&half.to_be_bytes())?;
        }
        self.out.write_all(transport)
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    ///
    /// As the writer says.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// An IPv4 or IPv6 header for UDP of this length.
fn ip_header(flow: &Flow, ip_id: u16, udp_len: u16) -> Vec<u8> {
    match (flow.source, flow.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, flow.traffic_class];
            header.extend((20 + udp_len).to_be_bytes());
            header.extend(ip_id.to_be_bytes());
            // DF; TTL; UDP; checksum below.
            header.extend([0x40, 0, flow.hop_limit, 17, 0, 0]);
            header.extend(source.octets());
            header.extend(destination.octets());
            let sum: u32 =
                header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            header
        }
        (source, destination) => {
            let octets = |address| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let mut header = (6 << 28 | u32::from(flow.traffic_class) << 20).to_be_bytes().to_vec();
            header.extend(udp_len.to_be_bytes());
            header.extend([17, flow.hop_limit]);
            header.extend(octets(source));
            header.extend(octets(destination));
            header
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_captured_is_a_frame() {
        let flow = Flow {
            source: [192, 0, 2, 1].into(),
            destination: [192, 0, 2, 2].into(),
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            link: Default::default(),
        };
        let mut file = PcapFile::new(Vec::new()).unwrap();
        file.packet(Instant::from_nanos(1_000_000_007), &flow, 9, &[0; 16]).unwrap();
        let PcapFile { out } = file;
        assert_eq!(out.len(), 24 + 16 + 20 + 8 + 16);
        assert_eq!(out[24..32], [1, 0, 0, 0, 7, 0, 0, 0]);
        let sum: u32 =
            out[40..60].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum holds");
    }
}
