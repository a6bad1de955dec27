//! A device's counters in the words of a ledger. Only this module of the ledger has unsafe code.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

use super::{DeviceCounters, WORD};

/// The counters that begin at a word.
pub(super) fn device(words: &[AtomicU64], at: usize) -> &DeviceCounters {
    assert!(at + size_of::<DeviceCounters>() / WORD <= words.len(), "the layout has room for it");
    // SAFETY: a `DeviceCounters` is `repr(C)` and contains only AtomicU64s. All of them lie within the
    // words, as the assertion above checked, and are aligned because the words are.
    unsafe { &*words.as_ptr().add(at).cast::<DeviceCounters>() }
}
