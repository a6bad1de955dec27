//! Whole Ethernet frames over AF_PACKET, for programs that have CAP_NET_RAW themselves.
//!
//! A socket receives copies of the frames of one interface; the kernel's network stack and other programs
//! receive them as well. The priorities of flow rules among programs therefore have no effect.

mod ether;
mod rule;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub use ether::{EtherFrame, EtherSocket};
pub use rule::{Layer, Pattern, Rule};

use crate::sys::{self, PacketMembership};

/// Octets of the longest frame, VLAN tag included; longer frames are cut.
pub const MAX_FRAME: usize = 65_554;

/// A program's access to the frames of one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    ifindex: u32,
}

/// The buffer for a received frame.
pub struct FrameBuffer {
    /// Has space before the frame for a VLAN tag that the kernel stripped.
    bytes: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
pub struct ReceivedFrame<'a> {
    /// From the destination address to the end of the payload, with VLAN tags, without FCS.
    pub bytes: &'a [u8],
    /// The frame leaves by the interface.
    pub outgoing: bool,
}

impl PacketSocket {
    /// Opens a socket that sends by the interface `ifindex` and receives nothing until
    /// [`PacketSocket::listen`].
    ///
    /// `PermissionDenied` without CAP_NET_RAW in the network namespace; `ENODEV` if there is no such
    /// interface.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let fd = sys::open_packet_socket()?;
        // The filter precedes the bind, so that the kernel queues no frame before `listen`.
        sys::drop_all(&fd)?;
        sys::request_vlan_tags(&fd)?;
        sys::bind_packet_socket(&fd, ifindex, sys::ALL_PROTOCOLS)?;
        Ok(Self { fd, ifindex })
    }

    /// Starts or stops receiving arriving frames; `outgoing` includes leaving frames.
    pub fn listen(&self, listen: bool, outgoing: bool) -> io::Result<()> {
        sys::ignore_outgoing(&self.fd, !outgoing)?;
        if listen { sys::accept_all(&self.fd) } else { sys::drop_all(&self.fd) }
    }

    /// Makes the interface accept frames to `address` (`None`: to any address) besides its own, or undoes
    /// that. The kernel counts requests, so each must be undone once.
    pub fn accept(&self, address: Option<[u8; 6]>, accept: bool) -> io::Result<()> {
        let membership = match address {
            None => PacketMembership::Promiscuous,
            Some(address) if address[0] & 1 != 0 => PacketMembership::Multicast(address),
            Some(address) => PacketMembership::Unicast(address),
        };
        sys::packet_membership(&self.fd, self.ifindex, membership, accept)
    }

    /// Sends a frame; never blocks.
    ///
    /// `WouldBlock` or `ENOBUFS` if the interface's queue is full, `EMSGSIZE` if the frame exceeds its MTU,
    /// `EINVAL` if the frame is shorter than its header, `ENETDOWN` if the interface is down.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        socket2::SockRef::from(&self.fd).send_with_flags(frame, libc::MSG_DONTWAIT).map(drop)
    }

    /// Returns the next queued frame, or `None`. Never blocks.
    pub fn recv<'a>(&self, buffer: &'a mut FrameBuffer) -> io::Result<Option<ReceivedFrame<'a>>> {
        const TAG: usize = 4;
        const ADDRESSES: usize = 12;
        let received = match sys::receive_frame(&self.fd, &mut buffer.bytes[TAG..]) {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut start = TAG;
        if let Some((tpid, tci)) = received.vlan.filter(|_| received.len >= ADDRESSES) {
            start = 0;
            buffer.bytes.copy_within(TAG..TAG + ADDRESSES, 0);
            buffer.bytes[ADDRESSES..ADDRESSES + 2].copy_from_slice(&tpid.to_be_bytes());
            buffer.bytes[ADDRESSES + 2..ADDRESSES + 4].copy_from_slice(&tci.to_be_bytes());
        }
        let bytes = &buffer.bytes[start..TAG + received.len];
        // A frame sent over lo arrives there as well: it is received a second time.
        let outgoing = received.outgoing;
        if outgoing && received.loopback {
            return Ok(Some(ReceivedFrame { bytes: &[], outgoing }));
        }
        Ok(Some(ReceivedFrame { bytes, outgoing }))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl FrameBuffer {
    pub fn new() -> Self {
        // 16 octets more for the `virtio_net_hdr` of merged frames.
        Self { bytes: vec![0; MAX_FRAME + 16].into() }
    }
}

impl Default for FrameBuffer {
    fn default() -> Self {
        Self::new()
    }
}
