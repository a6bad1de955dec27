//! The memory behind the pointers that C programs hold.
//!
//! A program may call with a handle that it, or another of its threads, has already destroyed. Such a call
//! must return EINVAL instead of reading freed memory, so the library never gives handles back to the
//! allocator: a destroyed handle is blank and returns to its pool, which hands out the handle that has been
//! idle longest. A handle is live while it contains the `Arc` of the engine's object; a call in flight keeps
//! that object alive.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ferroce_engine::PerProcess;
use ferroce_host::latest::{self, Latest, Reader};
use parking_lot::Mutex;

use crate::check;
use crate::errno::Errno;

/// A C structure of type `C`, first, so that its address is the handle's; `L` while it is live; `X` that is
/// ours.
#[repr(C)]
pub(crate) struct Handle<C, L, X = ()> {
    c: UnsafeCell<C>,
    live: Latest<L>,
    /// A call that destroys it is under way.
    ending: AtomicBool,
    /// Kept from one life to the next.
    pub(crate) extra: X,
}

// SAFETY: `c` belongs to the program once its pointer was returned; it is reached here only through the raw
// pointer of `c()`, one member at a time. The other fields are what `L` and `X` make of themselves.
unsafe impl<C, L: Send + Sync, X: Sync> Sync for Handle<C, L, X> {}
// SAFETY: handles are only ever shared by reference; see above.
unsafe impl<C, L: Send + Sync, X: Send> Send for Handle<C, L, X> {}

impl<C, L: Send + Sync + 'static, X> Handle<C, L, X> {
    /// Returns a share of the engine's object; EINVAL if the program destroyed the handle.
    pub(crate) fn live(&self) -> Result<Live<L>, Errno> {
        self.live.load().ok_or(Errno::EINVAL)
    }

    /// As [`Self::live`], for as long as the thread reads.
    #[inline(always)]
    pub(crate) fn read<'a>(&'a self, reader: &'a Reader) -> Result<&'a L, Errno> {
        self.live.read(reader).ok_or(Errno::EINVAL)
    }
}

impl<C, L, X> Handle<C, L, X> {
    /// The C structure, for the program and for writing single members.
    pub(crate) fn c(&self) -> *mut C {
        self.c.get()
    }

    /// The handle behind a program's pointer to its C structure; EINVAL for NULL and for addresses that are
    /// none.
    ///
    /// # Safety
    ///
    /// `pointer`, unless NULL or misaligned, came from [`Pool::take`] of a pool of this type.
    pub(crate) unsafe fn from_c<P>(pointer: *mut P) -> Result<&'static Self, Errno> {
        let handle = ptr::with_exposed_provenance::<Self>(pointer.addr());
        if handle.is_null() || !handle.is_aligned() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not NULL and aligned, so a handle of this type; handles are never freed.
        Ok(unsafe { &*handle })
    }
}

/// A C structure that programs can see. Its members are read by [`get!`] and written by [`set!`].
///
/// # Safety
///
/// `c` returns the address of a whole, initialized structure, at any alignment, which may be read and written
/// during a call. Members that a program reads while we write them, or the other way round, are the program's
/// to synchronize, as in libibverbs.
pub(crate) unsafe trait Structure {
    type C;

    fn c(&self) -> *mut Self::C;
}

// SAFETY: the structure was written when the handle was taken from its pool, and handles are never freed.
unsafe impl<C, L, X> Structure for Handle<C, L, X> {
    type C = C;

    #[inline(always)]
    fn c(&self) -> *mut C {
        self.c.get()
    }
}

// SAFETY: as `S`.
unsafe impl<S: Structure> Structure for &S {
    type C = S::C;

    #[inline(always)]
    fn c(&self) -> *mut S::C {
        (**self).c()
    }
}

/// The value of a member of a [`Structure`]: `get!(id.route.num_paths)`.
macro_rules! get {
    ($structure:ident . $($member:ident).+) => {{
        let c = $crate::handle::Structure::c(&$structure);
        // SAFETY: `c` points to a whole structure that may be read, see `Structure`.
        unsafe { (&raw const (*c).$($member).+).read_unaligned() }
    }};
}
pub(crate) use get;

/// Sets a member of a [`Structure`]: `set!(id.route.num_paths = 1)`.
macro_rules! set {
    ($structure:ident . $($member:ident).+ = $value:expr) => {{
        let (c, value) = ($crate::handle::Structure::c(&$structure), $value);
        // SAFETY: `c` points to a whole structure that may be written, see `Structure`.
        unsafe { (&raw mut (*c).$($member).+).write_unaligned(value) }
    }};
}
pub(crate) use set;

/// The pointer in a member of a [`Structure`], which is NULL from then on.
macro_rules! take {
    ($structure:ident . $($member:ident).+) => {{
        let pointer = $crate::handle::get!($structure . $($member).+);
        $crate::handle::set!($structure . $($member).+ = std::ptr::null_mut());
        pointer
    }};
}
pub(crate) use take;

/// Numbers for the `handle` members, which programs only print.
pub(crate) fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A share of what makes a handle live.
pub(crate) type Live<L> = Arc<L>;

/// Handles, the one that has been idle longest first.
type Idle<C, L, X> = Mutex<VecDeque<&'static Handle<C, L, X>>>;

/// The handles of one kind that are not in use.
pub(crate) struct Pool<C: 'static, L: 'static, X: 'static = ()> {
    idle: PerProcess<Idle<C, L, X>>,
}

/// Destroyed handles that rest before the oldest is used again: as long as that, a stale pointer is detected.
const IDLE: usize = 64;

impl<C, L: Send + Sync, X: Default + Send + Sync> Pool<C, L, X> {
    pub(crate) const fn new() -> Self {
        Self { idle: PerProcess::new() }
    }

    /// A handle with the C structure `c`, not yet live.
    pub(crate) fn take(&self, c: C) -> &'static Handle<C, L, X> {
        let reused = {
            let mut idle = self.idle.get().lock();
            if idle.len() > IDLE { idle.pop_front() } else { None }
        };
        match reused {
            Some(handle) => {
                // SAFETY: nobody holds a reference into `c`, and no live program pointer names an idle
                // handle.
                unsafe { handle.c.get().write(c) }
                handle
            }
            None => {
                let handle: &'static _ = Box::leak(Box::new(Handle {
                    c: UnsafeCell::new(c),
                    live: Latest::empty(),
                    ending: AtomicBool::new(false),
                    extra: X::default(),
                }));
                // The program comes back with an address of `c`; `from_c` makes a reference to all of it
                // again.
                ptr::from_ref(handle).expose_provenance();
                handle
            }
        }
    }

    /// A live handle with the C structure `c`. `live` gets it first; if that fails, it goes back to the pool.
    pub(crate) fn make<E>(
        &self,
        c: C,
        live: impl FnOnce(&'static Handle<C, L, X>) -> Result<L, E>,
    ) -> Result<&'static Handle<C, L, X>, E> {
        let handle = self.take(c);
        match live(handle) {
            Ok(live) => self.make_live(handle, live),
            Err(error) => {
                self.idle.get().lock().push_back(handle);
                return Err(error);
            }
        }
        Ok(handle)
    }

    /// A live handle with the C structure `c`.
    pub(crate) fn put(&self, c: C, live: L) -> &'static Handle<C, L, X> {
        let handle = self.take(c);
        self.make_live(handle, live);
        handle
    }

    /// Makes it live.
    pub(crate) fn make_live(&self, handle: &'static Handle<C, L, X>, live: L) {
        handle.ending.store(false, Ordering::Relaxed);
        handle.live.store(Some(Arc::new(live)));
        check::made(handle.c());
    }

    /// Ends its life by `destroy`, unless that refuses. The handle is live until `destroy` returns, for those
    /// that acknowledge events meanwhile; a second destroyer gets EINVAL at once.
    pub(crate) fn end(
        &self,
        handle: &'static Handle<C, L, X>,
        destroy: impl FnOnce(&L) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let live = handle.live()?;
        if handle.ending.swap(true, Ordering::AcqRel) {
            return Err(Errno::EINVAL);
        }
        if let Err(errno) = destroy(&live) {
            handle.ending.store(false, Ordering::Release);
            return Err(errno);
        }
        check::ended(handle.c());
        handle.live.store(None);
        // The memory of the object is free when this returns, unless other calls use the object.
        let ended = Arc::downgrade(&live);
        drop(live);
        latest::collect_until_freed(&ended);
        self.idle.get().lock().push_back(handle);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static POOL: Pool<[u64; 4], String> = Pool::new();

    #[test]
    fn a_destroyed_handle_is_detected_and_reused_late() {
        let first = POOL.take([1; 4]);
        POOL.make_live(first, "first".to_owned());
        assert_eq!(first.live().map(|live| live.len()), Ok(5));
        let pointer = first.c();
        // SAFETY: from the pool.
        let same = unsafe { Handle::<[u64; 4], String>::from_c(pointer) }.expect("a handle");
        let held = same.live().expect("live");
        assert_eq!(POOL.end(first, |_| Err(Errno::EBUSY)), Err(Errno::EBUSY));
        assert!(first.live().is_ok());
        assert_eq!(POOL.end(first, |_| POOL.end(first, |_| Ok(()))), Err(Errno::EINVAL));
        assert_eq!(POOL.end(first, |_| Ok(())), Ok(()));
        assert_eq!(POOL.end(first, |_| Ok(())), Err(Errno::EINVAL));
        assert_eq!(&**held, "first");
        assert_eq!(same.live().err(), Some(Errno::EINVAL));
        for _ in 0..IDLE {
            let other = POOL.take([2; 4]);
            assert!(!std::ptr::eq(other, first));
            POOL.make_live(other, String::new());
            assert_eq!(POOL.end(other, |_| Ok(())), Ok(()));
        }
        assert!(std::ptr::eq(POOL.take([3; 4]), first));
    }

    #[test]
    fn null_and_odd_pointers_are_no_handles() {
        for pointer in [std::ptr::null_mut::<u8>(), std::ptr::without_provenance_mut(1)] {
            // SAFETY: NULL and misaligned pointers are allowed.
            let handle = unsafe { Handle::<[u64; 4], String>::from_c(pointer) };
            assert_eq!(handle.err().map(Errno::code), Some(libc::EINVAL));
        }
    }
}
