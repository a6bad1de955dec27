//! Memory that two processes map. The only unsafe code of this crate.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A mapping of a memory file whose size is fixed for ever, so that no access can fault.
///
/// The other process writes to it at any time: it is only given out as atomics.
#[derive(Debug)]
pub struct Shared {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: this value alone owns the mapping, and gives it out only as atomics, on any thread.
unsafe impl Send for Shared {}
// SAFETY: all access to the mapping is through atomics, which several threads may use at the same time.
unsafe impl Sync for Shared {}

/// The seals fix the size of the file, and no process can remove them.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Shared {
    /// Makes a file of `words` times eight octets, all zero, and maps it. The descriptor is for the other process.
    ///
    /// # Errors
    /// Those of `memfd_create(2)`, `ftruncate(2)` and `mmap(2)`.
    pub fn create(name: &str, words: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, words as u64 * 8)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok((Self::map(&fd, words)?, fd))
    }

    /// Maps a file that the other process made.
    ///
    /// # Errors
    /// `InvalidData` if its size is another, or not fixed: an access could fault. Otherwise those of `mmap(2)`.
    pub fn map(fd: &impl AsFd, words: usize) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(fd)?;
        let size = rustix::fs::fstat(fd)?.st_size;
        if words == 0 || u64::try_from(size) != Ok(words as u64 * 8) || !seals.contains(SEALS) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so no memory of ours is replaced; the file keeps its size as long as the
        // mapping exists, by its seals.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), words * 8, protection, MapFlags::SHARED, fd, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, words })
    }

    /// All of it.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` is the start of a page-aligned mapping of `words` times eight octets, which lives as long as
        // this value. Any octets are a valid AtomicU64, and other threads and processes may write to atomics at any
        // time.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `map` mapped this length, and no borrow of the words outlives this value.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.words * 8) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_are_one_memory() {
        let (ours, fd) = Shared::create("test", 1024).unwrap();
        let theirs = Shared::map(&fd, 1024).unwrap();
        ours.words()[1023].store(7, Ordering::Relaxed);
        assert_eq!(theirs.words()[1023].load(Ordering::Relaxed), 7);
        assert_eq!(theirs.words().len(), 1024);
    }

    #[test]
    fn what_could_fault_is_not_mapped() {
        let (_, fd) = Shared::create("test", 1024).unwrap();
        assert_eq!(Shared::map(&fd, 1025).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(rustix::fs::ftruncate(&fd, 0).unwrap_err(), rustix::io::Errno::PERM);
        let loose =
            rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 8192).unwrap();
        assert_eq!(Shared::map(&loose, 1024).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Shared::map(&file, 1024).is_err());
    }
}
