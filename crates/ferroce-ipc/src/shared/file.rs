//! Memory files and their mappings, by system calls.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

/// Whether a file of `words` times eight octets is beyond the limit of the process: the kernel would send it
/// a signal.
pub(super) fn is_too_large(words: usize) -> bool {
    getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < words as u64 * 8)
}

/// A file of `words` times eight octets, all zero.
pub(super) fn new(name: &str, words: usize) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, words as u64 * 8)?;
    Ok(fd)
}

pub(super) fn seal(fd: &impl AsFd, seals: SealFlags) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(fd, seals)?)
}

/// Whether the file has this size and these seals.
pub(super) fn is_sealed(fd: &impl AsFd, words: usize, wanted: SealFlags) -> io::Result<bool> {
    let seals = rustix::fs::fcntl_get_seals(fd)?;
    let size = rustix::fs::fstat(fd)?.st_size;
    Ok(u64::try_from(size) == Ok(words as u64 * 8) && seals.contains(wanted))
}

/// Maps a file whose size is known to be `words` times eight octets and sealed.
pub(super) fn map(fd: &impl AsFd, words: usize, protection: ProtFlags) -> io::Result<NonNull<AtomicU64>> {
    // SAFETY: no address is asked for, so no memory of ours is replaced; the file keeps its size as long as
    // the mapping exists, by its seals.
    let base =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), words * 8, protection, MapFlags::SHARED, fd, 0)? };
    NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// Maps zeros that no file holds.
pub(super) fn anonymous(words: usize) -> io::Result<NonNull<AtomicU64>> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: no address is asked for, so no memory of ours is replaced.
    let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), words * 8, protection, flags)? };
    NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// # Safety
///
/// [`map`] or [`anonymous`] returned `base` for this length, and nothing uses the mapping any more.
pub(super) unsafe fn unmap(base: NonNull<AtomicU64>, words: usize) {
    // SAFETY: the caller's.
    let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), words * 8) };
    debug_assert!(unmapped.is_ok());
}
