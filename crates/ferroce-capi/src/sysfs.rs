//! The two calls that programs use to look into sysfs. A device of ours has nothing there, unless `ferroce run
//! --sysfs` lays it over; a file that is missing is an ordinary answer to them.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::call;
use crate::errno::Errno;

/// Where sysfs is mounted. Never NULL.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads `dir`/`file` into `buf` of `size` octets, without the newline at the end and with a NUL, and returns the count
/// of its octets; -1 and errno if there is none or it does not fit.
///
/// # Safety
///
/// `dir` and `file` are C strings, `buf` has room for `size` octets; each may be NULL, which fails with EINVAL.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    call::minus_one(|_| {
        if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not NULL, and the caller says it is a C string.
        let dir = unsafe { CStr::from_ptr(dir) };
        // SAFETY: as above.
        let file = unsafe { CStr::from_ptr(file) };
        let path = Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
        let mut text = Vec::new();
        let limit = u64::try_from(size).unwrap_or(u64::MAX).min(c_int::MAX as u64);
        std::fs::File::open(path)?.take(limit).read_to_end(&mut text)?;
        // SAFETY: the caller gives room for `size` octets, and at most so many were read.
        unsafe { buf.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        // As in rdma-core, the newline must fit, too.
        if text.len() == size {
            return Err(Errno::ENOMEM);
        }
        let length = text.len() - usize::from(text.last() == Some(&b'\n'));
        // SAFETY: inside the room of `size` octets.
        unsafe { buf.add(length).write(0) };
        Ok(length as c_int)
    })
}
