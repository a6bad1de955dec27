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

/// Without marks two flows hold their shares while the queue is half full, so that only their sum is asserted.
#[test]
fn two_flows_share_a_slow_link_that_marks() {
    let [without, with] = [false, true].map(|ecn| outcome(&shared_link(false, ecn)));
    for outcome in [&without, &with] {
        assert!(outcome.goodput() >= 80e6, "{:.0}", outcome.goodput());
    }
    within_a_tenth(&with);
    assert!(with.mean_queue * 4 < without.mean_queue, "{} of {}", with.mean_queue, without.mean_queue);
}

/// A TCP flow beside them has at least a quarter of a third, and with marks half of a third.
#[test]
fn two_flows_share_a_slow_link_and_do_not_starve_tcp() {
    let [without, with] = [false, true].map(|ecn| outcome(&shared_link(true, ecn)));
    for (outcome, least) in [(&without, 0.25), (&with, 0.5)] {
        within_a_tenth(outcome);
        let tcp = outcome.tcp.unwrap();
        assert!(tcp >= least * 100e6 / 3.0, "{tcp:.0}");
        assert!(outcome.goodput() + tcp >= 80e6, "{outcome:?}");
    }
}

fn within_a_tenth(outcome: &Outcome) {
    let mean = outcome.goodput() / outcome.flows.len() as f64;
    let apart = outcome.flows.iter().all(|flow| (flow - mean).abs() <= 0.1 * mean);
    assert!(apart, "{:.0?}", outcome.flows);
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
