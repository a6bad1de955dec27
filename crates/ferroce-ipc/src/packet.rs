//! Packets with descriptors over any `SOCK_SEQPACKET` socket: what messages and parked descriptors are made
//! of.

mod receive;

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::strange::{Closer, Strange};

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Most descriptors in one packet: the kernel's `SCM_MAX_FD`.
pub const MAX_DESCRIPTORS: usize = 253;
/// Longest message, in bytes.
pub const MAX_MESSAGE: usize = 65_536;

/// A received packet, apart from its bytes.
#[derive(Debug)]
pub struct Packet {
    /// How many bytes of the buffer it is.
    pub length: usize,
    /// Whether the bytes were more than [`MAX_MESSAGE`], and the rest is lost.
    pub cut: bool,
    /// The descriptors, close-on-exec. Fewer than were sent if our limit of open files is reached.
    pub descriptors: Vec<OwnedFd>,
    /// `None` unless the socket asks for senders ([`pass_sender`]).
    pub sender: Option<Sender>,
}

/// The process that sent a packet, by the kernel's word (`SCM_CREDENTIALS`). A privileged sender may name
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Process id in our pid namespace, 0 if the process is in none that this process sees.
    pub pid: u32,
    /// Real user, unless the sender named its effective or saved one.
    pub uid: u32,
}

/// Lets packets that are sent to a socket from now on tell their sender. Sockets that connect to a listener
/// have the listener's setting.
///
/// # Errors
/// The errors of `setsockopt(2)`.
pub fn pass_sender(socket: &impl AsFd) -> io::Result<()> {
    Ok(nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::PassCred, &true)?)
}

/// Two connected sockets, non-blocking and close-on-exec.
///
/// # Errors
/// The errors of `socketpair(2)`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends one packet, without waiting and without SIGPIPE.
///
/// # Errors
/// `InvalidInput` for more than [`MAX_DESCRIPTORS`]; otherwise those of `sendmsg(2)`: `WouldBlock` if the
/// receiver's queue is full, `ETOOMANYREFS` if our user has too many descriptors in flight.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(fd, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(())
}

/// Takes one packet without waiting into `buffer`, which becomes as long as the longest may be. `None` at the
/// end of the connection.
///
/// # Errors
/// `WouldBlock` when no packet waits; EMFILE when descriptors came that this process may not have; otherwise
/// those of `recvmsg(2)`.
pub fn recv(fd: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> io::Result<Option<Packet>> {
    recv_from(fd, buffer, None)
}

/// As [`recv`], but another user may be at the other end: `closer` closes the descriptors of a packet that
/// cannot be taken.
///
/// # Errors
/// As [`recv`].
pub fn recv_from(
    fd: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
    closer: Option<&Closer>,
) -> io::Result<Option<Packet>> {
    receive_into(fd, buffer, false, closer)
}

/// As [`recv`], but leaves the packet where it is; the descriptors are duplicates. With `SO_PEEK_OFF` set on
/// the socket the next call sees the next packet.
///
/// # Errors
/// As [`recv`].
pub fn peek(fd: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> io::Result<Option<Packet>> {
    receive_into(fd, buffer, true, None)
}

/// Returns the octets of the next packet, leaves the packet where it is, and never gets its descriptors.
///
/// # Errors
/// As [`recv`].
pub fn peek_octets<'a>(fd: BorrowedFd<'_>, buffer: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
    buffer.resize(MAX_MESSAGE, 0);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let (length, _) = rustix::io::retry_on_intr(|| rustix::net::recv(fd, buffer.as_mut_slice(), flags))?;
    Ok(buffer.get(..length).unwrap_or_default())
}

fn receive_into(
    fd: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
    peek: bool,
    closer: Option<&Closer>,
) -> io::Result<Option<Packet>> {
    // Only the first time: filling it costs more than the call.
    buffer.resize(MAX_MESSAGE, 0);
    let taken = receive::receive(fd, buffer, peek)?;
    // There was room for more: it is this process that may not have them.
    if taken.control_cut && taken.descriptors.len() < MAX_DESCRIPTORS {
        drop(taken.descriptors.into_iter().map(|fd| Strange::new(fd, closer.cloned())).collect::<Vec<_>>());
        return Err(rustix::io::Errno::MFILE.into());
    }
    let length = taken.length.min(MAX_MESSAGE);
    let (cut, sender) = (taken.cut, taken.sender);
    Ok((length > 0).then_some(Packet { length, cut, descriptors: taken.descriptors, sender }))
}

/// Takes a packet whose octets do not matter, and closes its descriptors as those of the socket's maker.
/// Returns its length.
pub(crate) fn hear(socket: &Strange, octets: &mut [u8]) -> io::Result<usize> {
    let taken = receive::receive(socket.as_fd(), octets, false)?;
    taken.descriptors.into_iter().for_each(|fd| drop(socket.like(fd)));
    Ok(taken.length)
}
