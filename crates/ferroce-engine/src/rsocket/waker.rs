//! How a thread that waits is woken.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::stream::RsocketError;
use crate::fork::{self, Guarded};
use crate::{CompletionChannel, lane, sys};

/// A descriptor of a thread that waits: readable once somebody woke it.
pub struct Waker {
    fd: Guarded<EventFd>,
    epoch: u64,
}

/// Sleeps by `sleep`, and meanwhile receives what arrives for `channels`: among what it polls must be the descriptors it is
/// given, and it says which of them are readable, as bits by their place. Returns early if something arrived before.
///
/// # Errors
///
/// Those of `sleep`.
pub fn attend<E>(
    channels: &[Arc<CompletionChannel>],
    sleep: impl FnOnce(&[BorrowedFd<'_>]) -> Result<u32, E>,
) -> Result<(), E> {
    let mut lanes = Vec::new();
    for lane in channels.iter().flat_map(|channel| Vec::clone(&channel.lanes().all())) {
        if !lanes.iter().any(|known| Arc::ptr_eq(known, &lane)) {
            lanes.push(lane);
        }
    }
    lane::attend(&lanes, sleep)
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
