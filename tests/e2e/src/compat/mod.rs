//! The programs that people use, each between its own ends on ferroce, and on its own TCP transport for comparison.
//!
//! `cargo xtask compat` runs all and writes a page, the stage `compat` the quick ones.

mod command;
mod figures;
mod outcome;
mod page;
mod run;
mod software;
mod trial;
mod trials;

pub use command::{CompatArgs, run as command};
pub use outcome::{Outcome, TrialState};

use anyhow::Result;

use super::Bed;
use ferroce_harness::report::Checks;
use ferroce_harness::tree;
use run::Runner;
use software::Missing;
use trial::Trial;

/// The reasons that the parent leaves for its child.
const MISSING: &str = "compat-missing.json";

/// The program and the name of each trial, in the order of the page.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    trials::all().map(|trial| (trial.of.name, trial.what))
}

/// Makes the programs `names` ready while there is a network; all of them if it is empty.
pub fn prepare(names: &[String]) -> Result<()> {
    ready(|trial| wants(names, trial))
}

/// Makes those ready that the stage `compat` runs.
pub fn prepare_stage(all: bool) -> Result<()> {
    ready(|trial| all || trial.quick)
}

fn wants(names: &[String], trial: &Trial) -> bool {
    names.is_empty() || names.iter().any(|name| name == trial.of.name)
}

/// Makes the software of these trials ready. Software that cannot be had here is noted for the child.
fn ready(wanted: impl Fn(&Trial) -> bool) -> Result<()> {
    let wanted = |name: &str| trials::all().any(|trial| trial.of.name == name && wanted(trial));
    let missing = software::prepare(trials::software().into_iter().filter(|software| wanted(software.name)));
    let file = tree::target().join("xtask").join(MISSING);
    std::fs::create_dir_all(tree::target().join("xtask"))?;
    Ok(std::fs::write(file, serde_json::to_string(&missing)?)?)
}

fn missing() -> Result<Missing> {
    let file = tree::target().join("xtask").join(MISSING);
    Ok(serde_json::from_str(&std::fs::read_to_string(file)?)?)
}

/// In a network namespace of our own: runs all trials of the programs `names`, each `rounds` times.
pub fn run(bed: &Bed, names: &[String], rounds: u32) -> Result<Vec<Outcome>> {
    let (mut runner, missing) = (Runner::new(bed, true)?, missing()?);
    trials::all()
        .filter(|trial| wants(names, trial))
        .map(|trial| {
            eprintln!("{}: {}", trial.of.name, trial.what);
            runner.trial(trial, rounds, &missing)
        })
        .collect()
}

/// The stage `compat`: the quick trials once, or all of them.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let (mut runner, missing) = (Runner::new(bed, false)?, missing()?);
    for trial in trials::all().filter(|trial| bed.all || trial.quick) {
        let name = format!("{} {}", trial.of.name, trial.what);
        let outcome = runner.trial(trial, 1, &missing)?;
        match outcome.state {
            TrialState::Passed => checks.pass(),
            TrialState::NotRun(why) | TrialState::Known(why) => checks.skip(&name, &why),
            TrialState::Failed => checks.fail(&name, "see above"),
            TrialState::Unexpected => checks.fail(&name, "it passes: remove the reason for its failure"),
        }
    }
    Ok(())
}
