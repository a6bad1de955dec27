//! Memory that two processes map.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::SealFlags;
use rustix::mm::ProtFlags;

#[cfg_attr(miri, path = "shared/miri.rs")]
mod file;

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
const SEALS: SealFlags = SIZE.union(SealFlags::SEAL);
const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A mapping of a file that another process made by [`Shared::publish`], or at least one whose size is fixed.
/// It is only read, while the other process may write to it at any time.
#[derive(Debug)]
pub struct SharedView(Shared);

impl SharedView {
    /// Maps the file.
    ///
    /// # Errors
    /// As [`Shared::map`].
    pub fn map(fd: &impl AsFd, words: usize) -> io::Result<Self> {
        Shared::map_sealed(fd, words, SEALS, ProtFlags::READ).map(Self)
    }

    /// A word; 0 behind the end.
    #[inline]
    pub fn load(&self, at: usize, ordering: Ordering) -> u64 {
        self.0.words().get(at).map_or(0, |word| word.load(ordering))
    }
}

impl Shared {
    /// Makes a file of `words` times eight octets, all zero, and maps it. The descriptor is for the other
    /// process.
    ///
    /// # Errors
    /// The errors of `memfd_create(2)`, `ftruncate(2)` and `mmap(2)`.
    pub fn create(name: &str, words: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = file::new(name, words)?;
        file::seal(&fd, SEALS)?;
        Ok((Self::map(&fd, words)?, fd))
    }

    /// As [`Self::create`], but other processes can only read: the file takes no further mapping that writes.
    ///
    /// # Errors
    /// Fails as [`Self::create`] does, and on kernels before 5.1, which do not know the seal.
    pub fn publish(name: &str, words: usize) -> io::Result<(Self, OwnedFd)> {
        if file::is_too_large(words) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let fd = file::new(name, words)?;
        file::seal(&fd, SIZE)?;
        let shared = Self::map_sealed(&fd, words, SIZE, ProtFlags::READ | ProtFlags::WRITE)?;
        // The mapping above came before the seal, and stays.
        file::seal(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok((shared, fd))
    }

    /// Maps memory of `words` times eight octets, all zero, that no other process sees.
    ///
    /// # Errors
    /// The errors of `mmap(2)`.
    pub fn private(words: usize) -> io::Result<Self> {
        Ok(Self { base: file::anonymous(words)?, words })
    }

    /// Maps a file that the other process made.
    ///
    /// # Errors
    /// `InvalidData` if its size is another, or not fixed: an access could fault. Otherwise those of
    /// `mmap(2)`.
    pub fn map(fd: &impl AsFd, words: usize) -> io::Result<Self> {
        Self::map_sealed(fd, words, SEALS, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map_sealed(
        fd: &impl AsFd,
        words: usize,
        wanted: SealFlags,
        protection: ProtFlags,
    ) -> io::Result<Self> {
        if words == 0 || !file::is_sealed(fd, words, wanted)? {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { base: file::map(fd, words, protection)?, words })
    }

    /// All of it.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` is the start of a page-aligned mapping of `words` times eight octets, which lives as
        // long as this value. Any octets are a valid AtomicU64, and other threads and processes may write to
        // atomics at any time.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `file::map` mapped this length, and no borrow of the words outlives this value.
        unsafe { file::unmap(self.base, self.words) };
    }
}

/// A word of two halves.
pub(crate) const fn pair(upper: u32, lower: u32) -> u64 {
    (upper as u64) << 32 | lower as u64
}

/// The halves of a word, the upper one first.
pub(crate) const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// Writes octets to words, the last of which is filled up with zeros.
pub(crate) fn store(words: &[AtomicU64], octets: &[u8]) {
    let (whole, odd) = octets.as_chunks::<8>();
    for (word, octets) in words.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*octets), Ordering::Relaxed);
    }
    if let Some(word) = words.get(whole.len()).filter(|_| !odd.is_empty()) {
        let mut octets = [0; 8];
        octets.iter_mut().zip(odd).for_each(|(to, from)| *to = *from);
        word.store(u64::from_ne_bytes(octets), Ordering::Relaxed);
    }
}

/// Reads octets from words.
pub(crate) fn load(words: &[AtomicU64], out: &mut [u8]) {
    let (whole, odd) = out.as_chunks_mut::<8>();
    for (octets, word) in whole.iter_mut().zip(words) {
        *octets = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if let Some(word) = words.get(whole.len()) {
        odd.iter_mut().zip(word.load(Ordering::Relaxed).to_ne_bytes()).for_each(|(to, from)| *to = from);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

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
    #[cfg_attr(miri, ignore = "Miri has no memory files with seals")]
    fn a_published_file_is_only_read() {
        let (ours, fd) = Shared::publish("test", 1024).unwrap();
        let theirs = SharedView::map(&fd, 1024).unwrap();
        ours.words()[1023].store(7, Ordering::Relaxed);
        assert_eq!(theirs.load(1023, Ordering::Relaxed), 7);
        assert_eq!(theirs.load(1024, Ordering::Relaxed), 0);
        assert_eq!(Shared::map(&fd, 1024).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(rustix::io::pwrite(&fd, &[1], 0).unwrap_err(), rustix::io::Errno::PERM);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memory files with seals")]
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
