//! `cargo xtask compat`: the programs that people use, between two processes on ferroce, and the page that says how they did.

mod figures;
mod page;
mod trials;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::debian::{self, Programs};
use crate::dist::{self, Dist};
use crate::e2e::Bed;
use crate::exchange::Meeting;
use crate::report::Checks;
use crate::{netns, tree};
use trials::{ALL, Place, Trial};

/// The command line of `cargo xtask compat`.
#[derive(Args)]
pub struct CompatArgs {
    /// Only these programs (see --list).
    names: Vec<String>,
    /// Runs of each; the page shows medians.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Writes docs/book/src/compatibility.md.
    #[arg(long, conflicts_with = "names")]
    save: bool,
    /// Prints the results as a JSON array.
    #[arg(long)]
    json: bool,
    /// Names the programs and their runs, and stops.
    #[arg(long)]
    list: bool,
    /// The distribution to run on, inside the network namespace.
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

/// The outcome of one run.
#[derive(Serialize, Deserialize, Debug)]
struct Outcome {
    program: String,
    /// Of Debian's package.
    version: String,
    what: String,
    passed: bool,
    /// The program compared the data.
    verified: bool,
    /// Octets that ferroce counted meanwhile, both directions and ends together.
    octets: u64,
    unit: Option<String>,
    more_is_better: bool,
    /// The program's figure in each round.
    ferroce: Vec<f64>,
    /// The same over its own TCP transport.
    tcp: Vec<f64>,
    limit: String,
}

/// For each end of a run.
const LIMIT: Duration = Duration::from_secs(90);
/// The server listens by then; nothing outside shows that it does.
const PATIENCE: Duration = Duration::from_millis(700);
/// The address of the link.
const ADDRESS: &str = "10.9.0.1";
/// The results that the child leaves for its parent.
const RESULTS: &str = "compat.json";

/// The programs beside [`debian::MORE`].
const EXTRA: &[debian::Program] = &[
    debian::Program { name: "ucx_perftest", package: "ucx-utils" },
    debian::Program { name: "fi_pingpong", package: "libfabric-bin" },
];

/// Runs the programs; true when all passed.
pub fn run(args: &CompatArgs) -> Result<bool> {
    if args.list {
        for trial in ALL {
            println!("{:<16} {}", trial.program, trial.what);
        }
        return Ok(true);
    }
    for name in &args.names {
        ensure!(ALL.iter().any(|trial| trial.program == name), "no program is called {name}; see --list");
    }
    let results = tree::target().join("xtask").join(RESULTS);
    if let Some(dist) = &args.inside {
        let outcomes = inside(args, Dist::at(dist))?;
        return Ok(std::fs::write(&results, serde_json::to_string(&outcomes)?).map(|()| true)?);
    }
    let dist = dist::build()?;
    let programs = Programs::ensure(&[debian::BASIC, debian::MORE, EXTRA])?;
    ensure!(programs.unpacked.is_none(), "the programs must be installed: run this as root once");
    let runtime = tree::target().join("e2e");
    std::fs::create_dir_all(&runtime)?;
    std::fs::create_dir_all(tree::target().join("xtask"))?;
    let mut command = netns::enter()?;
    command.env("FERROCE_RUNTIME_DIR", &runtime);
    command.arg(std::env::current_exe()?).args(["compat", "--rounds", &args.rounds.to_string()]);
    command.arg("--inside").arg(&dist.root).args(&args.names);
    let status = command.current_dir(tree::root()).status()?;
    ensure!(status.success(), "the runs could not be made: {status}");
    let outcomes: Vec<Outcome> = serde_json::from_str(&std::fs::read_to_string(&results)?)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    } else {
        println!("{}", page::table(&outcomes));
    }
    if args.save {
        page::save(&outcomes, args.rounds)?;
    }
    Ok(outcomes.iter().all(|outcome| outcome.passed))
}

/// In the child, which has a network namespace of its own.
fn inside(args: &CompatArgs, dist: Dist) -> Result<Vec<Outcome>> {
    netns::is_our_own()?;
    netns::raise_loopback()?;
    let bed = Bed::new(dist, None, Programs::default(), true)?;
    let wanted =
        |trial: &&Trial| args.names.is_empty() || args.names.iter().any(|name| name == trial.program);
    let mut outcomes = Vec::new();
    for trial in ALL.iter().filter(wanted) {
        eprintln!("{}: {}", trial.program, trial.what);
        outcomes.push(one(&bed, trial, args.rounds)?);
    }
    netns::end_broker();
    Ok(outcomes)
}

fn one(bed: &Bed, trial: &Trial, rounds: u32) -> Result<Outcome> {
    let link = (trial.place == Place::Link).then(|| Link::add(bed)).transpose()?;
    let mut checks = Checks::default();
    let before = octets(bed)?;
    let (mut ferroce, mut tcp, mut ended) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        if let Some(figure) = meet(bed, trial, Over::Ferroce, &mut checks)? {
            ended += 1;
            ferroce.extend(figure);
        }
        if trial.tcp.is_some() {
            tcp.extend(meet(bed, trial, Over::Tcp, &mut Checks::aside("its TCP fails:"))?.flatten());
        }
    }
    let octets = octets(bed)? - before;
    if ended > 0 && octets == 0 {
        checks.fail(trial.what, "it ended well, but nothing was sent by ferroce");
    }
    drop(link);
    Ok(Outcome {
        program: trial.program.to_owned(),
        version: version(trial.package)?,
        what: trial.what.to_owned(),
        passed: checks.good() && ended == rounds,
        verified: trial.verified,
        octets,
        unit: trial.figure.map(|figure| figure.unit.to_owned()),
        more_is_better: trial.figure.is_some_and(|figure| figure.more),
        ferroce,
        tcp,
        limit: trial.limit.to_owned(),
    })
}

/// The transport of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Ferroce,
    /// The program's own.
    Tcp,
}

/// Runs both ends. `None` if they failed, else the figure, if there is one.
fn meet(bed: &Bed, trial: &Trial, over: Over, checks: &mut Checks) -> Result<Option<Option<f64>>> {
    let port = bed.port();
    let (ends, variables) = match (over, trial.tcp) {
        (Over::Tcp, Some(tcp)) => tcp,
        _ => (trial.ends, trial.variables),
    };
    let host = if trial.place == Place::Link { ADDRESS } else { "127.0.0.1" };
    let [server, client] = ends.map(|words| {
        let words = words.replace("{port}", &port.to_string()).replace("{host}", host);
        let mut words = words.split_whitespace();
        let mut command = match over {
            Over::Ferroce => {
                let mut command = Command::new(bed.dist.bin("ferroce"));
                command.arg("run").args(trial.options.split_whitespace()).arg("--");
                command
            }
            Over::Tcp => Command::new(words.next().unwrap_or_default()),
        };
        command.args(words).envs(variables.iter().copied());
        command
    });
    let meeting = Meeting {
        name: format!("{} {}{}", trial.program, trial.what, if over == Over::Tcp { ", TCP" } else { "" }),
        server,
        client,
        patience: Some(PATIENCE),
        judge: &|_, _| Ok(()),
        endless: trial.endless,
        limit: LIMIT,
    };
    let Some((client, _)) = meeting.run(&bed.logs, checks)? else { return Ok(None) };
    let figure = trial.figure.and_then(|figure| (figure.read)(&client.output));
    if trial.figure.is_some() && figure.is_none() {
        checks.fail(trial.what, &format!("no figure in what it printed\n{}", client.describe()));
    }
    Ok(Some(figure))
}

/// A link on one end of a veth pair.
struct Link<'a>(&'a Bed);

impl<'a> Link<'a> {
    fn add(bed: &'a Bed) -> Result<Self> {
        for words in [
            "link add v0 mtu 4200 type veth peer name v1 mtu 4200",
            "address add 10.9.0.1/24 dev v0",
            "link set v0 up",
            "link set v1 up",
        ] {
            let output = Command::new("ip").args(words.split(' ')).output().context("ip (iproute2)")?;
            ensure!(
                output.status.success(),
                "ip {words}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let mut command = Command::new(bed.dist.bin("ferroce"));
        let output =
            command.args(["link", "add", "fr1", "type", "roce", "netdev", "v0", "--no-persist"]).output()?;
        ensure!(
            output.status.success(),
            "ferroce link add: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(Self(bed))
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        let _ = Command::new(self.0.dist.bin("ferroce")).args(["link", "delete", "fr1"]).output();
        let _ = Command::new("ip").args(["link", "delete", "v0"]).output();
    }
}

/// Octets that the devices sent and copied directly so far.
fn octets(bed: &Bed) -> Result<u64> {
    let output = Command::new(bed.dist.bin("ferroce")).args(["-d", "-j", "statistic", "show"]).output()?;
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let counted = |row: &serde_json::Value, name: &str| row.get(name).and_then(serde_json::Value::as_u64);
    Ok(rows
        .iter()
        .flat_map(|row| ["sent_octets", "direct_octets"].map(|name| counted(row, name).unwrap_or_default()))
        .sum())
}

fn version(package: &str) -> Result<String> {
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
