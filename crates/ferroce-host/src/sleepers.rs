//! Threads that sleep until one completion queue has something to poll.
//!
//! They have a descriptor of their own, which no program sees. So such a thread takes no event from the
//! queue's channel, where other threads may wait for events of this queue or of others.

use std::io;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::event;
use crate::fork::Guarded;

/// The sleeping threads of one completion queue. The queue's lock protects it.
///
/// While a thread sleeps and the queue holds a completion, the descriptor is readable, except while
/// moderation delays the wake-up. The descriptor is cleared only when the queue is empty, so no thread can
/// clear a signal that another one needs.
#[derive(Default)]
pub struct Sleepers {
    count: usize,
    /// The descriptor is readable.
    signalled: bool,
    /// Made when the first thread sleeps.
    event: Option<Arc<Guarded<EventFd>>>,
}

impl Sleepers {
    /// Counts one more sleeping thread of an empty queue. The thread sleeps until the returned descriptor is
    /// readable.
    pub fn enter(&mut self) -> io::Result<Arc<Guarded<EventFd>>> {
        let event = match &self.event {
            Some(event) => Arc::clone(event),
            None => {
                let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
                let event = Arc::new(Guarded::new(EventFd::from_value_and_flags(0, flags)?));
                Arc::clone(self.event.insert(event))
            }
        };
        if std::mem::take(&mut self.signalled)
            && let Err(error) = event::silence(&**event)
        {
            tracing::error!(%error, "cannot clear the signal of a completion queue");
        }
        self.count += 1;
        Ok(event)
    }

    /// Takes back [`Self::enter`].
    pub fn leave(&mut self) {
        self.count -= 1;
    }

    /// Whether a thread sleeps that was not woken yet.
    pub fn need_wake(&self) -> bool {
        self.count > 0 && !self.signalled
    }

    /// Wakes all of them.
    #[inline(always)]
    pub fn wake(&mut self) {
        if self.need_wake() {
            self.signal();
        }
    }

    #[cold]
    fn signal(&mut self) {
        if let Some(event) = &self.event {
            match event::signal(&***event) {
                Ok(_) => self.signalled = true,
                Err(error) => tracing::error!(%error, "cannot wake the threads of a completion queue"),
            }
        }
    }
}
