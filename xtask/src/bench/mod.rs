//! `cargo xtask bench`: ferroce against what the same machine does with TCP and plain UDP, in one interleaved
//! run, so that a slow minute hits all alike. Medians and spread over the rounds; ratios of medians.

mod connect;
mod ends;
mod objects;

pub use ends::{EndArgs, run as run_end};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::debian::{self, Programs};
use crate::dist::{self, Dist};
use crate::exchange::{Exchange, Logs};
use crate::place::Place;
use crate::report::Checks;
use crate::{cc, netns, tree};

/// Which benchmark.
#[derive(Args)]
pub struct BenchArgs {
    /// How often each measure is taken; the median counts.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
    /// A tenth of the messages: to try the benchmark, not the machine.
    #[arg(long)]
    quick: bool,
    /// Writes docs/BENCHMARKS.md.
    #[arg(long)]
    save: bool,
    /// Connecting by cmtime instead, beside the kernel's rxe, in the guest of shared/peer.
    #[arg(long)]
    connections: bool,
    /// `ferroce resource show` with many queue pairs instead.
    #[arg(long)]
    objects: bool,
    /// Set by the benchmark itself inside its network namespace: the distribution.
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

/// One of ours against one baseline.
struct Row {
    name: &'static str,
    /// Arguments of vbench: kind and size.
    ours: (&'static str, u64),
    /// The baseline's kind for `xtask bench-end`.
    baseline: &'static str,
    baseline_name: &'static str,
    count: u64,
    unit: Unit,
    /// What the ratio must be on lo: at least for bandwidth, at most for latency.
    must: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// More is better.
    GigabytesPerSecond,
    /// Less is better.
    Microseconds,
}

const ROWS: &[Row] = &[
    Row {
        name: "RC WRITE 64 KiB",
        ours: ("write", 65_536),
        baseline: "tcp",
        baseline_name: "TCP, 64 KiB writes",
        count: 10_000,
        unit: Unit::GigabytesPerSecond,
        must: Some(0.5),
    },
    Row {
        name: "RC WRITE 1 MiB",
        ours: ("write", 1_048_576),
        baseline: "tcp",
        baseline_name: "TCP, 64 KiB writes",
        count: 640,
        unit: Unit::GigabytesPerSecond,
        must: Some(0.5),
    },
    Row {
        name: "RC SEND 8 B, half round trip, polling",
        ours: ("send-poll", 8),
        baseline: "udp-spin",
        baseline_name: "UDP, spinning",
        count: 20_000,
        unit: Unit::Microseconds,
        must: Some(1.6),
    },
    Row {
        name: "RC SEND 8 B, half round trip, events",
        ours: ("send-event", 8),
        baseline: "udp-block",
        baseline_name: "UDP, blocking",
        count: 20_000,
        unit: Unit::Microseconds,
        must: Some(1.6),
    },
    Row {
        name: "RC SEND 8 B, half round trip, own epoll",
        ours: ("send-epoll", 8),
        baseline: "tcp-epoll",
        baseline_name: "TCP, own epoll",
        count: 20_000,
        unit: Unit::Microseconds,
        must: Some(1.5),
    },
    Row {
        name: "RC WRITE 8 B, half round trip, both spin on memory",
        ours: ("write-spin", 8),
        baseline: "udp-spin",
        baseline_name: "UDP, spinning",
        count: 2_000,
        unit: Unit::Microseconds,
        must: None,
    },
];

/// TCP's writes are of 64 KiB in every row, as many as carry the same bytes.
const TCP_WRITE: u64 = 65_536;
const LIMIT: Duration = Duration::from_secs(150);

/// Builds, measures, prints; true when every pair ended well.
pub fn run(args: &BenchArgs) -> Result<bool> {
    if let Some(dist) = &args.inside {
        let dist = Dist::at(dist);
        return if args.objects { objects::run(args, &dist) } else { measure(args, &dist) };
    }
    if args.connections {
        return connect::run(args);
    }
    Programs::ensure(&[debian::BASIC, debian::BENCH])?;
    let dist = dist::build()?;
    let mut command = netns::enter()?;
    command.arg(std::env::current_exe()?).arg("bench").arg("--inside").arg(&dist.root);
    command.args(["--rounds", &args.rounds.to_string()]);
    command.args(args.quick.then_some("--quick")).args(args.save.then_some("--save"));
    command.args(args.objects.then_some("--objects"));
    Ok(command.status()?.success())
}

fn measure(args: &BenchArgs, dist: &Dist) -> Result<bool> {
    netns::raise_loopback()?;
    let programs = Programs::ensure(&[debian::BASIC, debian::BENCH])?;
    let vbench = cc::ours("vbench", dist, &programs)?;
    let bench = Bench {
        dist: dist.clone(),
        programs,
        vbench,
        me: std::env::current_exe()?,
        logs: Logs(tree::target().join("xtask").join("bench")),
        scale: if args.quick { 10 } else { 1 },
    };
    let places = [Place::loopback(), Place::cut(&bench.programs)?];
    let mut samples: BTreeMap<(usize, usize, bool), Vec<f64>> = BTreeMap::new();
    let mut checks = Checks::default();
    let mut port = 22_000;
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        for (p, place) in places.iter().enumerate() {
            for (r, row) in ROWS.iter().enumerate() {
                for ours in [true, false] {
                    port += 1;
                    let value = bench.once(&mut checks, place, row, ours, port)?;
                    if let Some(value) = value {
                        samples.entry((p, r, ours)).or_default().push(value);
                    }
                }
            }
        }
    }
    drop(places);
    netns::end_broker();
    let text = report(args, &samples)?;
    print!("{text}");
    if args.save {
        let path = tree::root().join("docs/BENCHMARKS.md");
        let kept = connect::section(&path);
        std::fs::write(path, text + &kept)?;
    }
    let count = checks.closing();
    println!("{count}");
    Ok(checks.good())
}

struct Bench {
    dist: Dist,
    programs: Programs,
    vbench: PathBuf,
    me: PathBuf,
    logs: Logs,
    /// Divides the counts.
    scale: u64,
}

impl Bench {
    /// One measure, in the row's unit; None when it failed (which was reported).
    fn once(
        &self,
        checks: &mut Checks,
        place: &Place,
        row: &Row,
        ours: bool,
        port: u16,
    ) -> Result<Option<f64>> {
        let (size, count) = match (ours, row.unit) {
            (false, Unit::GigabytesPerSecond) => (TCP_WRITE, row.count * row.ours.1 / TCP_WRITE),
            _ => (row.ours.1, row.count),
        };
        let count = (count / self.scale).max(1);
        let exchange = Exchange {
            name: format!("{} {} {}", place.name, row.name, if ours { "ferroce" } else { row.baseline_name }),
            server: self.end(place, row, ours, size, count, port, true),
            client: self.end(place, row, ours, size, count, port, false),
            ready: Box::new(|| place.listening(port)),
            limit: LIMIT,
        };
        let Some((client, _)) = exchange.run(&self.logs, checks)? else { return Ok(None) };
        let mut words =
            client.output.split_whitespace().skip_while(|w| !matches!(*w, "seconds" | "median")).skip(1);
        let value: f64 =
            words.next().and_then(|w| w.parse().ok()).context("no figure in the client's output")?;
        Ok(Some(match row.unit {
            Unit::GigabytesPerSecond => (size * count) as f64 / value / 1e9,
            Unit::Microseconds => value / 1e3,
        }))
    }

    #[expect(clippy::too_many_arguments, reason = "a command line has that many parts")]
    fn end(
        &self,
        place: &Place,
        row: &Row,
        ours: bool,
        size: u64,
        count: u64,
        port: u16,
        server: bool,
    ) -> Command {
        let mut command = place.command(server);
        let (size, count, port) = (size.to_string(), count.to_string(), port.to_string());
        if ours {
            command.arg(self.dist.bin("ferroce")).arg("run");
            command.args(place.netdev(server).into_iter().flat_map(|dev| ["--netdev", dev]));
            command
                .arg("--")
                .arg(&self.vbench)
                .args(["-g", place.gid, "-t", &port, row.ours.0, &size, &count]);
            command.args((!server).then_some(place.server_address));
            if let Some(dirs) = self.programs.libraries() {
                command.env("LD_LIBRARY_PATH", dirs);
            }
        } else {
            let role = if server { "--listen" } else { "--connect" };
            command.arg(&self.me).args(["bench-end", row.baseline, &size, &count, role]);
            command.arg(format!("{}:{port}", place.server_address));
        }
        command
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The document.
fn report(args: &BenchArgs, samples: &BTreeMap<(usize, usize, bool), Vec<f64>>) -> Result<String> {
    let mut text = format!(
        "# Benchmarks\n\n\
         Made by `cargo xtask bench --rounds {}{} --save` on {}: {}.\n\
         Median (least to greatest) of {} rounds, all measures interleaved; the receiver is a process of its own \
         and checks what it got.\nGB/s of payload, or microseconds of half a round trip. \"must\" is what the ratio \
         must reach on lo: at least for bandwidth, at most for latency.\n\
         *lo* is the loopback interface; *cut* is a veth pair between two network namespaces (MTU 4200) with \
         segmentation offloads off, so that every packet is cut and merged as on a real NIC, for TCP as well.\n\n\
         | path | measure | ferroce | against | there | ratio | must |\n|---|---|---|---|---|---|---|\n",
        args.rounds,
        if args.quick { " --quick" } else { "" },
        today()?,
        machine()?,
        args.rounds
    );
    for (p, place) in ["lo", "cut"].into_iter().enumerate() {
        for (r, row) in ROWS.iter().enumerate() {
            let cell = |ours: bool| {
                let mut values = samples.get(&(p, r, ours)).cloned().unwrap_or_default();
                let middle = median(&mut values);
                match (values.first(), values.last()) {
                    (Some(least), Some(most)) => (middle, format!("{middle:.2} ({least:.2}–{most:.2})")),
                    _ => (middle, "failed".to_owned()),
                }
            };
            let ((ours, our_text), (other, other_text)) = (cell(true), cell(false));
            let must = match row.must {
                Some(must) if place == "lo" => {
                    let (bound, reached) = match row.unit {
                        Unit::GigabytesPerSecond => ("≥", ours / other >= must),
                        Unit::Microseconds => ("≤", ours / other <= must),
                    };
                    format!("{bound} {must}{}", if reached { "" } else { ": **missed**" })
                }
                _ => "–".to_owned(),
            };
            text.push_str(&format!(
                "| {place} | {} | {our_text} | {} | {other_text} | {:.2} | {must} |\n",
                row.name,
                row.baseline_name,
                ours / other
            ));
        }
    }
    text.push_str(
        "\nThe row of events is not one of equal effort: a thread of ferroce's looks for new packets for 10 µs before it \
         sleeps, a blocking UDP socket sleeps at once, and on idle cores a wake-up costs more than the packet.\n",
    );
    Ok(text)
}

fn today() -> Result<String> {
    let output = Command::new("date").arg("+%F").output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn machine() -> Result<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = info.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("an unnamed processor");
    let cores = std::thread::available_parallelism()?;
    let release = std::fs::read_to_string(Path::new("/proc/sys/kernel/osrelease"))?;
    ensure!(!release.is_empty(), "no kernel release");
    let model = model.trim_start_matches(['\t', ' ', ':']);
    Ok(format!("{model}, {cores} cores, Linux {}", release.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_and_an_empty_row() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert!(median(&mut []).is_nan());
        let args = BenchArgs {
            rounds: 1,
            quick: true,
            save: false,
            connections: false,
            objects: false,
            inside: None,
        };
        let samples = BTreeMap::from([((0, 0, true), vec![2.0]), ((0, 0, false), vec![4.0])]);
        let text = report(&args, &samples).unwrap();
        assert!(text.contains("| lo | RC WRITE 64 KiB | 2.00 (2.00–2.00) | TCP, 64 KiB writes | 4.00 (4.00–4.00) | 0.50 | ≥ 0.5 |"));
    }
}
