//! The broker's system call that no safe crate has.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets where the next `MSG_PEEK` on a socket starts, in bytes; each peek then moves on by what it saw. -1 switches back.
pub fn set_peek_offset(fd: BorrowedFd<'_>, offset: i32) -> io::Result<()> {
    let value: libc::c_int = offset;
    // SAFETY: the pointer is to a c_int that lives through the call, the length is its size; `fd` is open.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            std::ptr::from_ref(&value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
