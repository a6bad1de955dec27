//! A value that a process has once, and a forked child anew.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork;

/// A value that each process has for itself. A forked child begins with a new one, because another thread of the parent may have
/// held a lock in the old one at the fork; the old one stays behind in the child's memory. Finding the value takes no lock.
pub struct PerProcess<T> {
    newest: AtomicPtr<Node<T>>,
}

struct Node<T> {
    epoch: u64,
    value: T,
}

impl<T> PerProcess<T> {
    /// Made when first asked for.
    pub const fn new() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// This process's.
    pub fn get(&self) -> &T {
        fork::install();
        let epoch = fork::epoch();
        let found = self.newest.load(Ordering::Acquire);
        // SAFETY: null, or a node that was published whole and is never freed.
        if let Some(node) = unsafe { found.as_ref() }
            && node.epoch == epoch
        {
            return &node.value;
        }
        let fresh = Box::into_raw(Box::new(Node { epoch, value: T::default() }));
        match self.newest.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just published, and never freed. What it replaces is the parent's, and stays.
            Ok(_) => unsafe { &(*fresh).value },
            Err(other) => {
                // SAFETY: from `into_raw`, and nobody else saw it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: another thread of this process published it; it is never freed.
                unsafe { &(*other).value }
            }
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn one_value_a_process() {
        static COUNT: PerProcess<AtomicU32> = PerProcess::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| COUNT.get().fetch_add(1, Ordering::Relaxed));
            }
        });
        assert_eq!(COUNT.get().load(Ordering::Relaxed), 4);
    }
}
