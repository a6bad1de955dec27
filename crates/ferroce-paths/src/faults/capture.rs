//! The capture of a process: packets by the act `capture`, in files of pcapng blocks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::SystemTime;

use ferroce_fault::pcapng::{self, Captured, Link};
use ferroce_fault::{CaptureFolder, Dir};
use ferroce_host::output;
use ferroce_proto::QueuePair;
use ferroce_wire::icrc;
use ferroce_wire::{Flow, Operation, Packet, RcPacket, RoceVersion};

use super::STATE;

/// Destination, source and type of a RoCE v1 frame. The addresses are not known here.
const ETHERNET: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x89, 0x15];

/// The files of this process. They take turns: if one is full, the other begins anew.
pub(super) struct Capture {
    files: [File; 2],
    current: usize,
    /// Octets in the current file, and the most that it may have.
    filled: u64,
    room: u64,
    /// `NAME (PID n)`
    process: String,
    packet: Vec<u8>,
    block: Vec<u8>,
}

impl Capture {
    /// Creates the files. Their names are new: another process may have had this number, or has it in another
    /// namespace.
    pub(super) fn create(to: &CaptureFolder) -> io::Result<Self> {
        let pid = std::process::id();
        let new = |name: String| {
            let flags = libc::O_CLOEXEC | libc::O_NOFOLLOW;
            let path = Path::new(&to.path).join(name);
            OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(flags).open(path)
        };
        let files = (0_u32..).find_map(|number| match new(format!("{pid}-{number}-0")) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
            first => Some(first.and_then(|first| Ok([first, new(format!("{pid}-{number}-1"))?]))),
        });
        let files = files.unwrap_or_else(|| Err(ErrorKind::AlreadyExists.into()));
        let files =
            files.map_err(|error| io::Error::new(error.kind(), format!("capture={}: {error}", to.path)))?;
        let name = fs::read("/proc/self/comm").unwrap_or_default();
        let process = format!("{} (PID {pid})", String::from_utf8_lossy(&name).trim_end());
        let (packet, block) = Default::default();
        Ok(Self { files, current: 0, filled: 0, room: to.octets / 2, process, packet, block })
    }

    /// Writes a packet from BTH to ICRC.
    fn packet(&mut self, dir: Dir, local: &QueuePair, flow: &Flow, packet: &Packet<'_>, octets: &[u8]) {
        let is_v1 = flow.link.version == RoceVersion::V1;
        // Sockets do not report the hop limit of what they receive.
        let hop_limit = if flow.hop_limit == 0 { 64 } else { flow.hop_limit };
        let flow = &Flow { hop_limit, ..*flow };
        let mut headers = [0; 48];
        let id = sent_id(flow, octets);
        let len = flow.write_headers(id.unwrap_or(0), octets.len(), &mut headers);
        self.packet.clear();
        self.packet.extend(if is_v1 { &ETHERNET[..] } else { &[] });
        self.packet.extend(headers.iter().take(len));
        let start = self.packet.len();
        self.packet.extend(octets);
        if id.is_none()
            && let Some(transport) = self.packet.get_mut(start..)
        {
            icrc::seal(flow, 0, transport);
        }
        if !is_v1 && !flow.is_ipv4() {
            put_checksum(&mut self.packet);
        }
        let of_send_queue = match packet.op {
            Operation::Rc(RcPacket::Response(_)) | Operation::Xrc { packet: RcPacket::Response(_), .. } => {
                dir == Dir::Rx
            }
            Operation::Sack { .. } | Operation::Cnp => false,
            _ => dir == Dir::Tx,
        };
        let wr_id = local.wr_id_of(packet.bth.psn).filter(|_| of_send_queue);
        let wr_id = wr_id.map_or_else(String::new, |number| format!(" wr_id {number}"));
        let Self { process, .. } = self;
        let comment = format!("{process} qp {:#x} dir {}{wr_id}", local.qpn().value(), dir.word());
        let nanos = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
        let link = if is_v1 { Link::Ethernet } else { Link::Ip };
        let (octets, comment) = (&self.packet[..], comment.as_bytes());
        self.block.clear();
        pcapng::put(&mut self.block, &Captured { nanos, link, dir: Some(dir), octets, comment });
    }

    /// Appends the block to the current file, or to the other one if it is full.
    fn write(&mut self) -> io::Result<()> {
        let len = self.block.len() as u64;
        if self.filled > 0 && self.filled + len > self.room {
            self.current ^= 1;
            self.filled = 0;
            self.files[self.current].set_len(0)?;
        }
        self.files[self.current].write_all_at(&self.block, self.filled)?;
        self.filled += len;
        Ok(())
    }
}

/// The IPv4 identification with which the packet's ICRC holds, which sockets do not report; `None` if the
/// packet has no ICRC, as in shared memory.
fn sent_id(flow: &Flow, octets: &[u8]) -> Option<u16> {
    let stored = icrc::stored(octets).filter(|icrc| *icrc != 0)?;
    match icrc::compute(flow, 0, octets) ^ stored {
        0 => Some(0),
        difference if flow.is_ipv4() => icrc::solve_id(difference, octets.len()).or(Some(0)),
        _ => Some(0),
    }
}

/// Puts the checksum into the UDP header behind an IPv6 header, where the system does it (RFC 8200 section
/// 8.1).
fn put_checksum(packet: &mut [u8]) {
    const ADDRESSES: usize = 8;
    const UDP: usize = 40;
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    // The pseudo header: addresses, length, protocol.
    let pseudo = (packet.len() - UDP) as u64 + 17;
    let sum = packet[ADDRESSES..].chunks(2).map(word).sum::<u64>() + pseudo;
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = match !((folded & 0xffff) + (folded >> 16)) as u16 {
        0 => u16::MAX,
        checksum => checksum,
    };
    packet[UDP + 6..UDP + 8].copy_from_slice(&checksum.to_be_bytes());
}

/// Captures a packet of this queue pair, from BTH to ICRC, by the plan in force.
#[cold]
#[inline(never)]
pub fn capture(dir: Dir, local: &QueuePair, flow: &Flow, packet: &Packet<'_>, octets: &[u8]) {
    let mut judging = STATE.get().judging.lock();
    let Some(judging) = judging.as_mut() else { return };
    let Some(capture) = &mut judging.capture else { return };
    capture.packet(dir, local, flow, packet, octets);
    if let Err(error) = output::without_signals(|| capture.write()) {
        tracing::error!(%error, "the capture cannot be written");
        judging.capture = None;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn flow(source: std::net::IpAddr) -> Flow {
        let link = Default::default();
        Flow { source, destination: source, source_port: 0xc123, traffic_class: 0, hop_limit: 64, link }
    }

    #[test]
    fn the_checksum_over_ipv6_holds() {
        let flow = flow(Ipv6Addr::LOCALHOST.into());
        for payload in [&[0x12_u8, 0x34, 0x56, 0x78][..], &[0xff; 33], &[]] {
            let mut headers = [0; 48];
            flow.write_headers(0, payload.len(), &mut headers);
            let mut packet = [&headers[..], payload].concat();
            put_checksum(&mut packet);
            let words =
                packet[8..].chunks(2).map(|pair| (pair[0] as u32) << 8 | *pair.get(1).unwrap_or(&0) as u32);
            let sum = words.sum::<u32>() + (packet.len() as u32 - 40) + 17;
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{payload:02x?}");
        }
    }

    #[test]
    fn the_identification_is_that_of_the_icrc() {
        let flow = flow([192, 0, 2, 1].into());
        let mut transport = vec![7; 64];
        for id in [0, 1, 63] {
            icrc::seal(&flow, id, &mut transport);
            assert_eq!(sent_id(&flow, &transport), Some(id));
        }
        transport[60..].fill(0);
        assert_eq!(sent_id(&flow, &transport), None, "a packet in shared memory");
    }
}
