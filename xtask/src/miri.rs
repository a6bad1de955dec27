//! `cargo xtask miri`: unit tests of the lower crates in Miri, which interprets the program and finds undefined behaviour: accesses
//! beyond or after an allocation, data races, values that a type does not have, leaks.
//!
//! Miri runs no system call that it does not know and no instruction of ours. A test that needs one is ignored there by
//! `#[cfg_attr(miri, ignore = "…")]`. Memory files and the copies of registered memory have a part for Miri instead
//! (`ferroce-ipc/src/shared/miri.rs`, `ferroce-memory/src/guard/miri.rs`), so that the code above them runs.

use std::process::Stdio;

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::{sanitizer, source};
use ferroce_harness::report::{Checks, Report};
use ferroce_harness::tree;

/// Selects the crates and the order in which threads take their turns.
#[derive(Args)]
pub struct MiriArgs {
    /// Crates; without one, all that have tests for Miri.
    crates: Vec<String>,
    /// The seed of the order of threads, of weak memory and of addresses. A failure in Miri repeats with its seed.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
}

/// The tests of a crate that run in Miri.
struct Set {
    name: &'static str,
    /// Parts of the names of tests, or of those to leave out behind `--skip`; all tests without one.
    tests: &'static [&'static str],
    /// Flags of Miri beside [`FLAGS`].
    flags: &'static str,
}

const SETS: [Set; 6] = [
    Set {
        name: "ferroce-wire",
        tests: &[
            "aeth::",
            "batch::",
            "cm::",
            "frame::",
            "gid::",
            "icrc::",
            "iwarp::message",
            "iwarp::segment",
            "iwarp::terminate",
            "num::",
            "opcode::",
        ],
        flags: "",
    },
    // A plan of some rules takes Miri half a minute to read, so the tests of the parser are not among them.
    Set { name: "ferroce-fault", tests: &["draw::", "judge::", "limit::"], flags: "" },
    Set { name: "ferroce-proto", tests: &[], flags: "" },
    Set { name: "ferroce-cm", tests: &[], flags: "" },
    // The aliasing model visits each word of a mapping whenever a slice of it is made, which takes minutes. All these words are atomics,
    // which may be aliased; bounds, lifetimes and data races are checked without the model.
    Set {
        name: "ferroce-ipc",
        tests: &["ring::", "pipe::", "shared::", "published::"],
        flags: "-Zmiri-disable-stacked-borrows",
    },
    // Verbs name registered memory by numbers. Tests of direct copies start processes.
    Set { name: "ferroce-memory", tests: &["--skip", "direct::"], flags: "-Zmiri-permissive-provenance" },
];
/// Properties read the files of the seeds that once failed, and rings have timeouts.
const FLAGS: &str = "-Zmiri-disable-isolation";
/// Cases of each property that does not say how many; one takes Miri seconds.
const CASES: &str = "1";

/// Runs the tests; true if none failed.
///
/// # Errors
/// Miri is missing, or a crate has no tests for it.
pub fn run(args: &MiriArgs) -> Result<bool> {
    let known = SETS.map(|set| set.name);
    for name in &args.crates {
        ensure!(
            known.contains(&name.as_str()),
            "no tests of {name} run in Miri; there are {}",
            known.join(", ")
        );
    }
    if let Some(missing) = missing() {
        bail!(missing);
    }
    let mut report = Report::default();
    for set in SETS {
        if args.crates.is_empty() || args.crates.iter().any(|asked| asked == set.name) {
            report.stage(set.name, |checks| check(checks, &set, args.seed));
        }
    }
    Ok(report.close())
}

fn check(checks: &mut Checks, set: &Set, seed: u32) -> Result<()> {
    let mut command = sanitizer::nightly(&["miri", "test", "--lib", "--no-fail-fast", "--package", set.name]);
    command.arg("--target-dir").arg(tree::target().join("miri")).arg("--").args(set.tests);
    command
        .env("MIRIFLAGS", format!("{FLAGS} {} -Zmiri-seed={seed}", set.flags))
        .env("PROPTEST_CASES", CASES);
    source::tests(checks, &format!("miri-{}", set.name), command)
}

/// A sentence on a program that is not here, with the command that brings it.
fn missing() -> Option<&'static str> {
    let works = |args: &[&str]| {
        let mut command = sanitizer::nightly(args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    match (works(&["--version"]), works(&["miri", "--version"])) {
        (true, true) => None,
        (true, false) => {
            Some("Miri is not installed (rustup component add miri rust-src --toolchain nightly)")
        }
        (false, _) => Some(
            "no nightly toolchain is installed (rustup toolchain install nightly --component miri --component rust-src)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_exists() {
        for set in SETS {
            assert!(tree::root().join("crates").join(set.name).is_dir(), "{}", set.name);
        }
    }
}
