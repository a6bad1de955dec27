//! How flows share a receiver or a link: the scenarios of the book's page about congestion.
//!
//! Each flow is a queue pair that writes 64 KiB messages without end, 16 outstanding, from a host of its own.
//! What is counted happens after a warm-up, since all flows start at once with windows that nothing has
//! adapted.

use std::time::Duration;

use ferroce_proto::{CongestionControl, Remote, SelectiveRepeat, SendOp, SendWr, Sge, WcStatus};
use ferroce_wire::{Instant, Lkey, PathMtu, Rkey};

use crate::fabric::{Line, LineStats, Node, Topology};
use crate::hosts::{ConnectError, Connection, EndId, HostId, Hosts, Socket};
use crate::ram::Ram;

const KEY: u32 = 1;
/// Octets of a message, and messages outstanding.
const LEN: u32 = 64 << 10;
const DEPTH: u64 = 16;

/// The place where flows meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bottleneck {
    /// The links of the senders.
    pub edge: Line,
    /// The link to the receivers.
    pub line: Line,
    /// The sockets of the receivers.
    pub socket: Socket,
    /// The receive buffer that the senders take their own and the receiver's to have.
    pub sender: Socket,
}

/// Flows that meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// The place.
    pub bottleneck: Bottleneck,
    /// Senders of RDMA WRITEs.
    pub flows: usize,
    /// Whether a TCP flow (NewReno) crosses the link as well.
    pub tcp: bool,
    /// All flows go to one host; otherwise each goes to a host of its own behind the link.
    pub one_receiver: bool,
    /// Whether senders understand marks and react to them (DCQCN), TCP too.
    pub ecn: bool,
    /// Octets of payload of a packet.
    pub mtu: PathMtu,
    /// How lost requests are repeated.
    pub selective_repeat: SelectiveRepeat,
    /// The time before the measurement.
    pub warm_up: Duration,
    /// The time of the measurement.
    pub measured: Duration,
}

/// The outcome of a scenario.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Payload in bits a second of each RDMA flow.
    pub flows: Vec<f64>,
    /// And of the TCP flow.
    pub tcp: Option<f64>,
    /// Octets that waited in front of the shared link: on average over the whole run, warm-up included.
    pub mean_queue: u64,
    /// The most that waited there.
    pub longest_queue: u64,
    /// Packets that the link's queue dropped.
    pub overflowed: u64,
    /// Packets that the link's queue marked.
    pub marked: u64,
    /// Packets that the sockets dropped.
    pub socket_drops: u64,
    /// Packets that were sent again.
    pub resent: u64,
    /// A hash of the run.
    pub digest: u64,
}

impl Outcome {
    /// The sum of all RDMA flows in bits a second.
    pub fn goodput(&self) -> f64 {
        self.flows.iter().sum()
    }

    /// Jain's index of the RDMA flows: 1 if all have the same, 1/n if one has all.
    pub fn jain(&self) -> f64 {
        jain(&self.flows)
    }
}

/// Jain's index of fairness.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// A fast line with a queue that no scenario fills.
pub const fn fast(bits_per_second: u64) -> Line {
    Line { bits_per_second, delay: Duration::from_micros(2), queue: 16 << 20, mark: None }
}

/// So many senders to one receiver whose socket has 208 KiB. `switch`: the last link has 10 Gbit/s, a queue
/// of 208 KiB and a threshold of marks, and the process takes packets at once. Otherwise the link is fast,
/// and the process takes 1 µs for a packet.
pub fn incast(flows: usize, switch: bool, ecn: bool) -> Scenario {
    let small = 208 << 10;
    let line = match switch {
        true => {
            Line { bits_per_second: 10_000_000_000, queue: small as u64, mark: Some(32 << 10), ..fast(0) }
        }
        false => fast(100_000_000_000),
    };
    let per_packet = if switch { Duration::ZERO } else { Duration::from_micros(1) };
    let jitter = Duration::from_micros(2);
    let socket = Socket { buffer: small, per_packet, batch: 32, jitter, ..Socket::default() };
    let sender = Socket { per_packet: Duration::ZERO, ..socket };
    Scenario {
        bottleneck: Bottleneck { edge: fast(100_000_000_000), line, socket, sender },
        flows,
        tcp: false,
        one_receiver: true,
        ecn,
        mtu: PathMtu::B1024,
        selective_repeat: SelectiveRepeat::Off,
        warm_up: Duration::from_millis(50),
        measured: Duration::from_secs(1),
    }
}

/// Two flows over a link of 100 Mbit/s with a queue of 128 KiB (10 ms), perhaps beside a TCP flow. The round
/// trip without a queue takes 2 ms.
pub fn shared_link(tcp: bool, ecn: bool) -> Scenario {
    let mark = Some(20 << 10);
    let line = Line { bits_per_second: 100_000_000, delay: Duration::from_millis(1), queue: 128 << 10, mark };
    let socket = Socket { jitter: Duration::from_micros(100), ..Socket::default() };
    Scenario {
        bottleneck: Bottleneck { edge: fast(10_000_000_000), line, socket, sender: socket },
        flows: 2,
        tcp,
        one_receiver: false,
        ecn,
        mtu: PathMtu::B1024,
        selective_repeat: SelectiveRepeat::Off,
        warm_up: Duration::from_secs(5),
        measured: Duration::from_secs(20),
    }
}

/// A flow of RDMA WRITEs.
struct Writer {
    end: EndId,
    posted: u64,
    completed: u64,
    /// Messages that had completed when the warm-up ended.
    before: u64,
}

struct Run<'r> {
    hosts: Hosts<'r>,
    writers: Vec<Writer>,
}

impl Run<'_> {
    /// Takes completions, and posts as many messages again.
    fn pump(&mut self, index: usize) {
        let writer = &mut self.writers[index];
        let end = self.hosts.end(writer.end);
        for completion in end.sends.drain(..) {
            assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
            writer.completed += 1;
        }
        let sges = [Sge { addr: 0, length: LEN, lkey: Lkey::new(KEY) }];
        let op = SendOp::Write { remote: Remote { addr: 0, rkey: Rkey::new(KEY) } };
        while writer.posted - writer.completed < DEPTH {
            let posted = end.qp.post_send(&SendWr::signaled(writer.posted, op, &sges), &end.mem);
            assert_eq!(posted, Ok(()));
            writer.posted += 1;
        }
        self.hosts.drain(writer.end);
    }

    fn until(&mut self, time: Instant) {
        while self.hosts.next_event().is_some_and(|next| next <= time) {
            self.hosts.step();
            let touched: Vec<EndId> = self.hosts.touched().collect();
            for index in 0..self.writers.len() {
                let Writer { end, .. } = self.writers[index];
                if touched.contains(&end) && !self.hosts.end(end).sends.is_empty() {
                    self.pump(index);
                }
            }
        }
    }
}

fn memory() -> Ram {
    let mut ram = Ram::default();
    ram.register(KEY, 0, vec![0x5a; LEN as usize]);
    ram
}

/// Runs a scenario.
///
/// # Errors
///
/// If the queue pairs cannot be created.
///
/// # Panics
///
/// If a message fails.
pub fn run(scenario: &Scenario) -> Result<Outcome, ConnectError> {
    let Scenario { bottleneck, flows, tcp, one_receiver, ecn, .. } = *scenario;
    let mut topology = Topology::default();
    let [near, far]: [Node; 2] = [(); 2].map(|()| topology.node());
    // With one receiver the link is that of the receiver itself.
    topology.link(near, far, bottleneck.line);
    let host = |topology: &mut Topology, at: Node| {
        let node = topology.node();
        topology.link(node, at, bottleneck.edge);
        node
    };
    let count = flows + usize::from(tcp);
    let senders: Vec<Node> = (0..count).map(|_| host(&mut topology, near)).collect();
    let receivers: Vec<Node> = match one_receiver {
        true => vec![far],
        false => (0..count).map(|_| host(&mut topology, far)).collect(),
    };
    let mut hosts = Hosts::new(topology);
    let senders: Vec<HostId> = senders.iter().map(|node| hosts.host(*node, bottleneck.sender)).collect();
    let receivers: Vec<HostId> = receivers.iter().map(|node| hosts.host(*node, bottleneck.socket)).collect();
    let to = |index: usize| receivers[index % receivers.len()];
    let connection = Connection {
        mtu: scenario.mtu,
        selective_repeat: [scenario.selective_repeat; 2],
        congestion: [if ecn { CongestionControl::Full } else { CongestionControl::React }; 2],
        ..Connection::default()
    };
    let mut writers = Vec::new();
    for (index, sender) in senders.iter().enumerate().take(flows) {
        let [end, _] = hosts.connect([*sender, to(index)], [memory(), memory()], &connection)?;
        writers.push(Writer { end, posted: 0, completed: 0, before: 0 });
    }
    let mut run = Run { hosts, writers };
    (0..flows).for_each(|index| run.pump(index));
    let stream = tcp.then(|| run.hosts.tcp([senders[flows], to(flows)], ecn));
    let start = Instant::ZERO + scenario.warm_up;
    run.until(start);
    run.writers.iter_mut().for_each(|writer| writer.before = writer.completed);
    let delivered = |run: &Run<'_>| stream.map(|stream| run.hosts.delivered(stream));
    let before = delivered(&run);
    let end = start + scenario.measured;
    run.until(end);
    let seconds = scenario.measured.as_secs_f64();
    let line: LineStats = run.hosts.line(near, far);
    let rate = |writer: &Writer| (writer.completed - writer.before) as f64 * f64::from(LEN) * 8.0 / seconds;
    let ends: Vec<EndId> = run.writers.iter().map(|writer| writer.end).collect();
    Ok(Outcome {
        flows: run.writers.iter().map(rate).collect(),
        tcp: delivered(&run).zip(before).map(|(now, before)| (now - before) as f64 * 8.0 / seconds),
        mean_queue: line.mean_queue(end.saturating_since(Instant::ZERO)),
        longest_queue: line.longest_queue,
        overflowed: line.overflowed,
        marked: line.marked,
        socket_drops: receivers.iter().map(|host| run.hosts.socket(*host).dropped).sum(),
        resent: ends.iter().map(|end| run.hosts.end(*end).qp.counters().resent_pkts).sum(),
        digest: run.hosts.digest(),
    })
}
