//! Captures for Wireshark.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use ferroce_wire::{Flow, Instant};

/// LINKTYPE_RAW: packets begin with their IPv4 or IPv6 header.
const LINKTYPE_RAW: u32 = 101;

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
        let mut headers = [0; 48];
        let headers_len = flow.write_headers(ip_id, transport.len(), &mut headers);
        let headers = headers.get(..headers_len).unwrap_or_default();
        let len = (headers_len + transport.len()) as u32;
        let nanos = now.as_nanos();
        for word in [(nanos / 1_000_000_000) as u32, (nanos % 1_000_000_000) as u32, len, len] {
            self.out.write_all(&word.to_le_bytes())?;
        }
        self.out.write_all(headers)?;
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
