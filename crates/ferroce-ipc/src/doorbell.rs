//! The doorbell of a ring: a socket pair by which one side wakes the other.
//!
//! The doorbell uses a pair of sockets instead of an eventfd, because both sides of an eventfd share one open
//! file, so the other side could make our write block.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, getpeername, recv, send};

use crate::strange::{Strange, pass_rights};

/// Limit on the packets that one call of [`silence`] receives.
const MOST: usize = 64;

/// Makes a doorbell: the end that hears, to which nobody can send descriptors if the kernel is new enough,
/// and the end that rings.
///
/// # Errors
/// The errors of `socketpair(2)`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (hears, rings) = crate::packet::pair()?;
    pass_rights(&hears, false);
    Ok((hears, rings))
}

/// Rings a doorbell. The call never waits: if the socket is full, the doorbell is ringing already.
pub fn ring(doorbell: &impl AsFd) {
    let _ = send(doorbell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Whether a process still has the other end of a doorbell that this process rings.
pub fn has_listener(doorbell: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(doorbell, PollFlags::empty())];
    // An error says nothing: a signal, for example.
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err()
        || polled.iter().all(|polled| polled.revents().is_empty())
}

/// Silences a doorbell; returns whether its other end is still open.
pub fn silence(doorbell: &impl AsFd) -> bool {
    let mut octets = [0_u8; 8];
    for _ in 0..MOST {
        match recv(doorbell, octets.as_mut_slice(), RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return false,
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// Whether a descriptor that a program gave as a doorbell is one: a connected Unix socket for packets. Others
/// have ways to be ready for ever, with an error that `recv(2)` does not report. Descriptors cannot be sent
/// to the doorbell from now on, if the kernel is new enough.
pub fn is_doorbell(given: &impl AsFd) -> bool {
    let unix = socket_domain(given) == Ok(AddressFamily::UNIX);
    let doorbell = unix && socket_type(given) == Ok(SocketType::SEQPACKET) && getpeername(given).is_ok();
    if doorbell {
        pass_rights(given, false);
    }
    doorbell
}

/// Silences a doorbell that was reported as readable, and returns whether it is worth waiting for: its other
/// end is open, and said something. `doorbell` may hold descriptors in its queue, which its closer closes.
pub fn hear(doorbell: &Strange) -> bool {
    let mut octets = [0_u8; 8];
    for heard in 0..MOST {
        match crate::packet::hear(doorbell, &mut octets) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return heard > 0,
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_doorbell_that_is_ready_and_says_nothing_is_not_waited_for() {
        let (ours, theirs) = crate::packet::pair().unwrap();
        let ours = Strange::from(ours);
        ring(&theirs);
        ring(&theirs);
        assert!(hear(&ours));
        assert!(!hear(&ours), "nothing came");
        drop(theirs);
        assert!(!hear(&ours), "the other end is closed");
    }

    #[test]
    fn only_a_socket_pair_is_a_doorbell() {
        assert!(!is_doorbell(&UdpSocket::bind("127.0.0.1:0").unwrap()));
        assert!(!is_doorbell(&std::fs::File::open("/dev/null").unwrap()));
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_doorbell(&stream));
        assert!(is_doorbell(&crate::packet::pair().unwrap().0));
    }
}
