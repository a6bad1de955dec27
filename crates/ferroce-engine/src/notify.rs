//! A queue with a descriptor: what completion channels and asynchronous events are made of.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use parking_lot::{Mutex, MutexGuard};

use crate::error::EventError;
use crate::signal::Signal;
use crate::sleep::{Held, Sleep};
use crate::{engine, fork};

/// Events that a program waits for: a FIFO whose descriptor is readable exactly while something is in it. The descriptor's signal
/// changes under the queue's lock. Each entry raises the signal, for programs that wait for edges; taking the last entry lowers it.
pub struct NotifyQueue<T> {
    signal: Signal,
    entries: Mutex<VecDeque<T>>,
    epoch: u64,
}

impl<T> NotifyQueue<T> {
    /// An empty queue with a descriptor of its own, which is never writable.
    ///
    /// # Errors
    /// Without a descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self { signal: Signal::new()?, entries: Mutex::new(VecDeque::new()), epoch: fork::epoch() })
    }

    /// An empty queue whose descriptor is always writable, as a umad port's is in Linux.
    ///
    /// # Errors
    /// Without two descriptors.
    pub fn writable() -> io::Result<Self> {
        Ok(Self { signal: Signal::writable()?, entries: Mutex::new(VecDeque::new()), epoch: fork::epoch() })
    }

    /// Readable while an event is there. O_NONBLOCK, if the program sets it, is honoured by [`Self::fall_asleep`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.signal.fd()
    }

    /// The entries, unless the queue is of the process from which this one was forked: its descriptor is closed here, and the
    /// number may be another file's. Then every call finds the queue empty.
    fn entries(&self) -> Option<MutexGuard<'_, VecDeque<T>>> {
        (self.epoch == fork::epoch()).then(|| self.entries.lock())
    }

    /// Appends an event.
    pub fn push(&self, entry: T) {
        let Some(mut entries) = self.entries() else { return };
        entries.push_back(entry);
        self.signal.raise(entries.len() > 1);
    }

    /// The oldest entry, given to `take` before a purge could look for it.
    pub fn pop<R>(&self, take: impl FnOnce(T) -> R) -> Option<R> {
        let mut entries = self.entries()?;
        let entry = entries.pop_front()?;
        if entries.is_empty() {
            self.signal.lower();
        }
        Some(take(entry))
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.entries().map_or(0, |entries| entries.len())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A look at the oldest entry, which stays.
    pub fn peek<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        self.entries()?.front().map(look)
    }

    /// Drops every entry that `gone` names, and returns how many those were.
    pub fn purge(&self, mut gone: impl FnMut(&T) -> bool) -> usize {
        let Some(mut entries) = self.entries() else { return 0 };
        let before = entries.len();
        entries.retain(|entry| !gone(entry));
        let purged = before - entries.len();
        if purged > 0 && entries.is_empty() {
            self.signal.lower();
        }
        purged
    }

    /// Prepares a sleep until something is in the queue; the caller looks then whether it is still there. `held` keeps the
    /// queue alive meanwhile.
    ///
    /// # Errors
    ///
    /// [`EventError::WouldBlock`] if the program set O_NONBLOCK on the descriptor; EIO in a forked child of the queue's process.
    pub fn fall_asleep(&self, held: Held) -> Result<Sleep, EventError> {
        if self.epoch != fork::epoch() {
            return Err(EventError::Io(io::Error::from_raw_os_error(libc::EIO)));
        }
        if self.is_nonblocking() {
            return Err(EventError::WouldBlock);
        }
        engine::pay();
        Ok(Sleep::until_readable(self.fd(), held))
    }

    /// Whether the program set O_NONBLOCK on the descriptor.
    pub(crate) fn is_nonblocking(&self) -> bool {
        fcntl(self.fd(), FcntlArg::F_GETFL)
            .is_ok_and(|flags| OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK))
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn readable<T>(queue: &NotifyQueue<T>) -> bool {
        let mut fds = [PollFd::new(queue.fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).expect("poll") == 1
    }

    #[test]
    fn readable_exactly_while_it_holds_something() {
        let queue = NotifyQueue::new().expect("a descriptor");
        assert!(!readable(&queue));
        for entry in 0..4 {
            queue.push(entry);
        }
        let pop = || queue.pop(|entry| entry);
        assert_eq!(pop(), Some(0));
        assert_eq!(queue.purge(|entry| *entry == 2), 1);
        assert!(readable(&queue));
        assert_eq!((pop(), pop(), pop()), (Some(1), Some(3), None));
        assert!(!readable(&queue));
    }

    #[test]
    fn honours_the_program_s_flag() {
        let queue = NotifyQueue::<u8>::new().expect("a descriptor");
        assert!(!queue.is_nonblocking());
        fcntl(queue.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("fcntl");
        assert!(queue.is_nonblocking());
        assert!(matches!(queue.fall_asleep(Held::Nothing), Err(EventError::WouldBlock)));
    }
}
