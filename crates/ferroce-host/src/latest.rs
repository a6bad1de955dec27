//! A value that any number of threads read, as with every poll, and that is seldom replaced.
//!
//! Reading is free of locked operations and of fences. A thread counts in a place of its own that it reads
//! ([`Reader`]), by plain stores. A thread that replaces a value has the kernel order the memory accesses of
//! all threads of the process (`membarrier`), and then looks at those places: a thread that may have found
//! the old value is seen to be reading, and each thread that begins later finds the new one. An old value is
//! freed at once if nobody reads, and otherwise by [`collect`] when each of those readers has ended. Without
//! `membarrier`, a reader pays for a fence.
//!
//! crossbeam-epoch, which does the same, has a fence for each reader and a destructor of its own in each
//! thread, and frees in any thread that reads.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, compiler_fence, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::thread::{MembarrierCommand, membarrier};

/// Threads with a place of their own. Any further ones share one.
const PLACES: usize = if cfg!(miri) { 16 } else { 2048 };
/// Longest wait for readers to end.
const LONGEST_WAIT: Duration = Duration::from_millis(20);
/// A place counts readers in its low bits, and in the others how often it had none any more.
const DEPTH: usize = 0xffff;

/// The place of a thread that reads; in a cache line of its own.
#[repr(align(64))]
struct Place {
    word: AtomicUsize,
    taken: AtomicBool,
}

impl Place {
    const fn new() -> Self {
        Self { word: AtomicUsize::new(0), taken: AtomicBool::new(false) }
    }
}

static OWN: [Place; PLACES] = [const { Place::new() }; PLACES];
/// Places of `OWN` below this number were taken at some time.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// The place of the threads without one.
static SHARED: Place = Place::new();
/// Whether the kernel orders the accesses of readers, see [`order`]: one of the values below.
static KERNEL: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const AGREED: u8 = 1;
const REFUSED: u8 = 2;
/// Values that could not be freed at once; null before the first. A forked child begins anew, because another
/// thread may have held the lock.
static RETIRED: AtomicPtr<Mutex<Vec<Retired>>> = AtomicPtr::new(ptr::null_mut());
/// How many of them there are.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Gives the place back at the end of a thread. A thread-local with a destructor would allocate when a thread
/// reads first, which may be in a signal handler.
static KEY: AtomicU64 = AtomicU64::new(NO_KEY);
const NO_KEY: u64 = u64::MAX;

thread_local! {
    /// The place of this thread, once it has one.
    static PLACE: Cell<Option<&'static Place>> = const { Cell::new(None) };
}

/// Makes what threads need to have places of their own. Before, they share one. Several threads may do this,
/// and no other one waits: a fork meanwhile would leave its child waiting for ever.
#[inline]
pub(crate) fn prepare() {
    if KERNEL.load(Relaxed) == UNKNOWN {
        make_key();
        // With several threads the kernel takes milliseconds for this.
        register();
    }
}

#[cold]
fn make_key() {
    let mut key = 0;
    // SAFETY: `key` may be written, and the destructor may be called at the end of any thread: this library
    // is never unloaded.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(give_back)) } == 0;
    if made && KEY.compare_exchange(NO_KEY, key.into(), AcqRel, Relaxed).is_err() {
        // SAFETY: the key is this thread's, and has no values.
        unsafe { libc::pthread_key_delete(key) };
    }
}

extern "C" fn give_back(place: *mut c_void) {
    // The destructors of others may read, by the shared place.
    PLACE.set(Some(&SHARED));
    // SAFETY: the value of the key is a place, see `take_place`; places live for ever.
    unsafe { &*place.cast::<Place>() }.taken.store(false, Release);
}

/// Takes a place. It allocates nothing: the thread may be in a signal handler.
#[cold]
fn take_place() -> &'static Place {
    let Ok(key) = libc::pthread_key_t::try_from(KEY.load(Acquire)) else { return &SHARED };
    let free = |place: &&Place| {
        !place.taken.load(Relaxed) && place.taken.compare_exchange(false, true, AcqRel, Relaxed).is_ok()
    };
    let mut place = &SHARED;
    if let Some((index, found)) = OWN.iter().enumerate().find(|(_, place)| free(place)) {
        // SAFETY: the key was made, and its destructor takes a place.
        if unsafe { libc::pthread_setspecific(key, ptr::from_ref(found).cast()) } == 0 {
            HIGHEST.fetch_max(index + 1, SeqCst);
            place = found;
        } else {
            found.taken.store(false, Release);
        }
    }
    PLACE.set(Some(place));
    place
}

/// A thread that reads: what it finds lives until this is dropped. It does not sleep meanwhile, for nothing
/// is freed that others replace.
pub struct Reader {
    place: &'static Place,
    /// The place is the thread's.
    _local: PhantomData<*const ()>,
}

impl Reader {
    /// The calling thread reads from now on. Wait-free, also in a signal handler.
    #[inline(always)]
    pub fn enter() -> Self {
        let place = PLACE.get().unwrap_or_else(take_place);
        if ptr::eq(place, &SHARED) {
            place.word.fetch_add(1, SeqCst);
        } else {
            // A signal handler in between leaves the word as it was.
            place.word.store(place.word.load(Relaxed).wrapping_add(1), Release);
        }
        if KERNEL.load(Relaxed) == AGREED {
            compiler_fence(SeqCst)
        } else {
            fence(SeqCst)
        }
        Self { place, _local: PhantomData }
    }
}

impl Drop for Reader {
    #[inline(always)]
    fn drop(&mut self) {
        let word = &self.place.word;
        let less =
            |word: usize| if word & DEPTH == 1 { word.wrapping_add(DEPTH) } else { word.wrapping_sub(1) };
        if ptr::eq(self.place, &SHARED) {
            let _ = word.fetch_update(Release, Relaxed, |word| Some(less(word)));
        } else {
            word.store(less(word.load(Relaxed)), Release);
        }
    }
}

/// Whether the calling thread reads, as far as its own place tells: it should not sleep then.
pub fn is_reading() -> bool {
    PLACE.get().is_some_and(|place| !ptr::eq(place, &SHARED) && place.word.load(Relaxed) & DEPTH != 0)
}

/// Asks the kernel once whether it orders accesses. Several threads may ask.
fn register() {
    if KERNEL.load(SeqCst) == UNKNOWN {
        let agreed = !cfg!(miri) && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        let _ = KERNEL.compare_exchange(UNKNOWN, if agreed { AGREED } else { REFUSED }, SeqCst, SeqCst);
    }
}

/// Orders all memory accesses of the other threads, as a fence in each of them would; `false` if the kernel
/// refuses to, though it agreed before.
fn order() -> bool {
    register();
    fence(SeqCst);
    // Each reader has a fence if the kernel never agreed.
    KERNEL.load(SeqCst) == REFUSED || membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

/// A replaced value, with the places that were being read by then.
struct Retired {
    // Dropped with this.
    _value: Box<dyn Send>,
    readers: Vec<(&'static Place, usize)>,
}

impl Retired {
    /// Whether the reader that may have found the value has ended, at each place.
    fn is_free(&self) -> bool {
        self.readers.iter().all(|(place, seen)| {
            let word = place.word.load(Acquire);
            word & DEPTH == 0 || word & !DEPTH != seen & !DEPTH
        })
    }
}

/// Frees a value that no place leads to any more, now or by [`collect`].
fn retire(value: impl Send + 'static) {
    if !order() {
        // A reader may have it for ever.
        std::mem::forget(value);
        return;
    }
    let places = OWN.iter().take(HIGHEST.load(SeqCst)).chain([&SHARED]);
    let readers: Vec<_> =
        places.map(|place| (place, place.word.load(Acquire))).filter(|(_, word)| word & DEPTH != 0).collect();
    if readers.is_empty() {
        return;
    }
    let retired = Retired { _value: Box::new(value), readers };
    let mut list = retired_values().lock();
    list.push(retired);
    WAITING.store(list.len(), Relaxed);
}

fn retired_values() -> &'static Mutex<Vec<Retired>> {
    let known = RETIRED.load(Acquire);
    if known.is_null() {
        let fresh = Box::into_raw(Box::default());
        match RETIRED.compare_exchange(ptr::null_mut(), fresh, AcqRel, Acquire) {
            // SAFETY: just published, and never freed.
            Ok(_) => return unsafe { &*fresh },
            Err(other) => {
                // SAFETY: from `into_raw`, and published to nobody.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: another thread published it; it is never freed.
                return unsafe { &*other };
            }
        }
    }
    // SAFETY: it was published, and is never freed.
    unsafe { &*known }
}

/// Frees the replaced values that nobody reads any more. The caller has no lock that the destructors of such
/// values may want, and reads nothing.
#[inline]
pub fn collect() {
    if WAITING.load(Relaxed) > 0 {
        collect_now();
    }
}

/// As [`collect`], until `value` is freed, for some milliseconds at most: readers do not sleep, but they may
/// lose their core.
pub fn collect_until_freed<T>(value: &Weak<T>) {
    let begun = Instant::now();
    while WAITING.load(Relaxed) > 0 && value.strong_count() > 0 {
        collect_now();
        if begun.elapsed() > LONGEST_WAIT {
            return;
        }
        std::thread::yield_now();
    }
}

#[cold]
fn collect_now() {
    let Some(mut list) = retired_values().try_lock() else { return };
    let (free, kept): (Vec<_>, Vec<_>) = list.drain(..).partition(Retired::is_free);
    *list = kept;
    WAITING.store(list.len(), Relaxed);
    drop(list);
    // A destructor may replace something.
    drop(free);
}

/// A forked child has none of the other threads.
pub(crate) fn in_child() {
    let own = PLACE.get();
    for place in OWN.iter().take(HIGHEST.load(Relaxed)).chain([&SHARED]) {
        if ptr::eq(place, &SHARED) || !own.is_some_and(|own| ptr::eq(own, place)) {
            let word = place.word.load(Relaxed);
            place.word.store((word & !DEPTH).wrapping_add(DEPTH + 1), Relaxed);
            place.taken.store(false, Relaxed);
        }
    }
    RETIRED.store(ptr::null_mut(), Relaxed);
    WAITING.store(0, Relaxed);
}

/// `N` places for an `Arc` or none, which are read without a lock.
pub struct Latest<T, const N: usize = 1> {
    /// Pointers that `Arc::into_raw` gave, or null.
    current: [AtomicPtr<T>; N],
    _shares: PhantomData<Arc<T>>,
}

// SAFETY: what is shared and sent are `Arc<T>`s.
unsafe impl<T: Send + Sync, const N: usize> Sync for Latest<T, N> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, const N: usize> Send for Latest<T, N> {}

impl<T: Send + Sync + 'static> Latest<T> {
    /// This value.
    pub fn new(value: T) -> Self {
        let latest = Self::empty();
        latest.store(Some(Arc::new(value)));
        latest
    }

    /// The value, while the thread reads.
    #[inline(always)]
    pub fn read<'a>(&'a self, reader: &'a Reader) -> Option<&'a T> {
        self.read_at(0, reader)
    }

    /// A share of the value, to keep.
    pub fn load(&self) -> Option<Arc<T>> {
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
        Self { current: [const { AtomicPtr::new(ptr::null_mut()) }; N], _shares: PhantomData }
    }

    /// As [`Latest::read`], of the value at a place; `None` also for a place beyond the last.
    #[inline(always)]
    pub fn read_at<'a>(&'a self, place: usize, _reader: &'a Reader) -> Option<&'a T> {
        let value = self.current.get(place)?.load(Acquire);
        // SAFETY: null, or the pointer of an `Arc`, the share of which is given up only when no reader that
        // began before its pointer was replaced is left.
        unsafe { value.as_ref() }
    }

    /// As [`Latest::load`], of the value at a place; `None` also for a place beyond the last.
    pub fn load_at(&self, place: usize) -> Option<Arc<T>> {
        let reader = Reader::enter();
        let value = self.read_at(place, &reader)?;
        let value = ptr::from_ref(value);
        // SAFETY: the pointer is that of an `Arc`, of which there is a share as long as `reader` lives.
        unsafe {
            Arc::increment_strong_count(value);
            Some(Arc::from_raw(value))
        }
    }
}

impl<T: Send + Sync + 'static, const N: usize> Latest<T, N> {
    /// As [`Latest::store`], of the value at a place. A place beyond the last takes nothing.
    pub fn store_at(&self, place: usize, value: Option<Arc<T>>) {
        let Some(current) = self.current.get(place) else { return };
        let new = value.map_or(ptr::null_mut(), |value| Arc::into_raw(value).cast_mut());
        let old = current.swap(new, SeqCst);
        if !old.is_null() {
            // SAFETY: it came from `Arc::into_raw`, and `swap` gave it to this thread alone.
            retire(unsafe { Arc::from_raw(old) });
        }
    }
}

impl<T, const N: usize> Drop for Latest<T, N> {
    fn drop(&mut self) {
        for value in &mut self.current {
            let value = *value.get_mut();
            if !value.is_null() {
                // SAFETY: it came from `Arc::into_raw`, and nobody reads it any more: readers borrow `self`.
                drop(unsafe { Arc::from_raw(value) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Whether the value is freed as soon as nobody reads: threads of other tests may.
    fn is_freed<T>(value: &Weak<T>) -> bool {
        (0..10_000).any(|_| {
            collect();
            let freed = value.upgrade().is_none();
            if !freed {
                thread::yield_now();
            }
            freed
        })
    }

    #[test]
    fn what_is_read_lives_until_the_last_reader_is_gone() {
        let latest = Latest::empty();
        let one = Reader::enter();
        assert!(latest.read(&one).is_none());
        let first = Arc::new(1);
        let freed: Weak<i32> = Arc::downgrade(&first);
        latest.store(Some(first));
        let value = latest.read(&one).unwrap();
        let other = Reader::enter();
        latest.store(Some(Arc::new(2)));
        assert_eq!((*value, latest.read(&other).copied()), (1, Some(2)));
        drop(other);
        collect();
        assert!(freed.upgrade().is_some());
        drop(one);
        assert!(is_freed(&freed));
        let kept = latest.load().unwrap();
        latest.store(None);
        assert!(latest.load().is_none());
        assert!((0..10_000).any(|_| {
            collect();
            Arc::strong_count(&kept) == 1
        }));
        assert_eq!(*kept, 2);
    }

    #[test]
    fn readers_that_began_later_do_not_keep_what_was_replaced() {
        let latest = Arc::new(Latest::new(1));
        let freed = Arc::downgrade(&latest.load().unwrap());
        let (ready, is_ready) = mpsc::channel();
        let (end, is_over) = mpsc::channel::<()>();
        let reading = {
            let latest = Arc::clone(&latest);
            thread::spawn(move || {
                let first = Reader::enter();
                ready.send(latest.read(&first).copied()).unwrap();
                is_over.recv().unwrap();
                drop(first);
                let _second = Reader::enter();
                ready.send(None).unwrap();
                is_over.recv().unwrap();
            })
        };
        assert_eq!(is_ready.recv().unwrap(), Some(1));
        latest.store(None);
        collect();
        assert!(freed.upgrade().is_some());
        end.send(()).unwrap();
        is_ready.recv().unwrap();
        assert!(is_freed(&freed));
        end.send(()).unwrap();
        reading.join().unwrap();
    }

    #[test]
    fn a_dropped_one_drops_its_values() {
        let value = Arc::new(());
        let freed = Arc::downgrade(&value);
        let latest = Latest::<(), 2>::empty();
        latest.store_at(1, Some(value));
        latest.store_at(2, Some(Arc::new(())));
        let held = |place| latest.load_at(place).is_some();
        assert_eq!([held(0), held(1), held(2)], [false, true, false]);
        drop(latest);
        assert!(freed.upgrade().is_none());
    }

    /// Runs `check` in a forked child.
    #[cfg(not(miri))]
    fn in_a_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls nothing that another thread may have locked, and ends by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            super::in_child();
            let passed = check();
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!passed)) };
        }
        let mut status = 0;
        // SAFETY: the status may be written.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    /// A thread that reads by the shared place, and one that holds the list, are no more in the child.
    #[cfg(not(miri))]
    #[test]
    fn a_child_frees_what_its_parent_s_threads_would_keep() {
        let (ready, is_ready) = mpsc::channel();
        let (end, is_over) = mpsc::channel::<()>();
        let reading = thread::spawn(move || {
            PLACE.set(Some(&SHARED));
            let _reader = Reader::enter();
            ready.send(()).unwrap();
            is_over.recv().unwrap();
        });
        is_ready.recv().unwrap();
        let held = retired_values().lock();
        let freed = in_a_child(|| {
            let latest = Latest::new(1);
            let reader = Reader::enter();
            let freed = Arc::downgrade(&latest.load().unwrap());
            latest.store(None);
            drop(reader);
            collect();
            freed.strong_count() == 0
        });
        drop(held);
        end.send(()).unwrap();
        reading.join().unwrap();
        assert!(freed);
    }

    #[test]
    fn places_come_back_when_threads_end() {
        crate::fork::install();
        for _ in 0..3 * PLACES {
            let own = thread::spawn(|| !ptr::eq(Reader::enter().place, &raw const SHARED));
            assert!(own.join().unwrap());
        }
    }

    #[test]
    fn readers_and_writers_at_once_lose_nothing() {
        const ROUNDS: usize = if cfg!(miri) { 50 } else { 20_000 };
        let latest = Latest::new(vec![0_usize; 8]);
        let all: Vec<Weak<Vec<usize>>> = thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let reader = Reader::enter();
                        let value = latest.read(&reader).unwrap();
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
                        collect();
                        freed
                    };
                    (1..=ROUNDS).map(write).collect::<Vec<_>>()
                })
            });
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        assert!((0..10_000).any(|_| {
            collect();
            thread::yield_now();
            all.iter().filter(|freed| freed.upgrade().is_some()).count() == 1
        }));
        drop(latest);
        assert!(all.iter().all(|freed| freed.upgrade().is_none()));
    }
}
