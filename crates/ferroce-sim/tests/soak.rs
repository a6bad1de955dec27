//! A short soak; `just soak` is the long one.

use ferroce_sim::Seed;
use ferroce_sim::soak::{Report, Setting, check, run};

const SEEDS: u64 = 20;
const MESSAGES: u64 = 1000;

type Count = fn(&Report) -> u64;

#[test]
fn messages_of_all_kinds_on_twenty_bad_networks() {
    let first = Seed::for_test("messages_of_all_kinds_on_twenty_bad_networks", 1).value;
    let reports: Vec<Report> = (first..first + SEEDS)
        .map(|seed| check(seed, MESSAGES).unwrap_or_else(|failure| panic!("{failure}")))
        .collect();
    assert_eq!(reports.iter().map(|report| report.messages).sum::<u64>(), SEEDS * MESSAGES);
    let counts: [(&str, Count); 9] = [
        ("dropped", |report| report.network.dropped),
        ("duplicated", |report| report.network.duplicated),
        ("delayed", |report| report.network.delayed),
        ("corrupted", |report| report.network.corrupted),
        ("overflowed", |report| report.overflowed),
        ("wrong ICRC", |report| report.bad_icrc),
        ("resent", |report| report.resent),
        ("held", |report| report.held),
        ("RNR NAKs", |report| report.rnr),
    ];
    for (name, count) in counts {
        assert_ne!(reports.iter().map(count).sum::<u64>(), 0, "{name}");
    }
}

#[test]
fn a_seed_replays() {
    let runs = [8, 8, 9, 9].map(|seed| check(seed, 500).unwrap_or_else(|failure| panic!("{failure}")));
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[2], runs[3]);
    assert_ne!(runs[0].digest, runs[2].digest);
}

/// A trace changes nothing, and has a line for each packet.
#[test]
fn a_trace_is_of_the_same_run() {
    let mut lines = Vec::new();
    let traced = run(&Setting::of_seed(8), 500, Some(&mut |line| lines.push(line)));
    assert_eq!(Ok(&traced), check(8, 500).as_ref());
    let sent = lines.iter().filter(|line| line.contains(" sends ")).count() as u64;
    assert_eq!(sent, traced.network.sent);
    let mut without = Setting::of_seed(8);
    without.plan = "seed=8".to_owned();
    let other = run(&without, 500, None);
    assert_ne!(other.digest, traced.digest, "the plan has an effect");
}
