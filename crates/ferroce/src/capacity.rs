//! The capacity of completion queues, which grows with the queue pairs that use them.

use std::collections::HashMap;

use ferroce_engine::MAX_CQE;

use crate::{CompletionQueue, Error};

/// Work requests that need capacity for their completions.
#[derive(Clone, Copy)]
pub(crate) enum Requests {
    /// Those of one queue pair.
    Own(u32),
    /// Those of a shared receive queue, which counts once for all its queue pairs.
    Shared { number: u64, max_wr: u32 },
}

/// Sum of all requests.
#[derive(Default)]
pub(crate) struct Demand {
    own: u64,
    /// For each shared receive queue its number of queue pairs, and its size.
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

    /// Capped at the largest queue.
    fn entries(&self) -> u32 {
        let shared: u64 = self.shared.values().map(|(_, max_wr)| u64::from(*max_wr)).sum();
        u32::try_from(self.own + shared).unwrap_or(MAX_CQE).min(MAX_CQE)
    }
}

/// Capacity in a completion queue, released on drop.
pub(crate) struct Capacity {
    queue: CompletionQueue,
    requests: Requests,
}

impl Capacity {
    /// Enlarges the queue if these requests need it.
    pub(crate) fn new(queue: &CompletionQueue, requests: Requests) -> Result<Self, Error> {
        let mut demand = queue.demand();
        demand.add(requests);
        // On an error below the destructor of `room` removes the requests again; it takes the lock itself.
        let capacity = Self { queue: queue.clone(), requests };
        let entries = demand.entries();
        let grown = if queue.engine().capacity() < entries { queue.resize(entries) } else { Ok(()) };
        drop(demand);
        grown.map(|()| capacity)
    }
}

impl Drop for Capacity {
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
