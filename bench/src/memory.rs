//! `cargo xtask bench --memory`: what an object costs in the memory of its program and of the broker.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::args::BenchArgs;
use super::table::short;
use ferroce_harness::debian::{self, Programs};
use ferroce_harness::dist::Dist;
use ferroce_harness::figures::{machine, median, replaced, today};
use ferroce_harness::{cc, netns, tree};

const TITLE: &str = "## Memory";

/// The kind for `tests/programs/weighs.c`, its name, how many at first and how many more, and objects of one.
const KINDS: [(&str, &str, u32, u32, u32); 5] = [
    ("qp", "queue pair, RC, 128 + 128 work requests", 100, 1000, 1),
    ("qp-small", "queue pair, RC, 16 + 16 work requests", 100, 1000, 1),
    ("cq", "completion queue of 128", 100, 1000, 1),
    ("mr", "memory region", 100, 1000, 1),
    ("connection", "one end of a connection, with its queue pair of 16 + 16", 50, 500, 2),
];

/// A program with its objects, until it is dropped.
struct Weigher(Child);

impl Weigher {
    fn start(dist: &Dist, programs: &Programs, program: &Path, kind: &str, count: u32) -> Result<Self> {
        let mut command = Command::new(dist.bin("ferroce"));
        command.args(["run", "--"]).arg(program).args([kind, &count.to_string()]);
        if let Some(dirs) = programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        let mut weigher = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        BufReader::new(weigher.0.stdout.take().context("no output")?).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "weighs {kind} {count}: '{line}'");
        Ok(weigher)
    }
}

impl Drop for Weigher {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The proportional set size of a process in octets: memory that processes share counts in parts.
fn weight(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    pss(&text).context("no Pss in smaps_rollup")
}

fn pss(text: &str) -> Option<f64> {
    let kib: f64 =
        text.lines().find_map(|line| line.strip_prefix("Pss:"))?.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0)
}

/// Octets of one object in the program and in the broker.
fn one(
    dist: &Dist,
    programs: &Programs,
    program: &Path,
    kind: &(&str, &str, u32, u32, u32),
) -> Result<[f64; 2]> {
    let (kind, _, first, more, parts) = *kind;
    let weigh = |count: u32| -> Result<[f64; 2]> {
        let weigher = Weigher::start(dist, programs, program, kind, count)?;
        let broker = netns::brokers().first().map(|pid| pid.as_raw().unsigned_abs());
        let weights = [weight(weigher.0.id())?, broker.map_or(Ok(0.0), weight)?];
        drop(weigher);
        // A broker keeps memory that it once had, and the remains of connections.
        netns::end_broker();
        netns::until("the broker is gone", || netns::brokers().is_empty())?;
        Ok(weights)
    };
    let (few, many) = (weigh(first)?, weigh(first + more)?);
    let each = |which: usize| (many[which] - few[which]).max(0.0) / f64::from(more * parts);
    Ok([each(0), each(1)])
}

/// In a network namespace of its own: measures, prints, and with `--save` writes the section of docs/BENCHMARKS.md.
pub fn run(args: &BenchArgs, dist: &Dist) -> Result<bool> {
    netns::raise_loopback()?;
    let programs = Programs::ensure(&[debian::BASIC, debian::BENCH, debian::MORE])?;
    let program = cc::debians("weighs", &programs)?;
    let mut rows = Vec::new();
    for kind in &KINDS {
        let mut samples: [Vec<f64>; 2] = Default::default();
        for _ in 0..args.rounds {
            let each = one(dist, &programs, &program, kind)?;
            samples.iter_mut().zip(each).for_each(|(samples, value)| samples.push(value));
        }
        rows.push((kind.1, samples));
    }
    let text = report(args, rows)?;
    print!("{text}");
    if args.save {
        let path = tree::root().join("docs/BENCHMARKS.md");
        std::fs::write(&path, replaced(&std::fs::read_to_string(&path)?, TITLE, &text))?;
    }
    Ok(true)
}

fn report(args: &BenchArgs, rows: Vec<(&str, [Vec<f64>; 2])>) -> Result<String> {
    let mut text = format!(
        "{TITLE}\n\n\
         Made by `cargo xtask bench --memory --rounds {} --save` on {}: {}.\n\
         Octets of one object: the growth of the proportional set size from 100 to 1,100 of them (connections: 50 to 550), median \
         (least–most) of {} rounds. The kernel's own memory, for sockets, is not in it.\n\n\
         | object | in the program | in the broker |\n|---|---|---|\n",
        args.rounds,
        today()?,
        machine()?,
        args.rounds
    );
    for (name, samples) in rows {
        let [program, broker] = samples.map(|mut values| {
            let middle = median(&mut values);
            let ends = values.first().copied().zip(values.last().copied()).unwrap_or((f64::NAN, f64::NAN));
            format!("{} ({}–{})", short(middle), short(ends.0), short(ends.1))
        });
        text += &format!("| {name} | {program} | {broker} |\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_are_read() {
        assert_eq!(pss("x\nRss:      12 kB\nPss:                 2 kB\nPss_Anon: 1 kB\n"), Some(2048.0));
        assert_eq!(pss("Rss: 1 kB\n"), None);
        let text =
            report(&BenchArgs { rounds: 1, ..BenchArgs::default() }, vec![("thing", [vec![10.0], vec![]])])
                .unwrap();
        assert!(text.contains("| thing | 10.0 (10.0–10.0) | NaN"), "{text}");
    }
}
