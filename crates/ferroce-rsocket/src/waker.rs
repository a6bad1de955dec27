//! How a thread that waits is woken.

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

/// A descriptor of a thread that waits: readable once somebody woke it.
pub struct Waker {
    fd: Guarded<EventFd>,
    epoch: u64,
}

/// The behaviour of a call that does not have at once what it waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// It fails with [`super::RsocketError::WouldBlock`].
    None,
    /// It prepares a sleep, which the caller gets as [`super::RsocketError::Suspended`] and after which it calls again.
    Suspend,
    /// It sleeps.
    Sleep,
}

impl Patience {
    pub(super) fn unless(nonblocking: bool) -> Self {
        if nonblocking { Self::None } else { Self::Suspend }
    }

    /// Does that with a sleep that was just prepared, with the state's lock given back meanwhile.
    pub(super) fn spend<T>(self, sleep: Sleep, state: &mut MutexGuard<'_, T>) -> Result<(), RsocketError> {
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
    /// Nobody's in particular.
    ///
    /// # Errors
    ///
    /// Without another descriptor.
    pub fn alone() -> io::Result<Arc<Self>> {
        fork::install();
        let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Arc::new(Self { fd: Guarded::new(fd), epoch: fork::epoch() }))
    }

    /// The calling thread's, not woken.
    ///
    /// # Errors
    ///
    /// Without another descriptor.
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

    /// Readable once it was woken.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Wakes it.
    pub fn wake(&self) {
        // Full, it is readable already.
        let _ = event::signal(&*self.fd);
    }

    /// Takes all wakes back.
    pub fn clear(&self) {
        // Empty, there is nothing to take back.
        let _ = event::silence(&*self.fd);
    }
}
