//! Memory files under Miri, which has none: each is an allocation that stays until the end, and its
//! descriptor is that of a pipe.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use rustix::fs::SealFlags;
use rustix::mm::ProtFlags;

/// Descriptors and their memory. A number that was closed comes again, so the last one counts.
static FILES: Mutex<Vec<(RawFd, &[AtomicU64])>> = Mutex::new(Vec::new());

pub(super) fn is_too_large(_words: usize) -> bool {
    false
}

pub(super) fn new(_name: &str, words: usize) -> io::Result<OwnedFd> {
    let (fd, _) = io::pipe()?;
    let memory = zeros(words);
    FILES.lock().map_err(|_| io::ErrorKind::Other)?.push((fd.as_raw_fd(), memory));
    Ok(fd.into())
}

pub(super) fn anonymous(words: usize) -> io::Result<NonNull<AtomicU64>> {
    Ok(NonNull::from(zeros(words)).cast())
}

fn zeros(words: usize) -> &'static [AtomicU64] {
    // SAFETY: zeros are a valid AtomicU64.
    Box::leak(unsafe { Box::<[AtomicU64]>::new_zeroed_slice(words).assume_init() })
}

pub(super) fn seal(_fd: &impl AsFd, _seals: SealFlags) -> io::Result<()> {
    Ok(())
}

pub(super) fn is_sealed(fd: &impl AsFd, words: usize, _wanted: SealFlags) -> io::Result<bool> {
    Ok(memory(fd)?.len() == words)
}

pub(super) fn map(fd: &impl AsFd, _words: usize, _protection: ProtFlags) -> io::Result<NonNull<AtomicU64>> {
    Ok(NonNull::from(memory(fd)?).cast())
}

/// # Safety
///
/// None is needed; the memory stays.
pub(super) unsafe fn unmap(_base: NonNull<AtomicU64>, _words: usize) {}

fn memory(fd: &impl AsFd) -> io::Result<&'static [AtomicU64]> {
    let (number, files) = (fd.as_fd().as_raw_fd(), FILES.lock().map_err(|_| io::ErrorKind::Other)?);
    let file = files.iter().rfind(|(known, _)| *known == number);
    file.map(|(_, memory)| *memory).ok_or(io::ErrorKind::InvalidData.into())
}
