//! Outcomes as JSON. Times are nanoseconds, rates bits a second, amounts octets.

use anyhow::Result;
use ferroce_sim::scenario::{FlowOutcome, Histogram, Outcome, PairOutcome};
use serde_json::{Value, json};

use crate::args::Style;

/// An array with an object for each run.
pub fn array(outcomes: &[Outcome], style: Style) -> Result<String> {
    let all: Vec<Value> = outcomes.iter().map(|outcome| object(outcome, style.details)).collect();
    let mut text =
        if style.pretty { serde_json::to_string_pretty(&all)? } else { serde_json::to_string(&all)? };
    text.push('\n');
    Ok(text)
}

fn object(outcome: &Outcome, details: bool) -> Value {
    let links = outcome.links.iter().map(|link| {
        let stats = link.stats;
        json!({
            "from": link.from, "to": link.to, "rate": link.bits_per_second, "used": link.used as f64 / 1e6,
            "packets": stats.passed, "octets": stats.octets, "mean_queue": link.mean_queue,
            "longest_queue": stats.longest_queue, "overflowed": stats.overflowed, "lost": stats.lost,
            "marked": stats.marked,
        })
    });
    let hosts = outcome.hosts.iter().map(|host| {
        let socket = host.socket;
        json!({"name": host.name, "taken": socket.taken, "dropped": socket.dropped, "longest": socket.longest})
    });
    let rules = outcome.rules.iter().map(
        |rule| json!({"place": rule.place, "rule": rule.title, "hits": rule.hits, "matched": rule.matched}),
    );
    json!({
        "seed": outcome.seed,
        // As text, because JSON's numbers have 53 bits.
        "hash": format!("{:016x}", outcome.digest),
        "ok": outcome.is_ok(),
        "stopped": outcome.stopped,
        "simulated": nanos(Some(outcome.simulated)),
        "packets": outcome.packets,
        "goodput": outcome.goodput(),
        "jain": outcome.jain(),
        "flows": outcome.flows.iter().map(|flow| flow_object(flow, details)).collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
        "hosts": hosts.collect::<Vec<_>>(),
        "rules": rules.collect::<Vec<_>>(),
    })
}

fn nanos(time: Option<std::time::Duration>) -> Option<u64> {
    time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn latency(all: &Histogram) -> Value {
    let [p50, p90, p99, longest] = [50.0, 90.0, 99.0, 100.0].map(|percent| nanos(all.percentile(percent)));
    json!({"p50": p50, "p90": p90, "p99": p99, "longest": longest})
}

fn flow_object(flow: &FlowOutcome, details: bool) -> Value {
    let failures = flow.pairs.iter().filter_map(|pair| pair.failure.as_ref());
    let mut object = json!({
        "name": flow.name, "op": flow.op, "queue_pairs": flow.pairs.len(), "messages": flow.completed(),
        "errors": flow.errors(), "goodput": flow.goodput(), "latency": latency(&flow.latency()),
        "resent": flow.sum(|pair| pair.resent), "timeouts": flow.sum(|pair| pair.timeouts),
        "rnr": flow.sum(|pair| pair.rnr), "cnps": flow.sum(|pair| pair.cnps), "jain": flow.jain(),
        "failures": failures.collect::<Vec<_>>(),
    });
    if details && let Some(fields) = object.as_object_mut() {
        fields.insert("pairs".to_owned(), flow.pairs.iter().map(pair_object).collect());
    }
    object
}

fn pair_object(pair: &PairOutcome) -> Value {
    json!({
        "from": pair.from, "to": pair.to, "posted": pair.posted, "messages": pair.completed, "errors": pair.errors,
        "goodput": pair.goodput(), "latency": latency(&pair.latency), "resent": pair.resent,
        "timeouts": pair.timeouts, "rnr": pair.rnr, "cnps": pair.cnps, "failure": pair.failure,
    })
}
