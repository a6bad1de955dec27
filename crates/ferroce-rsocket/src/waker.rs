//! Waking of waiting threads.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::MutexGuard;

use crate::error::RsocketError;
use ferroce_engine::Sleep;
use ferroce_host::event;
use ferroce_host::fork::{self, Guarded};

/// A descriptor of a waiting thread: readable after a wake.
pub struct Waker {
    fd: Guarded<EventFd>,
    epoch: u64,
}

/// The behaviour of a call that cannot finish at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocking {
    /// The call fails with [`super::RsocketError::WouldBlock`].
    None,
    /// The call fails with [`super::RsocketError::Suspended`]; the caller sleeps, and calls again.
    Suspend,
    /// The call sleeps.
    Sleep,
}

impl Blocking {
    pub(super) fn unless(nonblocking: bool) -> Self {
        if nonblocking { Self::None } else { Self::Suspend }
    }

    /// Sleeps with the state's lock released, or returns the sleep to the caller.
    pub(super) fn apply<T>(self, sleep: Sleep, state: &mut MutexGuard<'_, T>) -> Result<(), RsocketError> {
        match self {
            Self::Sleep => Ok(MutexGuard::unlocked(state, || sleep.sleep())?),
            Self::None | Self::Suspend => Err(RsocketError::Suspended(Box::new(sleep))),
        }
    }
}

thread_local! {
    static OWN: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// Creates a waker that belongs to no thread.
    ///
    /// # Errors
    ///
    /// If no descriptor is free.
    pub fn alone() -> io::Result<Arc<Self>> {
        fork::install();
        let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Arc::new(Self { fd: Guarded::new(fd), epoch: fork::epoch() }))
    }

    /// Returns the calling thread's waker, cleared.
    ///
    /// # Errors
    ///
    /// If no descriptor is free.
    pub fn own() -> io::Result<Arc<Self>> {
        OWN.with_borrow_mut(|own| {
            if let Some(waker) = own.as_ref().filter(|waker| waker.epoch == fork::epoch()) {
                waker.clear();
                return Ok(Arc::clone(waker));
            }
            let waker = Self::alone()?;
            *own = Some(Arc::clone(&waker));
            Ok(waker)
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn wake(&self) {
        // A full eventfd is readable already.
        let _ = event::signal(&*self.fd);
    }

    pub fn clear(&self) {
        // EAGAIN means that it is clear.
        let _ = event::silence(&*self.fd);
    }
}
