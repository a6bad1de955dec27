//! The tests of published Rust crates on our library, their threads and their programs all at once. On the kernel's
//! rxe such crates run their tests one by one, because completions are lost.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Bed;
use super::nobody::Nobody;
use crate::foreign::{ALL, Foreign};
use ferroce_harness::job::{Ended, Job};
use ferroce_harness::report::Checks;

const ROUNDS: u32 = 20;
/// More than the machine has processors.
const THREADS: &str = "16";
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the programs that [`Foreign::build`] built, [`ROUNDS`] times.
pub fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    for foreign in ALL {
        let title = format!("{} {}", foreign.name, foreign.version);
        if !bed.all {
            checks.skip(&title, "fetched from crates.io and built with --all only");
        } else if !foreign.programs().is_dir() {
            checks.skip(&title, "its tests were not built (above)");
        } else {
            rounds(bed, foreign, checks)?;
            let left_out = foreign.without.iter().chain(foreign.without_programs);
            for (name, reason) in left_out {
                checks.skip(&format!("{title} {name}"), reason);
            }
        }
    }
    Ok(())
}

fn rounds(bed: &Bed, foreign: &Foreign, checks: &mut Checks) -> Result<()> {
    let nobody = Nobody::new(bed, "ferroce-crates")?;
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(foreign.programs())? {
        programs.push(nobody.program(&entry?.path())?);
    }
    let mut sum = 0;
    for round in 1..=ROUNDS {
        let mut jobs = Vec::new();
        for program in &programs {
            let mut command = nobody.command(program);
            command.args(["--test-threads", THREADS]);
            for (name, _) in foreign.without {
                command.args(["--skip", name]);
            }
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            jobs.push(Job::start(command, &bed.logs.path(&format!("crates {name}")), LIMIT)?);
        }
        let mut passed = 0;
        let mut good = true;
        for job in jobs {
            match tests_passed(&job.wait()?) {
                Ok(tests) => passed += tests,
                Err(why) => {
                    checks.fail(&format!("{} round {round}", foreign.name), &format!("{why:#}"));
                    good = false;
                }
            }
        }
        if good && passed == foreign.tests {
            checks.pass();
        } else if good {
            let text = format!("{passed} tests passed, {} were expected", foreign.tests);
            checks.fail(&format!("{} round {round}", foreign.name), &text);
        }
        sum += passed;
    }
    let (name, version) = (foreign.name, foreign.version);
    checks.note(format!("{name} {version}: {sum} tests passed in {ROUNDS} rounds of {}", foreign.tests));
    Ok(())
}

/// How many tests a program says have passed; an error unless all of them did.
fn tests_passed(ended: &Ended) -> Result<u32> {
    ensure!(ended.ok(), "{}", ended.describe());
    let count = ended.output.lines().find_map(|line| {
        line.strip_prefix("test result: ok. ")?.split_once(" passed; 0 failed;")?.0.parse().ok()
    });
    count.with_context(|| ended.describe())
}
