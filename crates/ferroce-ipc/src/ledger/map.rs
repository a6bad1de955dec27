//! Memory shared by a file. Only this module of the ledger has unsafe code.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use super::{DeviceCounters, WORD};

/// Words that other processes may read.
pub(super) struct Mapping {
    words: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: all access to the memory is through atomics, and the mapping exists until `self` is dropped, on any
// thread.
unsafe impl Send for Mapping {}
// SAFETY: all access to the memory is through atomics, which several threads may use at the same time.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` octets of zeros, a multiple of the page size, and returns the file behind them. A
    /// process that receives the file can neither shrink it nor write to it. There is no file if the system
    /// has no memory files.
    pub(super) fn new(length: usize) -> io::Result<(Self, Option<OwnedFd>)> {
        let file = file(length).ok();
        let address = match &file {
            // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
            Some(file) => unsafe {
                mmap(null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
            },
            // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no other memory.
            None => unsafe {
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                mmap_anonymous(null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags)
            },
        }?;
        let words = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = Self { words, count: length / WORD };
        // The seal follows our own mapping: from now on the file can only be read. Linux 5.1 introduced the
        // seal, and nothing depends on it.
        if let Some(file) = &file {
            let _ = fcntl_add_seals(file, SealFlags::FUTURE_WRITE);
            fcntl_add_seals(file, SealFlags::SEAL)?;
        }
        Ok((map, file))
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `count` words are mapped at `words`, page aligned, readable and writable, for as long as
        // `self` lives. Every bit pattern is an AtomicU64, and this process accesses the words only as
        // atomics (the other processes only read).
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }

    /// The counters that begin at a word.
    pub(super) fn device(&self, at: usize) -> &DeviceCounters {
        assert!(at + size_of::<DeviceCounters>() / WORD <= self.count, "the layout has room for it");
        // SAFETY: a `DeviceCounters` is `repr(C)` and contains only AtomicU64s. All of them lie within the
        // mapping, as the assertion above checked, and are aligned because the mapping is.
        unsafe { &*self.words.as_ptr().add(at).cast::<DeviceCounters>() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this length, and references into the mapping cannot outlive `self`.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), self.count * WORD) };
    }
}

/// Makes a file in memory whose size is sealed.
fn file(length: usize) -> io::Result<OwnedFd> {
    // Beyond the limit the kernel would send the program a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < length as u64) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let file = memfd_create("ferroce-ledger", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(file.as_fd(), length as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}
