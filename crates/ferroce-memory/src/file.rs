//! Memory of a file, mapped to be registered.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::backing::in_gpu;

/// A part of a file (a memfd, a DMA-BUF), mapped and shared. Dropping it unmaps it, so whatever is registered
/// of it is deregistered before.
///
/// A GPU's DMA-BUF cannot be mapped. Programs give the memory's address on the device as the `iova` of such a
/// file, and the memory there is taken.
#[derive(Debug)]
pub struct FileMapping {
    start: *mut libc::c_void,
    /// Octets that are mapped; 0 of a GPU's memory.
    mapped: usize,
    /// Octets before the part that was asked for: mappings begin at pages.
    lead: usize,
}

// SAFETY: an address; the mapping is of the process, not of a thread, and is only unmapped once, by `drop`.
unsafe impl Send for FileMapping {}
// SAFETY: as above; nothing is done with it by shared reference but to tell the address.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps `len` octets from `offset` on, at least one; with `write`, to be written too. Peers are to
    /// address them from `iova` on.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if that is not inside the file; what the system says if the file cannot be mapped so.
    pub fn new(file: BorrowedFd<'_>, offset: u64, len: usize, iova: u64, write: bool) -> io::Result<Self> {
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        let end = offset.checked_add(len as u64).ok_or_else(outside)?;
        // SAFETY: asks where the end is; the file's position means nothing to who hands it over for this.
        let size = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
        if size < 0 {
            return Err(io::Error::last_os_error());
        }
        if len == 0 || end > size as u64 {
            return Err(outside());
        }
        // SAFETY: sysconf reads a constant.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as u64;
        let lead = (offset % page) as usize;
        let mapped = len.checked_add(lead).ok_or_else(outside)?;
        let access = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let (fd, from) = (file.as_raw_fd(), (offset - lead as u64) as libc::off_t);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), mapped, access, libc::MAP_SHARED, fd, from) };
        if start == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            if !in_gpu(iova, len) {
                return Err(error);
            }
            let start = std::ptr::without_provenance_mut(iova as usize);
            return Ok(Self { start, mapped: 0, lead: 0 });
        }
        Ok(Self { start, mapped, lead })
    }

    /// Address at which the requested part begins.
    pub fn addr(&self) -> u64 {
        self.start as u64 + self.lead as u64
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: the mapping that `new` made, whose memory no reference reaches.
            unsafe { libc::munmap(self.start, self.mapped) };
        }
    }
}
