//! Flows share a receiver or a link fairly; the figures are those of the book's page about congestion.

use std::time::Duration;

use ferroce_sim::congestion::{incast, shared_link};
use ferroce_sim::fabric::LineStats;
use ferroce_sim::scenario::{FlowOutcome, LinkOutcome, Outcome, PairOutcome, Scenario, jain};

fn outcome(scenario: &Scenario) -> Outcome {
    let outcome = scenario.run(1).unwrap();
    assert!(outcome.is_ok(), "{outcome:?}");
    println!("{:.0?}, TCP {:.0?}, {:?}", flows(&outcome), tcp(&outcome), outcome.links[0]);
    outcome
}

/// Bits a second of each RDMA flow.
fn flows(outcome: &Outcome) -> Vec<f64> {
    let rdma = outcome.flows.iter().filter(|flow| flow.op != "tcp");
    rdma.flat_map(|flow| &flow.pairs).map(PairOutcome::goodput).collect()
}

fn goodput(outcome: &Outcome) -> f64 {
    flows(outcome).iter().sum()
}

fn tcp(outcome: &Outcome) -> Option<f64> {
    outcome.flows.iter().find(|flow| flow.op == "tcp").map(FlowOutcome::goodput)
}

/// The link that the flows share.
fn shared(outcome: &Outcome) -> (u64, LineStats) {
    let LinkOutcome { mean_queue, stats, .. } = outcome.links[0];
    (mean_queue, stats)
}

/// The scenario with a shorter measurement.
fn shorter(scenario: Scenario, measured: u64) -> Scenario {
    Scenario { end: scenario.warm_up + Duration::from_millis(measured), ..scenario }
}

/// The goodput of one sender.
fn alone(switch: bool, ecn: bool, selective: bool) -> f64 {
    goodput(&outcome(&shorter(incast(1, switch, ecn, selective), 100)))
}

#[test]
fn jain_is_one_for_equal_shares_and_the_reciprocal_for_one_winner() {
    assert_eq!(jain(&[3.0; 4]), 1.0);
    assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
    assert_eq!(jain(&[0.0; 4]), 0.0);
}

/// Sixteen processes write to one whose socket holds 208 KiB and which is slower than the network. Nothing marks.
#[test]
fn incast_at_a_socket_is_fair_and_costs_less_than_three_tenths() {
    for selective in [false, true] {
        let all = outcome(&incast(16, false, false, selective));
        assert!(all.hosts.iter().any(|host| host.socket.dropped > 0), "the socket is the bottleneck");
        assert_eq!(shared(&all).1.overflowed, 0, "the socket is the bottleneck");
        assert!(all.jain() >= 0.9, "{:.3}", all.jain());
        let least = 0.7 * alone(false, false, selective);
        assert!(goodput(&all) >= least, "{selective}: {:.0}", goodput(&all));
    }
}

/// The same in front of the receiver's link, whose queue holds as much and can mark.
#[test]
fn incast_at_a_switch_with_marks_keeps_the_queue_short() {
    let [without, with] = [false, true].map(|ecn| {
        let all = outcome(&shorter(incast(16, true, ecn, false), 400));
        assert!(all.jain() >= 0.9, "{:.3}", all.jain());
        assert!(goodput(&all) >= 0.7 * alone(true, ecn, false), "{:.0}", goodput(&all));
        shared(&all)
    });
    assert_eq!(without.1.marked, 0);
    assert!(with.1.marked > 0);
    assert!(with.0 * 10 < without.0, "{} of {}", with.0, without.0);
    assert!(with.1.overflowed * 100 < without.1.overflowed, "{with:?} of {without:?}");
}

/// A queue that drops is fair to flows on average: a single run of 20 seconds has some dozens of losses.
#[test]
fn two_flows_share_a_slow_link() {
    let all = at_several_hosts(false);
    for outcome in &all {
        within(0.2, &flows(outcome));
        assert!(goodput(outcome) >= 80e6, "{:.0}", goodput(outcome));
    }
    within(0.1, &sums(&all));
    let marks = outcome(&shared_link(false, true));
    within(0.1, &flows(&marks));
    assert!(goodput(&marks) >= 80e6, "{:.0}", goodput(&marks));
    let [with, without] = [&marks, &all[1]].map(|outcome| shared(outcome).0);
    assert!(with * 4 < without, "{with} of {without}");
}

/// A TCP flow beside them has at least half of a third.
#[test]
fn two_flows_share_a_slow_link_and_do_not_starve_tcp() {
    let mut all = at_several_hosts(true);
    within(0.1, &sums(&all));
    let marks = outcome(&shared_link(true, true));
    within(0.1, &flows(&marks));
    all.push(marks);
    for outcome in &all {
        within(0.2, &flows(outcome));
        let tcp = tcp(outcome).unwrap();
        assert!(tcp >= 0.5 * 100e6 / 3.0, "{tcp:.0}");
        assert!(goodput(outcome) + tcp >= 80e6, "{tcp:.0}");
    }
}

/// Without marks, where hosts are late by up to 20 µs, 100 µs and 1 ms.
fn at_several_hosts(tcp: bool) -> Vec<Outcome> {
    let late = [20, 100, 1000].map(Duration::from_micros);
    let scenario = |jitter| {
        let mut scenario = shared_link(tcp, false);
        scenario.hosts.iter_mut().for_each(|host| host.socket.jitter = jitter);
        scenario
    };
    late.iter().map(|jitter| outcome(&scenario(*jitter))).collect()
}

/// The sum of all runs for each flow.
fn sums(all: &[Outcome]) -> Vec<f64> {
    (0..2).map(|flow| all.iter().map(|outcome| flows(outcome)[flow]).sum()).collect()
}

/// No flow is further away from the mean.
fn within(share: f64, flows: &[f64]) {
    let mean = flows.iter().sum::<f64>() / flows.len() as f64;
    assert!(flows.iter().all(|flow| (flow - mean).abs() <= share * mean), "{flows:.0?}");
}
