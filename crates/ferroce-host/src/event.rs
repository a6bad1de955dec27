//! Raw system calls on descriptors that signal events: the C library's wrappers are cancellation points.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A `pollfd` that waits until a descriptor is readable.
pub fn readable(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

/// `poll(2)` with `timeout` in milliseconds, negative for no limit. Returns the number of elements with
/// events.
pub fn poll(fds: &mut [libc::pollfd], timeout: libc::c_int) -> io::Result<usize> {
    // SAFETY: pointer and length are those of `fds`, which is valid for reads and writes.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Adds one to an eventfd.
pub fn signal(event: impl AsFd) -> io::Result<()> {
    rustix::io::write(event, &1_u64.to_ne_bytes())?;
    Ok(())
}

/// Resets an eventfd to zero; a non-blocking one that is zero returns EAGAIN.
pub fn silence(event: impl AsFd) -> io::Result<()> {
    rustix::io::read(event, &mut [0; 8])?;
    Ok(())
}
