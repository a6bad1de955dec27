//! Connections that a listener has begun and that their peers have not finished. They take no place in the
//! program's backlog.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use ferroce_host::netdev::sender;

/// A bounded queue of half-open connections. When it is full, the sender with most of them loses its oldest
/// one to a new one, so that no sender can keep the others out.
#[derive(Debug)]
pub struct HalfOpen<T> {
    /// The oldest is the first.
    entries: VecDeque<(IpAddr, T)>,
    most: usize,
}

impl<T> HalfOpen<T> {
    /// An empty queue of `most` connections, at least one.
    pub const fn new(most: usize) -> Self {
        Self { entries: VecDeque::new(), most: if most == 0 { 1 } else { most } }
    }

    /// Adds a connection of a peer. Returns the one that makes way, which the caller ends.
    #[must_use]
    pub fn push(&mut self, from: IpAddr, connection: T) -> Option<T> {
        let full = self.entries.len() >= self.most;
        let ended =
            if full { self.most_of_one().and_then(|oldest| self.entries.remove(oldest)) } else { None };
        self.entries.push_back((sender(from), connection));
        ended.map(|(_, connection)| connection)
    }

    /// The oldest connection of the sender that has most.
    fn most_of_one(&self) -> Option<usize> {
        let mut senders = BTreeMap::<IpAddr, (usize, usize)>::new();
        for (place, (from, _)) in self.entries.iter().enumerate() {
            senders.entry(*from).or_insert((0, place)).0 += 1;
        }
        // Among the senders with the largest count, the sender with the oldest connection is taken.
        senders
            .into_values()
            .max_by_key(|(count, oldest)| (*count, usize::MAX - oldest))
            .map(|(_, oldest)| oldest)
    }

    /// Takes out a connection that is finished, or has failed.
    pub fn remove(&mut self, mut is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let place = self.entries.iter().position(|(_, connection)| is_it(connection))?;
        self.entries.remove(place).map(|(_, connection)| connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_with_most_makes_way() {
        let (a, b): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mut queue = HalfOpen::new(4);
        for (from, number) in [(b, 0), (a, 1), (a, 2), (a, 3)] {
            assert_eq!(queue.push(from, number), None);
        }
        assert_eq!(queue.push(b, 4), Some(1));
        // Both have two now: the oldest of all.
        assert_eq!(queue.push(a, 5), Some(0));
        assert_eq!(queue.push(a, 6), Some(2));
        assert_eq!(queue.remove(|number| *number == 5), Some(5));
        assert_eq!(queue.remove(|number| *number == 5), None);
        assert_eq!(queue.push(b, 7), None);
        assert_eq!(HalfOpen::new(0).push(a, 1), None);
    }

    #[test]
    fn a_host_has_many_addresses_of_ipv6() {
        let mut queue = HalfOpen::new(3);
        for (number, from) in ["2001:db8:0:1::9", "2001:db8::1", "2001:db8::2"].into_iter().enumerate() {
            assert_eq!(queue.push(from.parse().unwrap(), number), None);
        }
        assert_eq!(queue.push("::ffff:192.0.2.1".parse().unwrap(), 3), Some(1));
    }
}
