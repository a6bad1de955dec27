//! A value that any number of threads read, as with every poll, and that is seldom replaced.
//!
//! A reader adds to a counter and takes that back, which is all that reading costs. arc-swap spares threads
//! that read at the same time the common counter, and finds a list of its own for each thread instead: in a
//! library that programs load, that alone is a call, and ten times as many instructions.
//!
//! A thread that replaces the value puts the old one aside. Old values are freed by a thread that took the
//! list of them and then finds no reader: readers that come later read the new value, and a reader of an
//! old one would still be counted. All accesses are sequentially consistent: of the last reader and a thread
//! that puts a value aside at least one sees what the other did.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// `N` places for an `Arc` or none, which are read without a lock. They share a counter of readers.
///
/// After a fork the child may count readers that are no more: it never frees what it replaces.
pub struct Latest<T, const N: usize = 1> {
    readers: AtomicUsize,
    /// Pointers that `Arc::into_raw` gave, or null.
    current: [AtomicPtr<T>; N],
    aside: AtomicPtr<Aside<T>>,
}

/// A value that a reader may look at, and those put aside before it.
struct Aside<T> {
    // Dropped with the list.
    _value: Arc<T>,
    next: *mut Aside<T>,
}

// SAFETY: what is shared and sent are `Arc<T>`s.
unsafe impl<T: Send + Sync, const N: usize> Sync for Latest<T, N> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, const N: usize> Send for Latest<T, N> {}

impl<T> Latest<T> {
    /// This value.
    pub fn new(value: T) -> Self {
        let latest = Self::empty();
        latest.store(Some(Arc::new(value)));
        latest
    }

    /// The value, which lives as long as it is read. Wait-free, also in a signal handler.
    #[inline(always)]
    pub fn load(&self) -> Option<Reading<'_, T>> {
        self.load_at(0)
    }

    /// Replaces the value.
    pub fn store(&self, value: Option<Arc<T>>) {
        self.store_at(0, value);
    }
}

impl<T, const N: usize> Latest<T, N> {
    /// No values.
    pub const fn empty() -> Self {
        Self {
            readers: AtomicUsize::new(0),
            current: [const { AtomicPtr::new(ptr::null_mut()) }; N],
            aside: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// As [`Latest::load`], of the value at a place; `None` also for a place beyond the last.
    #[inline(always)]
    pub fn load_at(&self, place: usize) -> Option<Reading<'_, T, N>> {
        let current = self.current.get(place)?;
        self.readers.fetch_add(1, SeqCst);
        // Made before the look, so that it takes itself back.
        let reading = Counted(self);
        let value = NonNull::new(current.load(SeqCst))?;
        Some(Reading { of: reading, value })
    }

    /// As [`Latest::store`], of the value at a place. A place beyond the last takes nothing.
    pub fn store_at(&self, place: usize, value: Option<Arc<T>>) {
        let Some(current) = self.current.get(place) else { return };
        let new = value.map_or(ptr::null_mut(), |value| Arc::into_raw(value).cast_mut());
        let old = current.swap(new, SeqCst);
        if old.is_null() {
            return;
        }
        // SAFETY: it came from `Arc::into_raw`, and `swap` gave it to this thread alone.
        let value = unsafe { Arc::from_raw(old) };
        let entry = Box::into_raw(Box::new(Aside { _value: value, next: ptr::null_mut() }));
        self.put_aside(entry, entry);
        self.free_aside();
    }

    /// Puts a list in front of what is aside.
    fn put_aside(&self, first: *mut Aside<T>, last: *mut Aside<T>) {
        let mut head = self.aside.load(SeqCst);
        loop {
            // SAFETY: the list is this thread's until the exchange.
            unsafe { (*last).next = head };
            match self.aside.compare_exchange(head, first, SeqCst, SeqCst) {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }

    /// Frees what is aside, unless there are readers, the last of which will.
    #[cold]
    fn free_aside(&self) {
        while self.readers.load(SeqCst) == 0 {
            let first = self.aside.swap(ptr::null_mut(), SeqCst);
            if first.is_null() {
                return;
            }
            if self.readers.load(SeqCst) == 0 {
                // SAFETY: the exchange gave the list to this thread, and nobody reads its values: a reader
                // that found one before it was replaced would still be counted.
                unsafe { free(first) };
                return;
            }
            let mut last = first;
            // SAFETY: the list is this thread's.
            unsafe {
                while !(*last).next.is_null() {
                    last = (*last).next;
                }
            }
            self.put_aside(first, last);
        }
    }
}

impl<T, const N: usize> Drop for Latest<T, N> {
    fn drop(&mut self) {
        (0..N).for_each(|place| self.store_at(place, None));
        let first = *self.aside.get_mut();
        // SAFETY: nobody reads any more, since readings borrow `self`.
        unsafe { free(first) };
    }
}

/// Frees a list.
///
/// # Safety
/// The list is the caller's, its entries were made by `Box::into_raw`, and nobody reads its values.
unsafe fn free<T>(first: *mut Aside<T>) {
    let mut next = first;
    while !next.is_null() {
        // SAFETY: as the caller says.
        let entry = unsafe { Box::from_raw(next) };
        next = entry.next;
    }
}

/// A reader that is counted, until it is dropped.
struct Counted<'a, T, const N: usize>(&'a Latest<T, N>);

impl<T, const N: usize> Drop for Counted<'_, T, N> {
    #[inline(always)]
    fn drop(&mut self) {
        let last = self.0.readers.fetch_sub(1, SeqCst) == 1;
        if last && !self.0.aside.load(SeqCst).is_null() {
            self.0.free_aside();
        }
    }
}

/// A value while it is read.
pub struct Reading<'a, T, const N: usize = 1> {
    of: Counted<'a, T, N>,
    value: NonNull<T>,
}

impl<T, const N: usize> Reading<'_, T, N> {
    /// A share of the value, to keep.
    pub fn to_arc(&self) -> Arc<T> {
        // SAFETY: the pointer is that of an `Arc`, of which `Latest` has a share as long as its reader is
        // counted.
        unsafe {
            Arc::increment_strong_count(self.value.as_ptr());
            Arc::from_raw(self.value.as_ptr())
        }
    }
}

impl<T, const N: usize> Deref for Reading<'_, T, N> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        debug_assert!(self.of.0.readers.load(SeqCst) > 0);
        // SAFETY: it lives as long as this reader is counted.
        unsafe { self.value.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::thread;

    use super::*;

    #[test]
    fn what_is_read_lives_until_the_last_reader_is_gone() {
        let latest = Latest::empty();
        assert!(latest.load().is_none());
        let first = Arc::new(1);
        let freed: Weak<i32> = Arc::downgrade(&first);
        latest.store(Some(first));
        let (one, other) = (latest.load().unwrap(), latest.load().unwrap());
        latest.store(Some(Arc::new(2)));
        assert_eq!((*one, *other, latest.load().map(|value| *value)), (1, 1, Some(2)));
        drop(one);
        assert!(freed.upgrade().is_some());
        drop(other);
        assert!(freed.upgrade().is_none());
        let kept = latest.load().unwrap().to_arc();
        latest.store(None);
        assert!(latest.load().is_none());
        assert_eq!((*kept, Arc::strong_count(&kept)), (2, 1));
    }

    #[test]
    fn a_value_that_nobody_reads_is_freed_at_once() {
        let value = Arc::new(());
        let freed = Arc::downgrade(&value);
        let latest = Latest::new(());
        latest.store(Some(value));
        latest.store(None);
        assert!(freed.upgrade().is_none());
        let value = Arc::new(());
        let freed = Arc::downgrade(&value);
        latest.store(Some(value));
        drop(latest);
        assert!(freed.upgrade().is_none());
    }

    #[test]
    fn places_share_the_counter_of_readers() {
        let latest = Latest::<i32, 2>::empty();
        let first = Arc::new(1);
        let freed = Arc::downgrade(&first);
        latest.store_at(0, Some(first));
        latest.store_at(1, Some(Arc::new(2)));
        latest.store_at(2, Some(Arc::new(3)));
        let value = |place| latest.load_at(place).map(|value| *value);
        assert_eq!([value(0), value(1), value(2)], [Some(1), Some(2), None]);
        let other = latest.load_at(1).unwrap();
        latest.store_at(0, None);
        assert_eq!([value(0), value(1)], [None, Some(2)]);
        assert!(freed.upgrade().is_some());
        drop(other);
        assert!(freed.upgrade().is_none());
    }

    #[test]
    fn readers_and_writers_at_once_lose_nothing() {
        const ROUNDS: usize = if cfg!(miri) { 50 } else { 20_000 };
        let latest = Latest::new(vec![0_usize; 8]);
        let all: Vec<Weak<Vec<usize>>> = thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let value = latest.load().unwrap();
                        assert!(value.iter().all(|octet| *octet == value[0]));
                    }
                });
            }
            let writers = [1, 2].map(|writer| {
                let latest = &latest;
                scope.spawn(move || {
                    let write = |round| {
                        let value = Arc::new(vec![writer * round; 8]);
                        let freed = Arc::downgrade(&value);
                        latest.store(Some(value));
                        freed
                    };
                    (1..=ROUNDS).map(write).collect::<Vec<_>>()
                })
            });
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        assert_eq!(all.iter().filter(|freed| freed.upgrade().is_some()).count(), 1, "the last one");
        drop(latest);
        assert!(all.iter().all(|freed| freed.upgrade().is_none()));
    }
}
