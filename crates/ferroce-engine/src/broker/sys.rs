//! The broker's system calls that no safe crate has.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Sets where the next `MSG_PEEK` on a socket starts, in bytes; each peek then moves on by what it saw. -1 switches back.
pub(super) fn set_peek_offset(fd: BorrowedFd<'_>, offset: i32) -> io::Result<()> {
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

/// The file that this code was loaded from: the library, or the executable it is linked into. The kernel tells the path;
/// the loader remembers one as it was given, which a change of directory makes another file's.
pub(super) fn own_file() -> Option<PathBuf> {
    match std::fs::read("/proc/self/maps") {
        Ok(maps) => mapped_at(&maps, own_file as *const () as usize),
        Err(_) => loaded_file().filter(|file| file.is_absolute()),
    }
}

/// The file that a line of `/proc/PID/maps` has for an address.
fn mapped_at(maps: &[u8], address: usize) -> Option<PathBuf> {
    let number = |hex: &[u8]| usize::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok();
    let within = |line: &[u8]| -> Option<bool> {
        let range = line.split(|octet| *octet == b' ').next()?;
        let mut ends = range.split(|octet| *octet == b'-').map(number);
        Some((ends.next()??..ends.next()??).contains(&address))
    };
    let line = maps.split(|octet| *octet == b'\n').find(|line| within(line) == Some(true))?;
    let path = line.get(line.iter().position(|octet| *octet == b'/')?..)?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
}

/// The same as the loader remembers it.
fn loaded_file() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let inside = own_file as *const libc::c_void;
    // SAFETY: `info` is large enough for a Dl_info, and any address may be asked for.
    if unsafe { libc::dladdr(inside, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded, so it filled `info`; all zeros would have been valid before as well.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dli_fname is a C string that lives as long as the object is loaded, which our own code is.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

/// Whether this program runs with more rights than the user who started it: its environment is not to be trusted.
pub(super) fn is_privileged_program() -> bool {
    // SAFETY: getauxval takes any number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_file_is_the_one_that_is_mapped() {
        let exe = std::env::current_exe().unwrap();
        assert_eq!(own_file().and_then(|file| file.canonicalize().ok()), exe.canonicalize().ok());
        let maps =
            b"1000-2000 r-xp 00000000 08:01 7          /a b/lib.so\n2000-3000 rw-p 00000000 00:00 0 \n";
        assert_eq!(mapped_at(maps, 0x1fff), Some("/a b/lib.so".into()));
        assert_eq!(mapped_at(maps, 0x2000), None);
        assert_eq!(mapped_at(b"", 0x2000), None);
    }
}
