//! The doorbell of a ring: a socket pair by which one side wakes the other.
//!
//! The doorbell uses a pair of sockets instead of an eventfd, because both sides of an eventfd share one open file,
//! so the other side could make our write block.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Limit on the packets that one call of [`silence`] receives.
const MOST: usize = 64;

/// Rings a doorbell. The call never waits: if the socket is full, the doorbell is ringing already.
pub fn ring(doorbell: &impl AsFd) {
    let _ = send(doorbell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
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
