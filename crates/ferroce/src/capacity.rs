//! The capacity that the queue pairs of a completion queue need.

use std::collections::HashMap;

use ferroce_engine::MAX_CQE;

/// Work requests that need capacity for their completions.
#[derive(Clone, Copy)]
pub(crate) enum Requests {
    /// The work requests of one queue pair.
    Own(u32),
    /// The work requests of a shared receive queue, which counts once for all its queue pairs.
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
    pub(crate) fn add(&mut self, requests: Requests) {
        match requests {
            Requests::Own(count) => self.own += u64::from(count),
            Requests::Shared { number, max_wr } => {
                let (users, largest) = self.shared.entry(number).or_default();
                *users += 1;
                *largest = max_wr.max(*largest);
            }
        }
    }

    pub(crate) fn remove(&mut self, requests: Requests) {
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
    pub(crate) fn entries(&self) -> u32 {
        let shared: u64 = self.shared.values().map(|(_, max_wr)| u64::from(*max_wr)).sum();
        u32::try_from(self.own + shared).unwrap_or(MAX_CQE).min(MAX_CQE)
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
