//! Memory shared by a file: the only unsafe code here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use super::{DeviceCounters, WORD};

/// Words that other processes may look at.
pub(super) struct Mapping {
    words: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the memory is reached as atomics only, and is there for as long as the mapping is.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `length` octets of zeros, a multiple of the page size, and the file they are in, which can neither shrink nor be
    /// written to by whoever gets it. Without a file if the system gives none.
    pub(super) fn new(length: usize) -> io::Result<(Self, Option<OwnedFd>)> {
        let file = file(length).ok();
        let address = match &file {
            // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
            Some(file) => unsafe {
                mmap(null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
            },
            // SAFETY: as above.
            None => unsafe {
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                mmap_anonymous(null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags)
            },
        }?;
        let words = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = Self { words, count: length / WORD };
        // After our own mapping: from now on the file can only be read. Linux 5.1 has it, and nothing depends on it.
        if let Some(file) = &file {
            let _ = fcntl_add_seals(file, SealFlags::FUTURE_WRITE);
            fcntl_add_seals(file, SealFlags::SEAL)?;
        }
        Ok((map, file))
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `count` words are mapped at `words`, page aligned, readable and writable, for as long as `self` lives;
        // every bit pattern is an AtomicU64, and nobody reaches them but as atomics (the other processes only read).
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }

    /// The counters that begin at a word.
    pub(super) fn device(&self, at: usize) -> &DeviceCounters {
        assert!(at + size_of::<DeviceCounters>() / WORD <= self.count, "the layout has room for it");
        // SAFETY: a `DeviceCounters` is `repr(C)` and nothing but AtomicU64s, all of which lie within the mapping, as just
        // checked, and are aligned because the mapping is.
        unsafe { &*self.words.as_ptr().add(at).cast::<DeviceCounters>() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; references into it cannot outlive `self`.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), self.count * WORD) };
    }
}

/// A file in memory that stays as long as it is.
fn file(length: usize) -> io::Result<OwnedFd> {
    // Beyond the limit the program would get a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < length as u64) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let file = memfd_create("ferroce-ledger", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(file.as_fd(), length as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}
