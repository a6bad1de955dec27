//! Sending and receiving.

use std::net::SocketAddr;
use std::slice;

use core::ffi::{c_int, c_void};
use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};

use super::address;
use super::table::{self, Socket};
use crate::call;
use crate::errno::Errno;

/// Places that one call may name.
const MAX_PLACES: usize = libc::UIO_MAXIOV as usize;

fn count(result: impl FnOnce() -> Result<usize, Errno>) -> ssize_t {
    call::value(-1, |_| result().map(|octets| isize::try_from(octets).unwrap_or(isize::MAX)))
}

/// A program's octets to send.
///
/// # Safety
///
/// `buf` is NULL or readable for `len` octets, as long as the call lasts.
pub(super) unsafe fn sent<'a>(buf: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    match (buf.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno::EFAULT),
        // SAFETY: as the caller says; a program that changes them meanwhile sends either.
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
        // SAFETY: as the caller says; nobody reads what was not written before.
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
        // SAFETY: as the caller says.
        (false, count) => Ok(unsafe { slice::from_raw_parts(iov, count) }),
    }
}

fn number(count: c_int) -> Result<usize, Errno> {
    usize::try_from(count).ok().filter(|count| *count <= MAX_PLACES).ok_or(Errno::EINVAL)
}

/// Whom to send to, if a program names anybody.
///
/// # Safety
///
/// `address` is NULL or readable for `length` octets.
unsafe fn destination(address: *const sockaddr, length: socklen_t) -> Result<Option<SocketAddr>, Errno> {
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    unsafe { address::read(address, length) }.map(Some)
}

/// Receives; how many octets, and from whom.
fn receive(socket: c_int, out: &mut [&mut [u8]], flags: c_int) -> Result<(usize, Option<SocketAddr>), Errno> {
    let entry = table::get(socket)?;
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let nonblocking = entry.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
    let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    match &entry.socket {
        Socket::Stream(stream) => {
            let octets = stream.receive_pieces(out, nonblocking, peek, all)?;
            Ok((octets, stream.peer_addr()))
        }
        Socket::Datagram(datagram) => {
            let (octets, from) = datagram.receive(out, nonblocking, peek)?;
            Ok((octets, Some(from)))
        }
        Socket::Repoll(_) => Err(Errno::EBADF),
    }
}

/// Sends, to `to` if it is a datagram's.
fn send(socket: c_int, octets: &[&[u8]], flags: c_int, to: Option<SocketAddr>) -> Result<usize, Errno> {
    let entry = table::get(socket)?;
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let nonblocking = entry.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
    match &entry.socket {
        Socket::Stream(_) if to.is_some() => Err(Errno::EISCONN),
        Socket::Stream(stream) => Ok(stream.send(octets, nonblocking)?),
        Socket::Datagram(datagram) => Ok(datagram.send(octets, to, nonblocking)?),
        Socket::Repoll(_) => Err(Errno::EBADF),
    }
}

/// Receives; 0 when the peer is done.
///
/// # Safety
///
/// `buf` is NULL or writable for `len` octets.
pub unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: as the caller says.
    count(|| Ok(receive(socket, &mut [unsafe { room(buf, len) }?], flags)?.0))
}

/// Receives, and tells from whom.
///
/// # Safety
///
/// As for [`rrecv`]; `src_addr` is NULL, or `addrlen` says how much may be written to it.
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    src_addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    count(|| {
        // SAFETY: as the caller says.
        let (octets, from) = receive(socket, &mut [unsafe { room(buf, len) }?], flags)?;
        if let (false, false, Some(peer)) = (src_addr.is_null(), addrlen.is_null(), from) {
            // SAFETY: as the caller says.
            unsafe { address::write(peer, src_addr, addrlen) }?;
        }
        Ok(octets)
    })
}

/// Receives into several places. Control data are EOPNOTSUPP.
///
/// # Safety
///
/// `msg` is NULL or a whole message header.
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    count(|| {
        // SAFETY: as the caller says.
        let header = unsafe { msg.as_mut() }.ok_or(Errno::EFAULT)?;
        if !header.msg_control.is_null() && header.msg_controllen > 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: as the caller says.
        let (octets, from) = unsafe { receive_at(socket, header.msg_iov, header.msg_iovlen, flags) }?;
        header.msg_flags = 0;
        if let (false, Some(peer)) = (header.msg_name.is_null(), from) {
            // SAFETY: the caller says that so much may be written there.
            unsafe { address::write(peer, header.msg_name.cast(), &mut header.msg_namelen) }?;
        }
        Ok(octets)
    })
}

/// # Safety
///
/// `iov` is NULL or readable for `count` elements, each of which is writable.
unsafe fn receive_at(
    socket: c_int,
    iov: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<(usize, Option<SocketAddr>), Errno> {
    // SAFETY: as the caller says.
    let places = unsafe { places(iov, count) }?;
    // SAFETY: as the caller says.
    let rooms = places.iter().map(|place| unsafe { room(place.iov_base, place.iov_len) });
    receive(socket, &mut rooms.collect::<Result<Vec<_>, _>>()?, flags)
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
) -> Result<usize, Errno> {
    // SAFETY: as the caller says.
    let places = unsafe { places(iov, count) }?;
    // SAFETY: as the caller says.
    let octets = places.iter().map(|place| unsafe { sent(place.iov_base, place.iov_len) });
    send(socket, &octets.collect::<Result<Vec<_>, _>>()?, flags, to)
}

/// Sends.
///
/// # Safety
///
/// `buf` is NULL or readable for `len` octets.
pub unsafe extern "C" fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: as the caller says.
    count(|| send(socket, &[unsafe { sent(buf, len) }?], flags, None))
}

/// Sends, a datagram to an address; a stream has one already: EISCONN.
///
/// # Safety
///
/// As for [`rsend`]; `dest_addr` is NULL or readable for `addrlen` octets.
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    dest_addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    count(|| {
        table::get(socket)?;
        // SAFETY: as the caller says.
        let to = unsafe { destination(dest_addr, addrlen) }?;
        // SAFETY: as the caller says.
        send(socket, &[unsafe { sent(buf, len) }?], flags, to)
    })
}

/// Sends from several places. Control data are EOPNOTSUPP.
///
/// # Safety
///
/// `msg` is NULL or a whole message header.
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    count(|| {
        // SAFETY: as the caller says.
        let header = unsafe { msg.as_ref() }.ok_or(Errno::EFAULT)?;
        if !header.msg_control.is_null() && header.msg_controllen > 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: as the caller says.
        let to = unsafe { destination(header.msg_name.cast(), header.msg_namelen) }?;
        // SAFETY: as the caller says.
        unsafe { send_from(socket, header.msg_iov, header.msg_iovlen, flags, to) }
    })
}

/// As [`rrecv`] without flags.
///
/// # Safety
///
/// As there.
pub unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    // SAFETY: as the caller says.
    unsafe { rrecv(socket, buf, len, 0) }
}

/// As [`rread`], into several places.
///
/// # Safety
///
/// `iov` is NULL or readable for `iovcnt` elements, each of which is writable.
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    // SAFETY: as the caller says.
    count(|| Ok(unsafe { receive_at(socket, iov, number(iovcnt)?, 0) }?.0))
}

/// As [`rsend`] without flags.
///
/// # Safety
///
/// As there.
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, len: usize) -> ssize_t {
    // SAFETY: as the caller says.
    unsafe { rsend(socket, buf, len, 0) }
}

/// As [`rwrite`], from several places.
///
/// # Safety
///
/// `iov` is NULL or readable for `iovcnt` elements, each of which is readable.
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    // SAFETY: as the caller says.
    count(|| unsafe { send_from(socket, iov, number(iovcnt)?, 0, None) })
}
