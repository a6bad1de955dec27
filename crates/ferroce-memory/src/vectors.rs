//! System calls that move payload between a socket and registered memory, without a copy of it by this
//! process.
//!
//! The registration is in use during the call, as it is during a copy, so that nothing touches the memory
//! behind the end of a registration. Memory that was unmapped or protected behind its registration ends the
//! call with EFAULT.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use ferroce_proto::Memory;
use ferroce_proto::iwarp::{Payload, Payloads, Span};
use rustix::io::Errno;

use crate::{HeldRegions, View};

/// A piece of memory, laid out as `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Piece {
    addr: u64,
    len: usize,
}

const _: () = assert!(size_of::<Piece>() == size_of::<libc::iovec>());

/// The pieces of a call, in the order of the stream.
struct Pieces {
    list: [Piece; MOST],
    count: usize,
}

/// The payloads, and the octets around them.
const MOST: usize = 2 * Payloads::MAX + 1;

impl Pieces {
    const fn new() -> Self {
        Self { list: [Piece { addr: 0, len: 0 }; MOST], count: 0 }
    }

    fn push(&mut self, addr: u64, len: usize) {
        if len > 0
            && let Some(piece) = self.list.get_mut(self.count)
        {
            *piece = Piece { addr, len };
            self.count += 1;
        }
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all fields are numbers and pointers, which may be zero.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.list.as_mut_ptr().cast();
        message.msg_iovlen = self.count as _;
        message
    }
}

/// Sends `octets` with the payloads between them, as much as TCP takes now.
///
/// # Errors
/// EFAULT: memory of the payload that comes first is gone, or may not be read; or the payload is to be copied
/// for another reason.
pub fn send(
    socket: BorrowedFd<'_>,
    memory: &View,
    octets: &[u8],
    payloads: &[Payload],
) -> Result<usize, Errno> {
    let mut held = HeldRegions::new(memory);
    let mut pieces = Pieces::new();
    let mut rest = octets;
    let mut from = 0;
    for payload in payloads {
        let (front, back) = rest.split_at_checked(payload.at() - from).ok_or(Errno::FAULT)?;
        (rest, from) = (back, payload.at());
        pieces.push(front.as_ptr().expose_provenance() as u64, front.len());
        let place = held.place_of_span(payload.span(), false).ok().flatten().ok_or(Errno::FAULT)?;
        pieces.push(place, payload.span().len());
    }
    pieces.push(rest.as_ptr().expose_provenance() as u64, rest.len());
    let message = pieces.message();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message names the octets of slices, and memory whose registration is held. The kernel reads
    // it, and answers EFAULT where nothing is mapped. Not the C library's `sendmsg`, which is a cancellation
    // point.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, socket.as_raw_fd(), &raw const message, flags) };
    result(sent)
}

/// Receives what has arrived: the first octets into the memory of `span`, and further ones into `behind`.
/// Returns their number, 0 at the end of the stream.
///
/// # Errors
/// EFAULT: the memory is gone, or may not be written; nothing was received.
pub fn receive(
    socket: BorrowedFd<'_>,
    memory: &mut View,
    span: &Span,
    behind: &mut [u8],
) -> Result<usize, Errno> {
    let domain = match span {
        Span::Local(_, domain) => *domain,
        Span::Remote { .. } => None,
    };
    memory.enter(domain);
    let received = receive_held(socket, memory, span, behind);
    memory.enter(None);
    received
}

fn receive_held(
    socket: BorrowedFd<'_>,
    memory: &View,
    span: &Span,
    behind: &mut [u8],
) -> Result<usize, Errno> {
    let mut held = HeldRegions::new(memory);
    let mut pieces = Pieces::new();
    let place = held.place_of_span(span, true).ok().flatten().ok_or(Errno::FAULT)?;
    pieces.push(place, span.len());
    pieces.push(behind.as_mut_ptr().expose_provenance() as u64, behind.len());
    let mut message = pieces.message();
    // SAFETY: the message names `behind`, and memory whose owner registered it for writing and whose
    // registration is held: no Rust reference reaches into it. The kernel answers EFAULT where nothing is
    // mapped. Not the C library's `recvmsg`, which is a cancellation point.
    let received =
        unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    result(received)
}

fn result(count: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(count).map_err(|_| {
        let errno = std::io::Error::last_os_error().raw_os_error();
        Errno::from_raw_os_error(errno.unwrap_or(libc::EIO))
    })
}
