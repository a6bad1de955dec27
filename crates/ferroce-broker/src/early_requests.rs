//! Connect requests that arrive a moment before their listener.
//!
//! Two programs that agree to connect now, one that listens and one that connects, race: perftest's do, and
//! give up at the first refusal. With a card or the kernel's rxe a request takes longer to arrive than a
//! listener takes to be registered. Here both are a message to the broker, and the program that gets the CPU
//! first wins. So a request without a listener waits a little.

use std::collections::VecDeque;
use std::time::Duration;

use ferroce_cm::{ConnectionManager, Route};
use ferroce_host::netdev::sender;
use ferroce_wire::Instant;

/// How long a request waits. On a host without a listener it is refused that much later.
const GRACE: Duration = Duration::from_millis(100);
/// Requests that wait at most, and of one sender; further ones are refused at once. A stranger that asks for
/// ports at which nobody listens, all the time, keeps its share and leaves the other places to
/// others.
const MOST: usize = 1024;
const MOST_OF_ONE: usize = MOST / 4;

#[derive(Debug, Default)]
pub struct EarlyRequests {
    waiting: VecDeque<(Instant, Route, Box<[u8]>)>,
}

impl EarlyRequests {
    /// Keeps a MAD if it is a request without a listener.
    pub fn keep(&mut self, now: Instant, from: Route, mad: &[u8], manager: &ConnectionManager) -> bool {
        let theirs = |other: &Route| sender(other.remote) == sender(from.remote);
        let theirs = || self.waiting.iter().filter(|(_, other, _)| theirs(other)).count();
        let keeps = self.waiting.len() < MOST && !manager.has_taker(from, mad) && theirs() < MOST_OF_ONE;
        if keeps {
            self.waiting.push_back((now + GRACE, from, mad.into()));
        }
        keeps
    }

    /// Time at which the first request has waited long enough; `None` if no request waits.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|(until, ..)| *until)
    }

    /// Removes the requests that have a listener now or have waited long enough.
    pub fn take(&mut self, now: Instant, manager: &ConnectionManager) -> Vec<(Route, Box<[u8]>)> {
        let mut taken = Vec::new();
        for (until, from, mad) in std::mem::take(&mut self.waiting) {
            match until <= now || manager.has_taker(from, &mad) {
                true => taken.push((from, mad)),
                false => self.waiting.push_back((until, from, mad)),
            }
        }
        taken
    }
}
