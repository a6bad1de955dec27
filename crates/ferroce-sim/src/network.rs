//! Packets under way.

use std::time::Duration;

use ferroce_fault::Limit;
use ferroce_wire::Instant;

use crate::faults::{Faults, Tagged, View};
use crate::{Datagram, Stats, Verdict};

/// A link into an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// How fast it is.
    pub octets_per_second: u64,
    /// A packet that would have to wait longer than this before it crosses is dropped.
    pub queue: Duration,
}

/// A network between numbered endpoints: a latency, rules, and what is under way.
#[derive(Debug)]
pub struct Network<'r, P> {
    latency: Duration,
    link: Option<Link>,
    /// The incoming link of each endpoint.
    limits: Vec<Limit>,
    /// The rules, and the packets under way with their endpoints.
    faults: Faults<'r, Tagged<usize, P>>,
}

impl<'r, P: Datagram> Network<'r, P> {
    /// Without rules: everything arrives after `latency`, in order.
    pub fn new(latency: Duration) -> Self {
        Self { latency, link: None, limits: Vec::new(), faults: Faults::default() }
    }

    /// Gives each endpoint an incoming link. Without, any amount arrives at once.
    pub fn set_link(&mut self, link: Link) {
        self.link = Some(link);
    }

    /// Adds a rule. Each packet meets the rules in order of adding; the first that does not say
    /// [`Verdict::Pass`] decides.
    pub fn rule(&mut self, mut rule: impl FnMut(&P) -> Verdict + 'r) {
        self.faults.rule(move |tagged| rule(&tagged.packet));
    }

    /// Sends a packet to an endpoint.
    pub fn send(&mut self, now: Instant, to: usize, packet: P) {
        let packet = Tagged { tag: to, packet };
        let verdict = self.faults.verdict(&packet);
        let Some(crossed) = self.cross_link(now, to, packet.wire_len()) else {
            self.faults.stats.overflowed += 1;
            return;
        };
        let arrival = crossed + self.latency;
        let mut out = Vec::new();
        self.faults.follow(arrival, verdict, &View::received(to), packet, &mut out);
        out.into_iter().for_each(|packet| self.faults.delay(arrival, packet));
    }

    /// The time at which a packet has crossed the endpoint's link; `None` if there is no room to wait.
    fn cross_link(&mut self, now: Instant, to: usize, octets: usize) -> Option<Instant> {
        let Some(Link { octets_per_second, queue }) = self.link else { return Some(now) };
        if self.limits.len() <= to {
            self.limits.resize(to + 1, Limit::default());
        }
        let bits = octets_per_second.saturating_mul(8);
        self.limits[to].cross(now, octets as u64, bits, u64::MAX, Some(queue)).crossed
    }

    /// Time at which the next packet arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.faults.next()
    }

    /// The next packet that has arrived by `now`, and its endpoint.
    pub fn receive(&mut self, now: Instant) -> Option<(usize, P)> {
        let Tagged { tag, packet } = self.faults.pop(now)?;
        self.faults.stats.delivered += 1;
        Some((tag, packet))
    }

    /// The counts so far.
    pub const fn stats(&self) -> Stats {
        self.faults.stats
    }
}

#[cfg(test)]
mod tests {
    use ferroce_fault::Facts;

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
