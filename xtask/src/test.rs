//! `cargo xtask test`: every check there is, in stages.

use std::panic::resume_unwind;

use anyhow::Result;
use clap::Args;

use crate::{arrows, dist, no_std, package, publish, source};
use ferroce_e2e::{book, compat, datapaths, foreign, peer, recipes, symbols};
use ferroce_harness::debian::{self, Programs};
use ferroce_harness::dist::Dist;
use ferroce_harness::report::{Checks, Report, Stage, Told};

/// Which stages to run.
#[derive(Args)]
pub struct TestArgs {
    /// The whole matrix, not only the quick part of it.
    #[arg(long)]
    pub all: bool,
    /// Only these stages (see --list).
    #[arg(long, value_name = "STAGE", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Not these stages.
    #[arg(long, value_name = "STAGE", value_delimiter = ',')]
    pub skip: Vec<String>,
    /// Installs and fetches no Debian packages; missing programs are named.
    #[arg(long)]
    pub no_install: bool,
    /// Fails if a check was skipped, for a machine that is meant to have everything.
    #[arg(long)]
    pub strict: bool,
    /// The end-to-end stages on this datapath alone; `--all` repeats some of them on each.
    #[arg(long, value_name = "NAME")]
    pub datapath: Option<String>,
    /// Names the stages and datapaths, and stops.
    #[arg(long)]
    pub list: bool,
}

impl TestArgs {
    fn wants(&self, stage: &str) -> bool {
        let named = self.only.iter().any(|s| s == stage);
        let usual = self.only.is_empty() && (self.all || !THOROUGH.contains(&stage));
        (named || usual) && !self.skip.iter().any(|s| s == stage)
    }
}

type Source = fn(&mut Checks) -> Result<()>;

/// The stages that need no distribution, in the order in which they run.
const SOURCES: &[(&str, &str, Source)] = &[
    ("fmt", "cargo fmt --check", source::fmt),
    (
        "arrows",
        "crates and files use only what is below them, none is too long; comments can be read alone",
        arrows::check,
    ),
    ("no_std", "the protocol builds where there is no operating system", no_std::check),
    ("publish", "the crates that a registry may carry can be packaged", publish::check),
    ("docs", "links, commands and variables of README and book; the book builds", book::check),
    ("schemas", "the recipes for CI and clusters fit their readers' schemas", recipes::check),
    ("clippy", "cargo clippy, warnings are errors", source::clippy),
    ("doc", "cargo doc, warnings are errors", source::doc),
    ("unit", "cargo test over the workspace", source::unit),
    (
        "distributions",
        "the packages in roots of Debian 12 and Ubuntu 18.04, with their rdma-core (with --all)",
        package::distributions,
    ),
];

/// Stages that compile or measure for minutes. They run in this order, while the end-to-end stages run, which
/// mostly wait.
const BESIDE: [&str; 3] = ["unit", "clippy", "doc"];

/// End-to-end stages that have a network namespace of their own, and run beside the others.
const LATE: [&str; 5] = ["faults", "pyverbs", "multicast", "compat", "perftest"];

/// The stages of the distribution itself.
const BUILT: [(&str, &str); 3] = [
    ("dist", "the release build fills target/dist"),
    ("symbols", "the library exports what the real ones export"),
    ("packages", "tarball, .deb and wheel: built twice, unpacked, installed where that needs no root"),
];

/// Stages that run with `--all`, or if they are named.
const THOROUGH: [&str; 5] = ["distributions", "dpdk", "iwarp_pairs", "siw", "peer_bypass"];

/// The stage of RoCE with a peer that is not ours.
const PEER: (&str, &str) = ("peer", "both ends against the Linux kernel's rdma_rxe in a QEMU guest");

/// The stage of RoCE with that peer, past ferroce's kernel.
const BYPASS: (&str, &str) =
    ("peer_bypass", "the kernel's rdma_rxe, with ferroce on AF_XDP and on DPDK (with --all)");

/// The stage of iWARP with a peer that is not ours.
const SIW: (&str, &str) = ("siw", "iWARP: both ends against the Linux kernel's siw in a QEMU guest");

fn all_stages() -> impl Iterator<Item = (&'static str, &'static str)> {
    let sources = SOURCES.iter().map(|(name, what, _)| (*name, *what));
    sources.chain(BUILT).chain(ferroce_e2e::STAGES.iter().copied()).chain([PEER, BYPASS, SIW])
}

/// Whether there is a stage of this name.
pub fn is_stage(name: &str) -> bool {
    all_stages().any(|(stage, _)| stage == name)
}

/// Runs the stages asked for; true when nothing failed.
pub fn run(args: &TestArgs) -> Result<bool> {
    if args.list {
        for (name, what) in all_stages() {
            println!("{name:<12} {what}");
        }
        for datapath in &datapaths::ALL {
            println!("--datapath {:<12} {}", datapath.name, datapath.what);
        }
        return Ok(true);
    }
    for name in args.only.iter().chain(&args.skip) {
        anyhow::ensure!(is_stage(name), "no stage is called {name}; see --list");
    }
    let datapath = args.datapath.as_deref().map(datapaths::named).transpose()?;
    if args.no_install {
        debian::decline();
    }
    let mut report = Report::strict(args.strict);
    let later = all_stages().skip(SOURCES.len()).any(|(s, _)| args.wants(s));
    let mut programs = None;
    let of = |wanted: &str| SOURCES.iter().find(|(name, ..)| *name == wanted && args.wants(name));
    let beside: Vec<_> = BESIDE.into_iter().filter_map(of).collect();
    for (name, _, body) in SOURCES.iter().filter(|(name, ..)| !BESIDE.contains(name) && args.wants(name)) {
        report.stage(name, body);
    }
    // Tests of C programs need headers, whose lack would show only as a skipped test.
    if args.wants("unit") {
        ensure_programs(&mut report, &mut programs);
    }
    let tests = args.wants("unit");
    if tests || later {
        report.stage("compile", |_| compile(tests, later));
    }
    // Before the tests: the programs of a package run in this network namespace, where tests start brokers.
    let dist = later.then(|| packaged(args, &mut report)).flatten();
    std::thread::scope(|scope| {
        let run = || beside.iter().map(|(name, _, body)| Stage::run(name, body).tell()).collect();
        let beside = scope.spawn(run);
        if let Some(dist) = dist {
            installed(args, &dist, datapath, &mut report, &mut programs);
        }
        let beside: Vec<_> = beside.join().unwrap_or_else(|panic| resume_unwind(panic));
        beside.into_iter().for_each(|stage| report.add(stage));
    });
    Ok(report.close())
}

/// Compiles the tests and the release at the same time, and says nothing of errors: the stages that need them
/// build again, which then finds everything compiled, and tell.
fn compile(tests: bool, release: bool) -> Result<()> {
    std::thread::scope(|scope| {
        let release = release.then(|| scope.spawn(dist::compile_quietly));
        let _ = tests.then(source::compile_quietly);
        let _ = release.map(|release| release.join().unwrap_or_else(|panic| resume_unwind(panic)));
    });
    Ok(())
}

/// Builds the distribution, and runs the stages that look at it; `None` if it cannot be built.
fn packaged(args: &TestArgs, report: &mut Report) -> Option<Dist> {
    let mut built = None;
    report.stage("dist", |checks| {
        built = Some(dist::build()?);
        checks.pass();
        Ok(())
    });
    let dist = built?;
    if args.wants("symbols") {
        report.stage("symbols", |checks| symbols::check(checks, &dist.library()));
    }
    if args.wants("packages") {
        report.stage("packages", |checks| package::check(checks, &dist));
    }
    Some(dist)
}

/// The stages that run the distribution, in network namespaces of their own.
fn installed(
    args: &TestArgs,
    dist: &Dist,
    datapath: Option<&datapaths::Datapath>,
    report: &mut Report,
    programs: &mut Option<Programs>,
) {
    let stages: Vec<&str> = ferroce_e2e::STAGES.iter().map(|(s, _)| *s).filter(|s| args.wants(s)).collect();
    let guests: Vec<&str> =
        [PEER, BYPASS, SIW].map(|(s, _)| s).into_iter().filter(|s| args.wants(s)).collect();
    if stages.is_empty() && guests.is_empty() {
        return;
    }
    ensure_programs(report, programs);
    let Some(programs) = &*programs else { return };
    report.stage("examples", |checks| {
        dist::examples()?;
        checks.pass();
        Ok(())
    });
    if args.all && stages.contains(&"crates") {
        report.stage("crate builds", build_crates);
    }
    // Before the guests, whose scripts may install programs as well: apt-get does not wait for another one.
    if stages.contains(&"compat") {
        report.stage("compat programs", |checks| {
            compat::prepare_stage(args.all)?;
            checks.pass();
            Ok(())
        });
    }
    // Most of the time the emulated guest keeps one processor busy, and the programs of the other stages
    // wait.
    let (late, early): (Vec<&str>, Vec<&str>) = stages.iter().partition(|stage| LATE.contains(stage));
    let start = ferroce_e2e::Start { dist, programs };
    std::thread::scope(|scope| {
        let guests = scope.spawn(|| with_guests(args, dist, programs, &guests));
        let late = scope.spawn(|| end_to_end(args, &start, datapath, &late));
        let mut stages = end_to_end(args, &start, datapath, &early);
        for run in [late, guests] {
            stages.extend(run.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        stages.into_iter().for_each(|stage| report.add(stage));
    });
    if args.all && datapath.is_none() {
        again(args, report, &start, &stages);
    }
}

/// The stages that run Debian's programs on this machine alone.
fn end_to_end(
    args: &TestArgs,
    start: &ferroce_e2e::Start<'_>,
    datapath: Option<&datapaths::Datapath>,
    stages: &[&str],
) -> Vec<Told> {
    let run = |checks: &mut Checks| ferroce_e2e::start(checks, start, args.all, datapath, stages);
    if stages.is_empty() { Vec::new() } else { vec![Stage::silent("end to end", run)] }
}

/// Some of these stages again, on each datapath.
fn again(args: &TestArgs, report: &mut Report, start: &ferroce_e2e::Start<'_>, stages: &[&str]) {
    let again: Vec<&str> = stages.iter().copied().filter(|s| datapaths::STAGES.contains(s)).collect();
    for datapath in datapaths::ALL.iter().filter(|_| args.all && !again.is_empty()) {
        println!("on the datapath {}:", datapath.name);
        let run = |checks: &mut Checks| ferroce_e2e::start(checks, start, false, Some(datapath), &again);
        report.add(Stage::silent(datapath.name, run));
    }
}

/// The stages whose peer runs in a guest, one after the other.
fn with_guests(args: &TestArgs, dist: &Dist, programs: &Programs, stages: &[&str]) -> Vec<Told> {
    let run = |name: &&str| {
        Stage::run(name, |checks| match *name {
            "peer" => peer::check(checks, dist, programs, args.all, false),
            "peer_bypass" => peer::bypass::check(checks, dist, programs, args.all),
            _ => peer::siw::check(checks, Some(dist), programs, args.all),
        })
        .tell()
    };
    stages.iter().map(run).collect()
}

/// Installs Debian's programs and headers, once.
fn ensure_programs(report: &mut Report, programs: &mut Option<Programs>) {
    if programs.is_none() {
        report.stage("programs", |checks| {
            *programs = Some(Programs::ensure(&[debian::BASIC, debian::MORE])?);
            checks.pass();
            Ok(())
        });
    }
}

/// Here, because the end-to-end stages have no way out of their network namespace.
fn build_crates(checks: &mut Checks) -> Result<()> {
    for foreign in foreign::ALL {
        match foreign.build()? {
            None => checks.pass(),
            Some(why) => checks.skip(&format!("{} {}", foreign.name, foreign.version), &why),
        }
    }
    Ok(())
}

/// The peer stage with the kernel at both ends.
pub fn peer_harness(all: bool) -> Result<bool> {
    let mut report = Report::default();
    let nothing = Dist::at("/nonexistent");
    report.stage("peer", |checks| peer::check(checks, &nothing, &Programs::default(), all, true));
    Ok(report.close())
}

/// The stage siw with the kernel at both ends, and with ferroce of a distribution that was built before.
pub fn siw_harness(all: bool, dist: Option<&std::path::Path>) -> Result<bool> {
    let dist = dist.map(std::path::absolute).transpose()?.map(Dist::at);
    let mut report = Report::default();
    let mut programs = None;
    ensure_programs(&mut report, &mut programs);
    let Some(programs) = programs else { return Ok(report.close()) };
    report.stage(SIW.0, |checks| peer::siw::check(checks, dist.as_ref(), &programs, all));
    Ok(report.close())
}
