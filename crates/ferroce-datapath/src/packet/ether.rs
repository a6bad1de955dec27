//! Frames of one type on one interface, for the broker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_wire::ROCE_UDP_PORT;

use super::FrameBuffer;
use crate::sys;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Some libcs lack the constant.
const PACKET_VNET_HDR: libc::c_int = 15;

/// Requested size of the receive buffer, in octets.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Receives the frames of one type on one interface, and sends any there. Needs CAP_NET_RAW in the network
/// namespace. The broker passes it to no program, because a program could bind it anew to all frames.
#[derive(Debug)]
pub struct EtherSocket {
    fd: OwnedFd,
    /// The kernel prepends a `virtio_net_hdr` to each frame.
    vnet_hdr: bool,
}

/// Size of `struct virtio_net_hdr`.
const VNET_HDR_LEN: usize = 10;
/// VIRTIO_NET_HDR_GSO_UDP_L4 in its second octet: several UDP datagrams in one frame.
const MERGED_UDP: u8 = 5;

#[derive(Clone, Copy, Debug)]
pub struct EtherFrame<'a> {
    /// From the destination address to the end of the payload, without FCS and without a stripped VLAN tag.
    pub bytes: &'a [u8],
    /// 802.1Q tag control information of a stripped tag.
    pub vlan: Option<u16>,
    /// Sent to an address of this host or to a group (not PACKET_OTHERHOST).
    pub meant: bool,
    /// Size of each merged UDP datagram; the last one may be shorter.
    pub merged: Option<usize>,
}

impl EtherSocket {
    /// Opens a socket for frames of type `ethertype` at interface `ifindex`; with type 0 it receives nothing.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW in the network namespace; `ENODEV` if there is no such
    /// interface.
    pub fn open(ifindex: u32, ethertype: u16) -> io::Result<Self> {
        let fd = sys::open_packet_socket()?;
        sys::request_vlan_tags(&fd)?;
        // Kernels before 4.20 refuse; for a single type the kernel shows no leaving frames anyway.
        let _ = sys::ignore_outgoing(&fd, true);
        // A smaller buffer only loses frames sooner under load.
        let _ = socket2::SockRef::from(&fd).set_recv_buffer_size(RECEIVE_BUFFER);
        sys::bind_packet_socket(&fd, ifindex, ethertype)?;
        Ok(Self { fd, vnet_hdr: false })
    }

    /// Opens a socket that receives only RoCE v2 frames over IPv4 or IPv6; it cannot send.
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
        Ok(Self { fd, vnet_hdr: true })
    }

    /// Returns whether this process may open one.
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

    /// Returns the next queued frame, or `None`. Never blocks.
    ///
    /// # Errors
    /// The errors of `recvmsg(2)`: `ENETDOWN` once after the interface is set down.
    pub fn recv<'a>(&self, buffer: &'a mut FrameBuffer) -> io::Result<Option<EtherFrame<'a>>> {
        match sys::receive_frame(&self.fd, &mut buffer.bytes) {
            Ok(info) => {
                let before = if self.vnet_hdr { VNET_HDR_LEN.min(info.len) } else { 0 };
                let (vnet_hdr, bytes) = buffer.bytes[..info.len].split_at(before);
                let merged = match vnet_hdr {
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
