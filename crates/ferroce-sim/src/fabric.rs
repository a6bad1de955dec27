//! A fabric: hosts and switches, joined by links with a rate, a delay, a queue and a threshold for marks.
//!
//! A packet takes the way with the fewest links; of several, the one through the nodes that were made first,
//! so that a run repeats. Each direction of a link has its own queue in front. Time is virtual: whoever
//! drives the hosts moves it to [`Fabric::next_arrival`].
//!
//! ```
//! use std::time::Duration;
//! use ferroce_sim::fabric::{Fabric, Line, Topology};
//! # #[derive(Clone, Debug)] struct Packet;
//! # impl ferroce_sim::Datagram for Packet {
//! #     fn corrupt(&mut self, _: u64) {}
//! #     fn wire_len(&self) -> usize { 1000 }
//! # }
//! let mut topology = Topology::default();
//! let (left, right, middle) = (topology.node(), topology.node(), topology.node());
//! let delay = Duration::from_micros(1);
//! let line = Line { bits_per_second: 8_000_000_000, delay, queue: 64 << 10, mark: None };
//! topology.link(left, middle, line);
//! topology.link(middle, right, line);
//! let mut fabric = Fabric::new(topology);
//! fabric.send(ferroce_wire::Instant::ZERO, left, right, Packet).unwrap();
//! // A microsecond on each link, and a microsecond to get there.
//! let arrival = fabric.next_arrival().unwrap();
//! assert_eq!(arrival.as_nanos(), 4000);
//! assert!(fabric.receive(arrival).is_some());
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ferroce_fault::{Crossing, Dir, Judge, Limit};
use ferroce_wire::Instant;

use crate::faults::{Faults, Tagged, View};
use crate::{Datagram, Rng, Stats, rules};

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
    /// Packets that an outage or a fault lost before they reached the queue.
    pub lost: u64,
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

/// Faults of a link, for packets of any kind in either direction.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Flaws {
    /// So many of a million packets are lost, each by itself.
    pub loss: u32,
    /// Times in which nothing passes: from the first, and before the second.
    pub down: Vec<(Instant, Instant)>,
    /// The seed of the losses.
    pub seed: u64,
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

    /// All nodes, in order of creation.
    pub fn nodes(&self) -> Vec<Node> {
        (0..self.neighbours.len()).map(Node).collect()
    }

    /// A number for each node; nodes between which links lead have the same number.
    pub fn islands(&self) -> Vec<usize> {
        let mut islands = vec![usize::MAX; self.neighbours.len()];
        for first in 0..islands.len() {
            let mut open = if islands[first] == usize::MAX { vec![first] } else { Vec::new() };
            while let Some(node) = open.pop() {
                islands[node] = first;
                let new = self.neighbours[node].iter().map(|(to, _)| *to);
                open.extend(new.filter(|to| islands[*to] == usize::MAX));
            }
        }
        islands
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
    limit: Limit,
    stats: LineStats,
}

/// The faults of a link.
#[derive(Debug)]
struct Harm<P> {
    faults: Faults<'static, Tagged<Hop, P>>,
    down: Vec<(Instant, Instant)>,
    /// The node from which packets are sent, as the plan sees them.
    first: usize,
    /// Packets that met an outage, by direction.
    lost: [u64; 2],
    due: Option<Instant>,
}

/// A step of a packet: its node, the next one, and its destination.
#[derive(Clone, Copy, Debug)]
struct Hop {
    from: usize,
    next: usize,
    to: usize,
}

/// Packets on their way through a topology.
#[derive(Debug)]
pub struct Fabric<P> {
    directions: BTreeMap<(usize, usize), Direction>,
    /// The next node on the way, by destination, then by node.
    ways: Vec<Vec<Option<usize>>>,
    /// Packets under way, by time, then by order: the node that is reached, the destination, and the packet.
    under_way: BTreeMap<(Instant, u64), (usize, usize, P)>,
    sequence: u64,
    /// Packets at their hosts: those that [`Self::next_arrival`] found.
    arrived: VecDeque<(Instant, Node, P)>,
    /// Links that are not sound, by the smaller node and the larger one.
    harms: BTreeMap<(usize, usize), Harm<P>>,
    /// The entries of `harms` in which packets wait, by the time when the first packet goes on.
    due: BTreeSet<(Instant, (usize, usize))>,
}

/// The key of a link.
fn link_of(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

impl<P: Datagram + 'static> Fabric<P> {
    /// Creates the fabric of a topology, without packets.
    pub fn new(topology: Topology) -> Self {
        let ways = (0..topology.neighbours.len()).map(|to| topology.ways_to(to)).collect();
        let mut directions = BTreeMap::new();
        for (from, neighbours) in topology.neighbours.iter().enumerate() {
            for (to, line) in neighbours {
                let (limit, stats) = Default::default();
                let direction = Direction { line: *line, limit, stats };
                directions.insert((from, *to), direction);
            }
        }
        Self {
            directions,
            ways,
            under_way: BTreeMap::new(),
            sequence: 0,
            arrived: VecDeque::new(),
            harms: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }

    /// Gives the link between two nodes flaws, and a plan of faults that judges each packet in front of the
    /// link's queue. For the plan a packet from `one` to `other` is sent (`dir=tx`), and one in the other
    /// direction is received (`dir=rx`).
    pub fn harm(&mut self, one: Node, other: Node, flaws: Flaws, judge: Option<Judge>) {
        let mut faults = Faults::default();
        let Flaws { loss, down, seed } = flaws;
        if loss > 0 {
            faults.rule(rules::loss(Rng::new(seed), loss));
        }
        faults.set_judge(judge);
        let harm = Harm { faults, down, first: one.0, lost: [0; 2], due: None };
        if let Some(Harm { due: Some(at), .. }) = self.harms.insert(link_of(one.0, other.0), harm) {
            self.due.remove(&(at, link_of(one.0, other.0)));
        }
    }

    /// The judge of a link, for its counts.
    pub fn judge(&self, one: Node, other: Node) -> Option<&Judge> {
        self.harms.get(&link_of(one.0, other.0))?.faults.judge()
    }

    /// Packets that cross links, or wait by faults of links.
    pub fn under_way(&self) -> usize {
        self.under_way.len() + self.harms.values().map(|harm| harm.faults.waiting()).sum::<usize>()
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
    fn step(&mut self, now: Instant, node: usize, to: usize, packet: P) {
        let next = self.ways.get(to).and_then(|ways| *ways.get(node)?);
        let Some(next) = next.filter(|next| self.directions.contains_key(&(node, *next))) else {
            self.place(now, node, to, packet);
            return;
        };
        let hop = Hop { from: node, next, to };
        let link = link_of(node, next);
        let Some(harm) = self.harms.get_mut(&link) else {
            self.cross(now, hop, packet);
            return;
        };
        if harm.down.iter().any(|(from, until)| (*from..*until).contains(&now)) {
            harm.lost[usize::from(node > next)] += 1;
            return;
        }
        let dir = if node == harm.first { Dir::Tx } else { Dir::Rx };
        let qp = packet.facts(to).map_or(to as u32, |facts| facts.qp);
        let mut out = Vec::new();
        let before = harm.faults.stats;
        harm.faults.send(now, &View { dir, qp, peer: None }, Tagged { tag: hop, packet }, &mut out);
        let after = harm.faults.stats;
        harm.lost[usize::from(node > next)] += lost(&after) - lost(&before);
        self.go_on(now, link, out);
    }

    /// Packets leave the faults of a link.
    fn go_on(&mut self, now: Instant, link: (usize, usize), packets: Vec<Tagged<Hop, P>>) {
        for Tagged { tag, packet } in packets {
            self.cross(now, tag, packet);
        }
        let Some(harm) = self.harms.get_mut(&link) else { return };
        let next = harm.faults.next();
        let before = std::mem::replace(&mut harm.due, next);
        if before != next {
            before.map(|at| self.due.remove(&(at, link)));
            next.map(|at| self.due.insert((at, link)));
        }
    }

    /// A packet reaches the queue of a link.
    fn cross(&mut self, now: Instant, Hop { from, next, to }: Hop, mut packet: P) {
        let Some(direction) = self.directions.get_mut(&(from, next)) else { return };
        let Direction { line, limit, stats } = direction;
        let octets = packet.wire_len() as u64;
        let Crossing { waits, waiting, crossed } =
            limit.cross(now, octets, line.bits_per_second, line.queue, None);
        stats.longest_queue = stats.longest_queue.max(waiting);
        let Some(crossed) = crossed else {
            stats.overflowed += 1;
            return;
        };
        if line.mark.is_some_and(|limit| waiting > limit) && packet.mark_ce() {
            stats.marked += 1;
        }
        stats.passed += 1;
        stats.octets += octets;
        stats.waited += waits.as_nanos() * u128::from(octets);
        let arrival = crossed + line.delay;
        self.place(arrival, next, to, packet);
    }

    fn place(&mut self, at: Instant, node: usize, to: usize, packet: P) {
        self.under_way.insert((at, self.sequence), (node, to, packet));
        self.sequence += 1;
    }

    /// Time of the next event: a packet reaches a switch or its host, or goes on after a fault held it.
    pub fn next_event(&self) -> Option<Instant> {
        let first = self.under_way.first_key_value().map(|((at, _), _)| *at);
        let arrived = self.arrived.front().map(|(at, ..)| *at);
        first.into_iter().chain(self.due.first().map(|(at, _)| *at)).chain(arrived).min()
    }

    /// Does what is due by `limit`, until a packet is at its host. `true` if one is.
    fn advance(&mut self, limit: Instant) -> bool {
        while let Some(at) = self.next_event().filter(|at| *at <= limit) {
            if let Some((_, link)) = self.due.first().copied().filter(|(due, _)| *due == at) {
                let mut out = Vec::new();
                if let Some(harm) = self.harms.get_mut(&link) {
                    harm.faults.take(at, &mut out);
                }
                self.go_on(at, link, out);
                continue;
            }
            let Some((_, (node, to, packet))) = self.under_way.pop_first() else { return false };
            if node == to {
                self.arrived.push_back((at, Node(node), packet));
                return true;
            }
            self.step(at, node, to, packet);
        }
        false
    }

    /// Passes packets on at switches until the next one reaches its host, and returns when that is. Only for
    /// a driver that sends nothing before that time; others look at [`Self::next_event`].
    pub fn next_arrival(&mut self) -> Option<Instant> {
        if self.arrived.is_empty() {
            self.advance(Instant::MAX);
        }
        self.arrived.front().map(|(at, ..)| *at)
    }

    /// The next packet that has reached its host by `now`, and the host.
    pub fn receive(&mut self, now: Instant) -> Option<(Node, P)> {
        if self.arrived.is_empty() {
            self.advance(now);
        }
        if self.arrived.front().is_none_or(|(at, ..)| *at > now) {
            return None;
        }
        self.arrived.pop_front().map(|(_, node, packet)| (node, packet))
    }

    /// The counts of the link from one node to its neighbour; zeros without such a link.
    pub fn stats(&self, from: Node, to: Node) -> LineStats {
        let stats = self.directions.get(&(from.0, to.0)).map(|direction| direction.stats).unwrap_or_default();
        let harm = self.harms.get(&link_of(from.0, to.0));
        LineStats { lost: harm.map_or(0, |harm| harm.lost[usize::from(from > to)]), ..stats }
    }
}

/// Packets that faults lost.
const fn lost(stats: &Stats) -> u64 {
    stats.dropped + stats.overflowed
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

    /// Thirty-two hosts send five packets each at once to one: the queue in front of it marks, fills and
    /// drops.
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

    /// A packet that is on a slow link takes no room in the next queue before it is there.
    #[test]
    fn a_packet_sent_later_may_come_first() {
        let mut topology = Topology::default();
        let [far, near, switch, to] = [(); 4].map(|()| topology.node());
        topology.link(far, switch, Line { delay: Duration::from_millis(10), ..LINE });
        topology.link(near, switch, LINE);
        topology.link(switch, to, LINE);
        let mut fabric = Fabric::new(topology);
        fabric.send(Instant::ZERO, far, to, packet(0)).unwrap();
        assert_eq!(fabric.next_event(), Some(Instant::from_nanos(10_001_000)));
        // The driver's own next event is earlier.
        let now = Instant::from_nanos(5_000_000);
        assert_eq!(fabric.receive(now), None);
        fabric.send(now, near, to, packet(1)).unwrap();
        assert_eq!(drain(&mut fabric), [(5_004_000, to, packet(1)), (10_003_000, to, packet(0))]);
    }

    #[test]
    fn a_link_loses_packets_in_its_outages_and_by_its_plan() {
        let mut topology = Topology::default();
        let [one, other] = [(); 2].map(|()| topology.node());
        topology.link(one, other, LINE);
        let run = |flaws: Flaws| {
            let mut fabric = Fabric::new(topology.clone());
            fabric.harm(one, other, flaws, None);
            for number in 0..1000 {
                let now = Instant::from_nanos(number * 2000);
                fabric.send(now, one, other, packet(number as usize)).unwrap();
            }
            let arrived = drain(&mut fabric).len() as u64;
            assert_eq!(arrived + fabric.stats(one, other).lost, 1000);
            assert_eq!(fabric.stats(other, one).lost, 0);
            arrived
        };
        let down = vec![(Instant::from_nanos(2000), Instant::from_nanos(6000))];
        assert_eq!(run(Flaws { down, ..Flaws::default() }), 998);
        let lossy = |seed| run(Flaws { loss: 100_000, seed, ..Flaws::default() });
        assert!((850..950).contains(&lossy(1)), "{}", lossy(1));
        assert_ne!(lossy(1), lossy(2));
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
