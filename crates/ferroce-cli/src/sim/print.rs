//! The outcome of a run as text.

use std::fmt::Write;
use std::time::Duration;

use ferroce_sim::scenario::{FlowOutcome, Histogram, LinkOutcome, Outcome, PairOutcome};

/// Rows of links without `-d`.
const LINKS: usize = 12;

/// A line for a seed among many.
pub fn summary(outcome: &Outcome) -> String {
    let state = if outcome.is_ok() { "ok" } else { "FAILED" };
    let messages: u64 = outcome.flows.iter().map(FlowOutcome::completed).sum();
    format!(
        "seed {} hash {:016x} {state}: {messages} messages in {}, {} packets, {}\n",
        outcome.seed,
        outcome.digest,
        time(Some(outcome.simulated)),
        outcome.packets,
        bits(outcome.goodput())
    )
}

/// The tables of one run.
pub fn whole(outcome: &Outcome, details: bool) -> String {
    let mut text = summary(outcome);
    text.push('\n');
    text.push_str(&table(&flows(outcome, details)));
    let jain = outcome.jain();
    if jain > 0.0 {
        let _ = writeln!(text, "\nJain's index of all queue pairs: {jain:.3}");
    }
    text.push('\n');
    let mut links: Vec<&LinkOutcome> = outcome.links.iter().collect();
    let all = links.len();
    if !details && all > LINKS {
        links.sort_by_key(|link| std::cmp::Reverse((link.stats.overflowed + link.stats.lost, link.used)));
        links.truncate(LINKS);
    }
    text.push_str(&table(&rows_of_links(&links)));
    if links.len() < all {
        let _ = writeln!(text, "… and {} more; -d lists all", all - links.len());
    }
    let dropped = outcome.hosts.iter().filter(|host| host.socket.dropped > 0);
    let sockets: Vec<Vec<String>> = dropped
        .map(|host| {
            let socket = host.socket;
            vec![
                host.name.clone(),
                socket.taken.to_string(),
                socket.dropped.to_string(),
                octets(socket.longest),
            ]
        })
        .collect();
    if !sockets.is_empty() {
        text.push('\n');
        text.push_str(&table(&headed(&["socket", "taken", "dropped", "most waiting"], sockets)));
    }
    if !outcome.rules.is_empty() {
        let rules = outcome.rules.iter().map(|rule| {
            vec![rule.hits.to_string(), rule.matched.to_string(), format!("{}: {}", rule.place, rule.title)]
        });
        text.push('\n');
        text.push_str(&table(&headed(&["hits", "matched", "rule"], rules.collect())));
    }
    text
}

/// The broken promises of a run, a sentence each; of many, the first ones.
pub fn failures(outcome: &Outcome) -> Vec<String> {
    const MOST: usize = 5;
    let mut lines: Vec<String> = outcome.stopped.iter().map(|why| format!("stopped {why}")).collect();
    let broken = outcome.failures().map(|(flow, pair)| {
        let PairOutcome { from, to, failure, .. } = pair;
        format!("flow {}, {from} to {to}: {}", flow.name, failure.as_deref().unwrap_or_default())
    });
    lines.extend(broken);
    let more = lines.len().saturating_sub(MOST);
    lines.truncate(MOST);
    lines.extend((more > 0).then(|| format!("and {more} more")));
    lines
}

fn headed(head: &[&str], rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let mut all = vec![head.iter().map(|word| (*word).to_owned()).collect()];
    all.extend(rows);
    all
}

fn flows(outcome: &Outcome, details: bool) -> Vec<Vec<String>> {
    let head = [
        "flow", "op", "pairs", "messages", "errors", "goodput", "p50", "p99", "longest", "resent", "RNR",
        "CNPs", "Jain",
    ];
    let mut rows = Vec::new();
    for flow in &outcome.flows {
        rows.push(flow_row(flow, &flow.name, flow.pairs.len().to_string(), Some(flow.jain())));
        if details {
            for pair in &flow.pairs {
                let one = FlowOutcome { pairs: vec![pair.clone()], ..flow.clone() };
                rows.push(flow_row(&one, &format!("  {} to {}", pair.from, pair.to), String::new(), None));
            }
        }
    }
    headed(&head, rows)
}

fn flow_row(flow: &FlowOutcome, name: &str, pairs: String, jain: Option<f64>) -> Vec<String> {
    let mut row = vec![name.to_owned(), flow.op.to_owned(), pairs];
    if flow.op == "tcp" {
        row.extend(["-", "-"].map(str::to_owned));
        row.push(bits(flow.goodput()));
        row.extend(["-"; 6].map(str::to_owned));
    } else {
        let latency: Histogram = flow.latency();
        let errors: Vec<String> =
            flow.errors().iter().map(|(status, count)| format!("{status}:{count}")).collect();
        row.push(flow.completed().to_string());
        row.push(if errors.is_empty() { "0".to_owned() } else { errors.join(",") });
        row.push(bits(flow.goodput()));
        row.extend([50.0, 99.0, 100.0].map(|percent| time(latency.percentile(percent))));
        let sums: [fn(&PairOutcome) -> u64; 3] = [|pair| pair.resent, |pair| pair.rnr, |pair| pair.cnps];
        row.extend(sums.map(|count| flow.sum(count).to_string()));
    }
    row.push(jain.map_or_else(String::new, |jain| format!("{jain:.3}")));
    row
}

fn rows_of_links(links: &[&LinkOutcome]) -> Vec<Vec<String>> {
    let rows = links.iter().map(|link| {
        let stats = link.stats;
        vec![
            format!("{} to {}", link.from, link.to),
            bits(link.bits_per_second as f64),
            format!("{:.1}%", link.used as f64 / 1e4),
            stats.passed.to_string(),
            octets(link.mean_queue),
            octets(stats.longest_queue),
            stats.overflowed.to_string(),
            stats.lost.to_string(),
            stats.marked.to_string(),
        ]
    });
    headed(
        &["link", "rate", "used", "packets", "mean queue", "most", "overflowed", "lost", "marked"],
        rows.collect(),
    )
}

/// Columns as wide as their longest cell; numbers to the right.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    // A column of names has a word in its second row.
    let left = |column: usize| {
        let cells = rows.iter().skip(1).filter_map(|row| row.get(column));
        cells.clone().next().is_some_and(|cell| cell.starts_with(|c: char| c.is_alphabetic()))
    };
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            let gap = if column == 0 { "" } else { "  " };
            match left(column) {
                true => line.extend([gap, cell, &pad]),
                false => line.extend([gap, &pad, cell]),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let (scale, unit) = units.iter().find(|(scale, _)| value >= *scale).copied().unwrap_or((1.0, ""));
    let number = value / scale;
    match number {
        _ if unit.is_empty() => format!("{value:.0}"),
        n if n >= 100.0 => format!("{n:.0}{unit}"),
        n if n >= 10.0 => format!("{n:.1}{unit}"),
        n => format!("{n:.2}{unit}"),
    }
}

fn bits(rate: f64) -> String {
    scaled(rate, &[(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (f64::MIN_POSITIVE, "bit/s")])
}

fn octets(amount: u64) -> String {
    scaled(amount as f64, &[(1_048_576.0, "m"), (1024.0, "k")])
}

fn time(time: Option<Duration>) -> String {
    let Some(time) = time else { return "-".to_owned() };
    scaled(time.as_nanos() as f64, &[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")])
}
