//! A forked child keeps nothing of its parent's engine.
//!
//! A child without exec would otherwise hold its parent's sockets and broker connection open, and so hide the
//! parent's death from the broker and from peers. The fork handler closes the descriptors recorded here and
//! increments the [`epoch`]. Destructors and verbs of objects of an older epoch must not touch a descriptor,
//! or a lock that another thread of the parent may have held. If the child opens a device, it starts an
//! engine of its own.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::{latest, process};

/// Descriptors from this number on are not recorded: no default limit reaches it.
const MAX_FD: usize = 1 << 20;

static EPOCH: AtomicU64 = AtomicU64::new(0);
static OPEN: [AtomicU64; MAX_FD / 64] = [const { AtomicU64::new(0) }; MAX_FD / 64];
static HIGHEST_WORD: AtomicUsize = AtomicUsize::new(0);

/// The number of forks between the process with the first engine and this one.
#[inline]
pub fn epoch() -> u64 {
    EPOCH.load(Ordering::Relaxed)
}

/// Installs the child handler; later calls do nothing.
pub fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| process::at_fork_child(in_child));
    latest::prepare();
}

extern "C" fn in_child() {
    // The handler uses only atomics and close: other threads of the parent may have held any lock.
    for (index, word) in OPEN.iter().enumerate().take(HIGHEST_WORD.load(Ordering::Relaxed) + 1) {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = index * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            process::close_number(fd as RawFd);
        }
    }
    latest::in_child();
    EPOCH.fetch_add(1, Ordering::Relaxed);
}

fn word_and_bit(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok().filter(|fd| *fd < MAX_FD)?;
    Some((fd / 64, 1 << (fd % 64)))
}

/// Records that ferroce owns `fd`, so that a forked child closes it.
pub fn record(fd: RawFd) {
    if let Some((word, bit)) = word_and_bit(fd) {
        OPEN[word].fetch_or(bit, Ordering::Relaxed);
        HIGHEST_WORD.fetch_max(word, Ordering::Relaxed);
    }
}

/// Undoes [`record`]; the caller closes the descriptor afterwards.
pub fn forget(fd: RawFd) {
    if let Some((word, bit)) = word_and_bit(fd) {
        OPEN[word].fetch_and(!bit, Ordering::Relaxed);
    }
}

/// An owner of one descriptor, recorded while it lives. A forked child does not close it a second time,
/// because the number may belong to another file by then.
#[derive(Debug)]
pub struct Guarded<T> {
    inner: Option<T>,
    fd: RawFd,
    epoch: u64,
}

impl<T: AsFd> Guarded<T> {
    /// Takes over `inner`, and records its descriptor.
    pub fn new(inner: T) -> Self {
        let fd = inner.as_fd().as_raw_fd();
        record(fd);
        Self { inner: Some(inner), fd, epoch: epoch() }
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("only the destructor empties it")
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("only the destructor empties it")
    }
}

impl<T: AsFd> AsFd for Guarded<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if self.epoch == epoch() {
            forget(self.fd);
        } else {
            std::mem::forget(self.inner.take());
        }
    }
}
