//! `cargo xtask guards`: is each guard against rxe's bugs watched by a test?
//!
//! The bugs that the kernel's rxe had are numbered A1 to E20. Each has a place in our sources that guards against it, and
//! tests with its number in their names. Here every guard is removed in turn, in a copy of the sources, and the tests of
//! its number must fail. An entry that cannot apply to us says why.
//!
//! Part F is not about bugs of rxe: F1 to F10 are what connection management holds against messages and programs.

mod connections;
mod list;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::report::Checks;
use crate::{job, tree};

use self::list::{ELSEWHERE, GUARDS, NOT_APPLICABLE};

/// Which guards to remove.
#[derive(Args)]
pub struct GuardsArgs {
    /// Only these entries, such as b4; all without any.
    entries: Vec<String>,
    /// Lists the entries and their guards and stops.
    #[arg(long)]
    list: bool,
    /// Only looks whether every entry is in the list and every place in the sources; compiles nothing.
    #[arg(long)]
    dry: bool,
}

/// A guard, and how it is removed.
pub struct Guard {
    /// `b4`: the tests that must fail begin with it and an underscore.
    pub entry: &'static str,
    /// The file, from the workspace's root.
    pub file: &'static str,
    /// Stands there exactly once.
    pub find: &'static str,
    /// What stands there without the guard.
    pub replace: &'static str,
    /// Arguments of `cargo test` that name package and target.
    pub tests: &'static [&'static str],
}

/// How many entries each part of the list of bugs has; F is ours.
const PARTS: [(char, u32); 6] = [('a', 12), ('b', 20), ('c', 18), ('d', 12), ('e', 20), ('f', 10)];

/// A build that does not end, or a test that does not, is a failure too.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs the command.
pub fn run(args: &GuardsArgs) -> Result<bool> {
    if args.list {
        for guard in all_guards() {
            println!("{:<4} {}: {}", guard.entry, guard.file, first_line(guard.find));
        }
        for (entry, tests) in ELSEWHERE {
            println!("{entry:<4} {tests}");
        }
        for (entry, because) in NOT_APPLICABLE {
            println!("{entry:<4} n/a, because {because}");
        }
        return Ok(true);
    }
    let mut checks = Checks::default();
    check(&mut checks, &args.entries, args.dry)?;
    println!("{}", checks.closing());
    Ok(checks.good())
}

/// Looks at the list, and unless `dry` removes each guard of the `entries`, or of all if there are none.
pub fn check(checks: &mut Checks, entries: &[String], dry: bool) -> Result<()> {
    let wanted = |entry: &str| entries.is_empty() || entries.iter().any(|e| e.eq_ignore_ascii_case(entry));
    for entry in entries {
        ensure!(all_entries().any(|e| e.eq_ignore_ascii_case(entry)), "there is no entry {entry}: a1 to f10");
    }
    checks.check("every entry is in the list", complete());
    let root = tree::root();
    let mut found = true;
    for guard in all_guards().filter(|guard| wanted(guard.entry)) {
        let place = removed(root.join(guard.file).as_path(), guard).map(drop);
        found &= place.is_ok();
        checks.check(&name(guard), place);
    }
    if dry || !found {
        return Ok(());
    }
    let copy = Copy::make(root)?;
    // Without any change they pass: otherwise a failure below would tell nothing.
    let mut baseline: BTreeMap<&[&str], BTreeSet<&str>> = BTreeMap::new();
    for guard in all_guards().filter(|guard| wanted(guard.entry)) {
        baseline.entry(guard.tests).or_default().insert(guard.entry);
    }
    for (tests, entries) in baseline {
        for entry in entries {
            let outcome = copy.test(tests, entry)?;
            let good = matches!(outcome, Outcome::Passed(count) if count > 0);
            checks.check(
                &format!("{entry}: its tests in {}", tests.join(" ")),
                if good { Ok(()) } else { Err(format!("unchanged, they should pass: {outcome}")) },
            );
        }
    }
    for guard in all_guards().filter(|guard| wanted(guard.entry)) {
        println!("  {}", name(guard));
        let path = copy.root.join(guard.file);
        let original = std::fs::read_to_string(&path)?;
        std::fs::write(&path, removed(&path, guard)?)?;
        let outcome = copy.test(guard.tests, guard.entry);
        std::fs::write(&path, original)?;
        let outcome = outcome?;
        let noticed = matches!(outcome, Outcome::Failed);
        checks.check(
            &name(guard),
            if noticed { Ok(()) } else { Err(format!("nobody notices that it is gone: {outcome}")) },
        );
    }
    Ok(())
}

fn all_guards() -> impl Iterator<Item = &'static Guard> {
    GUARDS.iter().chain(connections::GUARDS)
}

fn all_entries() -> impl Iterator<Item = String> {
    PARTS.into_iter().flat_map(|(part, count)| (1..=count).map(move |number| format!("{part}{number}")))
}

/// Every entry has a guard, a test elsewhere, or a reason; none has two of them where that is a contradiction.
fn complete() -> Result<()> {
    let guarded: BTreeSet<&str> = all_guards().map(|guard| guard.entry).collect();
    let elsewhere: BTreeSet<&str> = ELSEWHERE.iter().map(|(entry, _)| *entry).collect();
    let reasons: BTreeSet<&str> = NOT_APPLICABLE.iter().map(|(entry, _)| *entry).collect();
    let missing: Vec<String> = all_entries()
        .filter(|entry| {
            let entry = entry.as_str();
            !guarded.contains(entry) && !elsewhere.contains(entry) && !reasons.contains(entry)
        })
        .collect();
    ensure!(missing.is_empty(), "no guard, no test and no reason: {}", missing.join(" "));
    let both: Vec<&&str> = guarded.intersection(&reasons).collect();
    ensure!(both.is_empty(), "guarded, and said not to apply: {both:?}");
    let named = named_tests(&tree::root().join("crates"))?;
    let without: Vec<&&str> = guarded.union(&elsewhere).filter(|entry| !named.contains(**entry)).collect();
    ensure!(without.is_empty(), "no test carries the number: {without:?}");
    Ok(())
}

/// The entries that functions below `dir` are named for: `fn b4_…`.
fn named_tests(dir: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(named_tests(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let names =
                text.lines().filter_map(|line| line.trim_start().strip_prefix("fn ")?.split('_').next());
            found.extend(names.filter(|name| all_entries().any(|entry| entry == *name)).map(str::to_owned));
        }
    }
    Ok(found)
}

fn name(guard: &Guard) -> String {
    format!("{} without `{}`", guard.entry, first_line(guard.find))
}

fn first_line(text: &str) -> &str {
    text.trim().lines().next().unwrap_or_default()
}

/// The file's text without the guard.
fn removed(path: &Path, guard: &Guard) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    match text.matches(guard.find).count() {
        1 => Ok(text.replacen(guard.find, guard.replace, 1)),
        count => bail!("`{}` stands {count} times in {}, not once", guard.find, guard.file),
    }
}

/// A copy of the sources, with a target directory of its own that stays for the next time.
struct Copy {
    root: PathBuf,
    target: PathBuf,
}

/// What became of a test run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// That many passed, none failed.
    Passed(u32),
    Failed,
    DoesNotCompile,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Passed(0) => f.write_str("there is no such test"),
            Self::Passed(count) => write!(f, "{count} passed"),
            Self::Failed => f.write_str("tests failed"),
            Self::DoesNotCompile => f.write_str("it does not compile"),
        }
    }
}

impl Copy {
    fn make(from: &Path) -> Result<Self> {
        let base = tree::target().join("guards");
        let root = base.join("source");
        let _ = std::fs::remove_dir_all(&root);
        let listing = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(from)
            .output()
            .context("git lists the sources")?;
        ensure!(listing.status.success(), "git cannot list the sources: is this a checkout?");
        for file in listing.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let file = Path::new(std::str::from_utf8(file)?);
            let Ok(data) = std::fs::read(from.join(file)) else { continue };
            let to = root.join(file);
            if let Some(dir) = to.parent() {
                std::fs::create_dir_all(dir)?;
            }
            std::fs::write(to, data)?;
        }
        Ok(Self { root, target: base.join("target") })
    }

    /// Runs the tests of an entry.
    fn test(&self, tests: &[&str], entry: &str) -> Result<Outcome> {
        let mut command = tree::cargo();
        command
            .arg("test")
            .args(tests)
            .args(["--", &format!("{entry}_")])
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            // A guard's absence may leave something unused.
            .env("RUSTFLAGS", "--cap-lints warn");
        let ended = job::run(command, &tree::target().join("guards").join("log"), LIMIT)?;
        if ended.ok() {
            let count = ended
                .output
                .lines()
                .filter_map(|line| {
                    line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<u32>().ok()
                })
                .sum();
            return Ok(Outcome::Passed(count));
        }
        let compiles = !ended.output.contains("error: could not compile");
        Ok(if compiles { Outcome::Failed } else { Outcome::DoesNotCompile })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list, without compiling anything.
    #[test]
    fn every_guard_stands_where_the_list_says() {
        let mut checks = Checks::default();
        check(&mut checks, &[], true).expect("the sources can be read");
        assert!(checks.good(), "{}", checks.closing());
    }
}
