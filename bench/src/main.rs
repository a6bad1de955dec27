//! `cargo xtask bench`: ferroce beside what the same machine does with TCP, UDP and other libraries, in one interleaved
//! run. Medians and spread over the rounds; ratios of medians.
#![forbid(unsafe_code)]

mod args;
mod bars;

mod connect;
mod ends;
mod flame;
mod guest;
mod loss;
mod memory;
mod objects;
mod pairs;
mod profile;
mod rows;
mod runner;
mod rxe;
mod spec;
mod table;
mod wide;

use args::BenchArgs;
use ends::EndArgs;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use serde_json::json;

use ferroce_harness::debian::{self, Programs};
use ferroce_harness::dist::Dist;
use ferroce_harness::exchange::Logs;
use ferroce_harness::figures::{machine, sections, today};
use ferroce_harness::{cc, netns, tree};
use rows::Row;
use runner::{Outcome, Runner};
use spec::Tools;
use table::Line;

/// The document and the page of bars that `--save` writes.
const DOCUMENT: &str = "docs/BENCHMARKS.md";
const PAGE: &str = "docs/book/src/benchmarks.svg";

/// Measures ferroce against TCP and UDP on this machine.
#[derive(Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench", args_conflicts_with_subcommands = true)]
#[command(after_long_help = args::JSON)]
struct Cli {
    #[command(subcommand)]
    end: Option<End>,
    #[command(flatten)]
    bench: BenchArgs,
}

#[derive(Subcommand)]
enum End {
    /// Runs one of the two ends of a baseline; the benchmark starts it.
    #[command(hide = true)]
    BenchEnd(EndArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.end {
        Some(End::BenchEnd(args)) => ends::run(args).map(|()| true),
        None => run(&cli.bench),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Builds, measures, prints; true when nothing failed.
fn run(args: &BenchArgs) -> Result<bool> {
    if args.list {
        table_rows(args).iter().for_each(|row| println!("{}", row.name()));
        return Ok(true);
    }
    if let Some(dist) = &args.inside {
        let dist = Dist::at(dist);
        return match (args.objects, args.memory) {
            (true, _) => objects::run(args, &dist),
            (_, true) => memory::run(args, &dist),
            _ => measure(args, &dist),
        };
    }
    if args.connections {
        return connect::run(args);
    }
    if args.guest {
        return rxe::run(args);
    }
    if args.loss {
        return loss::run(args);
    }
    if args.iwarp || args.xdp {
        return pairs::run(args);
    }
    Programs::ensure(&[debian::BASIC, debian::BENCH])?;
    let dist = match &args.dist {
        Some(folder) => Dist::at(std::path::absolute(folder)?),
        None => Dist::build()?,
    };
    let mut command = netns::enter()?;
    command.arg(std::env::current_exe()?).arg("--inside").arg(&dist.root);
    command.args(["--rounds", &args.rounds.to_string()]);
    for (flag, name) in [
        (args.quick, "--quick"),
        (args.save, "--save"),
        (args.objects, "--objects"),
        (args.memory, "--memory"),
        (args.all, "--all"),
    ] {
        command.args(flag.then_some(name));
    }
    for filter in &args.rows {
        command.args(["--rows", filter]);
    }
    if let Some(dist) = &args.dist {
        command.arg("--dist").arg(dist);
    }
    for name in &args.profile {
        command.args(["--profile", name]);
    }
    for (file, name) in [(&args.json, "--json"), (&args.svg, "--svg")] {
        if let Some(file) = file {
            command.arg(name).arg(std::path::absolute(file)?);
        }
    }
    Ok(command.status()?.success())
}

/// The rows that the arguments choose.
fn table_rows(args: &BenchArgs) -> Vec<Row> {
    rows::filtered(if args.all { wide::all() } else { rows::usual() }, &args.rows)
}

fn measure(args: &BenchArgs, dist: &Dist) -> Result<bool> {
    netns::raise_loopback()?;
    let programs = Programs::ensure(&[debian::BASIC, debian::BENCH])?;
    let vbench = cc::ours("vbench", dist, &programs)?;
    let rows = table_rows(args);
    anyhow::ensure!(!rows.is_empty(), "no row is called {:?}; see --list", args.rows);
    let tools = Tools { dist: dist.clone(), programs, vbench, me: std::env::current_exe()? };
    let logs = Logs(tree::target().join("xtask").join("bench"));
    let mut runner = Runner::new(tools, logs, seconds(args), &rows)?;
    if !args.profile.is_empty() {
        let good = profile::run(args, &mut runner, rows);
        drop(runner);
        netns::end_broker();
        return good;
    }
    let outcome = runner.all(&rows, args.rounds)?;
    drop(runner);
    netns::end_broker();
    write(args, &rows, &outcome)?;
    let failed: Vec<String> =
        outcome.iter().filter(|(_, measured)| measured.failures > 0).map(|(spec, _)| spec.name()).collect();
    failed.iter().for_each(|name| println!("failed: {name}"));
    println!("{} measures, {} failed", outcome.len(), failed.len());
    Ok(failed.is_empty())
}

/// Seconds of a measure.
fn seconds(args: &BenchArgs) -> f64 {
    if args.quick { 0.05 } else { 0.5 }
}

/// Prints the table, and writes the files that were asked for.
fn write(args: &BenchArgs, rows: &[Row], outcome: &Outcome) -> Result<()> {
    let lines = table::lines(rows, outcome);
    let text = report(args, &lines)?;
    print!("{text}");
    let subtitle = format!(
        "{}, {}, {}. Median, and a line from the least to the most of {} rounds.",
        args.line(),
        today()?,
        machine()?,
        args.rounds
    );
    let mut pages: Vec<PathBuf> = args.svg.clone().into_iter().collect();
    if args.save {
        let path = tree::root().join(DOCUMENT);
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(path, format!("{text}{}", sections(&kept)))?;
        pages.push(tree::root().join(PAGE));
    }
    for page in pages {
        let bars = bars::page("ferroce and its rivals", &subtitle, &lines);
        std::fs::write(&page, bars).with_context(|| page.display().to_string())?;
    }
    if let Some(file) = &args.json {
        let value = json!({
            "schema": 1, "command": args.line(), "date": today()?, "machine": machine()?, "rounds": args.rounds,
            "rows": table::rows_json(&lines),
        });
        std::fs::write(file, serde_json::to_string_pretty(&value)?)
            .with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// The document, without its further sections.
fn report(args: &BenchArgs, lines: &[Line]) -> Result<String> {
    let (reached, missed) = (
        lines.iter().filter(|line| line.reached() == Some(true)).count(),
        lines.iter().filter(|line| line.reached() == Some(false)).count(),
    );
    let missing: String = table::missing(lines).iter().map(|why| format!("- {why}\n")).collect();
    let missing = if missing.is_empty() { missing } else { format!("\nNot measured:\n\n{missing}") };
    Ok(format!(
        "# Benchmarks\n\n\
         Made by `{}`{} on {}: {}.\n\
         Median (least–most) of {} rounds, all measures interleaved, each about {} s long. Limits reached: {reached}, missed: {missed}.\n\
         The book shows the table [as bars](benchmarks.svg).\n\n\
         *wire* is UDP over the loopback interface with every check of the protocol (`FERROCE_DATAPATH=udp`); *same host* is memory \
         that two processes share (`shm`); *cut* is a veth pair between two network namespaces (MTU 4200) with segmentation offloads \
         off, so that every packet is cut and merged as on a real NIC, for TCP as well. *busy*: one process a core only computes \
         meanwhile. WRITE, SEND and READ are Debian's unmodified perftest; rows of events, of epoll and those with \"in flight\" are \
         `tests/programs/vbench.c`, which checks what it receives. SEND and WRITE latencies are half a round trip, READ's is a \
         whole one. CPU s is the processor time of both ends together, start-up excluded, for each GB or each million messages. \
         The longest stall is the longest round trip, or the longest time without a completion, in all rounds.\n\n{}\n\
         The row of events is not one of equal effort: a thread of ferroce's looks for new packets for 10 µs before it \
         sleeps, a blocking UDP socket sleeps at once, and on idle cores a wake-up costs more than the packet.\n{missing}",
        args.line(),
        args.other_build(),
        today()?,
        machine()?,
        args.rounds,
        seconds(args),
        table::markdown(lines)
    ))
}
