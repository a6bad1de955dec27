//! Maps numbers in the engine's events to handles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The objects of one kind in a context, as weak references.
pub(crate) struct Handles<T> {
    known: Mutex<HashMap<u64, Weak<T>>>,
    next: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { known: Mutex::default(), next: AtomicU64::new(1) }
    }
}

impl<T> Handles<T> {
    /// A number that no other object of this kind has or had in the context.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn insert(&self, number: u64, object: &Arc<T>) {
        self.known().insert(number, Arc::downgrade(object));
    }

    /// The object with this number, unless its last handle was dropped.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.known().get(&number)?.upgrade()
    }

    pub(crate) fn remove(&self, number: u64) {
        self.known().remove(&number);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u64, Weak<T>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
