//! The rows of the usual table: the measures of issue 12 that have a limit, and those of earlier issues.

use super::spec::{Path, Program, Spec};

/// How a row's value is computed from a measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// More is better.
    GigabytesPerSecond,
    /// Millions of messages a second; more is better.
    Messages,
    /// Less is better.
    Microseconds,
    /// Seconds of processor time of both ends; less is better.
    CpuPerGigabyte,
}

impl Unit {
    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::GigabytesPerSecond => "GB/s",
            Self::Messages => "M messages/s",
            Self::Microseconds => "µs",
            Self::CpuPerGigabyte => "CPU s/GB",
        }
    }

    /// Whether a larger value is the better one.
    pub fn is_more_better(self) -> bool {
        matches!(self, Self::GigabytesPerSecond | Self::Messages)
    }
}

/// A limit, and what one would like to reach. At least for bandwidth and rates, at most for the rest.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub must: f64,
    pub goal: Option<f64>,
    /// Of the ratio to the first rival; otherwise of the value itself.
    pub of_ratio: bool,
}

/// A rival and its name in tables.
#[derive(Clone, Debug)]
pub struct Rival {
    pub name: &'static str,
    pub spec: Spec,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub measure: String,
    pub unit: Unit,
    pub ours: Spec,
    /// The ratio is that to the first.
    pub rivals: Vec<Rival>,
    pub limits: Option<Limits>,
}

/// Octets of a write of TCP's.
const TCP_WRITE: u64 = 65_536;

/// The longest time without progress beside one busy process a core, in milliseconds.
pub const STALL: f64 = 100.0;

impl Row {
    /// A row without rivals or limits.
    pub fn new(measure: impl Into<String>, path: Path, unit: Unit, program: Program, size: u64) -> Self {
        let ours = Spec { program, size, path, busy: false, processes: 1 };
        Self { measure: measure.into(), unit, ours, rivals: Vec::new(), limits: None }
    }

    /// With one more rival. Programs that know nothing of shared memory run over loopback beside it.
    pub fn against(mut self, name: &'static str, program: Program) -> Self {
        let own = matches!(program, Program::Own(_));
        let path = if own && self.ours.path == Path::Host { Path::Wire } else { self.ours.path };
        // TCP's writes are of one size, so that rows of several sizes have the same rival.
        let size = if program == Program::Own("tcp") { TCP_WRITE } else { self.ours.size };
        let spec = Spec { program, path, size, ..self.ours.clone() };
        self.rivals.push(Rival { name, spec });
        self
    }

    fn tcp(self) -> Self {
        self.against("TCP, 64 KiB writes", Program::Own("tcp"))
    }

    fn spinning(self) -> Self {
        self.against("UDP, spinning", Program::Own("udp-spin"))
    }

    fn limit(mut self, must: f64, goal: Option<f64>, of_ratio: bool) -> Self {
        self.limits = Some(Limits { must, goal, of_ratio });
        self
    }

    fn ratio(self, must: f64, goal: f64) -> Self {
        self.limit(must, Some(goal), true)
    }

    fn value(self, must: f64, goal: f64) -> Self {
        self.limit(must, Some(goal), false)
    }

    /// The same row beside one busy process a core, where only stalls are limited.
    fn busy(mut self) -> Self {
        self.ours.busy = true;
        self.rivals.iter_mut().for_each(|rival| rival.spec.busy = true);
        self.limits = None;
        self
    }

    /// The path, for tables and filters.
    pub fn path(&self) -> String {
        format!("{}{}", self.ours.path.name(), if self.ours.busy { ", busy" } else { "" })
    }

    /// Path and measure.
    pub fn name(&self) -> String {
        format!("{}: {}", self.path(), self.measure)
    }

    /// Every measure that the row shows.
    pub fn specs(&self) -> impl Iterator<Item = &Spec> {
        std::iter::once(&self.ours).chain(self.rivals.iter().map(|rival| &rival.spec))
    }
}

/// perftest with one queue pair.
pub fn perftest(program: &'static str, flags: &str) -> Program {
    Program::Perftest { program, flags: flags.to_owned(), pairs: 1 }
}

/// perftest with many queue pairs.
pub fn many(program: &'static str, pairs: u64) -> Program {
    // perftest's completion queue has room for the send queues of all pairs together.
    let depth = if pairs > 1000 { " -t 16" } else { "" };
    Program::Perftest { program, flags: format!("-q {pairs}{depth}"), pairs }
}

/// The usual table.
pub fn usual() -> Vec<Row> {
    use Unit::{CpuPerGigabyte, GigabytesPerSecond, Messages, Microseconds};
    let (wire, host, cut) = (Path::Wire, Path::Host, Path::Cut);
    let bw = |program| perftest(program, "");
    let (one, gso) = (Program::Own("udp-one"), Program::Own("udp-gso"));
    let rates = |row: Row| {
        row.against("UDP, one by one", one.clone())
            .against("UDP, 64 in one call", gso.clone())
            .ratio(4.0, 10.0)
    };
    let bytes = |measure: &str, path, size| {
        Row::new(measure, path, GigabytesPerSecond, bw("ib_write_bw"), size).tcp()
    };
    let latency =
        |measure: &str, path, program| Row::new(measure, path, Microseconds, bw(program), 8).spinning();
    let own = |measure: &str, kind, rival, name| {
        Row::new(measure, wire, Microseconds, Program::Vbench(kind), 8).against(name, Program::Own(rival))
    };
    let (send, write, read) = (
        "SEND 8 B, half round trip, polling",
        "WRITE 8 B, half round trip, both spin on memory",
        "READ 8 B, target in no call",
    );
    let mut rows = vec![
        rates(Row::new("WRITE 8 B", wire, Messages, bw("ib_write_bw"), 8)),
        rates(Row::new("SEND 8 B", wire, Messages, bw("ib_send_bw"), 8)),
        bytes("WRITE 4 KiB", wire, 4096).ratio(0.5, 0.9),
        bytes("WRITE 64 KiB", wire, 65_536).ratio(0.9, 1.0),
        bytes("WRITE 1 MiB", wire, 1 << 20).limit(0.5, None, true),
        Row { unit: CpuPerGigabyte, ..bytes("WRITE 64 KiB, processor time", wire, 65_536) }.ratio(1.5, 1.0),
        Row::new(
            "WRITE 64 KiB, 1,000 queue pairs",
            wire,
            GigabytesPerSecond,
            many("ib_write_bw", 1000),
            65_536,
        )
        .against("1 queue pair", bw("ib_write_bw"))
        .ratio(0.7, 0.95),
        latency(send, wire, "ib_send_lat").ratio(1.4, 1.1),
        latency(write, wire, "ib_write_lat"),
        latency(read, wire, "ib_read_lat"),
        own("SEND 8 B, half round trip, events", "send-event", "udp-block", "UDP, blocking")
            .limit(1.6, None, true),
        own("SEND 8 B, half round trip, own epoll", "send-epoll", "tcp-epoll", "TCP, own epoll")
            .limit(1.5, None, true),
        bytes("WRITE 64 KiB", cut, 65_536),
        bytes("WRITE 1 MiB", cut, 1 << 20),
        latency(send, cut, "ib_send_lat"),
        latency(send, host, "ib_send_lat").value(1.0, 0.3),
        latency(write, host, "ib_write_lat").value(4.0, 1.7),
        latency(read, host, "ib_read_lat").value(4.0, 1.7),
        bytes("WRITE 1 MiB", host, 1 << 20).ratio(1.5, 2.3),
        Row::new("WRITE 8 B", host, Messages, bw("ib_write_bw"), 8).value(5.0, 15.0),
        Row::new("SEND 8 B", host, Messages, bw("ib_send_bw"), 8).value(5.0, 15.0),
    ];
    for (program, measure) in [
        ("ib_write_bw", "WRITE 8 B, posted in lists of 32"),
        ("ib_send_bw", "SEND 8 B, posted in lists of 32"),
    ] {
        let row = |path| Row::new(measure, path, Messages, perftest(program, "-l 32"), 8);
        rows.push(row(wire).against("UDP, 64 in one call", gso.clone()));
        rows.push(row(host).value(5.0, 15.0));
    }
    for path in [wire, host] {
        // perftest's bandwidth programs do not tell stalls, vbench does.
        let stalls =
            |measure: &str, unit, size| Row::new(measure, path, unit, Program::Vbench("write"), size);
        rows.push(
            stalls("WRITE 8 B, 16 in flight", Messages, 8).against("UDP, one by one", one.clone()).busy(),
        );
        for (size, measure) in [
            (4096, "WRITE 4 KiB, 16 in flight"),
            (65_536, "WRITE 64 KiB, 16 in flight"),
            (1 << 20, "WRITE 1 MiB, 16 in flight"),
        ] {
            rows.push(stalls(measure, GigabytesPerSecond, size).tcp().busy());
        }
        rows.push(latency(send, path, "ib_send_lat").busy());
        rows.push(latency(write, path, "ib_write_lat").busy());
        rows.push(latency(read, path, "ib_read_lat").busy());
    }
    rows
}

/// The rows whose name contains one of the filters.
pub fn filtered(rows: Vec<Row>, words: &[String]) -> Vec<Row> {
    let chosen = |row: &Row| {
        let name = row.name().to_lowercase();
        words.is_empty() || words.iter().any(|word| name.contains(&word.to_lowercase()))
    };
    rows.into_iter().filter(chosen).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_a_rival_where_a_ratio_is_limited() {
        let rows = usual();
        let names: BTreeSet<String> = rows.iter().map(Row::name).collect();
        assert_eq!(names.len(), rows.len());
        for row in &rows {
            assert!(
                !row.limits.is_some_and(|limits| limits.of_ratio) || !row.rivals.is_empty(),
                "{}",
                row.name()
            );
        }
    }

    #[test]
    fn a_filter_looks_at_path_and_measure() {
        let left = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            filtered(usual(), &words).len()
        };
        assert_eq!(left(&[]), usual().len());
        assert_eq!(left(&["wire: write 64 kib, 1,000"]), 1);
        assert_eq!(left(&["cut:", "no such row"]), 3);
    }
}
