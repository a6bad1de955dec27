//! A value that each process has once.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork;

/// A value of this process. A forked child starts with a new one, because another thread of the parent may
/// have held a lock in the old one at the fork; the old one leaks in the child. Finding the value takes no
/// lock.
pub struct PerProcess<T> {
    newest: AtomicPtr<Node<T>>,
}

struct Node<T> {
    epoch: u64,
    value: T,
}

impl<T> PerProcess<T> {
    /// The first [`Self::get`] creates the value.
    pub const fn new() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// This process's value.
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
            // SAFETY: just published, and never freed. The node it replaces is the parent's and is not freed
            // either.
            Ok(_) => unsafe { &(*fresh).value },
            Err(other) => {
                // SAFETY: from `into_raw`, and the failed exchange published it to no other thread.
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
