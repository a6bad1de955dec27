//! Copies and atomics that survive memory that is not there.
//!
//! `arch` holds the few instructions that touch foreign memory. A fault on one of them reaches the handlers
//! of `handler`, which resume the routine at its end with what it has not done. Any other fault goes on to
//! the handler that was there before.
//!
//! No handler helps against a signal that the kernel does not deliver: the kernel kills the process when a
//! thread faults that blocks SIGSEGV or SIGBUS. So each thread that copies unblocks the two, see `unblock`.
#![allow(unsafe_code)]

#[cfg_attr(miri, path = "guard/miri.rs")]
#[cfg_attr(all(not(miri), target_arch = "x86_64"), path = "guard/x86_64.rs")]
#[cfg_attr(all(not(miri), target_arch = "aarch64"), path = "guard/aarch64.rs")]
#[cfg_attr(not(any(miri, target_arch = "x86_64", target_arch = "aarch64")), path = "guard/other.rs")]
mod arch;
#[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
mod handler;
#[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
mod routines;

use std::cell::Cell;

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
use self::arch as routines;

#[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
pub use handler::install;

/// Nothing to install: copies go through the kernel, which answers EFAULT, or are Miri's.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub fn install() -> std::io::Result<()> {
    Ok(())
}

/// The memory is unmapped, protected or behind the end of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;

/// Copies from foreign memory, lowest address first, aligned words of up to eight bytes untorn. After a fault
/// `out` holds anything.
pub fn read(from: u64, out: &mut [u8]) -> Result<(), Fault> {
    unblock();
    // SAFETY: the destination is `out`; the source may be any address: a fault on it is caught.
    unsafe { arch::copy_out(out.as_mut_ptr(), from as *const u8, out.len()) }
}

/// Copies to foreign memory, lowest address first and so seen by other threads: who sees the last byte sees
/// all. Aligned words of up to eight bytes are not torn. After a fault a part may be written.
///
/// # Safety
///
/// `to` and `data.len()` are a range that its owner gave to be written to: no Rust reference reaches into it.
pub unsafe fn write(to: u64, data: &[u8]) -> Result<(), Fault> {
    unblock();
    // SAFETY: the source is `data`; the destination the caller vouches for, and a fault on it is caught.
    unsafe { arch::copy_in(to as *mut u8, data.as_ptr(), data.len()) }
}

/// Stores `swap` if the word equals `compare`; returns what was there. Sequentially consistent.
///
/// # Safety
///
/// As for [`write()`], for the eight bytes at `to`; `to` is a multiple of 8.
pub unsafe fn compare_swap(to: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    unblock();
    // SAFETY: the caller's.
    unsafe { routines::compare_swap(to as *mut u64, compare, swap) }
}

/// Adds, wrapping; returns what was there. Sequentially consistent.
///
/// # Safety
///
/// As for [`compare_swap`].
pub unsafe fn fetch_add(to: u64, add: u64) -> Result<u64, Fault> {
    unblock();
    // SAFETY: the caller's.
    unsafe { routines::fetch_add(to as *mut u64, add) }
}

/// Stores one word, behind everything written before; who sees it sees that too, and never a part of it.
///
/// # Safety
///
/// As for [`compare_swap`].
pub unsafe fn store(to: u64, value: [u8; 8]) -> Result<(), Fault> {
    unblock();
    // SAFETY: the caller's.
    unsafe { routines::store(to as *mut u64, value) }
}

/// Whether [`persist`] can be had here.
pub const CAN_PERSIST: bool = arch::CAN_PERSIST;

/// Writes what the processor's caches hold of `len` bytes back to where they are kept, and waits for it.
/// Takes some nanoseconds a cache line.
pub fn persist(from: u64, len: u64) -> Result<(), Fault> {
    unblock();
    arch::persist(from, len)
}

/// Unblocks SIGSEGV and SIGBUS for this thread, at its first copy and every 1024th: programs block all
/// signals in their worker threads. Nothing is lost by it: a thread that faults with these blocked dies.
#[inline]
fn unblock() {
    thread_local! {
        static UNTIL: Cell<u16> = const { Cell::new(0) };
    }
    UNTIL.with(|until| match until.get().checked_sub(1) {
        Some(n) => until.set(n),
        None => {
            until.set(1023);
            unblock_now();
        }
    });
}

#[cold]
fn unblock_now() {
    // Miri delivers no signals.
    if cfg!(miri) {
        return;
    }
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given; the set is only used behind it.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the set is initialised, the signal a valid one.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: the set is initialised; no old set is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut()) };
}
