//! Messages that a client has not taken yet.
//!
//! The server reads no request of a client while an answer waits for it. The client's own socket buffer then
//! stops the client, and the answers to one request are all that waits. Messages that answer no request have
//! a bound of their own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferroce_ipc::{Message, Strange};

/// Octets of messages that answer no request and wait for one client: the events of a program that is stopped
/// come together.
const MOST_EVENTS: usize = 16 << 20;
/// Octets of all messages that wait for the programs of another user.
const MOST_OF_USER: usize = 32 << 20;
/// Octets for which a descriptor counts, because the broker keeps it open.
const DESCRIPTOR: usize = 32 << 10;

/// Octets that wait for all programs of one user.
#[derive(Debug, Default)]
pub(super) struct UserLoad(AtomicUsize);

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) id: u32,
    pub(super) message: Message,
    pub(super) descriptors: Vec<Strange>,
    octets: usize,
}

/// The messages that wait for one client.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    /// Number of messages that answer a request.
    answers: usize,
    /// Octets of all messages.
    octets: usize,
    /// Octets of the messages that answer no request.
    events: usize,
    /// `None` for a client whose user may stop the broker anyway.
    user: Option<Arc<UserLoad>>,
}

impl Queue {
    pub(super) fn new(user: Option<Arc<UserLoad>>) -> Self {
        Self { waiting: VecDeque::new(), answers: 0, octets: 0, events: 0, user }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn has_answers(&self) -> bool {
        self.answers > 0
    }

    /// Octets of all messages.
    pub(super) fn octets(&self) -> usize {
        self.octets
    }

    /// Whether the client leaves more unread than one client may.
    pub(super) fn is_beyond(&self) -> bool {
        self.events > MOST_EVENTS
    }

    /// Whether the client's user leaves more unread than one user may.
    pub(super) fn is_user_beyond(&self) -> bool {
        self.user.as_ref().is_some_and(|user| user.0.load(Ordering::Relaxed) > MOST_OF_USER)
    }

    /// Adds a message. `id`: of the request that it answers, or 0.
    pub(super) fn push(&mut self, id: u32, message: Message, descriptors: Vec<Strange>) {
        // A message that cannot be encoded is left out when its turn comes.
        let encoded = message.encode(id).map_or(0, |octets| octets.len());
        let octets = encoded + descriptors.len() * DESCRIPTOR;
        self.octets += octets;
        match id {
            0 => self.events += octets,
            _ => self.answers += 1,
        }
        if let Some(user) = &self.user {
            user.0.fetch_add(octets, Ordering::Relaxed);
        }
        self.waiting.push_back(Waiting { id, message, descriptors, octets });
    }

    pub(super) fn front(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let first = self.waiting.pop_front()?;
        self.octets -= first.octets;
        match first.id {
            0 => self.events -= first.octets,
            _ => self.answers -= 1,
        }
        if let Some(user) = &self.user {
            user.0.fetch_sub(first.octets, Ordering::Relaxed);
        }
        Some(first)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(user) = &self.user {
            user.0.fetch_sub(self.octets, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    /// A message that counts as a mebioctet.
    fn push(queue: &mut Queue, id: u32) {
        let null = || Strange::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        queue.push(id, Message::Parked, (0..(1 << 20) / DESCRIPTOR).map(|_| null()).collect());
    }

    #[test]
    fn answers_stop_the_client_and_events_have_a_bound() {
        let mut queue = Queue::default();
        queue.push(0, Message::Done, Vec::new());
        assert!(!queue.has_answers() && !queue.is_empty());
        queue.push(7, Message::Done, Vec::new());
        assert!(queue.has_answers());
        for _ in 0..20 {
            push(&mut queue, 7);
        }
        assert!(!queue.is_beyond(), "answers count for no bound of the client");
        for _ in 0..15 {
            push(&mut queue, 0);
        }
        assert!(!queue.is_beyond());
        push(&mut queue, 0);
        assert!(queue.is_beyond());
        while queue.pop().is_some() {}
        assert!(!queue.has_answers() && !queue.is_beyond() && queue.octets() == 0);
    }

    #[test]
    fn the_clients_of_one_user_have_a_bound_together() {
        let user = Arc::<UserLoad>::default();
        let mut queues: Vec<Queue> = (0..32).map(|_| Queue::new(Some(Arc::clone(&user)))).collect();
        assert!(!queues[0].is_user_beyond());
        queues.iter_mut().for_each(|queue| push(queue, 1));
        assert!(queues.iter().all(|queue| queue.is_user_beyond() && !queue.is_beyond()));
        queues.pop();
        assert!(!queues[0].is_user_beyond());
        queues.clear();
        assert_eq!(user.0.load(Ordering::Relaxed), 0);
    }
}
