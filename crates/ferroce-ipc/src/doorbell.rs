//! The doorbell of a ring: a socket pair by which one side wakes the other.
//!
//! It is a pair of sockets and no eventfd, because an eventfd is one open file for both sides, so the other side could make our
//! write block.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Packets that one call of [`silence`] takes.
const MOST: usize = 64;

/// Rings a doorbell. Never waits: a full socket means that the doorbell rings already.
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
