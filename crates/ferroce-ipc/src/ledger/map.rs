//! Parts of a ledger that are reached without a look for their place. Only this module of the ledger has
//! unsafe code.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::{DeviceCounters, Ledger, QP_RECORD, RING, WORD};

/// The counters that begin at a word.
pub(super) fn device(words: &[AtomicU64], at: usize) -> &DeviceCounters {
    assert!(at + size_of::<DeviceCounters>() / WORD <= words.len(), "the layout has room for it");
    // SAFETY: a `DeviceCounters` is `repr(C)` and contains only AtomicU64s. All of them lie within the
    // words, as the assertion above checked, and are aligned because the words are.
    unsafe { &*words.as_ptr().add(at).cast::<DeviceCounters>() }
}

/// The words of a queue pair in its ledger.
#[derive(Debug)]
pub(super) struct Parts {
    ledger: Arc<Ledger>,
    record: Option<NonNull<[AtomicU64; QP_RECORD]>>,
    ring: Option<NonNull<[AtomicU64; RING]>>,
}

// SAFETY: all access is through atomics, which several threads may use at the same time.
unsafe impl Send for Parts {}
// SAFETY: as above.
unsafe impl Sync for Parts {}

impl Parts {
    /// The record and the ring that begin at these words; none of them behind the ledger's end.
    pub(super) fn of(ledger: &Arc<Ledger>, record: usize, ring: usize) -> Self {
        let words = ledger.map.words();
        let from = |at: usize| words.get(at..).unwrap_or_default();
        Self {
            record: from(record).first_chunk().map(NonNull::from),
            ring: from(ring).first_chunk().map(NonNull::from),
            ledger: Arc::clone(ledger),
        }
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// The record of the queue pair.
    #[inline]
    pub(super) fn record(&self) -> Option<&[AtomicU64; QP_RECORD]> {
        // SAFETY: the pointer is into the ledger's mapping, which never moves, and `self` holds the ledger.
        self.record.map(|words| unsafe { words.as_ref() })
    }

    /// The ring of the flight recorder.
    #[inline]
    pub(super) fn ring(&self) -> Option<&[AtomicU64; RING]> {
        // SAFETY: as above.
        self.ring.map(|words| unsafe { words.as_ref() })
    }
}
