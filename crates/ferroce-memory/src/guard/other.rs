//! Touching foreign memory where we have no routines of our own: through the kernel, which answers EFAULT.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Fault;

/// # Safety
///
/// `to` may be written to for `len` bytes; `from` may be any address.
pub(super) unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    let own = libc::iovec { iov_base: to.cast(), iov_len: len };
    let foreign = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
    // SAFETY: the kernel reads the foreign range, fault or not, and writes to ours, which the caller vouches
    // for.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &raw const own, 1, &raw const foreign, 1, 0) };
    if n == len as isize { Ok(()) } else { Err(Fault) }
}

/// # Safety
///
/// `from` may be read for `len` bytes; `to` may be any address that no Rust reference reaches.
pub(super) unsafe fn copy_in(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    let own = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
    let foreign = libc::iovec { iov_base: to.cast(), iov_len: len };
    // SAFETY: the kernel reads our range, which the caller vouches for, and writes to the foreign one, fault
    // or not.
    let n = unsafe { libc::process_vm_writev(libc::getpid(), &raw const own, 1, &raw const foreign, 1, 0) };
    if n == len as isize { Ok(()) } else { Err(Fault) }
}

/// Asks the kernel whether the word is there and then touches it; memory that goes in between is a fault of
/// the program.
///
/// # Safety
///
/// `word` may be any address that is a multiple of 8 and that no Rust reference reaches.
unsafe fn probe<'a>(word: *mut u64) -> Result<&'a AtomicU64, Fault> {
    let mut value = [0; 8];
    // SAFETY: the destination is `value`.
    unsafe { copy_out(value.as_mut_ptr(), word.cast(), 8) }?;
    // SAFETY: an aligned word that was mapped just now, and that only atomics of ours and other threads'
    // accesses touch.
    Ok(unsafe { AtomicU64::from_ptr(word) })
}

/// # Safety
///
/// As for `probe`.
pub(super) unsafe fn compare_swap(word: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    // SAFETY: the caller's.
    let word = unsafe { probe(word) }?;
    Ok(word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|seen| seen))
}

/// # Safety
///
/// As for `probe`.
pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> Result<u64, Fault> {
    // SAFETY: the caller's.
    Ok(unsafe { probe(word) }?.fetch_add(add, Ordering::SeqCst))
}

/// # Safety
///
/// As for `probe`.
pub(super) unsafe fn store(word: *mut u64, value: [u8; 8]) -> Result<(), Fault> {
    // SAFETY: the caller's.
    unsafe { probe(word) }?.store(u64::from_ne_bytes(value), Ordering::Release);
    Ok(())
}

pub(super) const CAN_PERSIST: bool = false;

/// Memory is not registered for it here.
pub(super) fn persist(_from: u64, _len: u64) -> Result<(), Fault> {
    Err(Fault)
}
