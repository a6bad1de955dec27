//! Parts of a ledger that are reached without a look for their place. Only this module of the ledger has
//! unsafe code.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use super::{DeviceCounters, Ledger, WORD};

/// The counters that begin at a word.
pub(super) fn device(words: &[AtomicU64], at: usize) -> &DeviceCounters {
    assert!(at + size_of::<DeviceCounters>() / WORD <= words.len(), "the layout has room for it");
    // SAFETY: a `DeviceCounters` is `repr(C)` and contains only AtomicU64s. All of them lie within the
    // words, as the assertion above checked, and are aligned because the words are.
    unsafe { &*words.as_ptr().add(at).cast::<DeviceCounters>() }
}

/// Words of a ledger that belong to an object, if it has a place.
#[derive(Debug)]
pub(super) struct Part<const N: usize>(Option<NonNull<[AtomicU64; N]>>);

// SAFETY: all access is through atomics, which several threads may use at the same time.
unsafe impl<const N: usize> Send for Part<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Part<N> {}

impl<const N: usize> Part<N> {
    /// The words from `at` on; none if the ledger is not so long.
    pub(super) fn of(ledger: &Ledger, at: usize) -> Self {
        Self(ledger.map.words().get(at..).and_then(|words| words.first_chunk()).map(NonNull::from))
    }

    /// The words. `ledger` is the one that they are of.
    #[inline]
    pub(super) fn words<'a>(&self, ledger: &'a Ledger) -> Option<&'a [AtomicU64; N]> {
        debug_assert!(self.0.is_none_or(|words| {
            let all = ledger.map.words().as_ptr_range();
            all.contains(&words.as_ptr().cast_const().cast())
        }));
        // SAFETY: the pointer is into the mapping of `ledger`, which never moves, and is there as long as the
        // ledger.
        self.0.map(|words| unsafe { words.as_ref() })
    }
}
