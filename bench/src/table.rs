//! A finished table: each row with its medians, spread, ratio and verdicts, as Markdown and as JSON.

use serde_json::{Value, json};

use super::rows::{Limits, Row, STALL, Unit};
use super::runner::{Measured, Outcome};
use super::spec::{Figures, Spec};
use ferroce_harness::figures::median;

/// One measure in the unit of its row.
pub struct Cell {
    pub name: String,
    /// Sorted.
    pub samples: Vec<f64>,
    /// Of the samples, if there are any.
    pub median: Option<f64>,
    cpu_per_gigabyte: Option<f64>,
    cpu_per_million: Option<f64>,
    /// The longest of all rounds, in milliseconds.
    pub stall: Option<f64>,
    /// The reason for which a sample is not there.
    missing: Option<String>,
    /// How many runs failed.
    failures: u32,
}

/// A row with its figures.
pub struct Line {
    pub path: String,
    pub measure: String,
    pub unit: Unit,
    pub busy: bool,
    pub ours: Cell,
    pub rivals: Vec<Cell>,
    pub ratio: Option<f64>,
    limits: Option<Limits>,
}

/// The figures of all rows.
pub fn lines(rows: &[Row], outcome: &Outcome) -> Vec<Line> {
    rows.iter().map(|row| line(row, outcome)).collect()
}

fn line(row: &Row, outcome: &Outcome) -> Line {
    let nothing = Measured::default();
    let cell = |name: &str, spec: &Spec| {
        Cell::new(name.to_owned(), row.unit, spec, outcome.get(spec).unwrap_or(&nothing))
    };
    let ours = cell("ferroce", &row.ours);
    let rivals: Vec<Cell> = row.rivals.iter().map(|rival| cell(rival.name, &rival.spec)).collect();
    let ratio = ours.median.zip(rivals.first().and_then(|rival| rival.median)).map(|(a, b)| a / b);
    Line {
        path: row.path(),
        measure: row.measure.clone(),
        unit: row.unit,
        busy: row.ours.busy,
        ours,
        rivals,
        ratio,
        limits: row.limits,
    }
}

fn value(unit: Unit, spec: &Spec, figures: &Figures) -> Option<f64> {
    let bytes = spec.size as f64;
    match unit {
        Unit::GigabytesPerSecond => Some(figures.rate * bytes / 1e9),
        Unit::Messages => Some(figures.rate / 1e6),
        Unit::Microseconds => figures.micros,
        Unit::CpuPerGigabyte => figures.cpu.map(|cpu| cpu / bytes * 1e9),
    }
}

impl Cell {
    fn new(name: String, unit: Unit, spec: &Spec, measured: &Measured) -> Self {
        let mut samples: Vec<f64> =
            measured.rounds.iter().filter_map(|figures| value(unit, spec, figures)).collect();
        let middle = median(&mut samples);
        let mut cpu: Vec<f64> = measured.rounds.iter().filter_map(|figures| figures.cpu).collect();
        let cpu = Some(median(&mut cpu)).filter(|cpu| cpu.is_finite());
        let stall = measured.rounds.iter().filter_map(|figures| figures.stall).max_by(f64::total_cmp);
        Self {
            name,
            median: Some(middle).filter(|middle| middle.is_finite()),
            samples,
            cpu_per_gigabyte: cpu.map(|cpu| cpu / spec.size as f64 * 1e9),
            cpu_per_million: cpu.map(|cpu| cpu * 1e6),
            stall,
            missing: measured.missing.clone(),
            failures: measured.failures,
        }
    }

    /// Median and spread.
    pub fn text(&self) -> String {
        match (self.median, self.samples.first(), self.samples.last()) {
            (Some(middle), Some(least), Some(most)) => {
                let failed = match self.failures {
                    0 => String::new(),
                    count => format!(", **{count} failed**"),
                };
                format!("{} ({}–{}){failed}", short(middle), short(*least), short(*most))
            }
            _ => match &self.missing {
                Some(why) if why.starts_with("not available") => "not available".to_owned(),
                Some(why) if why.contains("apt install") => "not installed".to_owned(),
                _ => "failed".to_owned(),
            },
        }
    }

    fn cpu_text(&self, unit: Unit) -> String {
        let cpu = if unit == Unit::Messages { self.cpu_per_million } else { self.cpu_per_gigabyte };
        let shown = cpu.filter(|_| matches!(unit, Unit::Messages | Unit::GigabytesPerSecond));
        shown.map_or_else(|| "–".to_owned(), short)
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "median": self.median, "least": self.samples.first(), "most": self.samples.last(),
            "samples": self.samples, "cpu_s_per_gb": self.cpu_per_gigabyte,
            "cpu_s_per_million": self.cpu_per_million, "stall_ms": self.stall, "missing": self.missing,
            "failures": self.failures,
        })
    }
}

/// Three digits that matter.
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        size if size >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

impl Line {
    fn judged(&self, limits: Limits) -> Option<f64> {
        if limits.of_ratio { self.ratio } else { self.ours.median }
    }

    fn reaches(&self, limits: Limits, bound: f64) -> Option<bool> {
        let value = self.judged(limits)?;
        Some(if self.unit.is_more_better() { value >= bound } else { value <= bound })
    }

    /// Whether the row's limit is reached; None without a limit or a figure.
    pub fn reached(&self) -> Option<bool> {
        let stalls = self.ours.stall.filter(|_| self.busy).map(|stall| stall <= STALL);
        self.limits.and_then(|limits| self.reaches(limits, limits.must)).or(stalls)
    }

    fn bound(&self, limits: Limits, value: f64) -> String {
        let sign = if self.unit.is_more_better() { "≥" } else { "≤" };
        let unit = if limits.of_ratio { String::new() } else { format!(" {}", self.unit.name()) };
        let missed = if self.reaches(limits, value) == Some(false) { ": **missed**" } else { "" };
        format!("{sign} {value}{unit}{missed}")
    }

    fn stall_text(&self, cell: &Cell, ours: bool) -> String {
        let missed = ours && self.busy && cell.stall.is_some_and(|stall| stall > STALL);
        let text = cell.stall.map_or_else(|| "–".to_owned(), short);
        if missed { format!("{text}: **missed**") } else { text }
    }

    /// A row of the Markdown table for each rival.
    fn markdown(&self) -> String {
        let dash = || "–".to_owned();
        let must = match self.limits {
            Some(limits) => self.bound(limits, limits.must),
            None if self.busy => format!("stall ≤ {STALL} ms"),
            None => dash(),
        };
        let goal = self.limits.and_then(|limits| Some(self.bound(limits, limits.goal?)));
        let goal = goal.map_or_else(dash, |goal| goal.replace("**missed**", "missed"));
        let first = self.rivals.first();
        let there = first.map_or_else(dash, Cell::text);
        let name = first.map_or("–", |rival| rival.name.as_str());
        let ratio = self.ratio.map_or_else(dash, short);
        let pair = |text: &dyn Fn(&Cell, bool) -> String| {
            let there = first.map_or_else(dash, |rival| text(rival, false));
            format!("{} / {there}", text(&self.ours, true))
        };
        let cpu = pair(&|cell, _| cell.cpu_text(self.unit));
        let stall = pair(&|cell, ours| self.stall_text(cell, ours));
        let mut text = format!(
            "| {} | {} | {} | {} | {name} | {there} | {ratio} | {must} | {goal} | {cpu} | {stall} |\n",
            self.path,
            self.measure,
            self.unit.name(),
            self.ours.text(),
        );
        for rival in self.rivals.iter().skip(1) {
            let ratio = self.ours.median.zip(rival.median).map(|(a, b)| a / b);
            text += &format!(
                "| | | | | {} | {} | {} | – | – | – / {} | – / {} |\n",
                rival.name,
                rival.text(),
                ratio.map_or_else(dash, short),
                rival.cpu_text(self.unit),
                self.stall_text(rival, false)
            );
        }
        text
    }

    fn json(&self) -> Value {
        let bound = |limits: Limits, value: f64| {
            json!({
                "bound": if self.unit.is_more_better() { "at least" } else { "at most" },
                "of": if limits.of_ratio { "ratio" } else { "value" },
                "value": value, "reached": self.reaches(limits, value),
            })
        };
        json!({
            "path": self.path, "measure": self.measure, "unit": self.unit.name(), "busy": self.busy,
            "ferroce": self.ours.json(), "rivals": self.rivals.iter().map(Cell::json).collect::<Vec<_>>(),
            "ratio": self.ratio,
            "must": self.limits.map(|limits| bound(limits, limits.must)),
            "goal": self.limits.and_then(|limits| Some(bound(limits, limits.goal?))),
        })
    }
}

/// The table.
pub fn markdown(lines: &[Line]) -> String {
    let mut text = "| path | measure | unit | ferroce | against | there | ratio | must | goal | CPU s, ours / there | longest stall ms, \
                    ours / there |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    text.extend(lines.iter().map(Line::markdown));
    text
}

/// The reasons for which measures are not there, each once.
pub fn missing(lines: &[Line]) -> Vec<String> {
    let cells = lines.iter().flat_map(|line| std::iter::once(&line.ours).chain(&line.rivals));
    let reasons = cells.filter(|cell| cell.failures == 0).filter_map(|cell| cell.missing.clone());
    let reasons: std::collections::BTreeSet<String> = reasons.collect();
    reasons.into_iter().collect()
}

/// The rows as JSON.
pub fn rows_json(lines: &[Line]) -> Value {
    lines.iter().map(Line::json).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::rows::usual;

    /// Some rows of the usual table with made-up figures: ours of each is twice the rival's.
    pub fn sample() -> Vec<Line> {
        let rows = usual();
        let mut outcome = Outcome::new();
        for spec in rows.iter().flat_map(Row::specs) {
            let ours = matches!(spec.program, crate::spec::Program::Perftest { .. });
            let scale = if ours { 2.0 } else { 1.0 };
            let rounds = [1.0, 3.0, 2.0].map(|n| Figures {
                rate: 1e4 * n * scale,
                micros: spec.is_latency().then_some(n * scale),
                stall: Some(150.0 * n),
                cpu: Some(1e-4 * n * scale),
            });
            outcome.insert(spec.clone(), Measured { rounds: rounds.to_vec(), ..Measured::default() });
        }
        lines(&rows, &outcome)
    }

    #[test]
    fn ratios_are_of_medians_and_limits_are_judged() {
        let lines = sample();
        let find = |name: &str| {
            lines.iter().find(|line| format!("{}: {}", line.path, line.measure) == name).unwrap()
        };
        let row = find("wire: WRITE 64 KiB");
        assert_eq!((row.ratio, row.reached()), (Some(2.0), Some(true)));
        assert!(row.markdown().starts_with(
            "| wire | WRITE 64 KiB | GB/s | 2.62 (1.31–3.93) | TCP, 64 KiB writes | 1.31 (0.66–1.97) | 2.00 | ≥ 0.9 | ≥ 1 | 6.10 / 3.05 |"
        ), "{}", row.markdown());
        let latency = find("wire: SEND 8 B, half round trip, polling");
        assert!(
            latency.markdown().contains("| 2.00 | ≤ 1.4: **missed** | ≤ 1.1: missed |"),
            "{}",
            latency.markdown()
        );
        let busy = find("wire, busy: SEND 8 B, half round trip, polling");
        assert!(
            busy.markdown().contains("| stall ≤ 100 ms |") && busy.markdown().contains("450: **missed**")
        );
        assert_eq!(busy.reached(), Some(false));
        let host = find("same host: SEND 8 B, half round trip, polling");
        assert!(host.markdown().contains("≤ 1 µs: **missed**"), "{}", host.markdown());
    }

    #[test]
    fn json_has_stable_keys() {
        let rows = rows_json(&sample());
        let row = &rows[3];
        assert_eq!(row["measure"], "WRITE 64 KiB");
        assert_eq!(row["must"]["value"], 0.9);
        assert_eq!(row["must"]["reached"], true);
        assert_eq!(row["ferroce"]["samples"].as_array().unwrap().len(), 3);
        assert_eq!(row["rivals"][0]["name"], "TCP, 64 KiB writes");
        assert!(row["ferroce"]["missing"].is_null());
    }

    #[test]
    fn a_missing_measure_says_why() {
        let rows = usual();
        let mut outcome = Outcome::new();
        let why = Some("not available: FERROCE_DATAPATH=shm".to_owned());
        let host = rows.iter().find(|row| row.path() == "same host").unwrap();
        outcome.insert(host.ours.clone(), Measured { missing: why, ..Measured::default() });
        let line = line(host, &outcome);
        assert!(line.markdown().contains("| not available |"), "{}", line.markdown());
        assert_eq!(line.reached(), None);
        assert_eq!(missing(&[line]), ["not available: FERROCE_DATAPATH=shm"]);
    }
}
