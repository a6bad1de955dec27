//! The side of the program without privileges: the rings and the memory of a port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ferroce_wire::RoceVersion;
use rustix::fs::SealFlags;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::{CHUNK, FRAMES, HALF, MAX_PACKET};
use crate::sys::{self, Consumer, Mapping, Producer};

const ETHER_LEN: usize = 14;
/// Octets of the two hardware addresses of a frame.
pub const HARDWARE: usize = 12;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const GRH: [u8; 2] = [0x89, 0x15];

/// Calls of `sendto(2)` in one flush. The kernel takes at least 16 packets in each, so all of them are enough
/// for a full ring.
const KICKS: u32 = FRAMES / 16;
/// Calls that may follow each other without any packet sent.
const KICKS_IN_VAIN: u32 = 4;

/// A packet was not added to the transmit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// All frames are on their way.
    Full,
    /// The packet exceeds [`MAX_PACKET`].
    TooLong,
}

/// The receiving half of a program's socket.
#[derive(Debug)]
pub struct Rx {
    socket: Arc<OwnedFd>,
    ring: Consumer<XdpDesc>,
    fill: Producer<u64>,
    memory: Mapping,
    /// The frame that the caller of [`Rx::next`] reads.
    held: Option<u64>,
}

/// The sending half of a program's socket.
#[derive(Debug)]
pub struct Tx {
    socket: Arc<OwnedFd>,
    ring: Producer<XdpDesc>,
    completion: Consumer<u64>,
    memory: Mapping,
    /// Offsets of frames in `memory` that the kernel does not have.
    free: Vec<u32>,
    /// Frames that were added since the last flush.
    unflushed: bool,
    /// Destination and source address of frames.
    hardware: [u8; HARDWARE],
}

/// A received packet.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The version of RoCE, by the EtherType of the frame.
    pub version: RoceVersion,
    /// From the GRH or IP header to the end of the frame, which may have padding behind the packet.
    pub packet: &'a [u8],
}

/// Maps the rings and the memory of a [`Port`](super::Port). Only once for a port: the two halves believe
/// that its frames are theirs, and packets that arrived since the port was opened wait.
///
/// # Errors
/// The errors of `getsockopt(2)` and `mmap(2)`; `InvalidData` if the memory is smaller than that of a port,
/// or may shrink.
pub fn join(socket: OwnedFd, memory: OwnedFd) -> io::Result<(Rx, Tx)> {
    let len = rustix::fs::fstat(&memory)?.st_size;
    let sealed = rustix::fs::fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK);
    if !sealed || usize::try_from(len).map_or(true, |len| len < 2 * HALF) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let socket = Arc::new(socket);
    let rings = sys::map_rings(&socket, FRAMES)?;
    let rx = Rx {
        socket: Arc::clone(&socket),
        ring: rings.rx,
        fill: rings.fill,
        memory: Mapping::new(&memory, 0, HALF)?,
        held: None,
    };
    let tx = Tx {
        socket,
        ring: rings.tx,
        completion: rings.completion,
        memory: Mapping::new(&memory, HALF as u64, HALF)?,
        free: (0..FRAMES).map(|frame| frame * CHUNK).collect(),
        unflushed: false,
        hardware: [0; HARDWARE],
    };
    Ok((rx, tx))
}

/// Gives the kernel all frames of a new socket to receive into, so that packets may come before the program
/// does.
pub(super) fn provide_frames(socket: &OwnedFd) -> io::Result<()> {
    let mut fill = sys::map_rings(socket, FRAMES)?.fill;
    for frame in 0..FRAMES {
        fill.push(u64::from(frame * CHUNK));
    }
    fill.publish();
    Ok(())
}

impl Rx {
    /// Returns the next packet, or `None`; makes no system call. The frame goes back to the kernel with the
    /// next call.
    ///
    /// Frames of other protocols are skipped, at most 64 in one call.
    // An iterator cannot lend.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Received<'_>> {
        const SKIPPED: u32 = 64;
        self.give_back();
        for _ in 0..SKIPPED {
            let descriptor = self.ring.pop()?;
            self.held = Some(descriptor.addr & !u64::from(CHUNK - 1));
            if let Some((version, at, len)) = self.judge(descriptor) {
                let packet = self.memory.slice(at, len)?;
                return Some(Received { version, packet });
            }
            self.give_back();
        }
        None
    }

    /// Version and place of a packet, if the frame has one.
    fn judge(&self, descriptor: XdpDesc) -> Option<(RoceVersion, usize, usize)> {
        let at = usize::try_from(descriptor.addr).ok()?;
        let len = descriptor.len as usize;
        // Inside its place in the memory.
        let inside = (at % CHUNK as usize).checked_add(len).is_some_and(|end| end <= CHUNK as usize);
        let frame = self.memory.slice(at, len).filter(|_| inside)?;
        let version = match frame.get(12..ETHER_LEN)? {
            kind if kind == IPV4 || kind == IPV6 => RoceVersion::V2,
            kind if kind == GRH => RoceVersion::V1,
            _ => return None,
        };
        Some((version, at + ETHER_LEN, len - ETHER_LEN))
    }

    fn give_back(&mut self) {
        if let Some(address) = self.held.take().filter(|address| *address < HALF as u64) {
            // There is space for all frames.
            self.fill.push(address);
            self.fill.publish();
        }
    }
}

impl AsFd for Rx {
    /// Readable while a packet waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Tx {
    /// Sets the hardware addresses of the packets that are added from now on: destination, then source. A
    /// direct port needs them. At a pair the program of the near end replaces them.
    pub fn set_hardware(&mut self, addresses: [u8; HARDWARE]) {
        self.hardware = addresses;
    }

    /// Adds a packet: `headers` from the GRH or IP header on, then `segment`, BTH to ICRC. Over IPv6 the UDP
    /// checksum is written here if it is 0, because kernels drop such datagrams (RFC 8200 section 8.1); the
    /// ICRC does not depend on it.
    ///
    /// # Errors
    /// A [`PushError`].
    pub fn push(&mut self, version: RoceVersion, headers: &[u8], segment: &[u8]) -> Result<(), PushError> {
        let len = headers.len().saturating_add(segment.len());
        if len > MAX_PACKET {
            return Err(PushError::TooLong);
        }
        if self.free.is_empty() {
            self.reap();
        }
        let at = self.free.pop().ok_or(PushError::Full)?;
        let place = at as usize;
        let frame = self.memory.slice_mut(place, ETHER_LEN + len).ok_or(PushError::TooLong)?;
        let (ethernet, packet) = frame.split_at_mut(ETHER_LEN);
        let kind = match (version, headers.first().map(|first| first >> 4)) {
            (RoceVersion::V1, _) => GRH,
            (RoceVersion::V2, Some(6)) => IPV6,
            (RoceVersion::V2, _) => IPV4,
        };
        ethernet.iter_mut().zip(self.hardware.into_iter().chain(kind)).for_each(|(to, from)| *to = from);
        let (first, second) = packet.split_at_mut(headers.len());
        first.copy_from_slice(headers);
        second.copy_from_slice(segment);
        if kind == IPV6 {
            write_checksum(packet);
        }
        let (addr, len) = (HALF as u64 + u64::from(at), (ETHER_LEN + len) as u32);
        // There is an entry for each frame.
        self.ring.push(XdpDesc { addr, len, options: XdpDescOptions::empty() });
        self.unflushed = true;
        Ok(())
    }

    /// Shows the kernel what was added, and makes it send, without waiting. Packets that the kernel does not
    /// take now stay in the ring and leave with the next flush, which may have nothing else to send.
    ///
    /// # Errors
    /// The errors of `sendto(2)`: `ENETDOWN` and `ENXIO` after the port has ended. The packets are lost.
    pub fn flush(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.unflushed) {
            self.ring.publish();
        }
        let mut pending = self.ring.pending();
        let mut in_vain = 0;
        for _ in 0..KICKS {
            if pending == 0 || in_vain == KICKS_IN_VAIN {
                break;
            }
            match sys::kick(&self.socket) {
                Ok(()) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS)) => {
                    // Perhaps the kernel has no space for completions.
                    self.reap();
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            let now = self.ring.pending();
            in_vain = if now == pending { in_vain + 1 } else { 0 };
            pending = now;
        }
        Ok(())
    }

    /// Takes back frames that the kernel has sent.
    fn reap(&mut self) {
        while let Some(address) = self.completion.pop() {
            let place = address.checked_sub(HALF as u64).filter(|place| *place < HALF as u64);
            // Never more than there are, so the list does not grow.
            if let Some(place) = place.filter(|_| self.free.len() < FRAMES as usize) {
                self.free.push(place as u32 & !(CHUNK - 1));
            }
        }
    }
}

/// Writes the checksum of UDP (RFC 768, RFC 8200 section 8.1) directly behind an IPv6 header, if it is 0.
fn write_checksum(packet: &mut [u8]) {
    const IP: usize = 40;
    let Some((ip, udp)) = packet.split_at_mut_checked(IP) else { return };
    let (Some(addresses), Some([_, _, _, _, l0, l1, 0, 0, ..])) = (ip.get(8..), udp.get(..)) else { return };
    let mut sum = Sum::default();
    sum.add(addresses);
    sum.add(&[*l0, *l1, 0, 17]);
    sum.add(udp);
    // Zero would mean that the packet has no checksum.
    let checksum = match !sum.fold() {
        0 => 0xffff,
        other => other,
    };
    udp.iter_mut().skip(6).zip(checksum.to_ne_bytes()).for_each(|(to, from)| *to = from);
}

/// The sum of RFC 1071, in the order of the host, which the order of its result follows.
#[derive(Default)]
struct Sum(u64);

impl Sum {
    /// Adds octets that begin at an even place.
    fn add(&mut self, octets: &[u8]) {
        let (words, rest) = octets.as_chunks::<4>();
        // A packet has fewer than 2^32 words.
        self.0 += words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>();
        let mut last = [0; 4];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        self.0 += u64::from(u32::from_ne_bytes(last));
    }

    fn fold(&self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum over pseudo-header and datagram, as a receiver forms it, one octet pair at a time.
    fn received_sum(packet: &[u8]) -> u16 {
        let mut octets = packet[8..40].to_vec();
        octets.extend([packet[44], packet[45], 0, 17]);
        octets.extend(&packet[40..]);
        octets.resize(octets.len().next_multiple_of(2), 0);
        let mut sum = 0u32;
        for pair in octets.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn checksums_over_ipv6_hold_for_any_length_and_leave_others_alone() {
        for len in [8usize, 9, 10, 11, 12, 60, 61, 1399] {
            let mut packet: Vec<u8> = (0..40 + len).map(|i| (i * 7 + len) as u8).collect();
            packet[44..46].copy_from_slice(&(len as u16).to_be_bytes());
            packet[46..48].copy_from_slice(&[0, 0]);
            write_checksum(&mut packet);
            assert_ne!(packet[46..48], [0, 0]);
            assert_eq!(received_sum(&packet), 0xffff, "{len}");
            let written = packet.clone();
            packet[50 % (40 + len)] ^= 1;
            let changed = packet.clone();
            write_checksum(&mut packet);
            assert_eq!(packet, changed, "a checksum that is there stays");
            assert_ne!(written, changed);
        }
        let mut short = [0; 44];
        write_checksum(&mut short);
        assert_eq!(short, [0; 44]);
    }
}
