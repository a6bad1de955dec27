//! Packet sockets.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libc::{c_int, iovec, msghdr};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::options::{accept_everything, set_int, set_value};
use super::recv::{ControlMessage, each_control, header, retry};

/// Linux 4.20; some libcs lack the constant.
const PACKET_IGNORE_OUTGOING: c_int = 23;

/// Addresses that an interface accepts besides its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PacketMembership {
    Promiscuous,
    Unicast([u8; 6]),
    Multicast([u8; 6]),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameInfo {
    pub(crate) len: usize,
    /// Protocol and control information of a stripped tag.
    pub(crate) vlan: Option<(u16, u16)>,
    pub(crate) outgoing: bool,
    pub(crate) loopback: bool,
    /// Sent to this host, to a group or to all (not PACKET_OTHERHOST).
    pub(crate) meant: bool,
}

/// Opens a socket for whole frames; unbound, so it receives nothing.
pub(crate) fn open_packet_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?)
}

/// ETH_P_ALL.
pub(crate) const ALL_PROTOCOLS: u16 = libc::ETH_P_ALL as u16;

/// Binds to frames of type `protocol` on one interface; with 0 it receives none.
pub(crate) fn bind_packet_socket(fd: &impl AsFd, ifindex: u32, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::sa_family_t,
        sll_protocol: protocol.to_be(),
        sll_ifindex: c_int::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: pointer and length are those of `address`, which outlives the call.
    let rc = unsafe {
        libc::bind(
            fd.as_fd().as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Undoes [`super::drop_all`].
pub(crate) fn accept_all(fd: &impl AsFd) -> io::Result<()> {
    accept_everything(fd)
}

/// Requests stripped VLAN tags as control messages.
pub(crate) fn request_vlan_tags(fd: &impl AsFd) -> io::Result<()> {
    set_int(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)
}

/// Excludes or includes leaving frames.
pub(crate) fn ignore_outgoing(fd: &impl AsFd, ignore: bool) -> io::Result<()> {
    set_int(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, c_int::from(ignore))
}

/// Adds or removes an accepted address.
pub(crate) fn packet_membership(
    fd: &impl AsFd,
    ifindex: u32,
    what: PacketMembership,
    add: bool,
) -> io::Result<()> {
    let (kind, address) = match what {
        PacketMembership::Promiscuous => (libc::PACKET_MR_PROMISC, [0; 6]),
        PacketMembership::Unicast(address) => (libc::PACKET_MR_UNICAST, address),
        PacketMembership::Multicast(address) => (libc::PACKET_MR_MULTICAST, address),
    };
    let mut request = libc::packet_mreq {
        mr_ifindex: c_int::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?,
        mr_type: kind as u16,
        mr_alen: if matches!(what, PacketMembership::Promiscuous) { 0 } else { 6 },
        mr_address: [0; 8],
    };
    request.mr_address[..6].copy_from_slice(&address);
    let option = if add { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
    set_value(fd, libc::SOL_PACKET, option, &request)
}

/// Space for one `tpacket_auxdata`.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; 64]);

/// Receives one frame without blocking; a longer one is cut.
pub(crate) fn receive_frame(fd: &impl AsFd, room: &mut [u8]) -> io::Result<FrameInfo> {
    let mut name = MaybeUninit::<libc::sockaddr_ll>::zeroed();
    let mut control = Control([MaybeUninit::uninit(); 64]);
    let mut vector = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let mut header = header(name.as_mut_ptr(), &raw mut vector, &raw mut control);
    let raw = fd.as_fd().as_raw_fd();
    let len = retry(|| {
        // SAFETY: the header's pointers lead to one name, one vector and one control buffer of the lengths in
        // it, all local and writable; the vector leads to `room`, which is borrowed mutably.
        let n = unsafe { libc::syscall(libc::SYS_recvmsg, raw, &raw mut header, libc::MSG_DONTWAIT) };
        n as isize
    })?;
    // SAFETY: zeroed before the call, and any octets are a valid `sockaddr_ll`.
    let name = unsafe { name.assume_init() };
    // SAFETY: recvmsg succeeded, so it filled the control buffer to the length in the header.
    let vlan = unsafe { vlan_tag(&header) };
    Ok(FrameInfo {
        len: len.min(room.len()),
        vlan,
        outgoing: name.sll_pkttype == libc::PACKET_OUTGOING,
        loopback: name.sll_hatype == libc::ARPHRD_LOOPBACK,
        meant: name.sll_pkttype != libc::PACKET_OTHERHOST && name.sll_pkttype != libc::PACKET_OUTGOING,
    })
}

/// # Safety
///
/// `recvmsg` filled `header`, and its control pointer leads to a live buffer.
unsafe fn vlan_tag(header: &msghdr) -> Option<(u16, u16)> {
    let mut found = None;
    let each = |message: &ControlMessage| {
        if (message.level, message.kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
            // SAFETY: any octets are a value of this type.
            let data = unsafe { message.read::<libc::tpacket_auxdata>() };
            found = found.or(data.filter(|data| data.tp_status & libc::TP_STATUS_VLAN_VALID != 0));
        }
    };
    // SAFETY: recvmsg filled the header, by this function's contract.
    unsafe { each_control(header, each) };
    found.map(|data| {
        let tpid_valid = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        (if tpid_valid { data.tp_vlan_tpid } else { 0x8100 }, data.tp_vlan_tci)
    })
}
