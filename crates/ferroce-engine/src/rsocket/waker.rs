//! How a thread that waits is woken.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::stream::RsocketError;
use crate::fork::{self, Guarded};
use crate::sys;

/// A descriptor of a thread that waits: readable once somebody woke it.
pub struct Waker {
    fd: Guarded<EventFd>,
    epoch: u64,
}

thread_local! {
    static OWN: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// Of a thread of its own.
    pub(super) fn new() -> io::Result<Arc<Self>> {
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
            let waker = Self::new()?;
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
        let _ = self.fd.write(1);
    }

    /// Takes all wakes back.
    pub fn clear(&self) {
        // Empty, there is nothing to take back.
        let _ = self.fd.read();
    }

    /// Sleeps until it is woken.
    pub(super) fn sleep(&self) -> Result<(), RsocketError> {
        match poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::Error::EINTR) if sys::a_handler_interrupts() => return Err(RsocketError::Interrupted),
            Err(nix::Error::EINTR) => {}
            Err(errno) => return Err(RsocketError::System(errno.into())),
        }
        self.clear();
        Ok(())
    }
}
