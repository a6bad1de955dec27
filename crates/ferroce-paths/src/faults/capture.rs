//! The capture of a process: packets by the act `capture`, in files of pcapng blocks.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::SystemTime;

use ferroce_fault::pcapng::{self, Captured};
use ferroce_fault::{CaptureFolder, Dir};
use ferroce_host::output;
use ferroce_host::thread::Uncancellable;
use ferroce_proto::QueuePair;
use ferroce_wire::icrc;
use ferroce_wire::{Flow, Operation, Packet, RcPacket};

use super::STATE;

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
        let start = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let new = |number: u8| {
            let path = Path::new(&to.path).join(format!("{pid}-{start}-{number}"));
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
        };
        let files = new(0).and_then(|first| Ok([first, new(1)?]));
        let files =
            files.map_err(|error| io::Error::new(error.kind(), format!("capture={}: {error}", to.path)))?;
        let name = fs::read("/proc/self/comm").unwrap_or_default();
        let process = format!("{} (PID {pid})", String::from_utf8_lossy(&name).trim_end());
        let (packet, block) = Default::default();
        Ok(Self { files, current: 0, filled: 0, room: to.octets / 2, process, packet, block })
    }

    /// Writes a packet from BTH to ICRC.
    fn packet(&mut self, dir: Dir, local: &QueuePair, flow: &Flow, packet: &Packet<'_>, octets: &[u8]) {
        // Sockets do not report the hop limit of what they receive.
        let hop_limit = if flow.hop_limit == 0 { 64 } else { flow.hop_limit };
        let flow = &Flow { hop_limit, ..*flow };
        let mut octets = Cow::Borrowed(octets);
        let id = sent_id(flow, &octets).unwrap_or_else(|| {
            icrc::seal(flow, 0, octets.to_mut());
            0
        });
        self.packet.clear();
        let link = pcapng::put_frame(&mut self.packet, flow, id, &octets);
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
            if self.files[self.current].metadata()?.nlink() == 0 {
                return Err(io::ErrorKind::NotFound.into());
            }
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

/// Captures a packet of this queue pair, from BTH to ICRC, by the plan in force.
#[cold]
#[inline(never)]
pub fn capture(dir: Dir, local: &QueuePair, flow: &Flow, packet: &Packet<'_>, octets: &[u8]) {
    // Writing is a cancellation point, and the caller holds locks.
    let _uncancellable = Uncancellable::new();
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
    use super::*;

    #[test]
    fn the_identification_is_that_of_the_icrc() {
        let source = [192, 0, 2, 1].into();
        let link = Default::default();
        let flow =
            Flow { source, destination: source, source_port: 1, traffic_class: 0, hop_limit: 64, link };
        let mut transport = vec![7; 64];
        for id in [0, 1, 63] {
            icrc::seal(&flow, id, &mut transport);
            assert_eq!(sent_id(&flow, &transport), Some(id));
        }
        transport[60..].fill(0);
        assert_eq!(sent_id(&flow, &transport), None, "a packet in shared memory");
    }
}
