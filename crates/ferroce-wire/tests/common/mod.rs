//! Helpers that several test programs share.
#![allow(dead_code, reason = "each program uses its part")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use ferroce_wire::{Headers, OpcodeInfo, Service, WireOpcode};

/// A captured frame.
pub struct Captured {
    /// Since the epoch.
    pub at: Duration,
    pub bytes: Vec<u8>,
}

/// The golden captures, by name.
pub fn captures() -> Vec<(String, Vec<Captured>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), read_pcap(&path)))
        .collect()
}

/// Little-endian pcap with microseconds, as tcpdump writes it on the machines we have.
fn read_pcap(path: &Path) -> Vec<Captured> {
    let file = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_c3d4, "{}", path.display());
    assert_eq!(word(20), 1, "Ethernet");
    let mut frames = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let (seconds, micros, len) = (word(at), word(at + 4), word(at + 8) as usize);
        assert_eq!(word(at + 12) as usize, len, "cut by the capture");
        frames.push(Captured {
            at: Duration::new(seconds.into(), micros * 1000),
            bytes: file[at + 16..at + 16 + len].to_vec(),
        });
        at += 16 + len;
    }
    frames
}

/// Every opcode a packet can have, without RD's.
pub fn opcodes() -> impl Iterator<Item = (u8, &'static OpcodeInfo)> {
    (0..=255)
        .filter_map(|opcode| Some((opcode, WireOpcode(opcode).info()?)))
        .filter(|(_, info)| info.service != Service::Rd)
}

/// All extension headers in their order on the wire.
pub const HEADER_ORDER: [Headers; 11] = [
    Headers::XRCETH,
    Headers::RDETH,
    Headers::DETH,
    Headers::FETH,
    Headers::RETH,
    Headers::ATOMIC,
    Headers::AETH,
    Headers::ATOMIC_ACK,
    Headers::IMM,
    Headers::IETH,
    Headers::CNP,
];

/// Where a header lies, counted from the BTH; `None` if the opcode does not have it.
pub fn header_offset(headers: Headers, header: Headers) -> Option<usize> {
    let before = HEADER_ORDER.into_iter().take_while(|other| *other != header);
    let offset = 12 + before.filter(|other| headers.contains(*other)).map(Headers::octets).sum::<usize>();
    headers.contains(header).then_some(offset)
}

/// Repeatable numbers.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
