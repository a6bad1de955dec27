//! Facts about TCP sockets that rustix does not offer.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The number of octets that the socket sent, or has yet to send, and that the peer's TCP did not acknowledge
/// (`SIOCOUTQ`).
///
/// # Errors
/// Returns the error of `ioctl(2)`.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    let mut octets: libc::c_int = 0;
    // SAFETY: TIOCOUTQ, which is SIOCOUTQ, writes one `int`.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(usize::try_from(octets).unwrap_or(0)) }
}

/// The octets of data in a full TCP segment of a connection as it is now: the MSS without the options
/// (`TCP_MAXSEG`).
///
/// # Errors
/// Returns the error of `getsockopt(2)`.
pub fn segment_size(socket: impl AsFd) -> io::Result<u16> {
    // SAFETY: the option is one `int`.
    let octets: libc::c_int = unsafe { option(socket, libc::TCP_MAXSEG) }?;
    Ok(u16::try_from(octets).unwrap_or(u16::MAX))
}

/// The time that a round trip of the connection takes at most, as the kernel estimates it: the smoothed
/// round-trip time and four times its variation (RFC 6298 2.3; `TCP_INFO`).
///
/// # Errors
/// Returns the error of `getsockopt(2)`.
pub fn round_trip(socket: impl AsFd) -> io::Result<Duration> {
    // SAFETY: the option is this structure, which consists of integers.
    let info: libc::tcp_info = unsafe { option(socket, libc::TCP_INFO) }?;
    Ok(Duration::from_micros(u64::from(info.tcpi_rtt) + 4 * u64::from(info.tcpi_rttvar)))
}

/// Reads an option of TCP.
///
/// # Safety
/// The option fills a `T`, or the beginning of one, and each pattern of bits is a valid `T`.
unsafe fn option<T>(socket: impl AsFd, name: libc::c_int) -> io::Result<T> {
    // SAFETY: each pattern of bits is valid, says the caller.
    let mut value: T = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length are those of `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_connection_on_loopback_has_a_short_round_trip() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let time = round_trip(&client).unwrap();
        assert!(time > Duration::ZERO && time < Duration::from_secs(1), "{time:?}");
        let (unix, _peer) = UnixStream::pair().unwrap();
        assert!(round_trip(&unix).is_err());
    }
}
