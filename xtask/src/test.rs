//! `cargo xtask test`: every check there is, in stages.

use std::thread::JoinHandle;

use anyhow::Result;
use clap::Args;

use crate::{arrows, dist, instructions, no_std, package, sanitizer, source, supply};
use ferroce_e2e::{book, compat, datapaths, foreign, peer, recipes, symbols};
use ferroce_harness::debian::{self, Programs};
use ferroce_harness::dist::Dist;
use ferroce_harness::report::{Checks, Report};

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

const STAGES: &[(&str, &str)] = &[
    ("fmt", "cargo fmt --check"),
    ("arrows", "crates, modules and files use only what is below them; none is too long"),
    ("no_std", "the protocol builds where there is no operating system"),
    ("docs", "links, commands and variables of README and book; the book builds"),
    ("schemas", "the recipes for CI and clusters fit their readers' schemas"),
    ("clippy", "cargo clippy, warnings are errors"),
    ("doc", "cargo doc, warnings are errors"),
    ("unit", "cargo test over the workspace"),
    ("sanitizer", "the C programs of the tests on a library with AddressSanitizer (with --all)"),
    ("instructions", "instructions of each step of a packet, beside a baseline, under valgrind"),
    ("msrv", "the workspace builds with the oldest Rust that the manifest promises (with --all)"),
    ("deny", "licences, sources and advisories of dependencies, by cargo deny (with --all)"),
    (
        "distributions",
        "the packages in roots of Debian 12 and Ubuntu 18.04, with their rdma-core (with --all)",
    ),
    ("dist", "the release build fills target/dist"),
    ("symbols", "the library exports what the real ones export"),
    (
        "packages",
        "tarball, .deb, wheel and one-file program: built twice, unpacked, installed where that needs no root",
    ),
];

/// Stages that run with `--all`, or if they are named.
const THOROUGH: [&str; 8] =
    ["sanitizer", "msrv", "deny", "distributions", "dpdk", "iwarp_pairs", "siw", "peer_bypass"];

/// The stage of RoCE with a peer that is not ours.
const PEER: (&str, &str) = ("peer", "both ends against the Linux kernel's rdma_rxe in a QEMU guest");

/// The same past ferroce's kernel.
const BYPASS: (&str, &str) =
    ("peer_bypass", "the kernel's rdma_rxe, with ferroce on AF_XDP and on DPDK (with --all)");

/// The stage of iWARP with a peer that is not ours.
const SIW: (&str, &str) = ("siw", "iWARP: both ends against the Linux kernel's siw in a QEMU guest");

fn all_stages() -> impl Iterator<Item = (&'static str, &'static str)> {
    STAGES.iter().chain(ferroce_e2e::STAGES).copied().chain([PEER, BYPASS, SIW])
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
    let simple: [(&str, Source); 13] = [
        ("fmt", source::fmt),
        ("arrows", arrows::check),
        ("no_std", no_std::check),
        ("docs", book::check),
        ("schemas", recipes::check),
        ("clippy", source::clippy),
        ("doc", source::doc),
        ("unit", source::unit),
        ("sanitizer", sanitizer::check),
        ("instructions", instructions::check),
        ("msrv", supply::oldest_rust),
        ("deny", supply::dependencies),
        ("distributions", package::distributions),
    ];
    let later = all_stages().skip(simple.len()).any(|(s, _)| args.wants(s));
    let mut ahead = None;
    let mut programs = None;
    for (name, body) in simple {
        if args.wants(name) {
            // They need headers or valgrind, which would be missed only by a skipped test.
            if ["unit", "sanitizer", "instructions"].contains(&name) {
                ensure_programs(&mut report, &mut programs);
            }
            if name == "unit" {
                let wanted = [later, args.wants("instructions")];
                ahead = Some(std::thread::spawn(move || build_ahead(wanted)));
            }
            // The builder holds the folders of its builds: whoever needs one waits for both.
            if name == "instructions" {
                await_builder(&mut ahead);
            }
            report.stage(name, body);
        }
    }
    await_builder(&mut ahead);
    let mut built = None;
    if later {
        report.stage("dist", |checks| {
            built = Some(dist::build()?);
            checks.pass();
            Ok(())
        });
    }
    let Some(dist) = built else { return Ok(report.close()) };
    if args.wants("symbols") {
        report.stage("symbols", |checks| symbols::check(checks, &dist.library()));
    }
    if args.wants("packages") {
        report.stage("packages", |checks| package::check(checks, &dist));
    }
    let stages: Vec<&str> = ferroce_e2e::STAGES.iter().map(|(s, _)| *s).filter(|s| args.wants(s)).collect();
    let guests = [PEER, BYPASS, SIW].map(|(stage, _)| args.wants(stage));
    if stages.is_empty() && guests == [false; 3] {
        return Ok(report.close());
    }
    ensure_programs(&mut report, &mut programs);
    let Some(programs) = programs else { return Ok(report.close()) };
    report.stage("examples", |checks| {
        dist::examples()?;
        checks.pass();
        Ok(())
    });
    if !stages.is_empty() {
        if args.all && stages.contains(&"crates") {
            report.stage("crate builds", build_crates);
        }
        if stages.contains(&"compat") {
            report.stage("compat programs", |checks| {
                compat::prepare_stage(args.all)?;
                checks.pass();
                Ok(())
            });
        }
        let start = ferroce_e2e::Start { dist: &dist, programs: &programs };
        report.silent("end to end", |checks| ferroce_e2e::start(checks, &start, args.all, datapath, &stages));
        let again: Vec<&str> = stages.iter().copied().filter(|s| datapaths::STAGES.contains(s)).collect();
        for datapath in datapaths::ALL.iter().filter(|_| args.all && datapath.is_none() && !again.is_empty())
        {
            println!("on the datapath {}:", datapath.name);
            report.silent(datapath.name, |checks| {
                ferroce_e2e::start(checks, &start, false, Some(datapath), &again)
            });
        }
    }
    let [wants_peer, wants_bypass, wants_siw] = guests;
    if wants_peer {
        report.stage(PEER.0, |checks| peer::check(checks, &dist, &programs, args.all, false));
    }
    if wants_bypass {
        report.stage(BYPASS.0, |checks| peer::bypass::check(checks, &dist, &programs, args.all));
    }
    if wants_siw {
        report.stage(SIW.0, |checks| peer::siw::check(checks, Some(&dist), &programs, args.all));
    }
    Ok(report.close())
}

/// Builds what the later stages need while the tests of `unit` run, which mostly wait: the release, and the program of
/// `instructions`. A build that fails is repeated, and its errors are told, by the stage that needs it.
fn build_ahead([release, steps]: [bool; 2]) {
    if release {
        let _ = dist::compile_quietly();
    }
    if steps {
        let _ = instructions::build();
    }
}

fn await_builder(builder: &mut Option<JoinHandle<()>>) {
    if let Some(builder) = builder.take() {
        let _ = builder.join();
    }
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
