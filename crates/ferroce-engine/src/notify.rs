//! A queue with a descriptor: what completion channels and asynchronous events are made of.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use parking_lot::{Mutex, MutexGuard};

use crate::engine;
use crate::error::EventError;
use crate::sleep::{Held, Sleep};
use ferroce_host::event_signal::Signal;
use ferroce_host::fork;

/// Events that a program waits for: a FIFO whose descriptor is readable exactly while something is in it. The
/// descriptor's signal changes under the queue's lock. Each entry raises the signal, for programs that wait
/// for edges; taking the last entry lowers it.
pub struct NotifyQueue<T> {
    signal: Signal,
    inner: Mutex<Inner<T>>,
    epoch: u64,
}

struct Inner<T> {
    entries: VecDeque<T>,
    /// The signal is raised.
    raised: bool,
    /// Threads that add entries and then take one themselves: the signal waits for them.
    quiet: u32,
    /// Nothing will be added any more, see [`NotifyQueue::end`].
    ended: bool,
}

impl<T> Inner<T> {
    const fn new() -> Self {
        Self { entries: VecDeque::new(), raised: false, quiet: 0, ended: false }
    }
}

impl<T> NotifyQueue<T> {
    /// An empty queue with a descriptor of its own, which is never writable.
    ///
    /// # Errors
    /// Without a descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self { signal: Signal::new()?, inner: Mutex::new(Inner::new()), epoch: fork::epoch() })
    }

    /// An empty queue whose descriptor is always writable, as a umad port's is in Linux.
    ///
    /// # Errors
    /// Without two descriptors.
    pub fn writable() -> io::Result<Self> {
        Ok(Self { signal: Signal::writable()?, inner: Mutex::new(Inner::new()), epoch: fork::epoch() })
    }

    /// Readable while an event is there. O_NONBLOCK, if the program sets it, is honoured by
    /// [`Self::fall_asleep`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.signal.fd()
    }

    /// The entries, unless the queue is of the process from which this one was forked: its descriptor is
    /// closed here, and the number may be another file's. Then every call finds the queue empty.
    fn inner(&self) -> Option<MutexGuard<'_, Inner<T>>> {
        (self.epoch == fork::epoch()).then(|| self.inner.lock())
    }

    /// Appends an event.
    pub fn push(&self, entry: T) {
        let Some(mut inner) = self.inner() else { return };
        inner.entries.push_back(entry);
        if inner.quiet == 0 {
            self.signal.raise(inner.raised);
            inner.raised = true;
        }
    }

    /// The oldest entry, given to `take` before a purge could look for it.
    pub fn pop<R>(&self, take: impl FnOnce(T) -> R) -> Option<R> {
        let mut inner = self.inner()?;
        let entry = inner.entries.pop_front()?;
        self.follow(&mut inner);
        Some(take(entry))
    }

    /// Runs `work`, which may add entries. The descriptor says so only when `work` is done, and only if an
    /// entry remains after the oldest one was given to `take`: a thread that takes its own entry needs no
    /// system call for it.
    pub(crate) fn pop_after<R>(&self, work: impl FnOnce(), take: impl FnOnce(T) -> R) -> Option<R> {
        self.inner()?.quiet += 1;
        let quiet = Quiet(self);
        work();
        let popped = self.inner().and_then(|mut inner| inner.entries.pop_front().map(take));
        drop(quiet);
        popped
    }

    /// Ends the queue: the device of the events is gone. The descriptor stays readable from now on, so that
    /// each waiting thread wakes. The entries may still be taken, and then every wait fails with EIO.
    pub fn end(&self) {
        let Some(mut inner) = self.inner() else { return };
        inner.ended = true;
        self.follow(&mut inner);
    }

    /// Whether [`Self::end`] was called.
    pub fn is_ended(&self) -> bool {
        self.inner().is_some_and(|inner| inner.ended)
    }

    /// The signal follows the entries.
    fn follow(&self, inner: &mut Inner<T>) {
        let wanted = !inner.entries.is_empty() || inner.ended;
        if inner.raised && !wanted {
            self.signal.lower();
            inner.raised = false;
        } else if !inner.raised && wanted && inner.quiet == 0 {
            self.signal.raise(false);
            inner.raised = true;
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.inner().map_or(0, |inner| inner.entries.len())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A look at the oldest entry, which stays.
    pub fn peek<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        self.inner()?.entries.front().map(look)
    }

    /// Drops every entry that `gone` names, and returns how many those were.
    pub fn purge(&self, mut gone: impl FnMut(&T) -> bool) -> usize {
        let Some(mut inner) = self.inner() else { return 0 };
        let before = inner.entries.len();
        inner.entries.retain(|entry| !gone(entry));
        self.follow(&mut inner);
        before - inner.entries.len()
    }

    /// Prepares a sleep until something is in the queue; the caller looks then whether it is still there.
    /// `held` keeps the queue alive meanwhile.
    ///
    /// # Errors
    ///
    /// [`EventError::WouldBlock`] if the program set O_NONBLOCK on the descriptor; EIO in a forked child of
    /// the queue's process, and after [`Self::end`] if the queue is empty.
    pub fn fall_asleep(&self, held: Held) -> Result<Sleep, EventError> {
        if self.epoch != fork::epoch() {
            return Err(EventError::ended());
        }
        self.may_sleep()?;
        engine::flush_all();
        Ok(Sleep::until_readable(self.fd(), held))
    }

    /// Why a thread may not wait for an entry now, see [`Self::fall_asleep`]. The end comes before O_NONBLOCK
    /// (Linux's `ib_uverbs_event_read`), because the descriptor is readable, and the program would try for
    /// ever.
    pub(crate) fn may_sleep(&self) -> Result<(), EventError> {
        if self.inner().is_some_and(|inner| inner.ended && inner.entries.is_empty()) {
            return Err(EventError::ended());
        }
        if self.is_nonblocking() { Err(EventError::WouldBlock) } else { Ok(()) }
    }

    /// Makes the descriptor readable as well while `other` is.
    pub(crate) fn join(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        self.signal.join(other)
    }

    /// Takes back [`Self::join`].
    pub(crate) fn part(&self, other: BorrowedFd<'_>) {
        self.signal.part(other);
    }

    /// Whether the program set O_NONBLOCK on the descriptor.
    pub(crate) fn is_nonblocking(&self) -> bool {
        fcntl(self.fd(), FcntlArg::F_GETFL)
            .is_ok_and(|flags| OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK))
    }
}

/// Ends the quiet of [`NotifyQueue::pop_after`], however its work ends.
struct Quiet<'a, T>(&'a NotifyQueue<T>);

impl<T> Drop for Quiet<'_, T> {
    fn drop(&mut self) {
        let Some(mut inner) = self.0.inner() else { return };
        inner.quiet -= 1;
        self.0.follow(&mut inner);
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn a_thread_that_takes_its_own_entry() {
        let queue = NotifyQueue::new().expect("a descriptor");
        let after = |entries: std::ops::Range<u8>| {
            let work = || {
                entries.for_each(|entry| queue.push(entry));
                assert!(!readable(&queue));
            };
            queue.pop_after(work, |entry| entry)
        };
        assert_eq!(after(0..0), None);
        assert_eq!(after(1..2), Some(1));
        assert!(!readable(&queue));
        assert_eq!(after(2..5), Some(2));
        assert!(readable(&queue), "two remain for others");
        assert_eq!(queue.pop_after(|| (), |entry| entry), Some(3));
        assert_eq!(queue.pop_after(|| (), |entry| entry), Some(4));
        assert!(!readable(&queue));
    }

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
    fn an_ended_queue_stays_readable() {
        let queue = NotifyQueue::new().expect("a descriptor");
        queue.push(1);
        queue.end();
        assert!(queue.may_sleep().is_ok(), "the caller looks for the entry");
        assert_eq!(queue.pop(|entry| entry), Some(1));
        assert_eq!(queue.purge(|_| true), 0);
        assert!(readable(&queue));
        fcntl(queue.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("fcntl");
        let refused = queue.fall_asleep(Held::Nothing);
        assert!(matches!(refused, Err(EventError::Io(error)) if error.raw_os_error() == Some(libc::EIO)));
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
