//! Sending and receiving.

use std::net::SocketAddr;
use std::slice;

use core::ffi::{c_int, c_void};
use ferroce_rsocket::{Progress, RsocketError, Stream};
use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};

use super::table::{self, Socket};
use super::{address, attempt};
use crate::call::Owner;
use crate::entry::{ConstPtr, Ptr, export};
use crate::errno::Errno;
use crate::handle::set;
use crate::wait::{self, Step, Woken};

/// Places that one call may name.
const MAX_PLACES: usize = libc::UIO_MAXIOV as usize;

/// For a call that waits and returns how many octets, or -1 and errno.
fn count<F>(attempt: F) -> ssize_t
where
    F: FnMut(&Owner, Woken) -> Result<Step<usize>, Errno>,
{
    wait::waiting(|_| usize::MAX, attempt) as ssize_t
}

/// A program's octets to send.
///
/// # Safety
///
/// `buf` is NULL or readable for `len` octets, as long as the call lasts.
pub(super) unsafe fn given<'a>(buf: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    match (buf.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno::EFAULT),
        // SAFETY: `buf` has `len` octets; a program that changes them meanwhile sends either.
        (false, len) => Ok(unsafe { slice::from_raw_parts(buf.cast(), len) }),
    }
}

/// A program's room for octets.
///
/// # Safety
///
/// `buf` is NULL or writable for `len` octets, as long as the call lasts.
unsafe fn room<'a>(buf: *mut c_void, len: usize) -> Result<&'a mut [u8], Errno> {
    match (buf.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Errno::EFAULT),
        // SAFETY: `buf` has `len` octets; nobody reads what was not written before.
        (false, len) => Ok(unsafe { slice::from_raw_parts_mut(buf.cast(), len) }),
    }
}

/// A program's places.
///
/// # Safety
///
/// `iov` is NULL or readable for `count` elements.
unsafe fn places<'a>(iov: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    match (iov.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno::EFAULT),
        (false, count) if count > MAX_PLACES => Err(Errno::EMSGSIZE),
        // SAFETY: `iov` has `count` elements.
        (false, count) => Ok(unsafe { slice::from_raw_parts(iov, count) }),
    }
}

fn number(count: c_int) -> Result<usize, Errno> {
    usize::try_from(count).ok().filter(|count| *count <= MAX_PLACES).ok_or(Errno::EINVAL)
}

/// The address to send to, if a program names one.
///
/// # Safety
///
/// `address` is NULL or readable for `length` octets.
unsafe fn destination(address: *const sockaddr, length: socklen_t) -> Result<Option<SocketAddr>, Errno> {
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: `address` has `length` octets.
    unsafe { address::read(address, length) }.map(Some)
}

/// The result of a receive: the number of octets, and the sender.
type Received = (usize, Option<SocketAddr>);

/// Receives behind what `got` says was received before, and counts there.
fn receive(
    socket: c_int,
    out: &mut [&mut [u8]],
    flags: c_int,
    woken: Woken,
    got: &mut usize,
) -> Result<Step<Received>, Errno> {
    let entry = table::get(socket)?;
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let nonblocking = entry.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
    let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    match &entry.socket {
        Socket::Stream(stream) => {
            let received = woken.and_then(|()| receive_some(stream, out, nonblocking, peek, all, got));
            let octets = match received {
                // An error loses nothing that came before.
                Err(_) if *got > 0 => Step::Done(*got),
                received => received?,
            };
            octets.then(|octets| Ok((octets, stream.peer_addr())))
        }
        Socket::Datagram(datagram) => {
            woken?;
            attempt(datagram.receive(out, nonblocking, peek))?.then(|(octets, from)| Ok((octets, Some(from))))
        }
        Socket::Repoll(_) => Err(Errno::EBADF),
    }
}

/// Receives once, or with `all` until `out` is full or the peer is done.
fn receive_some(
    stream: &Stream,
    out: &mut [&mut [u8]],
    nonblocking: bool,
    peek: bool,
    all: bool,
    got: &mut usize,
) -> Result<Step<usize>, Errno> {
    let room: usize = out.iter().map(|piece| piece.len()).sum();
    loop {
        let octets = match attempt(stream.receive(out, *got, nonblocking, peek))? {
            Step::Done(octets) => octets,
            sleep => return Ok(sleep),
        };
        let before = std::mem::replace(got, octets);
        if octets == before || octets == room || peek || !all {
            return Ok(Step::Done(octets));
        }
    }
}

/// Sends, to `to` if it is a datagram's.
fn send(
    socket: c_int,
    octets: &[&[u8]],
    flags: c_int,
    to: Option<SocketAddr>,
    woken: Woken,
    sent: &mut Progress,
) -> Result<Step<usize>, Errno> {
    let entry = table::get(socket)?;
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let nonblocking = entry.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
    match &entry.socket {
        Socket::Stream(_) if to.is_some() => Err(Errno::EISCONN),
        Socket::Stream(stream) => go_on(woken, sent, |sent| stream.send(octets, sent, nonblocking)),
        Socket::Datagram(datagram) => {
            woken?;
            attempt(datagram.send(octets, to, nonblocking))
        }
        Socket::Repoll(_) => Err(Errno::EBADF),
    }
}

/// Goes on with what a stream sends. A signal ends the call; what was sent before is not lost by that.
pub(super) fn go_on(
    woken: Woken,
    sent: &mut Progress,
    send: impl FnOnce(&mut Progress) -> Result<usize, RsocketError>,
) -> Result<Step<usize>, Errno> {
    match woken {
        Err(_) if sent.octets() > 0 => Ok(Step::Done(sent.octets())),
        Err(errno) => Err(errno),
        Ok(()) => attempt(send(sent)),
    }
}

export! {
    /// Receives; 0 when the peer is done.
    pub waiting fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
        // SAFETY: `len` is the length of `buf`, as there.
        unsafe { rrecvfrom(socket, buf, len, flags, std::ptr::null_mut(), std::ptr::null_mut()) }
    }

    /// Receives, and tells from whom.
    pub waiting fn rrecvfrom(
        socket: c_int,
        buf: *mut c_void,
        len: usize,
        flags: c_int,
        src_addr: Ptr<sockaddr>,
        addrlen: Ptr<socklen_t>,
    ) -> ssize_t {
        let mut got = 0;
        count(|_, woken| {
            // SAFETY: `len` is the length of `buf`.
            let room = unsafe { room(buf, len) }?;
            receive(socket, &mut [room], flags, woken, &mut got)?.then(|(octets, from)| {
                if let (false, false, Some(peer)) = (src_addr.is_null(), addrlen.is_null(), from) {
                    // SAFETY: `addrlen` names the room at `src_addr`.
                    unsafe { address::write(peer, src_addr.as_ptr(), addrlen.as_ptr()) }?;
                }
                Ok(octets)
            })
        })
    }

    /// Receives into several places. Control data are EOPNOTSUPP.
    pub waiting fn rrecvmsg(socket: c_int, msg: Ptr<msghdr>, flags: c_int) -> ssize_t {
        let mut got = 0;
        count(|_, woken| {
            let to = msg.lent().ok_or(Errno::EFAULT)?;
            let mut header = to.read();
            if !header.msg_control.is_null() && header.msg_controllen > 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            // SAFETY: `msg_iovlen` is the length of `msg_iov`, whose elements are as long as they say.
            let received =
                unsafe { receive_at(socket, header.msg_iov, header.msg_iovlen, flags, woken, &mut got) }?;
            received.then(|(octets, from)| {
                set!(to.msg_flags = 0);
                if let (false, Some(peer)) = (header.msg_name.is_null(), from) {
                    // SAFETY: `msg_namelen` names the room at `msg_name`.
                    unsafe { address::write(peer, header.msg_name.cast(), &mut header.msg_namelen) }?;
                    set!(to.msg_namelen = header.msg_namelen);
                }
                Ok(octets)
            })
        })
    }
}

/// # Safety
///
/// `iov` is NULL or readable for `count` elements, each of which is writable.
unsafe fn receive_at(
    socket: c_int,
    iov: *const iovec,
    count: usize,
    flags: c_int,
    woken: Woken,
    got: &mut usize,
) -> Result<Step<Received>, Errno> {
    // SAFETY: `iov` has `count` elements.
    let places = unsafe { places(iov, count) }?;
    // SAFETY: each place is as long as it says.
    let rooms = places.iter().map(|place| unsafe { room(place.iov_base, place.iov_len) });
    receive(socket, &mut rooms.collect::<Result<Vec<_>, _>>()?, flags, woken, got)
}

/// # Safety
///
/// `iov` is NULL or readable for `count` elements, each of which is readable.
unsafe fn send_from(
    socket: c_int,
    iov: *const iovec,
    count: usize,
    flags: c_int,
    to: Option<SocketAddr>,
    woken: Woken,
    sent: &mut Progress,
) -> Result<Step<usize>, Errno> {
    // SAFETY: `iov` has `count` elements.
    let places = unsafe { places(iov, count) }?;
    // SAFETY: each place is as long as it says.
    let octets = places.iter().map(|place| unsafe { given(place.iov_base, place.iov_len) });
    send(socket, &octets.collect::<Result<Vec<_>, _>>()?, flags, to, woken, sent)
}

export! {
    /// Sends.
    pub waiting fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t {
        let mut sent = Progress::NONE;
        count(|_, woken| {
            // SAFETY: `len` is the length of `buf`.
            send(socket, &[unsafe { given(buf, len) }?], flags, None, woken, &mut sent)
        })
    }

    /// Sends, a datagram to an address; a stream has one already: EISCONN.
    pub waiting fn rsendto(
        socket: c_int,
        buf: *const c_void,
        len: usize,
        flags: c_int,
        dest_addr: ConstPtr<sockaddr>,
        addrlen: socklen_t,
    ) -> ssize_t {
        let mut sent = Progress::NONE;
        count(|_, woken| {
            table::get(socket)?;
            // SAFETY: `addrlen` is the length of `dest_addr`.
            let to = unsafe { destination(dest_addr.as_ptr(), addrlen) }?;
            // SAFETY: `len` is the length of `buf`.
            send(socket, &[unsafe { given(buf, len) }?], flags, to, woken, &mut sent)
        })
    }

    /// Sends from several places. Control data are EOPNOTSUPP.
    pub waiting fn rsendmsg(socket: c_int, msg: ConstPtr<msghdr>, flags: c_int) -> ssize_t {
        let mut sent = Progress::NONE;
        count(|_, woken| {
            let header = msg.read().map_err(|_| Errno::EFAULT)?;
            if !header.msg_control.is_null() && header.msg_controllen > 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            // SAFETY: `msg_namelen` is the length of `msg_name`.
            let to = unsafe { destination(header.msg_name.cast(), header.msg_namelen) }?;
            // SAFETY: `msg_iovlen` is the length of `msg_iov`, whose elements are as long as they say.
            unsafe { send_from(socket, header.msg_iov, header.msg_iovlen, flags, to, woken, &mut sent) }
        })
    }

    /// As [`rrecv`] without flags.
    pub waiting fn rread(socket: c_int, buf: *mut c_void, len: usize) -> ssize_t {
        // SAFETY: `len` is the length of `buf`, as there.
        unsafe { rrecv(socket, buf, len, 0) }
    }

    /// As [`rread`], into several places.
    pub waiting fn rreadv(socket: c_int, iov: ConstPtr<iovec>, iovcnt: c_int) -> ssize_t {
        let mut got = 0;
        count(|_, woken| {
            // SAFETY: `iovcnt` is the length of `iov`, whose elements are as long as they say.
            let received = unsafe { receive_at(socket, iov.as_ptr(), number(iovcnt)?, 0, woken, &mut got) }?;
            received.then(|(octets, _)| Ok(octets))
        })
    }

    /// As [`rsend`] without flags.
    pub waiting fn rwrite(socket: c_int, buf: *const c_void, len: usize) -> ssize_t {
        // SAFETY: `len` is the length of `buf`, as there.
        unsafe { rsend(socket, buf, len, 0) }
    }

    /// As [`rwrite`], from several places.
    pub waiting fn rwritev(socket: c_int, iov: ConstPtr<iovec>, iovcnt: c_int) -> ssize_t {
        let mut sent = Progress::NONE;
        // SAFETY: `iovcnt` is the length of `iov`, whose elements are as long as they say.
        count(|_, woken| unsafe { send_from(socket, iov.as_ptr(), number(iovcnt)?, 0, None, woken, &mut sent) })
    }
}
