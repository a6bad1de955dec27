//! The table of the book's page about congestion: `cargo run --release -p ferroce-sim --example congestion`.

use std::error::Error;

use ferroce_sim::congestion::{incast, shared_link};
use ferroce_sim::scenario::{FlowOutcome, PairOutcome, Scenario};

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<44} {:>7} {:>11} {:>6} {:>7} {:>7} {:>7} {:>6} {:>6}",
        "", "Mbit/s", "each of two", "Jain", "TCP", "mean", "most", "drops", "resent"
    );
    let row = |name: &str, scenario: &Scenario| -> Result<(), Box<dyn Error>> {
        let outcome = scenario.run(1)?;
        let (tcp, rdma): (Vec<&FlowOutcome>, _) = outcome.flows.iter().partition(|flow| flow.op == "tcp");
        let tcp = tcp.first().map_or_else(|| "-".to_owned(), |tcp| format!("{:.1}", tcp.goodput() / 1e6));
        let pairs = rdma.iter().flat_map(|flow| &flow.pairs);
        let flows: Vec<f64> = pairs.clone().map(PairOutcome::goodput).collect();
        let each = match flows.as_slice() {
            [one, other] => format!("{:.1} {:.1}", one / 1e6, other / 1e6),
            _ => "-".to_owned(),
        };
        let shared = &outcome.links[0];
        println!(
            "{name:<44} {:>7.1} {each:>11} {:>6.3} {tcp:>7} {:>7} {:>7} {:>6} {:>6}",
            flows.iter().sum::<f64>() / 1e6,
            outcome.jain(),
            shared.mean_queue,
            shared.stats.longest_queue,
            shared.stats.overflowed + outcome.hosts.iter().map(|host| host.socket.dropped).sum::<u64>(),
            pairs.map(|pair| pair.resent).sum::<u64>(),
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
                for selective in [false, true] {
                    let name = format!(
                        "{flows} to 1, {place}{}{}",
                        if ecn { ", DCQCN" } else { "" },
                        if selective { ", selective" } else { "" }
                    );
                    row(&name, &incast(flows, switch, ecn, selective))?;
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
