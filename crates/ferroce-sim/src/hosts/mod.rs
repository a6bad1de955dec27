//! Hosts with real queue pairs on a [`Fabric`], in virtual time.
//!
//! Each host is one process: it has an address, a [`Socket`] with a receive buffer, and a [`Budget`] that its queue pairs share. A driver
//! connects queue pairs, posts work requests to their [`End`]s, calls [`Hosts::drain`] for each end that it touched, and calls
//! [`Hosts::step`] until it is done. Nothing depends on the real clock, so equal calls give equal runs: [`Hosts::digest`] tells.
//!
//! ```
//! use std::time::Duration;
//! use ferroce_proto::{SendOp, SendWr};
//! use ferroce_sim::fabric::{Line, Topology};
//! use ferroce_sim::hosts::{Connection, Hosts, Socket};
//! use ferroce_sim::ram::Ram;
//!
//! let line = Line { bits_per_second: 10_000_000_000, delay: Duration::from_micros(1), queue: 1 << 20, mark: None };
//! let (topology, nodes, _) = Topology::star(2, line);
//! let mut hosts = Hosts::new(topology);
//! let [a, b] = [0, 1].map(|node| hosts.host(nodes[node], Socket::default()));
//! let [one, _] = hosts.connect([a, b], [Ram::default(), Ram::default()], &Connection::default()).unwrap();
//! let write = SendOp::Write { remote: ferroce_proto::Remote { addr: 0, rkey: ferroce_wire::Rkey::new(0) } };
//! let end = hosts.end(one);
//! end.qp.post_send(&SendWr::signaled(1, write, &[]), &end.mem).unwrap();
//! hosts.drain(one);
//! while hosts.end(one).sends.is_empty() {
//!     assert!(hosts.step());
//! }
//! ```

mod carried;
mod connection;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ferroce_fault::Judge;
use ferroce_proto::{Budget, NoSharedQueue};
use ferroce_wire::{BatchLimits, Instant, Qpn, TxBatch};

pub use self::carried::Carried;
pub use self::connection::{ConnectError, Connection, Socket};

use crate::fabric::{Fabric, LineStats, Node, Topology};
use crate::faults::Faults;
use crate::ram::Ram;
use crate::tcp::{Kind, Reno, Segment};
use crate::{Datagram, End, Frame, Rng, Stats, Verdict};

/// Octets that the kernel charges to a receive buffer for a datagram, beside its own.
const PACKET_CHARGE: u64 = 256;

/// A host, in order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostId(usize);

/// An end of a connection, in order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EndId(usize);

impl EndId {
    /// Its number, from 0: the `qp` of a plan of faults.
    pub const fn number(self) -> usize {
        self.0
    }
}

/// A TCP flow, in order of creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpId(usize);

/// The counts of a host's socket.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SocketStats {
    /// Packets that the process took.
    pub taken: u64,
    /// Packets that found no room.
    pub dropped: u64,
    /// The most octets that waited.
    pub longest: u64,
}

/// An event of a run, for a trace.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A queue pair sent a packet.
    Sent(EndId, &'a Frame),
    /// A packet reached its queue pair, which dropped it if there is a reason.
    Received(EndId, &'a Frame, Option<&'a dyn fmt::Debug>),
    /// A timer of a queue pair expired.
    Timer(EndId),
}

type Trace<'r> = Box<dyn FnMut(Instant, Event<'_>) + 'r>;

#[derive(Debug)]
struct Host {
    node: Node,
    address: IpAddr,
    socket: Socket,
    budget: Arc<Budget>,
    /// For its jitter.
    rng: Rng,
    waiting: VecDeque<Carried>,
    octets: u64,
    /// The packets that the process has taken and will have handled at its time in `due`.
    in_hand: Vec<Carried>,
    stats: SocketStats,
}

#[derive(Debug)]
struct Seat {
    end: End<Ram>,
    host: usize,
    peer: usize,
    due: Option<Instant>,
}

#[derive(Debug)]
struct Stream {
    flow: Reno,
    hosts: [usize; 2],
    due: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    Process(usize),
    QueuePair(usize),
    Stream(usize),
}

/// Hosts on a fabric, and the clock.
pub struct Hosts<'r> {
    now: Instant,
    fabric: Fabric<Carried>,
    faults: Faults<'r, Carried>,
    hosts: Vec<Host>,
    by_node: BTreeMap<Node, usize>,
    seats: Vec<Seat>,
    streams: Vec<Stream>,
    due: BTreeSet<(Instant, Due)>,
    touched: BTreeSet<usize>,
    buffer: Vec<u8>,
    digest: u64,
    trace: Option<Trace<'r>>,
}

/// The queue pair number of an end: a slot each, so that batches of different queue pairs are different.
const fn qpn(seat: usize) -> Qpn {
    Qpn::new((seat as u32 + 1) << 12 | 0x11)
}

fn seat_of(qpn: Qpn) -> Option<usize> {
    let seat = (qpn.value() >> 12).checked_sub(1)? as usize;
    (self::qpn(seat) == qpn).then_some(seat)
}

impl<'r> Hosts<'r> {
    /// On this topology, without hosts.
    pub fn new(topology: Topology) -> Self {
        Self {
            now: Instant::ZERO,
            fabric: Fabric::new(topology),
            faults: Faults::default(),
            hosts: Vec::new(),
            by_node: BTreeMap::new(),
            seats: Vec::new(),
            streams: Vec::new(),
            due: BTreeSet::new(),
            touched: BTreeSet::new(),
            buffer: vec![0; 64 << 10],
            digest: 0,
            trace: None,
        }
    }

    /// Puts a host at a node of the topology. Its address is 10.0.0.0 plus its number plus 1.
    pub fn host(&mut self, node: Node, socket: Socket) -> HostId {
        let number = self.hosts.len();
        let address = Ipv4Addr::from(0x0a00_0001 + number as u32).into();
        let budget = Arc::new(Budget::new(socket.buffer).with_hold_blocks(socket.hold_blocks));
        self.by_node.insert(node, number);
        self.hosts.push(Host {
            node,
            address,
            socket,
            budget,
            rng: Rng::new(number as u64),
            waiting: VecDeque::new(),
            octets: 0,
            in_hand: Vec::new(),
            stats: SocketStats::default(),
        });
        HostId(number)
    }

    /// Creates a queue pair at each of two hosts, with this memory, and connects them.
    ///
    /// # Errors
    ///
    /// If the attributes are not possible.
    pub fn connect(
        &mut self,
        hosts: [HostId; 2],
        memories: [Ram; 2],
        connection: &Connection,
    ) -> Result<[EndId; 2], ConnectError> {
        let first = self.seats.len();
        for (side, mem) in memories.into_iter().enumerate() {
            let seat = first + side;
            let addresses = [side, 1 - side].map(|side| self.hosts[hosts[side].0].address);
            let numbers = [qpn(seat), qpn(first + 1 - side)];
            let budget = self.hosts[hosts[side].0].budget.clone();
            let qp = connection.queue_pair(side, seat as u64, addresses, numbers, budget)?;
            let (host, peer) = (hosts[side].0, first + 1 - side);
            self.seats.push(Seat { end: End::new(qp, mem), host, peer, due: None });
        }
        Ok([EndId(first), EndId(first + 1)])
    }

    /// Starts a TCP flow (NewReno) without end from one host to another, now. With `ecn` it halves its window for marks too.
    pub fn tcp(&mut self, hosts: [HostId; 2], ecn: bool) -> TcpId {
        let stream = self.streams.len();
        let mut flow = Reno::new(stream, ecn);
        let mut out = Vec::new();
        flow.send(self.now, &mut out);
        self.streams.push(Stream { flow, hosts: hosts.map(|host| host.0), due: None });
        self.send_segments(stream, out);
        TcpId(stream)
    }

    /// Adds a rule for all packets as they leave their hosts. The first rule that does not say [`Verdict::Pass`] decides.
    pub fn rule(&mut self, rule: impl FnMut(&Carried) -> Verdict + 'r) {
        self.faults.rule(rule);
    }

    /// Has a plan of faults decide what becomes of the packets of queue pairs that the rules pass. `qp` of the plan is the number of the
    /// end that a packet is for, and `dir` is `rx`.
    pub fn set_judge(&mut self, judge: Option<Judge>) {
        self.faults.set_judge(judge);
    }

    /// Has each event reported.
    pub fn set_trace(&mut self, trace: impl FnMut(Instant, Event<'_>) + 'r) {
        self.trace = Some(Box::new(trace));
    }

    /// The time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// An end of a connection.
    pub fn end(&mut self, end: EndId) -> &mut End<Ram> {
        &mut self.seats[end.0].end
    }

    /// Two different ends.
    ///
    /// # Panics
    ///
    /// If they are the same.
    pub fn ends(&mut self, ends: [EndId; 2]) -> [&mut End<Ram>; 2] {
        match self.seats.get_disjoint_mut(ends.map(|end| end.0)) {
            Ok(seats) => seats.map(|seat| &mut seat.end),
            Err(_) => panic!("{ends:?} are not two ends"),
        }
    }

    /// The ends that the last step touched: a packet came, or a timer expired.
    pub fn touched(&self) -> impl Iterator<Item = EndId> + '_ {
        self.touched.iter().copied().map(EndId)
    }

    /// Octets that a TCP flow has delivered in order.
    pub fn delivered(&self, stream: TcpId) -> u64 {
        self.streams[stream.0].flow.delivered()
    }

    /// The counts of a host's socket.
    pub fn socket(&self, host: HostId) -> SocketStats {
        self.hosts[host.0].stats
    }

    /// The counts of the link from one node to its neighbour.
    pub fn line(&self, from: Node, to: Node) -> LineStats {
        self.fabric.stats(from, to)
    }

    /// The counts of packets by what the rules and the plan did to them.
    pub const fn stats(&self) -> Stats {
        self.faults.stats()
    }

    /// A hash of each packet sent and received, and of each completion, with their times. Equal runs have equal digests.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    fn note(&mut self, what: u64) {
        self.digest = Rng::new(self.digest ^ what ^ self.now.as_nanos().rotate_left(20)).next_u64();
    }

    /// Sends what an end has to send, and takes its completions. To be called when the driver has posted to it.
    pub fn drain(&mut self, end: EndId) {
        let index = end.0;
        let (host, peer) = (self.seats[index].host, self.seats[index].peer);
        let mut frames = Vec::new();
        let seat = &mut self.seats[index];
        let limits = BatchLimits { max_segments: 64, gso: true };
        let mut batch = TxBatch::new(&mut self.buffer, limits);
        while seat.end.qp.poll_transmit(self.now, &mut seat.end.mem, &mut batch) {
            if let Some(flow) = batch.flow().copied() {
                frames.extend(batch.segments().enumerate().map(|(index, segment)| Frame {
                    flow,
                    ip_id: index as u16,
                    bytes: Rc::new(segment.to_vec()),
                }));
            }
            batch.clear();
        }
        let before = [seat.end.sends.len(), seat.end.recvs.len()];
        seat.end.events();
        let sends = seat.end.sends.iter().skip(before[0]).map(|done| (done.wr_id, done.status));
        let recvs = seat.end.recvs.iter().skip(before[1]).map(|done| (!done.wr_id, done.status));
        let done: Vec<u64> =
            sends.chain(recvs).map(|(wr_id, status)| wr_id ^ (status as u64) << 48).collect();
        done.into_iter().for_each(|what| self.note(what ^ 1 << 60));
        for frame in frames {
            self.note(mark(&frame) ^ 1 << 61);
            if let Some(trace) = &mut self.trace {
                trace(self.now, Event::Sent(EndId(index), &frame));
            }
            self.depart(host, self.seats[peer].host, peer, Carried::Roce(frame));
        }
        self.set_timer(index);
    }

    /// A packet leaves a host; faults first.
    fn depart(&mut self, from: usize, to: usize, seat: usize, packet: Carried) {
        let mut out = Vec::new();
        self.faults.send(self.now, seat, packet, &mut out);
        for packet in out {
            self.enter(packet, Some((from, to)));
        }
    }

    /// A packet enters the fabric. Of packets that waited, the hosts are found by their addresses.
    fn enter(&mut self, packet: Carried, known: Option<(usize, usize)>) {
        let (from, to) = match (&packet, known) {
            // Faults give back other packets than the one that they were given.
            (Carried::Roce(frame), _) => {
                let host = |address: IpAddr| self.hosts.iter().position(|host| host.address == address);
                let Some(ends) = host(frame.flow.source).zip(host(frame.flow.destination)) else { return };
                ends
            }
            (Carried::Tcp(_), Some(ends)) => ends,
            (Carried::Tcp(segment), None) => self.way(segment),
        };
        let nodes = [from, to].map(|host| self.hosts[host].node);
        // A driver that connects hosts without links between them loses all packets, as in a network.
        let _ = self.fabric.send(self.now, nodes[0], nodes[1], packet);
    }

    fn way(&self, segment: &Segment) -> (usize, usize) {
        let [sender, receiver] = self.streams[segment.stream].hosts;
        match segment.kind {
            Kind::Data(_) => (sender, receiver),
            Kind::Ack(..) => (receiver, sender),
        }
    }

    fn send_segments(&mut self, stream: usize, segments: Vec<Segment>) {
        for segment in segments {
            let (from, to) = self.way(&segment);
            self.depart(from, to, usize::MAX, Carried::Tcp(segment));
        }
        let next = self.streams[stream].flow.timeout();
        let before = std::mem::replace(&mut self.streams[stream].due, next);
        self.replace(Due::Stream(stream), before, next);
    }

    fn set_timer(&mut self, seat: usize) {
        let next = self.seats[seat].end.qp.poll_timeout();
        let before = std::mem::replace(&mut self.seats[seat].due, next);
        self.replace(Due::QueuePair(seat), before, next);
    }

    fn replace(&mut self, due: Due, before: Option<Instant>, next: Option<Instant>) {
        if before != next {
            before.map(|at| self.due.remove(&(at, due)));
            next.map(|at| self.due.insert((at, due)));
        }
    }

    /// When the next thing happens.
    pub fn next_event(&mut self) -> Option<Instant> {
        let arrival = self.fabric.next_arrival();
        let due = self.due.first().map(|(at, _)| *at);
        arrival.into_iter().chain(due).chain(self.faults.next()).min()
    }

    /// Moves the clock to the next arrival or timer, and does all that is due. `false` if nothing will ever happen.
    ///
    /// # Panics
    ///
    /// If a queue pair has a timer that is due after it was handled: the clock would stand still.
    pub fn step(&mut self) -> bool {
        let Some(next) = self.next_event() else { return false };
        self.now = self.now.max(next);
        self.touched.clear();
        let mut late = Vec::new();
        self.faults.take(self.now, &mut late);
        late.into_iter().for_each(|packet| self.enter(packet, None));
        while let Some((node, packet)) = self.fabric.receive(self.now) {
            if let Some(host) = self.by_node.get(&node).copied() {
                self.arrive(host, packet);
            }
        }
        while let Some((_, due)) = self.due.first().copied().filter(|(at, _)| *at <= self.now) {
            self.due.pop_first();
            match due {
                Due::Process(host) => self.process(host),
                Due::QueuePair(seat) => {
                    self.seats[seat].due = None;
                    self.touched.insert(seat);
                    self.note(seat as u64 ^ 1 << 62);
                    if let Some(trace) = &mut self.trace {
                        trace(self.now, Event::Timer(EndId(seat)));
                    }
                    self.seats[seat].end.qp.handle_timeout(self.now);
                }
                Due::Stream(stream) => {
                    self.streams[stream].due = None;
                    let mut out = Vec::new();
                    self.streams[stream].flow.handle_timeout(self.now, &mut out);
                    self.send_segments(stream, out);
                }
            }
        }
        for seat in self.touched.clone() {
            self.drain(EndId(seat));
            let due = self.seats[seat].due;
            assert!(due.is_none_or(|due| due > self.now), "a timer that is due after it was handled");
        }
        true
    }

    /// A packet reaches the socket of a host.
    fn arrive(&mut self, index: usize, packet: Carried) {
        let host = &mut self.hosts[index];
        if let Carried::Tcp(segment) = packet {
            self.take_segment(segment);
            return;
        }
        let charge = packet.wire_len() as u64 + PACKET_CHARGE;
        if host.octets + charge > host.socket.buffer as u64 {
            host.stats.dropped += 1;
            return;
        }
        host.octets += charge;
        host.stats.longest = host.stats.longest.max(host.octets);
        host.waiting.push_back(packet);
        if host.in_hand.is_empty() {
            self.take(index);
        }
    }

    /// The process takes a batch from its socket.
    fn take(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let count = host.waiting.len().min(host.socket.batch.max(1));
        if count == 0 {
            return;
        }
        host.in_hand.extend(host.waiting.drain(..count));
        let octets: u64 = host.in_hand.iter().map(|packet| packet.wire_len() as u64 + PACKET_CHARGE).sum();
        host.octets -= octets;
        host.stats.taken += count as u64;
        let jitter = Duration::from_nanos(host.rng.below(host.socket.jitter.as_nanos() as u64 + 1));
        let done = self.now + host.socket.per_packet * count as u32 + jitter;
        self.due.insert((done, Due::Process(index)));
    }

    /// The process is done with its batch.
    fn process(&mut self, index: usize) {
        for packet in std::mem::take(&mut self.hosts[index].in_hand) {
            if let Carried::Roce(frame) = packet {
                self.handle(index, &frame);
            }
        }
        self.take(index);
    }

    fn handle(&mut self, host: usize, frame: &Frame) {
        let packet = frame.packet();
        let of_host = |seat: &usize| self.seats.get(*seat).is_some_and(|seat| seat.host == host);
        let dest = ferroce_wire::Packet::parse(&frame.bytes).ok().map(|packet| packet.bth.dest_qp);
        let Some(index) = dest.and_then(seat_of).filter(of_host) else { return };
        self.note(mark(frame) ^ 1 << 63);
        self.touched.insert(index);
        let end = &mut self.seats[index].end;
        let Some(packet) = packet else {
            end.bad_icrc += 1;
            if let Some(trace) = &mut self.trace {
                trace(self.now, Event::Received(EndId(index), frame, Some(&"wrong ICRC")));
            }
            return;
        };
        let result = end.qp.handle_datagram(self.now, &frame.flow, &packet, &mut NoSharedQueue, &mut end.mem);
        if let Some(trace) = &mut self.trace {
            let reason = result.as_ref().err().map(|reason| reason as &dyn fmt::Debug);
            trace(self.now, Event::Received(EndId(index), frame, reason));
        }
    }

    fn take_segment(&mut self, segment: Segment) {
        let stream = segment.stream;
        let flow = &mut self.streams[stream].flow;
        let mut out = Vec::new();
        match segment.kind {
            Kind::Data(number) => out.push(flow.receive(self.now, number, &segment)),
            Kind::Ack(to, marked) => flow.acknowledged(self.now, to, marked, segment.sent, &mut out),
        }
        self.send_segments(stream, out);
    }
}

/// A packet in the digest: its length and its last octets, which are its ICRC.
fn mark(frame: &Frame) -> u64 {
    let icrc = frame.bytes.last_chunk::<4>().map_or(0, |octets| u32::from_be_bytes(*octets));
    u64::from(icrc) << 16 ^ frame.bytes.len() as u64 ^ u64::from(frame.flow.traffic_class) << 8
}

impl fmt::Debug for Hosts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (now, hosts, ends) = (self.now, self.hosts.len(), self.seats.len());
        f.debug_struct("Hosts").field("now", &now).field("hosts", &hosts).field("ends", &ends).finish()
    }
}
