//! The end-to-end stages: Debian's unmodified programs on the built distribution.
//!
//! They run in a child of `cargo xtask test` with a network namespace of its own (`unshare -n`, or
//! `unshare -Urn` without root), so they meet no broker but their own and leave nothing behind.

#![forbid(unsafe_code)]

mod bed;
pub mod book;
mod cli;
mod cm;
pub mod compat;
mod containers;
mod copy;
mod crates;
pub mod datapaths;
mod devices;
mod dpdk;
mod faults;
pub mod foreign;
mod frames;
mod instructions;
mod iwarp;
mod iwarp_pairs;
mod iwarp_wire;
mod kit;
#[cfg(test)]
mod known_faults;
mod lifecycle;
mod links;
mod loss;
mod memcheck;
mod memory;
mod multicast;
mod nobody;
mod observe;
mod pages;
pub mod peer;
mod perftest;
mod ping;
mod pingpong;
mod probe;
mod pyverbs;
pub mod recipes;
mod stress;
pub mod symbols;
mod users;
mod vprobe;
mod wire;
mod xdp;

pub use bed::{Bed, gid_index};

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::datapaths::Datapath;
use ferroce_harness::debian::Programs;
use ferroce_harness::dist::Dist;
use ferroce_harness::job;
use ferroce_harness::netns;
use ferroce_harness::report::{Checks, Count, Report};
use ferroce_harness::tree;

/// The stages, in the order in which they run.
pub const STAGES: &[(&str, &str)] = &[
    ("devices", "ibv_devices and ibv_devinfo; every consumer loads silently; a cold start is quick"),
    ("cli", "ferroce link, dev and run: devices come and go, refusals say why"),
    ("ping", "ferroce ping and doctor HOST between two namespaces: each obstacle on the way is named"),
    (
        "observe",
        "ferroce statistic, resource, metrics and top, perfquery; the tree of run --sysfs; all that tells of a device agrees",
    ),
    (
        "links",
        "an administrator's session: addresses, MTU, carrier, macvlan, bridge, modes; events, refusals, rules",
    ),
    (
        "pingpong",
        "ibv_rc_pingpong, uc and ud: sizes, events, MTUs, IPv4 and IPv6, eight pairs at once, one core",
    ),
    ("vprobe", "scripted exchanges with a checked outcome: every RC operation and error"),
    ("wire", "our own packets, by tshark and an independent ICRC"),
    ("frames", "RoCE v1 between two namespaces: pingpongs, rping, a capture, strangers, a broker that dies"),
    (
        "xdp",
        "AF_XDP between two namespaces: pingpongs, CM programs, perftest, UCX, by nobody; fallback, a broker that dies",
    ),
    (
        "dpdk",
        "links on DPDK's net_af_packet between two namespaces, by nobody: pingpongs, rping, kill -9 (with --all)",
    ),
    (
        "iwarp",
        "iWARP devices beside those of RoCE: as the kernel's siw, refusals, the order of devices, by nobody",
    ),
    ("memory", "memory that is written to all the time, and memory that goes away under every role"),
    ("memcheck", "a pingpong and rping under valgrind: nothing invalid, nothing lost"),
    ("instructions", "instructions of each verb with both ends, beside a baseline, under valgrind"),
    (
        "cm",
        "rping, ucmatose, rdma_{,x}{client,server}, udaddy, mckey, cmtime, perftest -R, rsockets, by nobody; killed ends",
    ),
    (
        "iwarp_pairs",
        "iWARP at both ends on lo, a veth and through a NAT: CM programs, perftest -R, fio, qperf; kill -9; tshark",
    ),
    ("pages", "the commands of the book's pages, by nobody, and what they say"),
    ("containers", "doctor; a user namespace, a minimal root, a pod of several containers with one eth0"),
    ("kit", "the recipes for CI and clusters, by nobody: the action, GitLab, cargo's runner, two pods"),
    ("lifecycle", "kill -9 of a peer and of the broker, a stopped program, churn"),
    ("users", "ferroced --system: two users, 300 programs at once, a group, refusals, the next broker"),
    ("stress", "64 queue pairs in 4 processes with 8 or 32 threads: every octet, no lost completion"),
    ("crates", "the tests of a Rust crate for libibverbs, 20 times in parallel threads (with --all)"),
    ("loss", "loss, duplication, reordering, bursts on real sockets (with --all)"),
    (
        "faults",
        "ferroce run --fault: lost, late, corrupt and refused packets, failing calls, kills; hits that repeat; sweeps",
    ),
    ("pyverbs", "rdma-core's Python tests, as nobody, on both GIDs"),
    ("multicast", "ib_send_bw -c UD -g: three receivers in three processes, IPv4 and IPv6"),
    ("compat", "programs that people use, each between its own ends; all of cargo xtask compat with --all"),
    ("perftest", "ib_{send,write,read}_{bw,lat}: all sizes, many QPs, both directions, events, inline"),
];

fn body(stage: &str) -> Option<fn(&Bed, &mut Checks) -> Result<()>> {
    match stage {
        "devices" => Some(devices::check),
        "cli" => Some(cli::check),
        "ping" => Some(ping::check),
        "observe" => Some(observe::check),
        "links" => Some(links::check),
        "pingpong" => Some(pingpong::check),
        "vprobe" => Some(vprobe::check),
        "wire" => Some(wire::check),
        "frames" => Some(frames::check),
        "xdp" => Some(xdp::check),
        "dpdk" => Some(dpdk::check),
        "iwarp" => Some(iwarp::check),
        "memory" => Some(memory::check),
        "memcheck" => Some(memcheck::check),
        "instructions" => Some(instructions::check),
        "cm" => Some(cm::check),
        "iwarp_pairs" => Some(iwarp_pairs::check),
        "pages" => Some(pages::check),
        "containers" => Some(containers::check),
        "kit" => Some(kit::check),
        "lifecycle" => Some(lifecycle::check),
        "users" => Some(users::check),
        "stress" => Some(stress::check),
        "crates" => Some(crates::check),
        "loss" => Some(loss::check),
        "faults" => Some(faults::check),
        "pyverbs" => Some(pyverbs::check),
        "multicast" => Some(multicast::check),
        "compat" => Some(compat::check),
        "perftest" => Some(perftest::check),
        _ => None,
    }
}

/// The child's arguments.
#[derive(Args)]
pub struct E2eArgs {
    /// The distribution to test.
    #[arg(long)]
    dist: PathBuf,
    /// Unpacked Debian packages, if they are not installed.
    #[arg(long)]
    unpacked: Option<PathBuf>,
    /// The whole matrix.
    #[arg(long)]
    all: bool,
    /// The stages to run.
    stages: Vec<String>,
}

/// In the child: runs the stages; true when nothing failed.
pub fn run(args: &E2eArgs) -> Result<bool> {
    netns::is_our_own()?;
    netns::raise_loopback()?;
    let programs = Programs { unpacked: args.unpacked.clone() };
    let bed = Bed::new(Dist::at(&args.dist), programs, args.all)?;
    let mut report = Report::default();
    for stage in &args.stages {
        if let Some(body) = body(stage) {
            report.stage(stage, |checks| body(&bed, checks));
        }
    }
    report.stage("leftovers", netns::nothing_left);
    Ok(report.close())
}

/// The programs and libraries of the stages.
pub struct Start<'a> {
    /// The distribution to test.
    pub dist: &'a Dist,
    /// Debian's programs.
    pub programs: &'a Programs,
}

/// In the parent: starts the child and takes over its counts. The child prints the stages' lines.
pub fn start(
    checks: &mut Checks,
    start: &Start<'_>,
    all: bool,
    datapath: Option<&Datapath>,
    stages: &[&str],
) -> Result<()> {
    let mut command = match netns::enter() {
        Ok(command) => command,
        Err(why) => {
            for stage in stages {
                println!("skip {stage:<12} {why}");
                checks.skip(stage, &why.to_string());
            }
            return Ok(());
        }
    };
    // Not the user's own: links of these stages are none of theirs. Nor is it that of stages beside these.
    let all_runs = tree::target().join("e2e");
    let runtime = all_runs.join(stages.first().copied().unwrap_or_default());
    std::fs::create_dir_all(&runtime)?;
    for folder in [&all_runs, &runtime] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    }
    command.env("FERROCE_RUNTIME_DIR", &runtime);
    if let Some(datapath) = datapath {
        datapath.choose(&mut command);
    }
    command.arg(std::env::current_exe()?).arg("e2e").arg("--dist").arg(&start.dist.root);
    if let Some(unpacked) = &start.programs.unpacked {
        command.arg("--unpacked").arg(unpacked);
    }
    if all {
        command.arg("--all");
    }
    command.args(stages);
    let count = count_of(command)?;
    checks.absorb(count);
    Ok(())
}

/// Runs a child that reports by a closing line, which is not passed on; everything before it is.
fn count_of(mut command: Command) -> Result<Count> {
    use std::io::{BufRead, BufReader};
    let line = job::line(&command);
    let mut child = command.current_dir(tree::root()).stdout(std::process::Stdio::piped()).spawn()?;
    let mut count = None;
    if let Some(out) = child.stdout.take() {
        for text in BufReader::new(out).lines() {
            let text = text?;
            match Count::parse(&text) {
                Some(closing) => count = Some(closing),
                None if text.starts_with("failed: ") => {}
                None => println!("{text}"),
            }
        }
    }
    let status = child.wait()?;
    count.ok_or_else(|| anyhow::anyhow!("{line}: {status}, no closing line"))
}
