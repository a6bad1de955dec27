//! `cargo xtask compat`: the programs that people use, between two processes on ferroce, and the page that says how they did.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;

use super::page;
use crate::Bed;
use crate::compat::{self, Outcome};
use ferroce_harness::debian::{self, Programs};
use ferroce_harness::dist::Dist;
use ferroce_harness::{netns, tree};

/// The command line of `cargo xtask compat`.
#[derive(Args)]
pub struct CompatArgs {
    /// Only these programs (see --list).
    names: Vec<String>,
    /// Runs of each; the page shows medians.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Writes docs/book/src/compatibility.md; with names, the other rows are those of the last run on this machine.
    #[arg(long)]
    save: bool,
    /// Compares the results, but not the figures, with docs/book/src/compatibility.md and names the differences.
    #[arg(long, conflicts_with = "save")]
    check: bool,
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

/// The results that the child leaves for its parent.
const RESULTS: &str = "compat.json";

/// Runs the programs; true when all passed that are not known to fail and, with `--check`, the page says the same.
pub fn run(args: &CompatArgs) -> Result<bool> {
    if args.list {
        for (program, what) in compat::names() {
            println!("{program:<18} {what}");
        }
        return Ok(true);
    }
    for name in &args.names {
        ensure!(
            compat::names().any(|(program, _)| program == name),
            "no program is called {name}; see --list"
        );
    }
    let results = tree::target().join("xtask").join(RESULTS);
    if let Some(dist) = &args.inside {
        let outcomes = inside(args, Dist::at(dist))?;
        return Ok(std::fs::write(&results, serde_json::to_string(&outcomes)?).map(|()| true)?);
    }
    let earlier = read(&results).unwrap_or_default();
    let dist = Dist::build()?;
    Programs::ensure(&[debian::BASIC, debian::MORE])?;
    compat::prepare(&args.names)?;
    let runtime = tree::target().join("e2e");
    std::fs::create_dir_all(&runtime)?;
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700))?;
    let mut command = netns::enter()?;
    command.env("FERROCE_RUNTIME_DIR", &runtime);
    command.arg(std::env::current_exe()?).args(["compat", "--rounds", &args.rounds.to_string()]);
    command.arg("--inside").arg(&dist.root).args(&args.names);
    let status = command.current_dir(tree::root()).status()?;
    ensure!(status.success(), "the runs could not be made: {status}");
    let outcomes = read(&results)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    } else {
        println!("{}", page::table(&outcomes));
    }
    if !args.names.is_empty() {
        std::fs::write(&results, serde_json::to_string(&merged(earlier, &outcomes))?)?;
    }
    if args.save {
        page::save(&read(&results)?, args.rounds)?;
    }
    let mut good = outcomes.iter().all(Outcome::is_expected);
    if args.check {
        let differences = page::differences(&page::saved()?, &outcomes, args.names.is_empty());
        for difference in &differences {
            eprintln!("{difference}");
        }
        good &= differences.is_empty();
    }
    Ok(good)
}

fn read(results: &Path) -> Result<Vec<Outcome>> {
    Ok(serde_json::from_str(&std::fs::read_to_string(results)?)?)
}

/// The earlier outcomes with the fresh ones in place of their own, in the order of the page.
fn merged(earlier: Vec<Outcome>, fresh: &[Outcome]) -> Vec<Outcome> {
    let all: Vec<Outcome> = fresh.iter().cloned().chain(earlier).collect();
    let of = |name: (&str, &str)| all.iter().find(|outcome| (&*outcome.program, &*outcome.what) == name);
    compat::names().filter_map(of).cloned().collect()
}

/// In the child, which has a network namespace of its own.
fn inside(args: &CompatArgs, dist: Dist) -> Result<Vec<Outcome>> {
    netns::is_our_own()?;
    netns::raise_loopback()?;
    let bed = Bed::new(dist, Programs::default(), true)?;
    compat::run(&bed, &args.names, args.rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_outcomes_replace_earlier_ones_and_keep_the_order() {
        let names: Vec<_> = compat::names().take(3).collect();
        let outcome = |(program, what), version| Outcome::example(program, what, version);
        let earlier = names.iter().map(|name| outcome(*name, "old")).collect();
        let fresh = outcome(names[1], "new");
        let versions: Vec<_> = merged(earlier, &[fresh]).into_iter().map(|o| o.version).collect();
        assert_eq!(versions, ["old", "new", "old"]);
    }
}
