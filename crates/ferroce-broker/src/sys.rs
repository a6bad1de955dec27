//! The broker's system calls that no safe crate has.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets where the next `MSG_PEEK` on a socket starts, in bytes; each peek then moves on by what it saw. -1
/// switches back.
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

/// Gives memory that was freed back to the system, which the allocator of glibc does only at the end of its
/// heap.
pub fn return_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function has no conditions; it takes the locks of the allocator itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The groups of the process that connected a Unix socket, as they were then: its own first, then the
/// supplementary ones.
pub fn peer_groups(fd: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    let mut groups = vec![0_u32; 65_536];
    let mut length = size_of_val(groups.as_slice()) as libc::socklen_t;
    // SAFETY: the pointers are to `length` octets of memory and to the length, which live through the call;
    // the kernel writes at most `length` octets, in whole numbers of 32 bits; `fd` is open.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            std::ptr::from_mut(&mut length),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(length as usize / size_of::<u32>());
    groups.insert(0, getsockopt(&fd, PeerCredentials)?.gid());
    Ok(groups)
}
