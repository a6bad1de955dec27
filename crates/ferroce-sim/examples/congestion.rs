//! The table of the book's page about congestion: `cargo run --release -p ferroce-sim --example congestion`.

use std::error::Error;

use ferroce_proto::SelectiveRepeat;
use ferroce_sim::congestion::{Scenario, incast, run, shared_link};

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<44} {:>7} {:>11} {:>6} {:>7} {:>7} {:>7} {:>6} {:>6}",
        "", "Mbit/s", "each of two", "Jain", "TCP", "mean", "most", "drops", "resent"
    );
    let row = |name: &str, scenario: &Scenario| -> Result<(), Box<dyn Error>> {
        let outcome = run(scenario)?;
        let tcp = outcome.tcp.map_or_else(|| "-".to_owned(), |tcp| format!("{:.1}", tcp / 1e6));
        let each = match outcome.flows.as_slice() {
            [one, other] => format!("{:.1} {:.1}", one / 1e6, other / 1e6),
            _ => "-".to_owned(),
        };
        println!(
            "{name:<44} {:>7.1} {each:>11} {:>6.3} {tcp:>7} {:>7} {:>7} {:>6} {:>6}",
            outcome.goodput() / 1e6,
            outcome.jain(),
            outcome.mean_queue,
            outcome.longest_queue,
            outcome.overflowed + outcome.socket_drops,
            outcome.resent,
        );
        Ok(())
    };
    for (place, switch) in [("socket", false), ("switch", true)] {
        for ecn in [false, true] {
            if ecn && !switch {
                // A socket marks nothing.
                continue;
            }
            for flows in [1, 16] {
                for selective_repeat in [SelectiveRepeat::Off, SelectiveRepeat::Agreed] {
                    let selective = selective_repeat == SelectiveRepeat::Agreed;
                    let name = format!(
                        "{flows} to 1, {place}{}{}",
                        if ecn { ", DCQCN" } else { "" },
                        if selective { ", selective" } else { "" }
                    );
                    row(&name, &Scenario { selective_repeat, ..incast(flows, switch, ecn) })?;
                }
            }
        }
    }
    for tcp in [false, true] {
        for ecn in [false, true] {
            let name = format!(
                "2 flows, 100 Mbit/s{}{}",
                if tcp { ", TCP" } else { "" },
                if ecn { ", DCQCN" } else { "" }
            );
            row(&name, &shared_link(tcp, ecn))?;
        }
    }
    Ok(())
}
