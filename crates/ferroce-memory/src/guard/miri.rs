//! Touching foreign memory under Miri, which runs no instructions of ours and delivers no signals. Miri
//! reports memory that is not there itself, so nothing here is a [`Fault`]. All accesses are atomic, of whole
//! words where they can be: the program and the peers may touch the memory at the same time.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::Fault;

const WORD: usize = size_of::<u64>();

/// # Safety
///
/// `to` may be written to for `len` bytes, and `from` be read as atomics.
pub(super) unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    let mut at = 0;
    while at < len {
        let place = from.wrapping_add(at).cast_mut();
        if is_word(place, len - at) {
            // SAFETY: a multiple of eight, of memory that the caller vouches for.
            let word = unsafe { AtomicU64::from_ptr(place.cast()) }.load(Ordering::Relaxed);
            // SAFETY: inside `len`, which the caller vouches for.
            unsafe { to.add(at).cast::<[u8; WORD]>().write(word.to_ne_bytes()) };
            at += WORD;
        } else {
            // SAFETY: memory that the caller vouches for.
            let octet = unsafe { AtomicU8::from_ptr(place) }.load(Ordering::Relaxed);
            // SAFETY: inside `len`, which the caller vouches for.
            unsafe { to.add(at).write(octet) };
            at += 1;
        }
    }
    Ok(())
}

/// # Safety
///
/// `from` may be read for `len` bytes, and `to` be written to as atomics.
pub(super) unsafe fn copy_in(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    let mut at = 0;
    while at < len {
        let place = to.wrapping_add(at);
        if is_word(place, len - at) {
            // SAFETY: inside `len`, which the caller vouches for.
            let word = u64::from_ne_bytes(unsafe { from.add(at).cast::<[u8; WORD]>().read() });
            // SAFETY: a multiple of eight, of memory that the caller vouches for.
            unsafe { AtomicU64::from_ptr(place.cast()) }.store(word, Ordering::Release);
            at += WORD;
        } else {
            // SAFETY: inside `len`, which the caller vouches for.
            let octet = unsafe { from.add(at).read() };
            // SAFETY: memory that the caller vouches for.
            unsafe { AtomicU8::from_ptr(place) }.store(octet, Ordering::Release);
            at += 1;
        }
    }
    Ok(())
}

fn is_word(place: *mut u8, left: usize) -> bool {
    place.addr().is_multiple_of(WORD) && left >= WORD
}

/// # Safety
///
/// `word` is a multiple of 8, and may be touched as an atomic.
pub(super) unsafe fn compare_swap(word: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    // SAFETY: the caller's.
    let word = unsafe { AtomicU64::from_ptr(word) };
    Ok(word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|seen| seen))
}

/// # Safety
///
/// As for `compare_swap`.
pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> Result<u64, Fault> {
    // SAFETY: the caller's.
    Ok(unsafe { AtomicU64::from_ptr(word) }.fetch_add(add, Ordering::SeqCst))
}

/// # Safety
///
/// As for `compare_swap`.
pub(super) unsafe fn store(word: *mut u64, value: [u8; 8]) -> Result<(), Fault> {
    // SAFETY: the caller's.
    unsafe { AtomicU64::from_ptr(word) }.store(u64::from_ne_bytes(value), Ordering::Release);
    Ok(())
}

pub(super) const CAN_PERSIST: bool = false;

/// Memory is not registered for it here.
pub(super) fn persist(_from: u64, _len: u64) -> Result<(), Fault> {
    Err(Fault)
}
