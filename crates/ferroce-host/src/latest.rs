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

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, compiler_fence, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::thread::{MembarrierCommand, membarrier};

/// Places for threads. A thread that finds none free near the one that its identity points to shares one.
const PLACES: usize = 2048;
/// Places that a thread looks at.
const NEAR: usize = 16;
/// Longest wait for readers to end.
const LONGEST_WAIT: Duration = Duration::from_millis(20);
/// A place counts readers in its low bits, and in the others how often it had none any more.
const DEPTH: usize = 0xffff;

/// The place of a thread that reads; in a cache line of its own.
#[repr(align(64))]
struct Place {
    word: AtomicUsize,
    /// The thread that has the place, see [`this_thread`], or 0. The lowest bit says that it needs a fence.
    owner: AtomicUsize,
}

impl Place {
    const fn new() -> Self {
        Self { word: AtomicUsize::new(0), owner: AtomicUsize::new(0) }
    }

    /// The word behind the end of a reader, each of which counts `one`.
    fn less(word: usize, one: usize) -> usize {
        if word & DEPTH == one { word.wrapping_add(DEPTH + 1 - one) } else { word.wrapping_sub(one) }
    }
}

static OWN: [Place; PLACES] = [const { Place::new() }; PLACES];
/// A bit for each place of `OWN` that was taken at some time.
static TAKEN: [AtomicU64; PLACES / 64] = [const { AtomicU64::new(0) }; PLACES / 64];
/// The place of the threads without one. Each of its readers counts [`SHARE`], so that no thread takes it for
/// the place of its own.
static SHARED: Place = Place::new();
const SHARE: usize = 2;
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
/// The lowest bit of [`Place::owner`].
const FENCED: usize = 1;

/// An even number that is no other living thread's: the thread pointer. A thread-local variable in a library
/// that is loaded late takes a call of the loader.
#[inline(always)]
fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    {
        let pointer: usize;
        // SAFETY: the first word that the register points to is the address of that word (System V ABI).
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags))
        };
        pointer
    }
    #[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
    {
        let pointer: usize;
        // SAFETY: reads a register that each thread has.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags))
        };
        pointer
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri))))]
    {
        thread_local!(static HERE: u64 = const { 0 });
        HERE.with(|here| ptr::from_ref(here).addr())
    }
}

/// The places near the one that the thread's identity points to, and their numbers.
#[inline(always)]
fn near(thread: usize) -> impl Iterator<Item = (usize, &'static Place)> {
    // Stacks, and so thread pointers, lie at multiples of powers of two from each other.
    let first = (thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53;
    (first as usize..).take(NEAR).filter_map(|number| {
        let number = number % PLACES;
        OWN.get(number).map(|place| (number, place))
    })
}

/// The place of the calling thread, if it has one.
fn own_place() -> Option<&'static Place> {
    let thread = this_thread();
    let mut places = near(thread).map(|(_, place)| place);
    places.find(|place| place.owner.load(Relaxed) & !FENCED == thread)
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
    // SAFETY: the value of the key is a place, see `take_place`; places live for ever.
    let owner = &unsafe { &*place.cast::<Place>() }.owner;
    // Perhaps another thread's in a forked child, see `in_child`.
    if owner.load(Relaxed) & !FENCED == this_thread() {
        owner.store(0, Release);
    }
}

/// Takes a place. The thread may be in a signal handler, so this allocates nothing, if the process has few
/// keys: glibc's `pthread_setspecific` takes memory for those from the 32nd on.
fn take_place() -> Option<&'static Place> {
    let key = libc::pthread_key_t::try_from(KEY.load(Acquire)).ok()?;
    let thread = this_thread();
    let owner = match KERNEL.load(SeqCst) {
        AGREED => thread,
        REFUSED => thread | FENCED,
        _ => return None,
    };
    let is_free = |(number, place): &(usize, &'static Place)| {
        // The bit comes first: a thread that replaces a value must know of the place before it has a reader.
        TAKEN.iter().skip(number / 64).take(1).for_each(|bits| _ = bits.fetch_or(1 << (number % 64), SeqCst));
        place.owner.compare_exchange(0, owner, AcqRel, Relaxed).is_ok()
    };
    let (_, place) = near(thread).filter(|(_, place)| place.owner.load(Relaxed) == 0).find(is_free)?;
    // A signal handler in between may have taken one: a thread has one place.
    if let Some(own) = own_place().filter(|own| !ptr::eq(*own, place)) {
        place.owner.store(0, Release);
        return Some(own);
    }
    // SAFETY: the key was made, and its destructor takes a place.
    if unsafe { libc::pthread_setspecific(key, ptr::from_ref(place).cast()) } != 0 {
        place.owner.store(0, Release);
        return None;
    }
    Some(place)
}

/// The places that may have readers.
fn places() -> impl Iterator<Item = &'static Place> {
    let numbered = TAKEN.iter().zip(OWN.chunks(64));
    let taken = numbered.flat_map(|(bits, places)| {
        let bits = bits.load(SeqCst);
        places.iter().enumerate().filter(move |(bit, _)| bits & 1 << bit != 0).map(|(_, place)| place)
    });
    taken.chain([&SHARED])
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
        let thread = this_thread();
        match near(thread).next() {
            Some((_, place)) if place.owner.load(Relaxed) == thread => Self::enter_own(place),
            _ => Self::enter_elsewhere(),
        }
    }

    #[inline(always)]
    fn enter_own(place: &'static Place) -> Self {
        // A signal handler in between leaves the word as it was.
        place.word.store(place.word.load(Relaxed).wrapping_add(1), Release);
        compiler_fence(SeqCst);
        Self { place, _local: PhantomData }
    }

    /// As [`Self::enter`], for the thread of the last [`Self::remember`]; `None` for every other thread, and
    /// for threads that need a fence or share a place.
    #[inline(always)]
    pub fn enter_by(hint: &Hint) -> Option<Self> {
        // SAFETY: a hint always has the address of a place; places live for ever.
        let place: &'static Place = unsafe { &*hint.0.load(Relaxed) };
        (place.owner.load(Relaxed) == this_thread()).then(|| Self::enter_own(place))
    }

    /// The next [`Self::enter_by`] with this hint is for the calling thread.
    #[inline]
    pub fn remember(&self, hint: &Hint) {
        let place = ptr::from_ref(self.place).cast_mut();
        if hint.0.load(Relaxed) != place {
            hint.0.store(place, Relaxed);
        }
    }

    /// As [`Self::enter`], for a thread whose place is not the first that it looks at, that needs a fence, or
    /// that has no place.
    #[cold]
    #[inline(never)]
    fn enter_elsewhere() -> Self {
        match own_place().or_else(take_place) {
            Some(place) if place.owner.load(Relaxed) & FENCED == 0 => Self::enter_own(place),
            Some(place) => {
                let reader = Self::enter_own(place);
                fence(SeqCst);
                reader
            }
            None => Self::enter_shared(),
        }
    }

    fn enter_shared() -> Self {
        SHARED.word.fetch_add(SHARE, SeqCst);
        fence(SeqCst);
        Self { place: &SHARED, _local: PhantomData }
    }

    // A reference to the reader would keep the reader in memory. Nothing unwinds out of a function of this
    // ABI, so callers need no code for that.
    #[cold]
    #[inline(never)]
    extern "C" fn leave_elsewhere(place: &'static Place) {
        let word = &place.word;
        if ptr::eq(place, &SHARED) {
            let _ = word.fetch_update(Release, Relaxed, |word| Some(Place::less(word, SHARE)));
        } else {
            word.store(Place::less(word.load(Relaxed), 1), Release);
        }
    }
}

/// The place of the thread that used an object last, which spares that thread the search for its place.
pub struct Hint(AtomicPtr<Place>);

impl Default for Hint {
    /// A hint that is for no thread: the shared place has no owner.
    fn default() -> Self {
        Self(AtomicPtr::new(ptr::from_ref(&SHARED).cast_mut()))
    }
}

impl Drop for Reader {
    #[inline(always)]
    fn drop(&mut self) {
        let word = self.place.word.load(Relaxed);
        if word & DEPTH == 1 {
            self.place.word.store(word.wrapping_add(DEPTH), Release);
        } else {
            Self::leave_elsewhere(self.place);
        }
    }
}

/// Whether the calling thread reads, as far as its own place tells: it should not sleep then.
pub fn is_reading() -> bool {
    own_place().is_some_and(|place| place.word.load(Relaxed) & DEPTH != 0)
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
    let words = places().map(|place| (place, place.word.load(Acquire)));
    let readers: Vec<_> = words.filter(|(_, word)| word & DEPTH != 0).collect();
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
    let own = own_place();
    for place in places() {
        if !own.is_some_and(|own| ptr::eq(own, place)) {
            let word = place.word.load(Relaxed);
            place.word.store((word & !DEPTH).wrapping_add(DEPTH + 1), Relaxed);
            place.owner.store(0, Relaxed);
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

    /// Whether this holds as soon as nobody reads: threads of other tests may, and wait for a processor.
    fn comes_true(mut holds: impl FnMut() -> bool) -> bool {
        let begun = Instant::now();
        loop {
            collect();
            if holds() {
                return true;
            }
            if begun.elapsed() > Duration::from_secs(20) {
                return false;
            }
            thread::yield_now();
        }
    }

    fn is_freed<T>(value: &Weak<T>) -> bool {
        comes_true(|| value.upgrade().is_none())
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
        assert!(comes_true(|| Arc::strong_count(&kept) == 1));
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
            let _reader = Reader::enter_shared();
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
    fn who_finds_no_place_near_its_own_shares_one_and_takes_the_next_that_is_free() {
        crate::fork::install();
        let checks = || {
            let others = usize::MAX - 1;
            let taken = |place: &&Place| place.owner.compare_exchange(0, others, AcqRel, Relaxed).is_ok();
            let taken: Vec<_> = near(this_thread()).map(|(_, place)| place).filter(taken).collect();
            let latest = Latest::new(1);
            let keeps = |reader: Reader| {
                let freed = Arc::downgrade(&latest.load().unwrap());
                latest.store(Some(Arc::new(2)));
                collect();
                let kept = freed.upgrade().is_some();
                let place = reader.place;
                drop(reader);
                assert!(is_freed(&freed));
                (kept, ptr::eq(place, &raw const SHARED), ptr::eq(place, taken[taken.len() - 1]))
            };
            assert_eq!(keeps(Reader::enter()), (true, true, false));
            taken[taken.len() - 1].owner.store(0, Release);
            assert_eq!(keeps(Reader::enter()), (true, false, true));
            assert!(!is_reading());
            taken[..taken.len() - 1].iter().for_each(|place| place.owner.store(0, Release));
        };
        thread::spawn(checks).join().unwrap();
    }

    #[cfg(not(miri))]
    #[test]
    fn a_hint_is_for_the_thread_that_it_remembers() {
        crate::fork::install();
        let checks = || {
            let hint = Hint::default();
            let enters =
                || Reader::enter_by(&hint).map(|reader| ptr::eq(reader.place, Reader::enter().place));
            assert_eq!(enters(), None);
            Reader::enter().remember(&hint);
            if KERNEL.load(SeqCst) == AGREED {
                assert_eq!(enters(), Some(true));
            }
            assert!(!is_reading());
            assert_eq!(thread::scope(|scope| scope.spawn(enters).join().unwrap()), None);
        };
        thread::spawn(checks).join().unwrap();
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
        assert!(comes_true(|| all.iter().filter(|freed| freed.upgrade().is_some()).count() == 1));
        drop(latest);
        assert!(all.iter().all(|freed| freed.upgrade().is_none()));
    }
}
