//! Flows share a receiver or a link fairly; the figures are those of the book's page about congestion.

use std::time::Duration;

use ferroce_proto::SelectiveRepeat;
use ferroce_sim::congestion::{Outcome, Scenario, incast, jain, run, shared_link};

fn outcome(scenario: &Scenario) -> Outcome {
    let outcome = run(scenario).unwrap();
    println!("{scenario:?}\n{outcome:.0?}\nJain {:.3}", outcome.jain());
    outcome
}

/// The goodput of one sender.
fn alone(scenario: &Scenario) -> f64 {
    outcome(&Scenario { flows: 1, measured: Duration::from_millis(100), ..*scenario }).goodput()
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
    for selective_repeat in [SelectiveRepeat::Off, SelectiveRepeat::Agreed] {
        let scenario = Scenario { selective_repeat, ..incast(16, false, false) };
        let all = outcome(&scenario);
        assert!(all.socket_drops > 0 && all.overflowed == 0, "the socket is the bottleneck");
        assert!(all.jain() >= 0.9, "{:.3}", all.jain());
        assert!(all.goodput() >= 0.7 * alone(&scenario), "{selective_repeat:?}: {:.0}", all.goodput());
    }
}

/// The same in front of the receiver's link, whose queue holds as much and can mark.
#[test]
fn incast_at_a_switch_with_marks_keeps_the_queue_short() {
    let quick = |ecn| Scenario { measured: Duration::from_millis(400), ..incast(16, true, ecn) };
    let [without, with] = [false, true].map(|ecn| outcome(&quick(ecn)));
    for (all, ecn) in [(&without, false), (&with, true)] {
        assert!(all.jain() >= 0.9, "{:.3}", all.jain());
        assert!(all.goodput() >= 0.7 * alone(&quick(ecn)), "{:.0}", all.goodput());
    }
    assert_eq!(without.marked, 0);
    assert!(with.marked > 0);
    assert!(with.mean_queue * 10 < without.mean_queue, "{} of {}", with.mean_queue, without.mean_queue);
    assert!(with.overflowed * 100 < without.overflowed, "{} of {}", with.overflowed, without.overflowed);
}

/// A queue that drops is fair to flows on average: a single run of 20 seconds has some dozens of losses.
#[test]
fn two_flows_share_a_slow_link() {
    let all = at_several_hosts(false);
    for outcome in &all {
        within(0.2, &outcome.flows);
        assert!(outcome.goodput() >= 80e6, "{:.0}", outcome.goodput());
    }
    within(0.1, &sums(&all));
    let marks = outcome(&shared_link(false, true));
    within(0.1, &marks.flows);
    assert!(marks.goodput() >= 80e6, "{:.0}", marks.goodput());
    let without = all[1].mean_queue;
    assert!(marks.mean_queue * 4 < without, "{} of {without}", marks.mean_queue);
}

/// A TCP flow beside them has at least half of a third.
#[test]
fn two_flows_share_a_slow_link_and_do_not_starve_tcp() {
    let mut all = at_several_hosts(true);
    within(0.1, &sums(&all));
    let marks = outcome(&shared_link(true, true));
    within(0.1, &marks.flows);
    all.push(marks);
    for outcome in &all {
        within(0.2, &outcome.flows);
        let tcp = outcome.tcp.unwrap();
        assert!(tcp >= 0.5 * 100e6 / 3.0, "{tcp:.0}");
        assert!(outcome.goodput() + tcp >= 80e6, "{outcome:?}");
    }
}

/// Without marks, where hosts are late by up to 20 µs, 100 µs and 1 ms.
fn at_several_hosts(tcp: bool) -> Vec<Outcome> {
    let late = [20, 100, 1000].map(Duration::from_micros);
    let scenario = |jitter| {
        let mut scenario = shared_link(tcp, false);
        scenario.bottleneck.socket.jitter = jitter;
        scenario.bottleneck.sender.jitter = jitter;
        scenario
    };
    late.iter().map(|jitter| outcome(&scenario(*jitter))).collect()
}

/// The sum of all runs for each flow.
fn sums(all: &[Outcome]) -> Vec<f64> {
    (0..all[0].flows.len()).map(|flow| all.iter().map(|outcome| outcome.flows[flow]).sum()).collect()
}

/// No flow is further away from the mean.
fn within(share: f64, flows: &[f64]) {
    let mean = flows.iter().sum::<f64>() / flows.len() as f64;
    assert!(flows.iter().all(|flow| (flow - mean).abs() <= share * mean), "{flows:.0?}");
}

#[test]
fn a_scenario_repeats() {
    let scenario = Scenario {
        warm_up: Duration::from_millis(2),
        measured: Duration::from_millis(10),
        ..incast(16, true, true)
    };
    assert_eq!(outcome(&scenario).digest, outcome(&scenario).digest);
}
