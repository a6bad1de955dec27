//! Runs of scenarios.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ferroce_fault::{Judge, Plan};
use ferroce_proto::{QpCaps, SelectiveRepeat};
use ferroce_wire::Instant;

use super::messages::Sender;
use super::{
    Amount, FlowKind, FlowOutcome, HostOutcome, LinkOutcome, MAX_UNDER_WAY, Messages, Operation, Outcome,
    PairOutcome, Place, RuleOutcome, Scenario, ScenarioFlow,
};
use crate::Rng;
use crate::fabric::{Flaws, Node};
use crate::hosts::{ConnectError, Connection, Event, HostId, Hosts, TcpId};

/// Steps between two reports of progress, and between two looks at the number of packets under way.
const STEPS: u64 = 4096;

/// A flow's queue pairs could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("flow {flow}: {source}")]
pub struct RunError {
    /// The name of the flow.
    pub flow: String,
    /// The reason.
    pub source: ConnectError,
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The simulated time.
    pub now: Duration,
    /// The end of the run.
    pub end: Duration,
    /// Packets that queue pairs sent so far.
    pub packets: u64,
}

/// Is given the time and each event.
pub type OnEvent<'o> = Box<dyn FnMut(Instant, &Event<'_>) + 'o>;
/// Is told how far a run is.
pub type OnProgress<'o> = Box<dyn FnMut(Progress) + 'o>;

/// The view that a caller has of a run before it ends.
#[derive(Default)]
pub struct Observer<'o> {
    /// Is given each event.
    pub trace: Option<OnEvent<'o>>,
    /// Is told now and then how far the run is.
    pub progress: Option<OnProgress<'o>>,
}

/// A stream of TCP.
struct TcpTraffic {
    flow: usize,
    pair: [usize; 2],
    start: Instant,
    ecn: bool,
    id: Option<TcpId>,
    /// Octets before the measurement.
    before: u64,
}

struct Run<'o> {
    hosts: Hosts<'o>,
    nodes: Vec<Node>,
    ids: Vec<HostId>,
    senders: Vec<(usize, [usize; 2], Sender)>,
    streams: Vec<TcpTraffic>,
    /// Place in `senders` of each end, by the number of the end.
    of_end: Vec<usize>,
}

/// Something that a run does by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Start {
    Sender(usize),
    Stream(usize),
    Measure,
    /// A sender's peer posts receives again.
    Receives(usize),
}

impl Scenario {
    /// Runs it with this seed.
    ///
    /// # Errors
    ///
    /// If the attributes of a flow's queue pairs are not possible. Messages that fail are part of the
    /// outcome.
    pub fn run(&self, seed: u64) -> Result<Outcome, RunError> {
        self.run_observed(seed, Observer::default())
    }

    /// As [`Self::run`], with an observer. It changes nothing in the run.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn run_observed(&self, seed: u64, observer: Observer<'_>) -> Result<Outcome, RunError> {
        let Observer { trace, mut progress } = observer;
        let mut run = self.prepare(seed)?;
        if let Some(mut trace) = trace {
            run.hosts.set_trace(move |now, event| trace(now, &event));
        }
        let stopped = self.drive(&mut run, &mut progress);
        Ok(self.outcome(seed, run, stopped))
    }

    fn prepare<'o>(&self, seed: u64) -> Result<Run<'o>, RunError> {
        let mut rng = Rng::new(seed);
        let topology = self.topology();
        let nodes = topology.nodes();
        let mut hosts = Hosts::with_seed(topology, rng.next_u64());
        let ids: Vec<HostId> =
            nodes.iter().zip(&self.hosts).map(|(node, host)| hosts.host(*node, host.socket)).collect();
        let faults = rng.next_u64();
        self.harm(&mut hosts, &nodes, &ids, faults);
        let mut run = Run { hosts, nodes, ids, senders: Vec::new(), streams: Vec::new(), of_end: Vec::new() };
        for (index, flow) in self.flows.iter().enumerate() {
            for pair in &flow.pairs {
                for _ in 0..flow.queue_pairs {
                    self.pair(&mut run, &mut rng, (index, flow), *pair)
                        .map_err(|source| RunError { flow: flow.name.clone(), source })?;
                }
            }
        }
        Ok(run)
    }

    /// A queue pair or stream of a flow.
    fn pair(
        &self,
        run: &mut Run<'_>,
        rng: &mut Rng,
        (index, flow): (usize, &ScenarioFlow),
        pair: [usize; 2],
    ) -> Result<(), ConnectError> {
        match &flow.kind {
            FlowKind::Tcp { ecn } => {
                let start = Instant::ZERO + flow.start;
                run.streams.push(TcpTraffic { flow: index, pair, start, ecn: *ecn, id: None, before: 0 });
            }
            FlowKind::Rdma(what) => {
                let connection = self.connection(what, pair, rng);
                let ids = pair.map(|host| run.ids[host]);
                let memories = [Sender::memory(what), Sender::memory(what)];
                let ends = run.hosts.connect(ids, memories, &connection)?;
                run.of_end.extend([run.senders.len(); 2]);
                let sender = Sender::new(ends, what, flow.start, self.warm_up, rng.next_u64());
                run.senders.push((index, pair, sender));
            }
        }
        Ok(())
    }

    fn connection(&self, what: &Messages, pair: [usize; 2], rng: &mut Rng) -> Connection {
        let [one, other] = pair.map(|host| &self.hosts[host]);
        let mut selective_repeat = [one.selective_repeat, other.selective_repeat];
        if selective_repeat != [SelectiveRepeat::Agreed; 2] {
            // Connection management agrees on it only if both ends ask.
            for end in &mut selective_repeat {
                *end = if *end == SelectiveRepeat::Agreed { SelectiveRepeat::Off } else { *end };
            }
        }
        let mut psn = || rng.below(1 << 24) as u32;
        Connection {
            mtu: if one.mtu.bytes() < other.mtu.bytes() { one.mtu } else { other.mtu },
            caps: QpCaps {
                max_send_wr: what.outstanding,
                max_recv_wr: if what.op == Operation::Send { what.receives } else { 1 },
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            rd_atomic: what.rd_atomic,
            timeout: what.timeout,
            retry_cnt: what.retry_cnt,
            rnr_retry: what.rnr_retry,
            min_rnr_timer: what.min_rnr_timer,
            psn: [psn(), psn()],
            selective_repeat,
            congestion: [one.congestion, other.congestion],
        }
    }

    /// Gives hosts, links and the network their faults.
    fn harm(&self, hosts: &mut Hosts<'_>, nodes: &[Node], ids: &[HostId], seed: u64) {
        let mut plans: BTreeMap<Place, Plan> = BTreeMap::new();
        for fault in &self.faults {
            let place = plans.len() as u64;
            let new = || Plan { seed: seed.wrapping_add(place), ..Plan::default() };
            plans.entry(fault.place).or_insert_with(new).rules.push(fault.rule.clone());
        }
        let mut judge = |place: Place| {
            let mut judge = Judge::new(plans.remove(&place)?);
            judge.begin(Instant::ZERO);
            Some(judge)
        };
        hosts.set_judge(judge(Place::Network));
        for (number, id) in ids.iter().enumerate() {
            if let Some(judge) = judge(Place::Host(number)) {
                hosts.set_host_judge(*id, judge);
            }
        }
        for (number, link) in self.links.iter().enumerate() {
            let judge = judge(Place::Link(number));
            if judge.is_none() && link.loss == 0 && link.down.is_empty() {
                continue;
            }
            let time = |time: Duration| match time {
                Duration::MAX => Instant::MAX,
                time => Instant::ZERO + time,
            };
            let down = link.down.iter().map(|range| (time(range.start), time(range.end)));
            let own = Rng::new(seed ^ (number as u64) << 32).next_u64();
            let flaws = Flaws { loss: link.loss, down: down.collect(), seed: own };
            hosts.harm(link.ends.map(|node| nodes[node]), flaws, judge);
        }
    }

    /// Moves the clock until all is done or the run is at its end; the reason if that comes early.
    fn drive(&self, run: &mut Run<'_>, progress: &mut Option<OnProgress<'_>>) -> Option<String> {
        let end = Instant::ZERO + self.end;
        let mut starts: BTreeSet<(Instant, Start)> = BTreeSet::new();
        starts
            .extend(run.senders.iter().enumerate().map(|(index, (_, _, s))| (s.start, Start::Sender(index))));
        starts.extend(run.streams.iter().enumerate().map(|(index, s)| (s.start, Start::Stream(index))));
        starts.insert((Instant::ZERO + self.warm_up, Start::Measure));
        let endless = |flow: &ScenarioFlow| match flow.kind {
            FlowKind::Rdma(what) => what.amount == Amount::Endless && what.expect.is_none(),
            FlowKind::Tcp { .. } => false,
        };
        let ends_early = self.flows.iter().any(|flow| matches!(flow.kind, FlowKind::Rdma(_)))
            && !self.flows.iter().any(endless);
        let mut open: BTreeSet<usize> = (0..run.senders.len()).collect();
        let mut touched = Vec::new();
        for step in 0u64.. {
            if step % STEPS == 0 {
                let packets = run.hosts.stats().sent;
                if let Some(progress) = progress {
                    let now = run.hosts.now().saturating_since(Instant::ZERO);
                    progress(Progress { now, end: self.end, packets });
                }
                if packets > self.max_packets {
                    return Some(format!("after {packets} packets: `max_packets` is {}", self.max_packets));
                }
                if run.hosts.under_way() > MAX_UNDER_WAY {
                    return Some(format!("more than {MAX_UNDER_WAY} packets were under way at a time"));
                }
            }
            let next = run.hosts.next_event();
            let start = starts.first().copied().filter(|(at, _)| next.is_none_or(|next| *at <= next));
            if let Some((at, start)) = start {
                if at > end {
                    break;
                }
                starts.pop_first();
                run.hosts.wait_until(at);
                run.start(start);
                if let Start::Receives(index) = start {
                    let next = run.senders[index].2.next_receive();
                    starts.extend(next.map(|at| (at, start)));
                }
                continue;
            }
            if next.is_none_or(|next| next > end) {
                break;
            }
            run.hosts.step();
            touched.clear();
            touched.extend(run.hosts.touched().map(|end| run.of_end[end.number()]));
            touched.dedup();
            let now = run.hosts.now();
            for index in &touched {
                let sender = &mut run.senders[*index].2;
                sender.pump(&mut run.hosts);
                starts.extend(sender.next_receive().map(|at| (at, Start::Receives(*index))));
                if ends_early && sender.is_done(now) {
                    open.remove(index);
                }
            }
            if ends_early && open.is_empty() {
                return None;
            }
        }
        run.hosts.wait_until(end);
        None
    }

    fn outcome(&self, seed: u64, run: Run<'_>, stopped: Option<String>) -> Outcome {
        let Run { mut hosts, nodes, ids, senders, streams, .. } = run;
        let simulated = hosts.now().saturating_since(Instant::ZERO);
        let name = |host: usize| self.node_name(host).to_owned();
        let mut flows: Vec<FlowOutcome> = self.flows.iter().map(FlowOutcome::of).collect();
        for (flow, [from, to], sender) in &senders {
            let outcome = sender.outcome(&mut hosts);
            flows[*flow].pairs.push(PairOutcome { from: name(*from), to: name(*to), ..outcome });
        }
        for TcpTraffic { flow, pair, start, id, before, .. } in streams {
            let octets = id.map_or(0, |id| hosts.delivered(id)) - before;
            let from = (start.saturating_since(Instant::ZERO)).max(self.warm_up);
            let measured = from..simulated.max(from);
            flows[flow].pairs.push(PairOutcome {
                from: name(pair[0]),
                to: name(pair[1]),
                octets,
                measured,
                ..PairOutcome::default()
            });
        }
        let links = self.links.iter().flat_map(|link| {
            let [one, other] = link.ends;
            [[one, other], [other, one]].map(|[from, to]| {
                let stats = hosts.line(nodes[from], nodes[to]);
                let possible = u128::from(link.line.bits_per_second) * simulated.as_nanos() / 8_000_000_000;
                LinkOutcome {
                    from: name(from),
                    to: name(to),
                    bits_per_second: link.line.bits_per_second,
                    stats,
                    mean_queue: stats.mean_queue(simulated),
                    used: (u128::from(stats.octets) * 1_000_000 / possible.max(1)).min(1_000_000) as u64,
                }
            })
        });
        let links = links.collect();
        let outcomes = ids.iter().zip(&self.hosts);
        let outcomes =
            outcomes.map(|(id, host)| HostOutcome { name: host.name.clone(), socket: hosts.socket(*id) });
        Outcome {
            seed,
            digest: hosts.digest(),
            simulated,
            packets: hosts.stats().sent,
            stopped,
            flows,
            links,
            hosts: outcomes.collect(),
            rules: self.rules(&hosts, &nodes, &ids),
            network: hosts.stats(),
        }
    }

    /// The counts of all rules.
    fn rules(&self, hosts: &Hosts<'_>, nodes: &[Node], ids: &[HostId]) -> Vec<RuleOutcome> {
        let mut places: Vec<Place> = self.faults.iter().map(|fault| fault.place).collect();
        places.sort_unstable();
        places.dedup();
        let mut rules = Vec::new();
        for place in places {
            let (judge, text) = match place {
                Place::Network => (hosts.judge(), "network".to_owned()),
                Place::Host(host) => (hosts.host_judge(ids[host]), format!("host {}", self.node_name(host))),
                Place::Link(link) => {
                    let ends = self.links[link].ends;
                    let [one, other] = ends.map(|node| self.node_name(node));
                    (hosts.link_judge(ends.map(|node| nodes[node])), format!("link {one} {other}"))
                }
            };
            let counts = judge.map(Judge::counts).unwrap_or_default();
            rules.extend(counts.into_iter().map(|count| RuleOutcome {
                place: text.clone(),
                title: count.title,
                matched: count.seen,
                hits: count.hits,
            }));
        }
        rules
    }
}

impl Run<'_> {
    fn start(&mut self, start: Start) {
        match start {
            Start::Sender(index) | Start::Receives(index) => self.senders[index].2.pump(&mut self.hosts),
            Start::Stream(index) => {
                let TcpTraffic { pair, ecn, .. } = self.streams[index];
                let id = self.hosts.tcp(pair.map(|host| self.ids[host]), ecn);
                self.streams[index].id = Some(id);
            }
            Start::Measure => {
                for stream in &mut self.streams {
                    stream.before = stream.id.map_or(0, |id| self.hosts.delivered(id));
                }
            }
        }
    }
}

impl FlowOutcome {
    fn of(flow: &ScenarioFlow) -> Self {
        let op = match &flow.kind {
            FlowKind::Tcp { .. } => "tcp",
            FlowKind::Rdma(what) => match what.op {
                Operation::Send => "send",
                Operation::Write => "write",
                Operation::Read => "read",
                Operation::Atomic => "atomic",
            },
        };
        Self { name: flow.name.clone(), op, pairs: Vec::new() }
    }
}
