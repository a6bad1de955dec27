//! A fabric: hosts and switches, joined by links with a rate, a delay, a queue and a threshold for marks.
//!
//! A packet takes the way with the fewest links; of several, the one through the nodes that were made first, so that a run repeats. Each
//! direction of a link has its own queue in front. Time is virtual: whoever drives the hosts moves it to [`Fabric::next_arrival`].
//!
//! ```
//! use std::time::Duration;
//! use ferroce_sim::fabric::{Fabric, Line, Topology};
//! # #[derive(Clone, Debug)] struct Packet;
//! # impl ferroce_sim::Datagram for Packet { fn corrupt(&mut self, _: u64) {} fn wire_len(&self) -> usize { 1000 } }
//! let mut topology = Topology::default();
//! let (left, right, middle) = (topology.node(), topology.node(), topology.node());
//! let line = Line { bits_per_second: 8_000_000_000, delay: Duration::from_micros(1), queue: 64 << 10, mark: None };
//! topology.link(left, middle, line);
//! topology.link(middle, right, line);
//! let mut fabric = Fabric::new(topology);
//! fabric.send(ferroce_wire::Instant::ZERO, left, right, Packet).unwrap();
//! // A microsecond on each link, and a microsecond to get there.
//! let arrival = fabric.next_arrival().unwrap();
//! assert_eq!(arrival.as_nanos(), 4000);
//! assert!(fabric.receive(arrival).is_some());
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ferroce_wire::Instant;

use crate::Datagram;

/// A host or a switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Node(usize);

/// The properties of a link, the same in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// How fast it is, at least 1.
    pub bits_per_second: u64,
    /// How long a bit takes from one end to the other.
    pub delay: Duration,
    /// Octets that may wait in front of it; a packet that finds more is dropped.
    pub queue: u64,
    /// A packet that finds more octets waiting is marked, if its sender is capable of ECN.
    pub mark: Option<u64>,
}

/// Counts of one direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LineStats {
    /// Packets that crossed, or are about to.
    pub passed: u64,
    /// Octets of these.
    pub octets: u64,
    /// Packets that found no room.
    pub overflowed: u64,
    /// Packets that were marked.
    pub marked: u64,
    /// The most octets that a packet found waiting.
    pub longest_queue: u64,
    /// Octets times the nanoseconds that they waited, of all packets that passed.
    pub waited: u128,
}

impl LineStats {
    /// Octets that waited in front of the link, on average over so much time from the beginning.
    pub fn mean_queue(&self, elapsed: Duration) -> u64 {
        (self.waited / elapsed.as_nanos().max(1)) as u64
    }
}

/// There are no links from one node to the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no way from node {} to node {}", from.0, to.0)]
pub struct NoWay {
    /// The sender.
    pub from: Node,
    /// The receiver.
    pub to: Node,
}

/// Nodes and links, before packets travel.
#[derive(Clone, Default, Debug)]
pub struct Topology {
    /// Each node's neighbours with the line to them.
    neighbours: Vec<Vec<(usize, Line)>>,
}

impl Topology {
    /// Adds a host or a switch.
    pub fn node(&mut self) -> Node {
        self.neighbours.push(Vec::new());
        Node(self.neighbours.len() - 1)
    }

    /// Joins two nodes of this topology. A second link between the same nodes takes the place of the first.
    pub fn link(&mut self, one: Node, other: Node, line: Line) {
        for (from, to) in [(one.0, other.0), (other.0, one.0)] {
            if let Some(neighbours) = self.neighbours.get_mut(from) {
                neighbours.retain(|(node, _)| *node != to);
                neighbours.push((to, line));
                neighbours.sort_by_key(|(node, _)| *node);
            }
        }
    }

    /// Hosts on one switch: the hosts, and the switch.
    pub fn star(hosts: usize, line: Line) -> (Self, Vec<Node>, Node) {
        let mut topology = Self::default();
        let switch = topology.node();
        let hosts: Vec<Node> = (0..hosts).map(|_| topology.node()).collect();
        hosts.iter().for_each(|host| topology.link(*host, switch, line));
        (topology, hosts, switch)
    }

    /// The next node on the way from each node to `to`.
    fn ways_to(&self, to: usize) -> Vec<Option<usize>> {
        let mut next = vec![None; self.neighbours.len()];
        let mut reached = VecDeque::from([to]);
        let mut known = vec![false; self.neighbours.len()];
        known[to] = true;
        while let Some(node) = reached.pop_front() {
            for (from, _) in &self.neighbours[node] {
                if !known[*from] {
                    known[*from] = true;
                    next[*from] = Some(node);
                    reached.push_back(*from);
                }
            }
        }
        next
    }
}

#[derive(Clone, Copy, Debug)]
struct Direction {
    line: Line,
    busy_until: Instant,
    stats: LineStats,
}

/// Packets on their way through a topology.
#[derive(Debug)]
pub struct Fabric<P> {
    directions: BTreeMap<(usize, usize), Direction>,
    /// By destination, then by node: the next node.
    ways: Vec<Vec<Option<usize>>>,
    /// By time, then by order: the node that a packet reaches, where it is going, and the packet.
    under_way: BTreeMap<(Instant, u64), (usize, usize, P)>,
    sequence: u64,
}

impl<P: Datagram> Fabric<P> {
    /// Of a topology, without packets.
    pub fn new(topology: Topology) -> Self {
        let ways = (0..topology.neighbours.len()).map(|to| topology.ways_to(to)).collect();
        let mut directions = BTreeMap::new();
        for (from, neighbours) in topology.neighbours.iter().enumerate() {
            for (to, line) in neighbours {
                let direction =
                    Direction { line: *line, busy_until: Instant::ZERO, stats: LineStats::default() };
                directions.insert((from, *to), direction);
            }
        }
        Self { directions, ways, under_way: BTreeMap::new(), sequence: 0 }
    }

    /// Sends a packet from a host. Whether it arrives is for the queues on its way to say.
    ///
    /// # Errors
    /// If no links lead there.
    pub fn send(&mut self, now: Instant, from: Node, to: Node, packet: P) -> Result<(), NoWay> {
        let is_there = self.ways.get(to.0).and_then(|ways| ways.get(from.0));
        if from != to && is_there.copied().flatten().is_none() {
            return Err(NoWay { from, to });
        }
        self.step(now, from.0, to.0, packet);
        Ok(())
    }

    /// Moves a packet that is at `node` to the next one.
    fn step(&mut self, now: Instant, node: usize, to: usize, mut packet: P) {
        let next = self.ways.get(to).and_then(|ways| *ways.get(node)?);
        let Some((next, direction)) =
            next.and_then(|next| self.directions.get_mut(&(node, next)).map(|direction| (next, direction)))
        else {
            self.place(now, node, to, packet);
            return;
        };
        let Direction { line, busy_until, stats } = direction;
        let bits = u128::from(line.bits_per_second.max(1));
        let free = (*busy_until).max(now);
        let waiting = (free.saturating_since(now).as_nanos() * bits / 8_000_000_000) as u64;
        stats.longest_queue = stats.longest_queue.max(waiting);
        if waiting > line.queue {
            stats.overflowed += 1;
            return;
        }
        if line.mark.is_some_and(|limit| waiting > limit) && packet.mark_ce() {
            stats.marked += 1;
        }
        stats.passed += 1;
        stats.octets += packet.wire_len() as u64;
        stats.waited += free.saturating_since(now).as_nanos() * packet.wire_len() as u128;
        let transit = packet.wire_len() as u128 * 8_000_000_000 / bits;
        *busy_until = free + Duration::from_nanos(transit as u64);
        let arrival = *busy_until + line.delay;
        self.place(arrival, next, to, packet);
    }

    fn place(&mut self, at: Instant, node: usize, to: usize, packet: P) {
        self.under_way.insert((at, self.sequence), (node, to, packet));
        self.sequence += 1;
    }

    /// Passes packets on at switches until the next one reaches its host, and returns when that is.
    pub fn next_arrival(&mut self) -> Option<Instant> {
        loop {
            let entry = self.under_way.first_entry()?;
            let at = entry.key().0;
            let (node, to, _) = entry.get();
            if node == to {
                return Some(at);
            }
            let (node, to, packet) = entry.remove();
            self.step(at, node, to, packet);
        }
    }

    /// The next packet that has reached its host by `now`, and the host.
    pub fn receive(&mut self, now: Instant) -> Option<(Node, P)> {
        if self.next_arrival()? > now {
            return None;
        }
        self.under_way.pop_first().map(|(_, (node, _, packet))| (Node(node), packet))
    }

    /// The counts of the link from one node to its neighbour; zeros if there is none.
    pub fn stats(&self, from: Node, to: Node) -> LineStats {
        self.directions.get(&(from.0, to.0)).map(|direction| direction.stats).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, PartialEq, Eq, Debug)]
    struct Packet {
        number: usize,
        marked: bool,
    }

    impl Datagram for Packet {
        fn corrupt(&mut self, _noise: u64) {}

        fn wire_len(&self) -> usize {
            1000
        }

        fn mark_ce(&mut self) -> bool {
            self.marked = true;
            true
        }
    }

    const LINE: Line = Line {
        bits_per_second: 8_000_000_000,
        delay: Duration::from_micros(1),
        queue: 20_000,
        mark: Some(10_000),
    };

    fn packet(number: usize) -> Packet {
        Packet { number, marked: false }
    }

    fn drain(fabric: &mut Fabric<Packet>) -> Vec<(u64, Node, Packet)> {
        let mut all = Vec::new();
        while let Some(now) = fabric.next_arrival() {
            all.extend(fabric.receive(now).map(|(node, packet)| (now.as_nanos(), node, packet)));
        }
        all
    }

    /// Thirty-two hosts send five packets each at once to one: the queue in front of it marks, fills and drops.
    fn incast() -> (Vec<(u64, Node, Packet)>, LineStats) {
        let (topology, hosts, switch) = Topology::star(33, LINE);
        let mut fabric = Fabric::new(topology);
        for number in 0..160 {
            fabric.send(Instant::ZERO, hosts[1 + number % 32], hosts[0], packet(number)).unwrap();
        }
        let arrived = drain(&mut fabric);
        (arrived, fabric.stats(switch, hosts[0]))
    }

    #[test]
    fn incast_fills_the_last_queue() {
        let (arrived, stats) = incast();
        assert_eq!(arrived.len() as u64, stats.passed);
        assert_eq!(stats.passed + stats.overflowed, 160);
        assert!(stats.overflowed > 0 && (20_000..=21_000).contains(&stats.longest_queue), "{stats:?}");
        assert_eq!(arrived.iter().filter(|(_, _, packet)| packet.marked).count() as u64, stats.marked);
        assert!(stats.marked > 0);
        // The link is never idle: a packet each microsecond.
        assert!(arrived.windows(2).all(|pair| pair[1].0 - pair[0].0 == 1000));
        assert_eq!(incast().0, arrived, "a run repeats");
    }

    #[test]
    fn the_shortest_way_is_taken() {
        let mut topology = Topology::default();
        let nodes: Vec<Node> = (0..5).map(|_| topology.node()).collect();
        for pair in nodes[..4].windows(2) {
            topology.link(pair[0], pair[1], LINE);
        }
        let mut fabric = Fabric::new(topology.clone());
        fabric.send(Instant::ZERO, nodes[0], nodes[3], packet(0)).unwrap();
        assert_eq!(drain(&mut fabric), [(6000, nodes[3], packet(0))]);
        topology.link(nodes[0], nodes[3], Line { delay: Duration::from_micros(9), ..LINE });
        let mut fabric = Fabric::new(topology);
        fabric.send(Instant::ZERO, nodes[0], nodes[3], packet(0)).unwrap();
        fabric.send(Instant::ZERO, nodes[2], nodes[2], packet(1)).unwrap();
        assert_eq!(drain(&mut fabric), [(0, nodes[2], packet(1)), (10_000, nodes[3], packet(0))]);
        let nowhere = NoWay { from: nodes[0], to: nodes[4] };
        assert_eq!(fabric.send(Instant::ZERO, nodes[0], nodes[4], packet(2)), Err(nowhere));
    }
}
