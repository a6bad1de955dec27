//! Packets under way.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ferroce_fault::Facts;
use ferroce_wire::Instant;

/// A packet that the network can carry.
pub trait Datagram: Clone {
    /// Changes it as a fault on the way would; `noise` says where and how.
    fn corrupt(&mut self, noise: u64);

    /// Computes its checksum anew, so that nothing tells what [`Self::corrupt`] changed.
    fn seal(&mut self) {}

    /// Octets on the wire.
    fn wire_len(&self) -> usize;

    /// Marks it as having met congestion; `false` if its sender is not capable of ECN.
    fn mark_ce(&mut self) -> bool {
        false
    }

    /// The facts that a plan of faults looks at, for a packet to this endpoint; `None` if plans do not apply
    /// to it.
    fn facts(&self, _to: usize) -> Option<Facts<'_>> {
        None
    }
}

/// The fate of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Arrives after the usual time.
    Pass,
    /// Arrives so much later, perhaps behind others.
    Delay(Duration),
    /// Never arrives.
    Drop,
    /// Arrives, and once more so much later.
    Duplicate(Duration),
    /// Arrives changed.
    Corrupt(u64),
}

/// A link into an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// How fast it is.
    pub octets_per_second: u64,
    /// A packet that would have to wait longer than this before it crosses is dropped.
    pub queue: Duration,
}

/// Counts of packets by their fate.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Given to the network.
    pub sent: u64,
    /// Taken from it, duplicates included.
    pub delivered: u64,
    /// Dropped by rules.
    pub dropped: u64,
    /// Dropped because a link was full.
    pub overflowed: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delayed.
    pub delayed: u64,
    /// Changed.
    pub corrupted: u64,
}

type Rule<'r, P> = Box<dyn FnMut(&P) -> Verdict + 'r>;

/// A network between numbered endpoints: a latency, rules, and what is under way.
pub struct Network<'r, P> {
    latency: Duration,
    link: Option<Link>,
    /// Time at which the link of each endpoint has delivered what it holds.
    busy_until: Vec<Instant>,
    rules: Vec<Rule<'r, P>>,
    /// Packets under way, by time of arrival, then by order of sending.
    under_way: BTreeMap<(Instant, u64), (usize, P)>,
    sequence: u64,
    stats: Stats,
}

impl<'r, P: Datagram> Network<'r, P> {
    /// Without rules: everything arrives after `latency`, in order.
    pub fn new(latency: Duration) -> Self {
        Self {
            latency,
            link: None,
            busy_until: Vec::new(),
            rules: Vec::new(),
            under_way: BTreeMap::new(),
            sequence: 0,
            stats: Stats::default(),
        }
    }

    /// Gives each endpoint an incoming link. Without, any amount arrives at once.
    pub fn set_link(&mut self, link: Link) {
        self.link = Some(link);
    }

    /// Adds a rule. Each packet meets the rules in order of adding; the first that does not say
    /// [`Verdict::Pass`] decides.
    pub fn rule(&mut self, rule: impl FnMut(&P) -> Verdict + 'r) {
        self.rules.push(Box::new(rule));
    }

    /// Sends a packet to an endpoint.
    pub fn send(&mut self, now: Instant, to: usize, mut packet: P) {
        self.stats.sent += 1;
        let verdict =
            self.rules.iter_mut().map(|rule| rule(&packet)).find(|verdict| *verdict != Verdict::Pass);
        let Some(delay) = self.cross_link(now, to, packet.wire_len()) else {
            self.stats.overflowed += 1;
            return;
        };
        let arrival = now + self.latency + delay;
        match verdict.unwrap_or(Verdict::Pass) {
            Verdict::Pass => self.enqueue(arrival, to, packet),
            Verdict::Delay(more) => {
                self.stats.delayed += 1;
                self.enqueue(arrival + more, to, packet);
            }
            Verdict::Drop => self.stats.dropped += 1,
            Verdict::Duplicate(later) => {
                self.stats.duplicated += 1;
                self.enqueue(arrival, to, packet.clone());
                self.enqueue(arrival + later, to, packet);
            }
            Verdict::Corrupt(noise) => {
                self.stats.corrupted += 1;
                packet.corrupt(noise);
                self.enqueue(arrival, to, packet);
            }
        }
    }

    /// How long a packet takes on the endpoint's link, waiting included; `None` if there is no room to wait.
    fn cross_link(&mut self, now: Instant, to: usize, octets: usize) -> Option<Duration> {
        let Some(link) = self.link else { return Some(Duration::ZERO) };
        if self.busy_until.len() <= to {
            self.busy_until.resize(to + 1, Instant::ZERO);
        }
        let per_second = u128::from(link.octets_per_second.max(1));
        let transit = Duration::from_nanos((octets as u128 * 1_000_000_000 / per_second) as u64);
        let free = self.busy_until[to].max(now);
        if free.saturating_since(now) > link.queue {
            return None;
        }
        self.busy_until[to] = free + transit;
        Some(self.busy_until[to].saturating_since(now))
    }

    fn enqueue(&mut self, arrival: Instant, to: usize, packet: P) {
        self.under_way.insert((arrival, self.sequence), (to, packet));
        self.sequence += 1;
    }

    /// Time at which the next packet arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|((arrival, _), _)| *arrival)
    }

    /// The next packet that has arrived by `now`, and its endpoint.
    pub fn receive(&mut self, now: Instant) -> Option<(usize, P)> {
        let entry = self.under_way.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        self.stats.delivered += 1;
        Some(entry.remove())
    }

    /// The counts so far.
    pub const fn stats(&self) -> Stats {
        self.stats
    }
}

impl<P> fmt::Debug for Network<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("under_way", &self.under_way.len())
            .field("stats", &self.stats)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Datagram for u32 {
        fn corrupt(&mut self, noise: u64) {
            *self ^= noise as u32;
        }

        fn wire_len(&self) -> usize {
            1000
        }

        fn facts(&self, to: usize) -> Option<Facts<'_>> {
            use ferroce_fault::{Dir, Op, Pos};
            let peer = std::net::Ipv4Addr::LOCALHOST.into();
            let (dir, op, pos, psn) = (Dir::Tx, Op::Send, Pos::Only, ferroce_wire::Psn::new(*self));
            let (dev, len, wire_len) = (None, 984, 1000);
            Some(Facts {
                dir,
                dev,
                peer,
                qp: to as u32,
                op,
                pos,
                psn,
                msn: 0,
                len,
                wire_len,
                ack: false,
                ecn: 0,
                stream: false,
            })
        }
    }

    const US: Duration = Duration::from_micros(1);

    fn drain(network: &mut Network<'_, u32>) -> Vec<(u64, usize, u32)> {
        let mut arrived = Vec::new();
        while let Some(now) = network.next_arrival() {
            while let Some((to, packet)) = network.receive(now) {
                arrived.push((now.as_nanos(), to, packet));
            }
        }
        arrived
    }

    #[test]
    fn without_rules_everything_arrives_in_order() {
        let mut network = Network::new(US);
        for packet in 0..3 {
            network.send(Instant::ZERO, 1, packet);
        }
        assert_eq!(network.receive(Instant::from_nanos(999)), None, "not yet");
        assert_eq!(drain(&mut network), [(1000, 1, 0), (1000, 1, 1), (1000, 1, 2)]);
    }

    #[test]
    fn each_verdict_does_what_it_says() {
        let mut network = Network::new(US);
        network.rule(|packet| match packet {
            0 => Verdict::Drop,
            1 => Verdict::Delay(US),
            2 => Verdict::Duplicate(US * 2),
            3 => Verdict::Corrupt(0x10),
            _ => Verdict::Pass,
        });
        network.rule(|packet| if *packet == 4 { Verdict::Drop } else { Verdict::Pass });
        for packet in 0..6 {
            network.send(Instant::ZERO, 0, packet);
        }
        assert_eq!(
            drain(&mut network),
            [(1000, 0, 2), (1000, 0, 0x13), (1000, 0, 5), (2000, 0, 1), (3000, 0, 2)]
        );
        let want = Stats {
            sent: 6,
            delivered: 5,
            dropped: 2,
            overflowed: 0,
            duplicated: 1,
            delayed: 1,
            corrupted: 1,
        };
        assert_eq!(network.stats(), want);
    }

    #[test]
    fn a_link_takes_time_and_overflows() {
        let mut network = Network::new(US);
        // A microsecond each.
        network.set_link(Link { octets_per_second: 1_000_000_000, queue: US * 2 });
        for packet in 0..5 {
            network.send(Instant::ZERO, 0, packet);
        }
        network.send(Instant::ZERO, 1, 9);
        assert_eq!(drain(&mut network), [(2000, 0, 0), (2000, 1, 9), (3000, 0, 1), (4000, 0, 2)]);
        assert_eq!(network.stats().overflowed, 2);
    }
}
