//! Raw system calls on descriptors that signal events. The C library's wrappers are cancellation points, these are not.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// An element for `poll` that waits until a descriptor is readable.
pub fn readable(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

/// `poll` of the system, `timeout` in milliseconds, negative for ever; how many elements have events.
pub fn poll(fds: &mut [libc::pollfd], timeout: libc::c_int) -> io::Result<usize> {
    // SAFETY: so many elements may be read and written.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Adds one to an eventfd. The system call is a raw one, as all of the packet path: the C library's is a cancellation point.
pub fn signal(event: impl AsFd) -> io::Result<()> {
    rustix::io::write(event, &1_u64.to_ne_bytes())?;
    Ok(())
}

/// Takes back what was added to an eventfd; fails if nothing was and it is non-blocking. As [`signal`] a raw system call.
pub fn silence(event: impl AsFd) -> io::Result<()> {
    rustix::io::read(event, &mut [0; 8])?;
    Ok(())
}
