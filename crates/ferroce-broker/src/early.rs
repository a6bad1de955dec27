//! Requests that come a moment before somebody listens.
//!
//! Two programs that agree to connect now, one to listen and one to ask, race: perftest's do, and give up at the first
//! refusal. With a card or the kernel's rxe the way to a request is longer than the way to a listener; here both are
//! a message to the broker, and who is given the CPU first wins. So a request that nobody takes waits a little.

use std::collections::VecDeque;
use std::time::Duration;

use ferroce_proto::cm::{ConnectionManager, Route};
use ferroce_wire::Instant;

/// How long. Whoever asks a host where nobody listens is refused that much later.
const GRACE: Duration = Duration::from_millis(100);
/// So many wait; further ones are refused at once.
const MOST: usize = 256;

/// What waits for a listener.
#[derive(Debug, Default)]
pub struct Early {
    waiting: VecDeque<(Instant, Route, Box<[u8]>)>,
}

impl Early {
    /// Keeps a MAD if it is a request that nobody takes.
    pub fn keep(&mut self, now: Instant, from: Route, mad: &[u8], manager: &ConnectionManager) -> bool {
        let keeps = self.waiting.len() < MOST && !manager.has_taker(from, mad);
        if keeps {
            self.waiting.push_back((now + GRACE, from, mad.into()));
        }
        keeps
    }

    /// When the first has waited long enough.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|(until, ..)| *until)
    }

    /// Those that need not, or must not, wait any more.
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
