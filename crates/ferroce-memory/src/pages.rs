//! Zeroed pages of the process, for device memory.
#![allow(unsafe_code)]

use std::io;

use crate::guard::{self, Fault};

/// Octets of the smallest page of any architecture.
pub const PAGE: usize = 4096;

/// Device memory cannot be accessed in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmAccessError {
    /// The offset or the length is no multiple of 4.
    #[error("offset and length of a copy are multiples of 4")]
    Misaligned,
    /// The range is not inside.
    #[error("{len} octets from {offset} on are not inside the {max} of the device memory")]
    OutOfRange {
        /// The given offset, in octets.
        offset: u64,
        /// The given length, in octets.
        len: u64,
        /// Octets of the device memory.
        max: u64,
    },
    /// The device memory was freed.
    #[error("the device memory was freed")]
    Freed,
    /// The program unmapped or protected the device memory.
    #[error("the device memory is no longer mapped")]
    NotMapped,
}

/// Zeroed memory at an address of the kernel's choice. A forked child sees the same memory, as it does with a
/// card's. Dropping it unmaps it, so regions of it are deregistered before.
#[derive(Debug)]
pub struct Pages {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: an address; the mapping is of the process, not of a thread, and is only unmapped once, by `drop`.
unsafe impl Send for Pages {}
// SAFETY: as above; the guard's copies, which several threads may run at a time, are all that reaches the
// memory.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `len` octets, in whole pages, at a multiple of `align`, which is a power of two.
    ///
    /// # Errors
    ///
    /// The error of the system if it has no such memory.
    pub fn new(len: usize, align: usize) -> io::Result<Self> {
        // SAFETY: sysconf reads a constant.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(PAGE as libc::c_long) as usize;
        let len = len.checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?;
        // Addresses without memory, of which the parts around the boundary are given back.
        let spare = if align > page { align } else { 0 };
        let whole = len.checked_add(spare).ok_or(io::ErrorKind::OutOfMemory)?;
        let reserved = map(std::ptr::null_mut(), whole, libc::PROT_NONE, RESERVE)?;
        let lead = if spare > 0 { reserved.addr().wrapping_neg() % align } else { 0 };
        let start = reserved.wrapping_byte_add(lead);
        unmap(reserved, lead);
        unmap(start.wrapping_byte_add(len), spare - lead);
        // From here on the destructor unmaps the rest.
        let pages = Self { start, len };
        map(start, len, libc::PROT_READ | libc::PROT_WRITE, MEMORY)?;
        Ok(pages)
    }

    /// The first octet.
    pub fn addr(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// Copies `out.len()` octets from `offset` on, which lie inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Fault> {
        guard::read(self.part(offset, out.len()), out)
    }

    /// Copies `octets` to `offset` and behind, all inside.
    pub fn write(&self, offset: usize, octets: &[u8]) -> Result<(), Fault> {
        let to = self.part(offset, octets.len());
        // SAFETY: inside the mapping, to which no reference exists.
        unsafe { guard::write(to, octets) }
    }

    fn part(&self, offset: usize, len: usize) -> u64 {
        assert!(len <= self.len && offset <= self.len - len, "a part of device memory beyond its end");
        self.addr() + offset as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        unmap(self.start, self.len);
    }
}

const RESERVE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
const MEMORY: libc::c_int = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;

/// Maps `len` octets: [`RESERVE`] at an address of the kernel's choice, [`MEMORY`] in place of a reservation
/// of this module.
fn map(
    at: *mut libc::c_void,
    len: usize,
    access: libc::c_int,
    flags: libc::c_int,
) -> io::Result<*mut libc::c_void> {
    // SAFETY: either a new mapping, or one that replaces a reservation, which nothing uses.
    let start = unsafe { libc::mmap(at, len, access, flags, -1, 0) };
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start) }
}

/// Unmaps a part of a mapping of this module that nothing uses any more.
fn unmap(start: *mut libc::c_void, len: usize) {
    if len > 0 {
        // SAFETY: a part of a mapping that `Pages::new` made, whose memory no reference reaches.
        unsafe { libc::munmap(start, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri reserves no addresses without access")]
    fn pages_are_zeroed_aligned_and_hold_what_is_written() {
        for log in [0, 3, 12, 13, 16, 21, 24] {
            let pages = Pages::new(3 * PAGE, 1 << log).expect("memory");
            assert_eq!(pages.addr() % (1 << log), 0, "{log}");
            let mut octets = [1; 8];
            pages.read(3 * PAGE - 8, &mut octets).expect("mapped to the end");
            assert_eq!(octets, [0; 8]);
            pages.write(0, &[7; 8]).expect("mapped from the start");
            pages.read(0, &mut octets).expect("mapped");
            assert_eq!(octets, [7; 8]);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri reserves no addresses without access")]
    fn too_much_memory_is_an_error() {
        assert!(Pages::new(usize::MAX & !(PAGE - 1), 1 << 20).is_err());
        assert!(Pages::new(1 << 62, 1).is_err());
    }

    #[test]
    #[should_panic(expected = "beyond its end")]
    #[cfg_attr(miri, ignore = "Miri reserves no addresses without access")]
    fn nothing_is_read_beyond_the_end() {
        let pages = Pages::new(PAGE, 1).expect("memory");
        let _ = pages.read(PAGE - 4, &mut [0; 8]);
    }
}
