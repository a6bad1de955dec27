//! All receiving sockets of one local address, which the broker holds.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_wire::ROCE_UDP_PORT;
use socket2::{SockRef, Socket};

use super::{address, open_socket, set_receive_buffer};
use crate::sys;

/// Limit of members: slots 0 to 254. Slot 255 is never leased, because it contains QPN 0xFFFFFF.
pub const SLOTS: usize = 255;

/// Byte of the UDP payload that selects the member: bits 23..16 of the BTH's destination QPN.
const STEERING_BYTE: u32 = 5;

/// All sockets of one local address on UDP port 4791. The index of a member is its slot.
///
/// A member is never closed while a program lives, because the kernel would move the last member to its
/// index. So the group only grows, and it is dropped only at the end of the broker. Members of free slots
/// have the kernel's smallest receive buffer; [`Group::lease`] enlarges it.
#[derive(Debug)]
pub struct Group {
    local: SocketAddr,
    members: Vec<OwnedFd>,
}

/// Failure to open or adopt a group.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another socket has the port: a member of a group that survived its broker, another program, or the
    /// kernel's rxe.
    #[error("UDP {0} is in use")]
    InUse(SocketAddr),
    /// The address is not (or no longer) one of this host.
    #[error("no such local address: {0}")]
    NoAddress(SocketAddr),
    /// The kernel does not support SO_ATTACH_REUSEPORT_CBPF.
    #[error("the kernel does not steer groups of UDP sockets by BPF")]
    NoSteering(#[source] io::Error),
    /// A descriptor to adopt is not a member of the group.
    #[error("descriptor of slot {slot} cannot be adopted: {reason}")]
    NotAMember {
        /// Index in the list of descriptors.
        slot: usize,
        reason: &'static str,
    },
    /// The list of members to adopt is empty or longer than [`SLOTS`].
    #[error("a group has 1 to {SLOTS} members, not {0}")]
    Count(usize),
    #[error("UDP {address}: cannot {action}")]
    Io {
        address: SocketAddr,
        action: &'static str,
        #[source]
        source: io::Error,
    },
}

impl Group {
    /// Opens the group of local address `ip` with member 0, the broker's own; `scope_id` is the interface's
    /// index for a link-local IPv6 address, 0 otherwise.
    ///
    /// Returns [`OpenError::InUse`] also if members of a dead broker's group survive: [`Group::adopt`] takes
    /// them over.
    pub fn open(ip: IpAddr, scope_id: u32) -> Result<Self, OpenError> {
        Self::open_at(address(ip, scope_id, ROCE_UDP_PORT))
    }

    pub(super) fn open_at(local: SocketAddr) -> Result<Self, OpenError> {
        // With SO_REUSEPORT, a bind would succeed beside surviving members of our uid, join their group and
        // replace its filter without an error. So the first bind is without it. Two brokers cannot interleave
        // their two binds, because a broker takes its name in the abstract Unix namespace before.
        let probe = open_socket(local.ip()).map_err(|e| failed(local, "open a socket", e))?;
        probe.bind(&local.into()).map_err(|e| bind_error(local, e))?;
        drop(probe);

        let mut group = Self { local, members: Vec::new() };
        let first = group.open_member(true)?;
        group.members.push(first);
        Ok(group)
    }

    /// Adopts the members of a group whose broker died, in the order of their slots, and attaches the filter
    /// again, because a program may have replaced it.
    ///
    /// The caller guarantees that the list is complete and ordered; the function checks family, type,
    /// address, port and `SO_REUSEPORT` of each.
    pub fn adopt(members: Vec<OwnedFd>) -> Result<Self, OpenError> {
        if members.is_empty() || members.len() > SLOTS {
            return Err(OpenError::Count(members.len()));
        }
        let mut local = None;
        for (slot, member) in members.iter().enumerate() {
            let address = check_member(member).map_err(|reason| OpenError::NotAMember { slot, reason })?;
            if address != *local.get_or_insert(address) {
                let reason = "not bound to the address of the others";
                return Err(OpenError::NotAMember { slot, reason });
            }
        }
        let group = Self { local: local.ok_or(OpenError::Count(0))?, members };
        group.steer(&group.members[0])?;
        Ok(group)
    }

    /// Local address and port of all members.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Number of members, which have the slots from 0.
    #[expect(clippy::len_without_is_empty, reason = "a group has member 0 from the start")]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Opens the next slot and returns a duplicate of its descriptor for a program. Its receive buffer is the
    /// smallest; [`Group::lease`] enlarges it.
    ///
    /// [`OpenError::Count`] if slots 0 to 254 exist already.
    pub fn add_member(&mut self) -> Result<OwnedFd, OpenError> {
        if self.members.len() >= SLOTS {
            return Err(OpenError::Count(self.members.len() + 1));
        }
        let member = self.open_member(false)?;
        let duplicate = member.try_clone().map_err(|e| failed(self.local, "duplicate a descriptor", e))?;
        self.members.push(member);
        Ok(duplicate)
    }

    /// The descriptor of a slot, to store in the service manager or to send to a program.
    pub fn member(&self, slot: u8) -> Option<BorrowedFd<'_>> {
        self.members.get(usize::from(slot)).map(AsFd::as_fd)
    }

    /// The descriptors of all slots in order.
    pub fn members(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.members.iter().map(AsFd::as_fd)
    }

    /// Prepares a slot for its next holder: discards the queue of the previous one, and requests a receive
    /// buffer of `receive_buffer` bytes ([`super::RECEIVE_BUFFER`]). Returns the size that the kernel
    /// granted.
    pub fn lease(&self, slot: u8, receive_buffer: usize) -> io::Result<usize> {
        let member = self.member(slot).ok_or(io::ErrorKind::NotFound)?;
        // The previous holder may have called `drop_all`.
        sys::accept_everything(&member)?;
        discard_waiting(&member)?;
        set_receive_buffer(&member, receive_buffer)
    }

    /// Reduces a slot without a holder to the smallest receive buffer, and discards its queue.
    pub fn release(&self, slot: u8) -> io::Result<()> {
        let member = self.member(slot).ok_or(io::ErrorKind::NotFound)?;
        set_receive_buffer(&member, 0)?;
        discard_waiting(&member)
    }

    fn open_member(&self, first: bool) -> Result<OwnedFd, OpenError> {
        let local = self.local;
        let socket = open_socket(local.ip()).map_err(|e| failed(local, "open a socket", e))?;
        let configured = socket.set_reuse_port(true).and_then(|()| configure_receiver(&socket, local.ip()));
        configured.map_err(|e| failed(local, "configure a socket", e))?;
        if first {
            // The filter precedes the bind, so that the kernel's hash never selects a member.
            self.steer(&socket)?;
        }
        socket.bind(&local.into()).map_err(|e| bind_error(local, e))?;
        Ok(socket.into())
    }

    fn steer(&self, member: &impl AsFd) -> Result<(), OpenError> {
        sys::steer_by_payload_byte(member, STEERING_BYTE).map_err(OpenError::NoSteering)
    }
}

pub(super) fn configure_receiver(socket: &Socket, ip: IpAddr) -> io::Result<()> {
    set_receive_buffer(socket, 0)?;
    // On every member, because GRO consults a member that the kernel's hash selects.
    sys::set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    match ip {
        IpAddr::V4(_) => Ok(()),
        // The kernel's rxe sends UDP checksum 0 over IPv6 as well.
        IpAddr::V6(_) => sys::set_int(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1),
    }
}

fn check_member(fd: &OwnedFd) -> Result<SocketAddr, &'static str> {
    let socket = SockRef::from(fd);
    let is = |found: io::Result<bool>| found.unwrap_or(false);
    if !is(socket.r#type().map(|t| t == socket2::Type::DGRAM)) {
        return Err("not a datagram socket");
    }
    if !is(socket.protocol().map(|p| p == Some(socket2::Protocol::UDP))) {
        return Err("not a UDP socket");
    }
    if !is(socket.reuse_port()) {
        return Err("not opened with SO_REUSEPORT");
    }
    let local = socket.local_addr().ok().and_then(|a| a.as_socket());
    local.filter(|a| a.port() != 0).ok_or("not bound")
}

/// Discards a socket's queue. The loop is bounded, so that a sender cannot prolong it.
fn discard_waiting(fd: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(fd);
    for _ in 0..65_536 {
        match socket.recv_with_flags(&mut [], libc::MSG_DONTWAIT | libc::MSG_TRUNC) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn bind_error(local: SocketAddr, source: io::Error) -> OpenError {
    match source.raw_os_error() {
        Some(libc::EADDRINUSE) => OpenError::InUse(local),
        // ENODEV and EINVAL: the scope id names no interface, or a link-local address has none.
        Some(libc::EADDRNOTAVAIL | libc::ENODEV | libc::EINVAL) => OpenError::NoAddress(local),
        _ => failed(local, "bind", source),
    }
}

fn failed(address: SocketAddr, action: &'static str, source: io::Error) -> OpenError {
    OpenError::Io { address, action, source }
}
