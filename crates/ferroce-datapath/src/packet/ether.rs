//! Frames of one type on one interface, for the broker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_wire::ROCE_UDP_PORT;

use super::FrameBuffer;
use crate::sys;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Not in every libc.
const PACKET_VNET_HDR: libc::c_int = 15;

/// Octets asked of the kernel for frames that wait.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Receives the frames of one type that arrive at one interface, and sends any there. Needs CAP_NET_RAW in the network
/// namespace, and so does whoever it would be handed to: it could be bound anew, to everything. It is handed to nobody.
#[derive(Debug)]
pub struct EtherSocket {
    fd: OwnedFd,
    /// The kernel tells of merged frames.
    about: bool,
}

/// Octets that the kernel writes before a frame when it is asked about merged ones (`struct virtio_net_hdr`).
const ABOUT: usize = 10;
/// In its second octet: several UDP datagrams that were merged, or not yet cut.
const MERGED_UDP: u8 = 5;

/// A frame that was received.
#[derive(Clone, Copy, Debug)]
pub struct EtherFrame<'a> {
    /// From its destination address to the end of its payload, without FCS; without a tag that the kernel took out.
    pub bytes: &'a [u8],
    /// 802.1Q tag control information of a tag that the kernel took out.
    pub vlan: Option<u16>,
    /// Sent to an address of this host or to a group, not merely seen.
    pub meant: bool,
    /// Its UDP payload is that of several datagrams of so many octets, the last one perhaps of fewer.
    pub merged: Option<usize>,
}

impl EtherSocket {
    /// Opens a socket for frames of type `ethertype` at interface `ifindex`; with type 0 it receives nothing.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW in the network namespace; `ENODEV` when there is no such interface.
    pub fn open(ifindex: u32, ethertype: u16) -> io::Result<Self> {
        let fd = sys::open_packet_socket()?;
        sys::request_vlan_tags(&fd)?;
        // Refused on kernels before 4.20; of a single type the kernel shows none that leaves anyway.
        let _ = sys::ignore_outgoing(&fd, true);
        // What the kernel does not grant is loss when frames come faster than they are taken.
        let _ = socket2::SockRef::from(&fd).set_recv_buffer_size(RECEIVE_BUFFER);
        sys::bind_packet_socket(&fd, ifindex, ethertype)?;
        Ok(Self { fd, about: false })
    }

    /// Opens a socket that receives the frames of RoCE v2 over IPv4 or IPv6, and nothing else; it cannot send.
    ///
    /// # Errors
    /// As [`EtherSocket::open`].
    pub fn open_v2(ifindex: u32, v6: bool) -> io::Result<Self> {
        let fd = sys::open_packet_socket()?;
        sys::request_vlan_tags(&fd)?;
        sys::accept_udp(&fd, v6, ROCE_UDP_PORT)?;
        sys::set_int(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
        let _ = socket2::SockRef::from(&fd).set_recv_buffer_size(RECEIVE_BUFFER);
        sys::bind_packet_socket(&fd, ifindex, if v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 })?;
        Ok(Self { fd, about: true })
    }

    /// Whether this process may open one.
    pub fn is_permitted() -> bool {
        sys::open_packet_socket().is_ok()
    }

    /// Sends a frame; never blocks.
    ///
    /// # Errors
    /// As [`super::PacketSocket::send`].
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        socket2::SockRef::from(&self.fd).send_with_flags(frame, libc::MSG_DONTWAIT).map(drop)
    }

    /// The next frame that waits; `None` when there is none. Never blocks.
    ///
    /// # Errors
    /// Those of `recvmsg(2)`: `ENETDOWN` once when the interface goes down.
    pub fn recv<'a>(&self, buffer: &'a mut FrameBuffer) -> io::Result<Option<EtherFrame<'a>>> {
        match sys::receive_frame(&self.fd, &mut buffer.bytes) {
            Ok(info) => {
                let before = if self.about { ABOUT.min(info.len) } else { 0 };
                let (about, bytes) = buffer.bytes[..info.len].split_at(before);
                let merged = match about {
                    [_, kind, _, _, low, high, ..] if kind & 0x7f == MERGED_UDP => {
                        Some(usize::from(u16::from_ne_bytes([*low, *high]))).filter(|size| *size > 0)
                    }
                    _ => None,
                };
                let vlan = info.vlan.map(|(_, tci)| tci);
                Ok(Some(EtherFrame { bytes, vlan, meant: info.meant, merged }))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for EtherSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
