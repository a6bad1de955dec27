//! Facts about TCP sockets that rustix does not offer.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

/// The number of octets that the socket sent, or has yet to send, and that the peer's TCP did not acknowledge (`SIOCOUTQ`).
///
/// # Errors
/// Returns the error of `ioctl(2)`.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    let mut octets: libc::c_int = 0;
    // SAFETY: TIOCOUTQ, which is SIOCOUTQ, writes one `int`.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(usize::try_from(octets).unwrap_or(0)) }
}

/// The octets of data in a full TCP segment of a connection as it is now: the MSS without the options (`TCP_MAXSEG`).
///
/// # Errors
/// Returns the error of `getsockopt(2)`.
pub fn segment_size(socket: impl AsFd) -> io::Result<u16> {
    let mut octets: libc::c_int = 0;
    let mut len = mem::size_of_val(&octets) as libc::socklen_t;
    // SAFETY: the option is one `int`; pointer and length are those of `octets`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw mut octets).cast(),
            &raw mut len,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u16::try_from(octets).unwrap_or(u16::MAX))
}
