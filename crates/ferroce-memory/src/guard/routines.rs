//! The common part of the processors' routines: the exit of each, and the calls of the atomic ones.

use std::sync::atomic::{Ordering, fence};

use super::{Fault, arch};

/// The addresses at which a routine begins and ends; the end is the way out after a fault.
pub(super) type Routine = (*const (), *const u8);

/// The result of a routine, in two registers.
#[repr(C)]
struct Word {
    value: u64,
    faulted: u64,
}

unsafe extern "C" {
    fn ferroce_guard_compare_swap(word: *mut u64, compare: u64, swap: u64) -> Word;
    fn ferroce_guard_fetch_add(word: *mut u64, add: u64) -> Word;
    static ferroce_guard_compare_swap_end: u8;
    static ferroce_guard_fetch_add_end: u8;
}

/// Address at which execution goes on after the instruction at `ip` faulted; `None` if `ip` is not in a
/// routine. Async-signal-safe.
pub(super) fn resume_at(ip: usize) -> Option<usize> {
    let atomics: [Routine; 2] = [
        (ferroce_guard_compare_swap as *const (), &raw const ferroce_guard_compare_swap_end),
        (ferroce_guard_fetch_add as *const (), &raw const ferroce_guard_fetch_add_end),
    ];
    let mut routines = arch::copies().into_iter().chain(atomics);
    let hit = routines.find(|(start, end)| (*start as usize..*end as usize).contains(&ip));
    hit.map(|(_, end)| end as usize)
}

/// # Safety
///
/// `word` may be any address that is a multiple of 8 and that no Rust reference reaches.
pub(super) unsafe fn compare_swap(word: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    // SAFETY: the routine touches the eight bytes at `word` alone; a fault on them ends it early.
    let Word { value, faulted } = unsafe { ferroce_guard_compare_swap(word, compare, swap) };
    if faulted == 0 { Ok(value) } else { Err(Fault) }
}

/// # Safety
///
/// As for [`compare_swap`].
pub(super) unsafe fn fetch_add(word: *mut u64, add: u64) -> Result<u64, Fault> {
    // SAFETY: as in `compare_swap`.
    let Word { value, faulted } = unsafe { ferroce_guard_fetch_add(word, add) };
    if faulted == 0 { Ok(value) } else { Err(Fault) }
}

/// # Safety
///
/// As for [`compare_swap`].
pub(super) unsafe fn store(word: *mut u64, value: [u8; 8]) -> Result<(), Fault> {
    fence(Ordering::Release);
    // SAFETY: the source is `value`, the destination the caller's. Eight bytes at a multiple of 8 are one
    // store of it.
    unsafe { arch::copy_in(word.cast(), value.as_ptr(), value.len()) }
}
