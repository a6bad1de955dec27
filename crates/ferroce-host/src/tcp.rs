//! Facts about TCP sockets that rustix does not offer.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

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

/// The time that a round trip of the connection takes at most, as the kernel estimates it: the smoothed round-trip time and four times its
/// variation (RFC 6298 2.3; `TCP_INFO`).
///
/// # Errors
/// Returns the error of `getsockopt(2)`.
pub fn round_trip(socket: impl AsFd) -> io::Result<Duration> {
    // SAFETY: the structure consists of integers.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut len = mem::size_of_val(&info) as libc::socklen_t;
    // SAFETY: pointer and length are those of `info`, and the kernel writes integers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::from_micros(u64::from(info.tcpi_rtt) + 4 * u64::from(info.tcpi_rttvar)))
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
