//! Completion queues grow with the queue pairs that use them.

use std::collections::HashMap;

use ferroce_engine::MAX_CQE;

use crate::{CompletionQueue, Error};

/// Work requests whose completions a queue must be able to hold at once.
#[derive(Clone, Copy)]
pub(crate) enum Requests {
    /// The completions of one queue pair.
    Own(u32),
    /// The completions of a shared receive queue: the same ones for all queue pairs on it.
    Shared { number: u64, max_wr: u32 },
}

/// Sums them up.
#[derive(Default)]
pub(crate) struct Demand {
    own: u64,
    /// By number of the shared receive queue: how many queue pairs brought it, and its size.
    shared: HashMap<u64, (usize, u32)>,
}

impl Demand {
    fn add(&mut self, requests: Requests) {
        match requests {
            Requests::Own(count) => self.own += u64::from(count),
            Requests::Shared { number, max_wr } => {
                let (users, largest) = self.shared.entry(number).or_default();
                *users += 1;
                *largest = max_wr.max(*largest);
            }
        }
    }

    fn remove(&mut self, requests: Requests) {
        match requests {
            Requests::Own(count) => self.own -= u64::from(count),
            Requests::Shared { number, .. } => {
                if let Some((users, _)) = self.shared.get_mut(&number) {
                    *users -= 1;
                    if *users == 0 {
                        self.shared.remove(&number);
                    }
                }
            }
        }
    }

    /// At most what a queue may have.
    fn entries(&self) -> u32 {
        let shared: u64 = self.shared.values().map(|(_, max_wr)| u64::from(*max_wr)).sum();
        u32::try_from(self.own + shared).unwrap_or(MAX_CQE).min(MAX_CQE)
    }
}

/// Room in a completion queue. Dropping it lets others have it.
pub(crate) struct Room {
    queue: CompletionQueue,
    requests: Requests,
}

impl Room {
    /// Grows the queue if it has no room for these requests.
    pub(crate) fn new(queue: &CompletionQueue, requests: Requests) -> Result<Self, Error> {
        let mut demand = queue.demand();
        demand.add(requests);
        // From here on the destructor takes it back; it must not find the lock held.
        let room = Self { queue: queue.clone(), requests };
        let entries = demand.entries();
        let grown = if queue.engine().capacity() < entries { queue.resize(entries) } else { Ok(()) };
        drop(demand);
        grown.map(|()| room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.queue.is_of_this_process() {
            self.queue.demand().remove(self.requests);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_requests_count_once() {
        let mut demand = Demand::default();
        let srq = Requests::Shared { number: 7, max_wr: 100 };
        [Requests::Own(10), srq, srq, Requests::Own(5)].into_iter().for_each(|requests| demand.add(requests));
        assert_eq!(demand.entries(), 115);
        demand.remove(srq);
        demand.remove(Requests::Own(10));
        assert_eq!(demand.entries(), 105);
        demand.remove(srq);
        assert_eq!(demand.entries(), 5);
        demand.add(Requests::Own(u32::MAX));
        assert_eq!(demand.entries(), MAX_CQE);
    }
}
