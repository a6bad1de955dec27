//! Scenarios: hosts, switches, links, flows and faults, as a file describes them, and runs of them.
//!
//! A [`Scenario`] is read from TOML, or built in Rust. [`Scenario::run`] runs it in virtual time with a seed
//! and returns an [`Outcome`]. Each flow sends messages with real queue pairs, and each message is checked:
//! its octets, and that it completes once and in order. The same scenario with the same seed is the same run,
//! packet by packet, on every machine; [`Outcome::digest`] tells.
//!
//! ```
//! use ferroce_sim::scenario::Scenario;
//!
//! let scenario: Scenario = r#"
//!     end = "1s"
//!     [[host]]
//!     name = "client"
//!     [[host]]
//!     name = "server"
//!     [[link]]
//!     ends = ["client", "server"]
//!     rate = "10gbit"
//!     delay = "5us"
//!     loss = "1%"
//!     [[flow]]
//!     from = "client"
//!     to = "server"
//!     op = "write"
//!     size = "64k"
//!     messages = 100
//! "#.parse().unwrap();
//! let outcome = scenario.run(7).unwrap();
//! assert!(outcome.is_ok());
//! assert_eq!(outcome.flows[0].completed(), 100);
//! assert!(outcome.links.iter().any(|link| link.stats.lost > 0));
//! assert_eq!(outcome.digest, scenario.run(7).unwrap().digest);
//! assert_ne!(outcome.digest, scenario.run(8).unwrap().digest);
//! ```

mod error;
mod file;
mod histogram;
mod messages;
mod outcome;
mod resolve;
mod run;
mod words;

use std::ops::Range;
use std::time::Duration;

use ferroce_fault::Rule;
use ferroce_proto::{CongestionControl, SelectiveRepeat, WcStatus};
use ferroce_wire::PathMtu;

use crate::fabric::Line;
use crate::hosts::Socket;

pub use self::error::ScenarioError;
pub use self::histogram::Histogram;
pub use self::outcome::{
    FlowOutcome, HostOutcome, LinkOutcome, Outcome, PairOutcome, RuleOutcome, jain, status_name,
};
pub use self::run::{Observer, OnEvent, OnProgress, Progress, RunError};
pub use self::words::Operation;

/// The most hosts and switches.
pub const MAX_NODES: usize = 1024;
/// The most links.
pub const MAX_LINKS: usize = 4096;
/// The most queue pairs that flows have at their senders.
pub const MAX_QUEUE_PAIRS: usize = crate::hosts::MAX_ENDS / 2;
/// The most octets of memory that the messages of all flows have.
pub const MAX_MEMORY: u64 = 1 << 30;
/// The most packets that may be under way at a time; a run with more ends.
pub const MAX_UNDER_WAY: usize = 1_000_000;
/// The packets that a run may send if the file does not say.
pub const DEFAULT_PACKETS: u64 = 100_000_000;
/// The longest run, in simulated time.
pub const LONGEST: Duration = Duration::from_secs(3600);

/// Example files with their names: the book's page about simulation explains them.
pub const EXAMPLES: &[(&str, &str)] = &[
    ("incast", include_str!("../../scenarios/incast.toml")),
    ("lossy", include_str!("../../scenarios/lossy.toml")),
    ("partition", include_str!("../../scenarios/partition.toml")),
    ("replay", include_str!("../../scenarios/replay.toml")),
    ("all", include_str!("../../scenarios/all.toml")),
];

/// Hosts and links, the messages between them, and the faults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// The seed of a run for which no other one is named.
    pub seed: u64,
    /// The simulated time at which a run ends at the latest.
    pub end: Duration,
    /// Time before which completions are not part of goodput and latency.
    pub warm_up: Duration,
    /// A run ends, and has failed, when its queue pairs have sent more packets.
    pub max_packets: u64,
    /// Names of switches. As nodes they come behind the hosts.
    pub switches: Vec<String>,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The links.
    pub links: Vec<Link>,
    /// The flows.
    pub flows: Vec<ScenarioFlow>,
    /// The faults.
    pub faults: Vec<Fault>,
}

/// A host: one process with a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// The name of the host.
    pub name: String,
    /// The receive buffer of the host, and the time that its process takes.
    pub socket: Socket,
    /// The largest path MTU of its queue pairs.
    pub mtu: PathMtu,
    /// The congestion control of its queue pairs.
    pub congestion: CongestionControl,
    /// How its queue pairs repeat what was lost. [`SelectiveRepeat::Agreed`] takes effect if both ends have
    /// it.
    pub selective_repeat: SelectiveRepeat,
}

/// A link between two nodes: hosts in their order, then switches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The nodes.
    pub ends: [usize; 2],
    /// The properties of the link.
    pub line: Line,
    /// So many of a million packets are lost, of any kind and in both directions.
    pub loss: u32,
    /// Times in which nothing passes.
    pub down: Vec<Range<Duration>>,
}

/// The messages between hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScenarioFlow {
    /// The name of the flow.
    pub name: String,
    /// Senders and receivers, by their place in the list of hosts; each pair has as many queue pairs.
    pub pairs: Vec<[usize; 2]>,
    /// Queue pairs of each pair of hosts.
    pub queue_pairs: usize,
    /// Time at which the flow begins.
    pub start: Duration,
    /// The traffic of the flow.
    pub kind: FlowKind,
}

/// The traffic of a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FlowKind {
    /// Messages of reliable queue pairs.
    Rdma(Messages),
    /// Octets without end over TCP (NewReno).
    Tcp {
        /// The sender understands ECN marks.
        ecn: bool,
    },
}

/// The messages of each queue pair of a flow, and its attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Messages {
    /// The operation.
    pub op: Operation,
    /// Octets of each.
    pub size: u32,
    /// How many.
    pub amount: Amount,
    /// Work requests that are posted and not completed.
    pub outstanding: u32,
    /// Receive work requests that are posted, for SENDs.
    pub receives: u32,
    /// The time from the completion of a receive to its next posting.
    pub receive_delay: Duration,
    /// ACK timeout code.
    pub timeout: u8,
    /// Resends without an answer.
    pub retry_cnt: u8,
    /// Resends after RNR NAKs; 7 is without end.
    pub rnr_retry: u8,
    /// The code of the time that RNR NAKs ask for.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding.
    pub rd_atomic: u8,
    /// The error with which the flow is to end; `None` if all messages are to succeed.
    pub expect: Option<WcStatus>,
}

impl Messages {
    /// Octets of memory that the messages of a queue pair have at each end.
    fn memory(&self) -> u64 {
        u64::from(self.size.max(8)) * u64::from(self.outstanding.max(self.receives))
    }
}

/// The number of messages of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// So many.
    Messages(u64),
    /// As many as it can post within this time after its start.
    During(Duration),
    /// As many as it can until the end of the run, which then cuts off some: these are no failures.
    Endless,
}

/// A rule of faults with its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The place where the rule applies.
    pub place: Place,
    /// The rule, which acts on packets.
    pub rule: Rule,
}

/// The place of a fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Each packet as it leaves its host, as its receiver sees it.
    Network,
    /// The process of a host, as `ferroce run --fault` does.
    Host(usize),
    /// In front of a link, by its place in the list. `dir=tx` is from its first end to the second.
    Link(usize),
}

impl Scenario {
    /// The name of a host or switch.
    pub fn node_name(&self, node: usize) -> &str {
        let switches = || self.switches.get(node - self.hosts.len().min(node)).map(String::as_str);
        self.hosts.get(node).map(|host| host.name.as_str()).or_else(switches).unwrap_or("?")
    }
}

#[cfg(test)]
mod tests;
