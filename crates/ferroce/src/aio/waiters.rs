//! Tasks that wait for the same thing.

use std::collections::VecDeque;
use std::task::Waker;

/// A future's position in [`Waiters`]; `None` while it does not wait.
pub(super) type Ticket = Option<u64>;

/// Tasks that wait for the same thing, in their order of arrival. A task that was woken stays the first
/// until it leaves, so that nobody overtakes it and its cancellation can wake the next one.
#[derive(Default)]
pub(super) struct Waiters {
    waiting: VecDeque<(u64, Waker)>,
    next: u64,
}

impl Waiters {
    /// Whether no other task waits before this one.
    pub(super) fn is_first(&self, ticket: Ticket) -> bool {
        self.waiting.front().is_none_or(|(first, _)| Some(*first) == ticket)
    }

    /// Adds the task as the last one, or replaces its waker if it waits already. Returns the earlier waker,
    /// to be dropped without a lock: it may own a task with a future of this module.
    #[must_use = "it may own a task: drop it without a lock"]
    pub(super) fn wait(&mut self, ticket: &mut Ticket, waker: &Waker) -> Option<Waker> {
        let known = self.waiting.iter_mut().find(|(number, _)| Some(*number) == *ticket);
        if let Some((_, known)) = known {
            return Some(std::mem::replace(known, waker.clone()));
        }
        *ticket = Some(self.next);
        self.waiting.push_back((self.next, waker.clone()));
        self.next += 1;
        None
    }

    /// Removes the task, if it waits. Returns its waker, to be dropped without a lock as that of
    /// [`Self::wait`].
    #[must_use = "it may own a task: drop it without a lock"]
    pub(super) fn leave(&mut self, ticket: &mut Ticket) -> Option<Waker> {
        let left = ticket.take()?;
        let index = self.waiting.iter().position(|(number, _)| *number == left)?;
        self.waiting.remove(index).map(|(_, waker)| waker)
    }

    /// The waker of the first task, which stays the first.
    pub(super) fn first(&self) -> Option<Waker> {
        self.waiting.front().map(|(_, waker)| waker.clone())
    }

    /// Removes all tasks and returns their wakers.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Waker> {
        self.waiting.drain(..).map(|(_, waker)| waker)
    }
}
