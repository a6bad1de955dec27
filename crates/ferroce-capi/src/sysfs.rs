//! The two calls that programs use to look into sysfs. A device of ours has no files there, unless
//! `ferroce run --sysfs` lays them over: what they would say is told from memory.

use core::ffi::{c_char, c_int};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;

use ferroce_engine::sysfs;

use crate::call;
use crate::entry::{Ptr, Text, export};
use crate::errno::Errno;

/// The path at which sysfs is mounted. Never NULL.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

export! {
    /// Reads `dir`/`file` into `buf` of `size` octets, with a NUL in the place of the newline at its end, and
    /// returns the count of octets before that; 0 for an empty one, whose NUL is not written. -1 and errno if
    /// the file does not exist (ENOENT, ENOTDIR, EISDIR), if it does not fit (ENOMEM), or if it says nothing
    /// of an empty entry of a GID table (EINVAL).
    pub fn ibv_read_sysfs_file(dir: Text, file: Text, buf: Ptr<c_char>, size: usize) -> c_int = call::minus_one |_| {
        let (Some(dir), Some(file)) = (dir.get(), file.get()) else { return Err(Errno::EINVAL) };
        if size == 0 {
            return Err(Errno::EINVAL);
        }
        buf.some()?;
        let path = [dir.to_bytes(), b"/", file.to_bytes()].concat();
        let limit = size.min(c_int::MAX as usize);
        let text = content(&path, limit)?;
        // SAFETY: `buf` has room for `size` octets, and no more were read.
        unsafe { buf.as_ptr().cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        let length = match text.last() {
            // As in rdma-core, of an empty file nothing is said, not even its end.
            None => return Ok(0),
            Some(b'\n') => text.len() - 1,
            Some(_) => text.len(),
        };
        if length == size {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: inside the room of `size` octets.
        unsafe { buf.as_ptr().add(length).write(0) };
        Ok(length as c_int)
    }
}

/// The first `limit` octets of a file: a real one if there is one, else one of our devices'.
fn content(path: &[u8], limit: usize) -> Result<Vec<u8>, Errno> {
    let mut text = Vec::new();
    match (File::open(OsStr::from_bytes(path)), str::from_utf8(path)) {
        (Ok(file), path) => {
            let octets = file.take(limit as u64).read_to_end(&mut text)?;
            // The files of `ferroce run --sysfs` cannot refuse a read as the kernel's do.
            if octets == 0 && path.is_ok_and(sysfs::is_refused_if_empty) {
                return Err(Errno::EINVAL);
            }
        }
        (Err(error), Ok(path)) if error.kind() == ErrorKind::NotFound && sysfs::may_have(path) => {
            text = sysfs::read(path)?.into_bytes();
            text.truncate(limit);
        }
        (Err(error), _) => return Err(error.into()),
    }
    Ok(text)
}
