//! Hosts with real queue pairs on a [`Fabric`], in virtual time.
//!
//! Each host is one process: it has an address, a [`Socket`] with a receive buffer, and a [`Budget`] that its
//! queue pairs share. A driver connects queue pairs, posts work requests to their [`End`]s, calls
//! [`Hosts::drain`] for each end that it touched, and calls [`Hosts::step`] until it is done. Nothing depends
//! on the real clock, so equal calls give equal runs: [`Hosts::digest`] tells.
//!
//! ```
//! use std::time::Duration;
//! use ferroce_proto::{SendOp, SendWr};
//! use ferroce_sim::fabric::{Line, Topology};
//! use ferroce_sim::hosts::{Connection, Hosts, Socket};
//! use ferroce_sim::ram::Ram;
//!
//! let delay = Duration::from_micros(1);
//! let line = Line { bits_per_second: 10_000_000_000, delay, queue: 1 << 20, mark: None };
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
mod process;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;

use ferroce_fault::Judge;
use ferroce_proto::{Budget, PostRecvError, PostSendError, RecvWr, SendWr};
use ferroce_wire::{BatchLimits, Instant, Qpn, TxBatch};

pub use self::carried::Carried;
pub use self::connection::{ConnectError, Connection, Socket};

use self::process::OwnFaults;
use crate::fabric::{Fabric, Flaws, LineStats, Node, Topology};
use crate::faults::{Faults, View};
use crate::ram::Ram;
use crate::tcp::{Kind, Reno, Segment};
use crate::{End, Frame, Rng, Stats, Verdict};

/// Octets that the kernel charges to a receive buffer for a datagram, beside its own.
const PACKET_CHARGE: u64 = 256;
/// Queue pairs that have numbers: a slot each, without the first one.
pub const MAX_ENDS: usize = 4094;

/// A host, in order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostId(usize);

/// An end of a connection, in order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EndId(usize);

impl EndId {
    /// Number of the end, from 0: the `qp` of a plan of faults.
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
    /// The faults of its process, if there are any, and when a packet that waits goes on.
    faults: Option<Box<OwnFaults>>,
    due: Option<Instant>,
    /// Queue pairs so far.
    ends: u32,
}

#[derive(Debug)]
struct Seat {
    end: End<Ram>,
    host: usize,
    peer: usize,
    /// Number of the end in its host, from 0, by order of creation.
    number: u32,
    due: Option<Instant>,
}

#[derive(Debug)]
struct TcpPair {
    flow: Reno,
    hosts: [usize; 2],
    due: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    /// Packets that a host's faults held.
    Held(usize),
    Process(usize),
    QueuePair(usize),
    Stream(usize),
}

/// Hosts on a fabric, and the clock.
pub struct Hosts<'r> {
    seed: u64,
    now: Instant,
    fabric: Fabric<Carried>,
    faults: Faults<'r, Carried>,
    hosts: Vec<Host>,
    by_node: BTreeMap<Node, usize>,
    seats: Vec<Seat>,
    streams: Vec<TcpPair>,
    due: BTreeSet<(Instant, Due)>,
    touched: BTreeSet<usize>,
    buffer: Vec<u8>,
    digest: u64,
    trace: Option<Trace<'r>>,
}

/// The address of the first host.
const FIRST_ADDRESS: u32 = 0x0a00_0001;

/// The host with an address.
fn host_at(address: IpAddr) -> Option<usize> {
    let IpAddr::V4(address) = address else { return None };
    u32::from(address).checked_sub(FIRST_ADDRESS).map(|number| number as usize)
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
        Self::with_seed(topology, 0)
    }

    /// As [`Self::new`], with this seed for the jitter of the processes, and for source ports.
    pub fn with_seed(topology: Topology, seed: u64) -> Self {
        Self {
            seed,
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
        let address = Ipv4Addr::from(FIRST_ADDRESS + number as u32).into();
        let budget = Arc::new(Budget::new(socket.buffer).with_hold_blocks(socket.hold_blocks));
        self.by_node.insert(node, number);
        self.hosts.push(Host {
            node,
            address,
            socket,
            budget,
            rng: Rng::new(self.seeded(number)),
            waiting: VecDeque::new(),
            octets: 0,
            in_hand: Vec::new(),
            stats: SocketStats::default(),
            faults: None,
            due: None,
            ends: 0,
        });
        HostId(number)
    }

    /// A seed for the host or queue pair of this number.
    const fn seeded(&self, number: usize) -> u64 {
        number as u64 ^ self.seed.wrapping_mul(ferroce_wire::MIX_STEP)
    }

    /// Creates a queue pair at each of two hosts, with this memory, and connects them.
    ///
    /// # Errors
    ///
    /// If the attributes are not possible, or there are [`MAX_ENDS`] queue pairs.
    pub fn connect(
        &mut self,
        hosts: [HostId; 2],
        memories: [Ram; 2],
        connection: &Connection,
    ) -> Result<[EndId; 2], ConnectError> {
        let first = self.seats.len();
        if first + 2 > MAX_ENDS {
            return Err(ConnectError::TooMany);
        }
        let mut pair = Vec::new();
        for (side, mem) in memories.into_iter().enumerate() {
            let seat = first + side;
            let addresses = [side, 1 - side].map(|side| self.hosts[hosts[side].0].address);
            let numbers = [qpn(seat), qpn(first + 1 - side)];
            let budget = self.hosts[hosts[side].0].budget.clone();
            let qp = connection.queue_pair(side, self.seeded(seat), addresses, numbers, budget)?;
            let (host, peer) = (hosts[side].0, first + 1 - side);
            pair.push(Seat { end: End::new(qp, mem), host, peer, number: 0, due: None });
        }
        for mut seat in pair {
            let ends = &mut self.hosts[seat.host].ends;
            seat.number = *ends;
            *ends += 1;
            self.seats.push(seat);
        }
        Ok([EndId(first), EndId(first + 1)])
    }

    /// Starts a TCP flow (NewReno) without end from one host to another, now. With `ecn` it halves its window
    /// for marks too.
    pub fn tcp(&mut self, hosts: [HostId; 2], ecn: bool) -> TcpId {
        let stream = self.streams.len();
        let mut flow = Reno::new(stream, ecn);
        let mut out = Vec::new();
        flow.send(self.now, &mut out);
        self.streams.push(TcpPair { flow, hosts: hosts.map(|host| host.0), due: None });
        self.send_segments(stream, out);
        TcpId(stream)
    }

    /// Adds a rule for all packets as they leave their hosts. The first rule that does not say
    /// [`Verdict::Pass`] decides.
    pub fn rule(&mut self, rule: impl FnMut(&Carried) -> Verdict + 'r) {
        self.faults.rule(rule);
    }

    /// Has a plan of faults decide what becomes of the packets of queue pairs that the rules pass. `qp` of
    /// the plan is the number of the end that a packet is for, and `dir` is `rx`.
    pub fn set_judge(&mut self, judge: Option<Judge>) {
        self.faults.set_judge(judge);
    }

    /// Has a plan of faults decide what becomes of the packets that the process of a host sends and receives,
    /// as `ferroce run --fault` does for a program: `qp` is the order of creation in the host, and received
    /// packets are judged behind the check of their ICRC.
    pub fn set_host_judge(&mut self, host: HostId, judge: Judge) {
        let mut faults = OwnFaults::default();
        faults.set_judge(Some(judge));
        self.hosts[host.0].faults = Some(Box::new(faults));
    }

    /// Gives the link between two nodes flaws and a plan of faults, see [`Fabric::harm`].
    pub fn harm(&mut self, ends: [Node; 2], flaws: Flaws, judge: Option<Judge>) {
        self.fabric.harm(ends[0], ends[1], flaws, judge);
    }

    /// The judge of all packets, for its counts.
    pub const fn judge(&self) -> Option<&Judge> {
        self.faults.judge()
    }

    /// The judge of a host.
    pub fn host_judge(&self, host: HostId) -> Option<&Judge> {
        self.hosts[host.0].faults.as_ref()?.judge()
    }

    /// The judge of a link.
    pub fn link_judge(&self, ends: [Node; 2]) -> Option<&Judge> {
        self.fabric.judge(ends[0], ends[1])
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

    /// Posts a send work request, and sends what it can.
    ///
    /// # Errors
    ///
    /// As the queue pair says; nothing has changed then.
    pub fn post_send(&mut self, end: EndId, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let seat = &mut self.seats[end.0].end;
        seat.qp.post_send(wr, &seat.mem)?;
        self.drain(end);
        Ok(())
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    ///
    /// As the queue pair says; nothing has changed then.
    pub fn post_recv(&mut self, end: EndId, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.seats[end.0].end.qp.post_recv(wr)?;
        self.drain(end);
        Ok(())
    }

    /// Packets that cross links or wait for a process or by faults.
    pub fn under_way(&self) -> usize {
        let waiting =
            |host: &Host| host.waiting.len() + host.faults.as_ref().map_or(0, |faults| faults.waiting());
        self.fabric.under_way() + self.faults.waiting() + self.hosts.iter().map(waiting).sum::<usize>()
    }

    /// Moves the clock to a time before the next event, so that the driver can act then. A later time moves
    /// it to the next event.
    pub fn wait_until(&mut self, time: Instant) {
        let limit = self.next_event().map_or(time, |next| next.min(time));
        self.now = self.now.max(limit);
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
        self.faults.stats
    }

    /// A hash of each packet sent and received, and of each completion, with their times. Equal runs have
    /// equal digests.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    fn note(&mut self, what: u64) {
        self.digest = Rng::new(self.digest ^ what ^ self.now.as_nanos().rotate_left(20)).next_u64();
    }

    /// Sends what an end has to send, and takes its completions. To be called when the driver has posted to
    /// it.
    pub fn drain(&mut self, end: EndId) {
        let index = end.0;
        let host = self.seats[index].host;
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
            self.leave(host, index, Carried::Roce(frame));
        }
        self.set_timer(index);
    }

    /// A packet leaves a host for this queue pair, or none; faults of the network first.
    fn depart(&mut self, from: usize, to: usize, seat: usize, packet: Carried) {
        let mut out = Vec::new();
        self.faults.send(self.now, &View::received(seat), packet, &mut out);
        for packet in out {
            self.enter(packet, Some((from, to)));
        }
    }

    /// A packet enters the fabric. Of packets that waited, the hosts are found by their addresses.
    fn enter(&mut self, packet: Carried, known: Option<(usize, usize)>) {
        let (from, to) = match (&packet, known) {
            // Faults give back other packets than the one that they were given.
            (Carried::Roce(frame), _) => {
                let host = |address: IpAddr| host_at(address).filter(|host| *host < self.hosts.len());
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

    /// Time of the next event.
    pub fn next_event(&self) -> Option<Instant> {
        let arrival = self.fabric.next_event();
        let due = self.due.first().map(|(at, _)| *at);
        arrival.into_iter().chain(due).chain(self.faults.next()).min()
    }

    /// Moves the clock to the next arrival or timer, and does all that is due. `false` if nothing will ever
    /// happen.
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
                Due::Held(host) => self.release(host),
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
