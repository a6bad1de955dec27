//! The boundary between C and Rust: every export runs its body through one of the functions here, which turn
//! a `Result` into the return convention of the call's man page and stop panics.
//!
//! A panic is our own bug. It is logged once, the context it happened in is dead from then on (its programs
//! see `IBV_EVENT_DEVICE_FATAL`, each of its calls returns EIO), and other contexts live on.
//!
//! No call is a cancellation point but those of [`crate::wait`]. glibc cancels a thread by unwinding its
//! stack, which must not pass a body that holds locks, and which `catch_unwind` would stop, whereupon glibc
//! aborts the process. Therefore a body runs with cancellation disabled. The posting and polling calls in
//! [`quick`] save the 25 ns that this costs: their system calls are raw ones, which are no cancellation
//! points (`sys::signal` in the engine, the sockets in `ferroce-datapath`). Those bodies also stay on the
//! caller's stack, so their frames must leave the rest of a thread's 16 KiB free.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use core::ffi::c_int;
use ferroce_engine::{Uncancellable, process_epoch};
use ferroce_host::latest;

use crate::errno::{self, Errno};
use crate::stack;

/// A context, as far as calls on its objects look at it.
pub(crate) trait Scope {
    /// Neither dead nor of the process from which this one was forked.
    fn is_usable(&self) -> bool;
    /// The process from which this one was forked opened it. Its descriptors are closed here, its locks may
    /// be held for ever.
    fn is_foreign(&self) -> bool;
    /// Ends it after a panic.
    fn die(&self);
}

/// The context of a call, for the case of a panic; the body names it as soon as it knows it.
pub(crate) struct Owner(Cell<Option<&'static dyn Scope>>);

impl Owner {
    /// The call works on an object of `context`. EIO if that context is dead, or of the process from which
    /// this one was forked: before any of its locks is asked for.
    #[inline(always)]
    pub(crate) fn is<S: Scope>(&self, context: &'static S) -> Result<(), Errno> {
        self.0.set(Some(context));
        if context.is_usable() { Ok(()) } else { Err(unusable(context)) }
    }

    /// As [`Self::is`], for calls that a forked child may make in its parent's context as well, since they
    /// take no lock that a thread of the parent may hold.
    pub(crate) fn was<S: Scope>(&self, context: &'static S) -> Result<(), Errno> {
        self.0.set(Some(context));
        if context.is_usable() || context.is_foreign() { Ok(()) } else { Err(Errno::EIO) }
    }

    /// The outcome of ending an object: one of the process from which this one was forked ended with that
    /// process.
    pub(crate) fn ended(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        result.or_else(|errno| if self.0.get().is_some_and(Scope::is_foreign) { Ok(()) } else { Err(errno) })
    }
}

/// EIO. The first call of a forked child in a context of its parent is told.
#[cold]
fn unusable(context: &dyn Scope) -> Errno {
    static TOLD: AtomicU64 = AtomicU64::new(0);
    let epoch = process_epoch();
    if context.is_foreign() && TOLD.swap(epoch, Ordering::Relaxed) != epoch {
        tracing::error!("the device was opened before fork: use it in the parent, or open it in the child");
    }
    Errno::EIO
}

/// Runs the body of a call, with cancellation disabled, and on a stack of the library if the caller's is
/// short. ENOMEM if the library has no stack left.
pub(crate) fn run<R>(body: impl FnOnce(&Owner) -> Result<R, Errno>) -> Result<R, Errno> {
    let _uncancellable = Uncancellable::new();
    let body_and_rest = || {
        let result = guard(body);
        let collected = guard(|_| {
            latest::collect();
            Ok(())
        });
        result.and_then(|result| collected.map(|()| result))
    };
    stack::with_room(body_and_rest).unwrap_or(Err(Errno::ENOMEM))
}

fn guard<R>(body: impl FnOnce(&Owner) -> Result<R, Errno>) -> Result<R, Errno> {
    let owner = Owner(Cell::new(None));
    match catch_unwind(AssertUnwindSafe(|| body(&owner))) {
        Ok(result) => result,
        Err(panic) => {
            // The payload of a panic may itself panic when dropped.
            std::mem::forget(panic);
            let end = || match owner.0.get() {
                Some(context) => context.die(),
                None => tracing::error!("a bug in ferroce stopped a call; it fails with EIO"),
            };
            // A second panic would leave an `extern "C"` function, which aborts the process.
            if let Err(second) = catch_unwind(AssertUnwindSafe(end)) {
                std::mem::forget(second);
            }
            Err(Errno::EIO)
        }
    }
}

/// For calls that return 0 or a positive errno. errno is set as well, because many programs print it.
pub(crate) fn code(body: impl FnOnce(&Owner) -> Result<(), Errno>) -> c_int {
    as_code(run(body))
}

/// As [`code`], for calls that end an object, see [`Owner::ended`].
pub(crate) fn ending(body: impl FnOnce(&Owner) -> Result<(), Errno>) -> c_int {
    code(|owner| owner.ended(body(owner)))
}

fn as_code(result: Result<(), Errno>) -> c_int {
    as_status(result.map(|()| 0))
}

fn as_status(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        errno::set(errno);
        errno.code()
    })
}

/// For calls that return a pointer, or NULL and errno.
pub(crate) fn pointer<T>(body: impl FnOnce(&Owner) -> Result<*mut T, Errno>) -> *mut T {
    run(body).unwrap_or_else(|errno| {
        errno::set(errno);
        ptr::null_mut()
    })
}

/// For calls that return a number, or -1 and errno.
pub(crate) fn minus_one(body: impl FnOnce(&Owner) -> Result<c_int, Errno>) -> c_int {
    run(body).unwrap_or_else(|errno| {
        errno::set(errno);
        -1
    })
}

/// For calls that return a count, or a negative errno.
pub(crate) fn negative(body: impl FnOnce(&Owner) -> Result<usize, Errno>) -> isize {
    as_negative(run(body))
}

fn as_negative(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(count) => isize::try_from(count).unwrap_or(isize::MAX),
        Err(errno) => {
            errno::set(errno);
            -(errno.code() as isize)
        }
    }
}

/// For calls that return a plain value; `failed` is what stands for "none".
pub(crate) fn value<R>(failed: R, body: impl FnOnce(&Owner) -> Result<R, Errno>) -> R {
    run(body).unwrap_or_else(|errno| {
        errno::set(errno);
        failed
    })
}

/// For calls that cannot report anything.
pub(crate) fn nothing(body: impl FnOnce(&Owner) -> Result<(), Errno>) {
    as_nothing(run(body));
}

fn as_nothing(result: Result<(), Errno>) {
    if let Err(errno) = result {
        errno::set(errno);
    }
}

/// The conventions for calls that post and poll, whose bodies make no call that is a cancellation point.
pub(crate) mod quick {
    use super::*;

    /// As [`super::code`].
    pub(crate) fn code(body: impl FnOnce(&Owner) -> Result<(), Errno>) -> c_int {
        as_code(guard(body))
    }

    /// For calls that return 0, an errno that is an ordinary answer, or one that is an error.
    pub(crate) fn status(body: impl FnOnce(&Owner) -> Result<c_int, Errno>) -> c_int {
        as_status(guard(body))
    }

    /// For calls that return a count, or a negative errno.
    pub(crate) fn count(body: impl FnOnce(&Owner) -> Result<c_int, Errno>) -> c_int {
        guard(body).unwrap_or_else(|errno| {
            errno::set(errno);
            -errno.code()
        })
    }

    /// As [`super::nothing`].
    pub(crate) fn nothing(body: impl FnOnce(&Owner) -> Result<(), Errno>) {
        as_nothing(guard(body));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context;
    use crate::context::ContextHandle;

    #[test]
    fn a_panic_ends_its_context_and_no_other() {
        let (dead, other) = (context::tests::blank(), context::tests::blank());
        let mut ran = 0;
        let mut call = |context: &'static ContextHandle, panics: bool| {
            code(|owner| {
                owner.is(context)?;
                ran += 1;
                assert!(!panics, "this is the bug that the test makes");
                Ok(())
            })
        };
        assert_eq!(call(dead, false), 0);
        assert_eq!(call(dead, true), libc::EIO);
        assert_eq!(call(dead, false), libc::EIO);
        assert_eq!(call(other, false), 0);
        assert_eq!(ran, 3);
    }

    /// A context that cannot even end.
    struct Broken;

    impl Scope for Broken {
        fn is_usable(&self) -> bool {
            true
        }

        fn is_foreign(&self) -> bool {
            false
        }

        fn die(&self) {
            panic!("this is the second bug that the test makes");
        }
    }

    #[test]
    fn a_panic_while_a_context_ends_stays_within_the_call() {
        let call = |owner: &Owner| -> Result<(), Errno> {
            owner.is(&Broken)?;
            panic!("this is the bug that the test makes")
        };
        assert_eq!(code(call), libc::EIO);
    }

    #[test]
    fn each_convention_has_its_failure() {
        let errno = || std::io::Error::last_os_error().raw_os_error();
        assert_eq!(code(|_| Err(Errno::EBUSY)), libc::EBUSY);
        assert_eq!(errno(), Some(libc::EBUSY));
        assert_eq!(quick::status(|_| Ok(libc::ENOENT)), libc::ENOENT);
        assert!(pointer::<u8>(|_| Err(Errno::ENOMEM)).is_null());
        assert_eq!(errno(), Some(libc::ENOMEM));
        assert_eq!(minus_one(|_| Err(Errno::EAGAIN)), -1);
        assert_eq!(errno(), Some(libc::EAGAIN));
        assert_eq!(negative(|_| Err(Errno::EINVAL)), -(libc::EINVAL as isize));
        assert_eq!(negative(|_| panic!("this is the bug that the test makes")), -(libc::EIO as isize));
        assert_eq!(value(7, |_| Err(Errno::EIO)), 7);
    }
}
