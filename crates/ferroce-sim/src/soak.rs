//! A soak: messages of all kinds between queue pairs of several hosts, on a bad network that a seed chooses.
//!
//! A seed gives a topology, queue pairs with their attributes, a plan of faults and the messages. [`check`]
//! runs it and says how it went. The same seed with the same number of messages is the same run, packet by
//! packet.
//!
//! No run may fail legally. A lone packet is sent up to five times in each of eight ACK timeouts, so that 40
//! losses in a row end a queue pair. Plans lose at most 5 % of the packets of a direction singly, and a burst
//! ends with at least 40 % at each packet.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ferroce_fault::{Judge, Plan};
use ferroce_proto::SelectiveRepeat::{self, Agreed, Off, Offered};
use ferroce_proto::{CongestionControl, Counters};
use ferroce_wire::{Instant, PathMtu};

use crate::fabric::{Line, Topology};
use crate::hosts::{Connection, EndId, Hosts, Socket};
use crate::trace;
use crate::workload::{Direction, MAX_LEN, memory};
use crate::{Rng, Stats};

/// The simulated time that a run may take: so much, and so much for each message.
const START: Duration = Duration::from_secs(2);
const EACH: Duration = Duration::from_micros(500);

/// Ends that can repeat selectively; the last two have a standard peer.
const SELECTIVE: [[SelectiveRepeat; 2]; 4] =
    [[Agreed, Agreed], [Offered, Offered], [Offered, Off], [Off, Offered]];

/// The setting that a seed gives.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The seed.
    pub seed: u64,
    /// Hosts on one switch, 2 to 4.
    pub hosts: usize,
    /// The links of the hosts.
    pub line: Line,
    /// The socket of each host.
    pub socket: Socket,
    /// The hosts of each connection, and its attributes.
    pub connections: Vec<([usize; 2], Connection)>,
    /// The plan of faults, as text.
    pub plan: String,
    /// For the messages.
    rng: Rng,
}

/// The outcome of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Messages that completed at both ends.
    pub messages: u64,
    /// The simulated time that they took.
    pub simulated: Duration,
    /// A hash of all packets and completions with their times.
    pub digest: u64,
    /// Packets by what the plan did to them.
    pub network: Stats,
    /// Packets that queues and sockets dropped.
    pub overflowed: u64,
    /// Packets whose ICRC was wrong.
    pub bad_icrc: u64,
    /// Packets that were sent again, and messages that a peer executed from hold.
    pub resent: u64,
    /// Requests that came too early, were held and executed.
    pub held: u64,
    /// RNR NAKs sent.
    pub rnr: u64,
}

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}

impl Setting {
    /// The setting of a seed. Every other seed has selective repeat.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let hosts = 2 + rng.below(3) as usize;
        let line = Line {
            bits_per_second: one_of(
                &mut rng,
                &[1_000_000_000, 10_000_000_000, 25_000_000_000, 100_000_000_000],
            ),
            delay: Duration::from_micros(1 + rng.below(20)),
            queue: one_of(&mut rng, &[64 << 10, 256 << 10, 4 << 20]),
            mark: rng.chance(500_000).then_some(32 << 10),
        };
        let socket = Socket {
            buffer: one_of(&mut rng, &[64 << 10, 208 << 10, 4 << 20]),
            per_packet: Duration::from_nanos(one_of(&mut rng, &[0, 300, 1000])),
            batch: 1 + rng.below(64) as usize,
            jitter: Duration::from_nanos(one_of(&mut rng, &[0, 2000, 50_000])),
            hold_blocks: one_of(&mut rng, &[0, 1, 8, 128]),
        };
        let connections = (0..1 + rng.below(4)).map(|_| {
            let one = rng.below(hosts as u64) as usize;
            let other = (one + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
            let near_wrap = rng.chance(300_000);
            let mut psn = || if near_wrap { 0xff_ff00 + rng.below(256) } else { rng.below(1 << 24) } as u32;
            let psn = [psn(), psn()];
            let connection = Connection {
                mtu: one_of(&mut rng, &PathMtu::ALL),
                rd_atomic: one_of(&mut rng, &[1, 4, 16]),
                min_rnr_timer: one_of(&mut rng, &[1, 5]),
                psn,
                selective_repeat: if seed.is_multiple_of(2) {
                    [Off; 2]
                } else {
                    one_of(&mut rng, &SELECTIVE)
                },
                congestion: [one_of(&mut rng, &[CongestionControl::React, CongestionControl::Full]); 2],
                ..Connection::default()
            };
            ([one, other], connection)
        });
        let connections = connections.collect();
        let plan = plan(seed, &mut rng);
        Self { seed, hosts, line, socket, connections, plan, rng }
    }
}

/// Faults of each kind, or not.
fn plan(seed: u64, rng: &mut Rng) -> String {
    let mut rules = vec![format!("seed={seed}")];
    let mut some = |most: u64| if rng.chance(700_000) { rng.below(most) } else { 0 };
    let [drop, burst, leave, dup, reorder, corrupt, late] =
        [50_000, 3_000, 20, 20_000, 30_000, 5_000, 200].map(&mut some);
    let by_time = some(100);
    rules.push(format!("drop {drop}ppm"));
    rules.push(format!("burst({burst}ppm,{}%)", 40 + leave));
    rules.push(format!("dup {dup}ppm"));
    rules.push(format!("reorder {reorder}ppm"));
    rules.push(format!("reorder {}ppm by={}us", reorder / 2, 1 + by_time));
    rules.push(format!("corrupt {corrupt}ppm"));
    if late > 0 {
        rules.push(format!("delay={late}us~{late}us if nth=every/32"));
    }
    rules.join("; ")
}

/// A run that an assertion or a bug ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("seed {seed}: {message}")]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The message of the panic.
    pub message: String,
}

/// Runs the setting of a seed with the given number of messages, and checks each octet and completion.
///
/// # Errors
///
/// If something was wrong. The panic's place has then been printed.
pub fn check(seed: u64, messages: u64) -> Result<Report, Failure> {
    catch_unwind(AssertUnwindSafe(|| run(&Setting::of_seed(seed), messages, None))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let message = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned();
        Failure { seed, message }
    })
}

/// Reports the events of a run as text, by line.
pub type Lines<'a> = &'a mut dyn FnMut(String);

/// As [`check`], of a setting, with a trace.
///
/// # Panics
///
/// If something is wrong.
pub fn run(setting: &Setting, messages: u64, report: Option<Lines<'_>>) -> Report {
    let Setting { hosts: count, line, socket, connections, plan, rng, .. } = setting;
    let mut rng = rng.clone();
    let (topology, nodes, switch) = Topology::star(*count, *line);
    let mut hosts = Hosts::new(topology);
    let ids: Vec<_> = nodes.iter().map(|node| hosts.host(*node, *socket)).collect();
    let plan: Plan = plan.parse().unwrap_or_else(|error| panic!("{plan}: {error}"));
    hosts.set_judge(Some(Judge::new(plan)));
    if let Some(report) = report {
        hosts.set_trace(move |now, event| report(trace::line(now, &event)));
    }
    let directions = connections.len() as u64 * 2;
    let mut pairs = Vec::new();
    for (index, (ends, connection)) in connections.iter().enumerate() {
        let ends = hosts.connect(ends.map(|host| ids[host]), [memory(), memory()], connection);
        let ends = ends.unwrap_or_else(|error| panic!("{connection:?}: {error}"));
        let total = |side: u64| {
            let before = |number: u64| messages * number / directions;
            before(2 * index as u64 + side + 1) - before(2 * index as u64 + side)
        };
        let ways = [0, 1].map(|side| Direction::new(rng.fork(), total(side), MAX_LEN));
        pairs.push((ends, ways));
    }
    let limit = Instant::ZERO + START + EACH * messages as u32;
    let mut ready: Vec<usize> = (0..pairs.len()).collect();
    loop {
        for pair in ready.drain(..) {
            let (ends, [one, other]) = &mut pairs[pair];
            let now = hosts.now();
            one.pump(now, hosts.ends(*ends));
            other.pump(now, hosts.ends([ends[1], ends[0]]));
            ends.iter().for_each(|end| hosts.drain(*end));
        }
        if pairs.iter().all(|(_, ways)| ways.iter().all(Direction::is_done)) {
            break;
        }
        assert!(hosts.step(), "nothing will ever happen, and messages are left");
        assert!(
            hosts.now() <= limit,
            "not done after {:?} of simulated time",
            START + EACH * messages as u32
        );
        let touched: Vec<EndId> = hosts.touched().collect();
        ready.extend((0..pairs.len()).filter(|pair| pairs[*pair].0.iter().any(|end| touched.contains(end))));
    }
    let ends: Vec<EndId> = pairs.iter().flat_map(|(ends, _)| *ends).collect();
    let counters: Vec<Counters> = ends.iter().map(|end| *hosts.end(*end).qp.counters()).collect();
    let sum = |count: fn(&Counters) -> u64| counters.iter().map(count).sum();
    let queues =
        nodes.iter().map(|node| hosts.line(*node, switch).overflowed + hosts.line(switch, *node).overflowed);
    let sockets = ids.iter().map(|host| hosts.socket(*host).dropped);
    Report {
        messages: pairs.iter().flat_map(|(_, ways)| ways).map(Direction::posted).sum(),
        simulated: hosts.now().saturating_since(Instant::ZERO),
        digest: hosts.digest(),
        network: hosts.stats(),
        overflowed: queues.chain(sockets).sum(),
        bad_icrc: ends.iter().map(|end| hosts.end(*end).bad_icrc).sum(),
        resent: sum(|counters| counters.resent_pkts),
        held: sum(|counters| counters.held_executed),
        rnr: sum(|counters| counters.send_rnr_err),
    }
}
