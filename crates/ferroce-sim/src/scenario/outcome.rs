//! The outcome of a run.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use ferroce_proto::WcStatus;

use super::histogram::Histogram;
use crate::Stats;
use crate::fabric::LineStats;
use crate::hosts::SocketStats;

/// Jain's index of fairness: 1 if all shares are the same, 1/n if one of n has all.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// The outcome of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// A hash of all packets and completions with their times. Runs with the same hash are the same run.
    pub digest: u64,
    /// The simulated time at its end.
    pub simulated: Duration,
    /// Packets that queue pairs sent.
    pub packets: u64,
    /// Why the run ended before its time, if it is not that all messages were done.
    pub stopped: Option<String>,
    /// The flows, in the order of the scenario.
    pub flows: Vec<FlowOutcome>,
    /// Each direction of each link.
    pub links: Vec<LinkOutcome>,
    /// The hosts.
    pub hosts: Vec<HostOutcome>,
    /// The rules of faults.
    pub rules: Vec<RuleOutcome>,
    /// Packets by what the rules for the whole network did to them.
    pub network: Stats,
}

/// The outcome of a flow.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowOutcome {
    /// The name of the flow.
    pub name: String,
    /// `send`, `write`, `read`, `atomic` or `tcp`.
    pub op: &'static str,
    /// The queue pairs of the flow, or its streams of TCP.
    pub pairs: Vec<PairOutcome>,
}

/// The outcome of a queue pair.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct PairOutcome {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// Work requests posted.
    pub posted: u64,
    /// Work requests that succeeded.
    pub completed: u64,
    /// Work requests that failed, by status.
    pub errors: BTreeMap<&'static str, u64>,
    /// Octets of payload that completed within `measured`.
    pub octets: u64,
    /// The time that is measured: from the warm-up or the start to the last completion or the end.
    pub measured: Range<Duration>,
    /// The time from posting to completion.
    pub latency: Histogram,
    /// Packets that the sender sent again.
    pub resent: u64,
    /// Expiries of the ACK timeout.
    pub timeouts: u64,
    /// RNR NAKs that the receiver sent.
    pub rnr: u64,
    /// Congestion notification packets that the sender received.
    pub cnps: u64,
    /// The promise that was broken; `None` if all were kept.
    pub failure: Option<String>,
}

/// The outcome of one direction of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkOutcome {
    /// The nodes.
    pub from: String,
    /// The nodes.
    pub to: String,
    /// The rate of the link.
    pub bits_per_second: u64,
    /// The counts of the link.
    pub stats: LineStats,
    /// Octets that waited, on average over the run.
    pub mean_queue: u64,
    /// The use of its rate over the run, in millionths.
    pub used: u64,
}

/// The outcome of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostOutcome {
    /// The name of the host.
    pub name: String,
    /// The counts of its socket.
    pub socket: SocketStats,
}

/// The outcome of a rule of faults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleOutcome {
    /// `network`, `host NAME`, or `link NAME NAME`.
    pub place: String,
    /// The rule's name, or its text.
    pub title: String,
    /// Packets for which its terms held.
    pub matched: u64,
    /// Packets that it acted on.
    pub hits: u64,
}

/// Payload in bits a second of queue pairs together, over the time that they measured.
fn goodput<'p>(pairs: impl Iterator<Item = &'p PairOutcome>) -> f64 {
    let (mut octets, mut from, mut until) = (0, Duration::MAX, Duration::ZERO);
    for pair in pairs {
        octets += pair.octets;
        (from, until) = (from.min(pair.measured.start), until.max(pair.measured.end));
    }
    let time = until.saturating_sub(from);
    if time.is_zero() { 0.0 } else { octets as f64 * 8.0 / time.as_secs_f64() }
}

impl PairOutcome {
    /// Payload of the pair in bits a second.
    pub fn goodput(&self) -> f64 {
        goodput(std::iter::once(self))
    }
}

impl Outcome {
    /// Payload in bits a second of all flows together.
    pub fn goodput(&self) -> f64 {
        goodput(self.flows.iter().flat_map(|flow| &flow.pairs))
    }

    /// Whether the run went to its end, and every message ended as promised.
    pub fn is_ok(&self) -> bool {
        self.stopped.is_none() && self.failures().next().is_none()
    }

    /// The queue pairs that did not keep the promise, with their flows.
    pub fn failures(&self) -> impl Iterator<Item = (&FlowOutcome, &PairOutcome)> {
        self.flows.iter().flat_map(|flow| {
            flow.pairs.iter().filter(|pair| pair.failure.is_some()).map(move |pair| (flow, pair))
        })
    }

    /// Jain's index of the goodput of all queue pairs; TCP is left out.
    pub fn jain(&self) -> f64 {
        let rdma = self.flows.iter().filter(|flow| flow.op != "tcp");
        jain(&rdma.flat_map(|flow| &flow.pairs).map(PairOutcome::goodput).collect::<Vec<_>>())
    }
}

impl FlowOutcome {
    /// Jain's index of its queue pairs.
    pub fn jain(&self) -> f64 {
        jain(&self.pairs.iter().map(PairOutcome::goodput).collect::<Vec<_>>())
    }

    /// The sum of a count over its queue pairs.
    pub fn sum(&self, count: impl Fn(&PairOutcome) -> u64) -> u64 {
        self.pairs.iter().map(count).sum()
    }

    /// Messages that succeeded.
    pub fn completed(&self) -> u64 {
        self.sum(|pair| pair.completed)
    }

    /// Messages that failed, by status.
    pub fn errors(&self) -> BTreeMap<&'static str, u64> {
        let mut all = BTreeMap::new();
        for (status, count) in self.pairs.iter().flat_map(|pair| &pair.errors) {
            *all.entry(*status).or_default() += count;
        }
        all
    }

    /// Payload in bits a second of all its queue pairs.
    pub fn goodput(&self) -> f64 {
        goodput(self.pairs.iter())
    }

    /// The latency of all its messages.
    pub fn latency(&self) -> Histogram {
        let mut all = Histogram::default();
        self.pairs.iter().for_each(|pair| all.merge(&pair.latency));
        all
    }
}

/// The name of a status: that of `ibv_wc_status` without `IBV_WC_`.
pub const fn status_name(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "SUCCESS",
        WcStatus::LocLenErr => "LOC_LEN_ERR",
        WcStatus::LocQpOpErr => "LOC_QP_OP_ERR",
        WcStatus::LocEecOpErr => "LOC_EEC_OP_ERR",
        WcStatus::LocProtErr => "LOC_PROT_ERR",
        WcStatus::WrFlushErr => "WR_FLUSH_ERR",
        WcStatus::MwBindErr => "MW_BIND_ERR",
        WcStatus::BadRespErr => "BAD_RESP_ERR",
        WcStatus::LocAccessErr => "LOC_ACCESS_ERR",
        WcStatus::RemInvReqErr => "REM_INV_REQ_ERR",
        WcStatus::RemAccessErr => "REM_ACCESS_ERR",
        WcStatus::RemOpErr => "REM_OP_ERR",
        WcStatus::RetryExcErr => "RETRY_EXC_ERR",
        WcStatus::RnrRetryExcErr => "RNR_RETRY_EXC_ERR",
        WcStatus::LocRddViolErr => "LOC_RDD_VIOL_ERR",
        WcStatus::RemInvRdReqErr => "REM_INV_RD_REQ_ERR",
        WcStatus::RemAbortErr => "REM_ABORT_ERR",
        WcStatus::InvEecnErr => "INV_EECN_ERR",
        WcStatus::InvEecStateErr => "INV_EEC_STATE_ERR",
        WcStatus::FatalErr => "FATAL_ERR",
        WcStatus::RespTimeoutErr => "RESP_TIMEOUT_ERR",
        WcStatus::GeneralErr => "GENERAL_ERR",
    }
}
