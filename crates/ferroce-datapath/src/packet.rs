//! Whole Ethernet frames over AF_PACKET, for programs that have CAP_NET_RAW themselves.
//!
//! A socket is one program's view of one interface: frames come in as copies, the system's own network stack sees them
//! as well. So a rule asks for frames and takes them from nobody; what rules say about priority among programs has no
//! meaning here.

mod ether;
mod rule;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub use ether::{EtherFrame, EtherSocket};
pub use rule::{Layer, Pattern, Rule};

use crate::sys::{self, PacketMembership};

/// Octets of the longest frame that is received, VLAN tag included; the rest of a longer one is cut off.
pub const MAX_FRAME: usize = 65_554;

/// A program's access to the frames of one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    ifindex: u32,
}

/// Where a frame is received to.
pub struct FrameBuffer {
    /// With room before the frame for a VLAN tag that the kernel took out.
    bytes: Box<[u8]>,
}

/// A frame that was received.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedFrame<'a> {
    /// From its destination address to the end of its payload, with its VLAN tags, without FCS.
    pub bytes: &'a [u8],
    /// It left by the interface instead of arriving there.
    pub outgoing: bool,
}

impl PacketSocket {
    /// Opens a socket that sends by the interface `ifindex` and receives nothing until [`PacketSocket::listen`].
    ///
    /// `PermissionDenied` without CAP_NET_RAW in the network namespace; `ENODEV` when there is no such interface.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let fd = sys::open_packet_socket()?;
        // Before the bind, so that nothing is queued that nobody asked for.
        sys::drop_all(&fd)?;
        sys::request_vlan_tags(&fd)?;
        sys::bind_packet_socket(&fd, ifindex, sys::ALL_PROTOCOLS)?;
        Ok(Self { fd, ifindex })
    }

    /// Receives every frame that arrives from now on, and with `outgoing` also those that leave; or with `false` none.
    pub fn listen(&self, listen: bool, outgoing: bool) -> io::Result<()> {
        sys::ignore_outgoing(&self.fd, !outgoing)?;
        if listen { sys::accept_all(&self.fd) } else { sys::drop_all(&self.fd) }
    }

    /// Has the interface accept frames to this address although it is not its own, or with `None` to any address, or
    /// takes that back. Each request is to be taken back once; the interface keeps count.
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
    /// `WouldBlock` or `ENOBUFS` when the interface's queue is full, `EMSGSIZE` when the frame does not fit it, `EINVAL`
    /// when it is shorter than its header, `ENETDOWN` when it is down.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        socket2::SockRef::from(&self.fd).send_with_flags(frame, libc::MSG_DONTWAIT).map(drop)
    }

    /// The next frame that waits; `None` when there is none. Never blocks.
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
        // What is sent over lo arrives there: the frame comes a second time.
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
    /// Allocates the buffer.
    pub fn new() -> Self {
        // And for what the kernel tells of merged frames.
        Self { bytes: vec![0; MAX_FRAME + 16].into() }
    }
}

impl Default for FrameBuffer {
    fn default() -> Self {
        Self::new()
    }
}
