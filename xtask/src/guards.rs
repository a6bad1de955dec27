//! `cargo xtask guards`: does a test fail if a check of the product is wrong?
//!
//! Each crate's `tests/guards.txt` names the functions that protect it against bad input and bad peers.
//! cargo-mutants changes these functions in a copy of the sources, one small change at a time, and the
//! crate's own tests must fail each time. The files name functions, not source text, so an edit breaks
//! nothing; a function that is gone fails here alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use ferroce_harness::report::{Checks, Report};
use ferroce_harness::tree;

/// Which functions to change.
#[derive(Args)]
pub struct GuardsArgs {
    /// Functions whose names contain one of these.
    #[arg(required_unless_present_any = ["all", "package", "since"])]
    functions: Vec<String>,
    /// All functions; this takes an hour or more.
    #[arg(long)]
    all: bool,
    /// Only this crate.
    #[arg(long = "crate", value_name = "CRATE")]
    package: Option<String>,
    /// Only in files that commits since this time changed, a time as Git reads it, such as 2.days.ago.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Prints the changes and stops.
    #[arg(long)]
    list: bool,
}

/// A crate's `guards.txt`.
struct Guards {
    package: String,
    /// Names as `Type::function`, without generics.
    functions: Vec<String>,
    /// Changes that no test can notice, as regular expressions.
    excluded: Vec<String>,
}

/// Runs the command.
pub fn run(args: &GuardsArgs) -> Result<bool> {
    ensure!(
        cargo_mutants(&["--version"]).output()?.status.success(),
        "cargo-mutants is missing: cargo install cargo-mutants --locked"
    );
    let changed = args.since.as_deref().map(changed).transpose()?;
    let mut report = Report::default();
    for mut guards in all()? {
        if args.package.as_ref().is_some_and(|package| *package != guards.package) {
            continue;
        }
        guards.functions.retain(|name| {
            args.functions.is_empty() || args.functions.iter().any(|part| name.contains(part))
        });
        if args.list {
            guards.mutants()?.iter().for_each(|line| println!("{line}"));
        } else if !guards.functions.is_empty() {
            report.stage(&guards.package, |checks| guards.check(checks, changed.as_deref()));
        }
    }
    Ok(args.list || report.close())
}

/// The files that commits since a time changed, a line each.
fn changed(since: &str) -> Result<String> {
    let mut git = Command::new("git");
    git.args(["log", "--name-only", "--format=", "--since", since]).current_dir(tree::root());
    let output = git.output().context("git")?;
    ensure!(output.status.success(), "git log: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The files of all crates.
fn all() -> Result<Vec<Guards>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(tree::root().join("crates"))? {
        let path = entry?.path();
        let Ok(text) = std::fs::read_to_string(path.join("tests/guards.txt")) else { continue };
        let package = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.push(parse(package, &text)?);
    }
    found.sort_by(|a, b| a.package.cmp(&b.package));
    Ok(found)
}

/// Reads a file: `FUNCTION: what it protects`, `! REGEX: why no test can notice`, comments.
fn parse(package: String, text: &str) -> Result<Guards> {
    let mut guards = Guards { package, functions: Vec::new(), excluded: Vec::new() };
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, why) = line.split_once(": ").with_context(|| format!("no reason: {line}"))?;
        ensure!(!why.trim().is_empty(), "no reason: {line}");
        match name.strip_prefix("! ") {
            Some(excluded) => guards.excluded.push(excluded.to_owned()),
            None => guards.functions.push(name.to_owned()),
        }
    }
    Ok(guards)
}

impl Guards {
    /// The changes as cargo-mutants names them, a line each. It lists removed fields of other functions as
    /// well.
    fn mutants(&self) -> Result<Vec<String>> {
        let output = self.command(&["--list"]).output()?;
        ensure!(output.status.success(), "cargo mutants: {}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        Ok(self.own(lines))
    }

    fn own(&self, mut lines: Vec<String>) -> Vec<String> {
        lines.retain(|line| self.functions.iter().any(|function| is_of(line, function)));
        lines
    }

    /// Checks all files, or those of `changed`.
    fn check(&self, checks: &mut Checks, changed: Option<&str>) -> Result<()> {
        let mutants = self.mutants()?;
        for function in &self.functions {
            if !mutants.iter().any(|line| is_of(line, function)) {
                checks.fail(function, "tests/guards.txt names it, but there is nothing to change");
            }
        }
        let mut files: BTreeSet<&str> = mutants.iter().filter_map(|line| line.split(':').next()).collect();
        files.retain(|file| changed.is_none_or(|changed| changed.lines().any(|line| line == *file)));
        if files.is_empty() {
            checks.note("no function of tests/guards.txt is in a file that changed");
            return Ok(());
        }
        let out = self.out();
        let _ = std::fs::remove_dir_all(&out);
        std::fs::create_dir_all(&out)?;
        let mut run =
            self.command(&["--no-shuffle", "--colors", "never", "--no-times", "--cap-lints", "true"]);
        run.args(["--minimum-test-timeout", "120", "--output"]).arg(&out);
        for file in files {
            run.args(["--file", file]);
        }
        // Dependencies are built once, not in each copy.
        run.env("CARGO_TARGET_DIR", tree::target().join("guards/build"));
        let status = run.status()?;
        let outcome = |name: &str| self.own(read(&out.join("mutants.out").join(name)));
        let (caught, missed, timeout) =
            (outcome("caught.txt"), outcome("missed.txt"), outcome("timeout.txt"));
        // 2: a change was not noticed; 3: a test ran into its time limit, which is noticed as well.
        if !matches!(status.code(), Some(0 | 2 | 3)) {
            bail!("cargo mutants: {status}; see {}", out.join("mutants.out/log").display());
        }
        caught.iter().chain(&timeout).for_each(|_| checks.pass());
        for line in missed {
            checks.fail(&line, "no test fails");
        }
        Ok(())
    }

    fn out(&self) -> PathBuf {
        tree::target().join("guards").join(&self.package)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = cargo_mutants(&["--no-config", "--package", &self.package]);
        command.args(args);
        for function in &self.functions {
            command.arg("--re").arg(pattern(function));
        }
        for excluded in &self.excluded {
            command.arg("--exclude-re").arg(excluded);
        }
        command
    }
}

/// `Type::function` as a regular expression over names of changes; the type may have generics.
fn pattern(function: &str) -> String {
    let name = function.replace("::", "(<[^>]*>)?::");
    format!("(replace|in) {name}( |$)")
}

/// Whether a change is one of `function`.
fn is_of(line: &str, function: &str) -> bool {
    let mut name = String::new();
    let mut depth = 0;
    for char in line.chars() {
        let opens = char == '<' && name.ends_with(char::is_alphanumeric);
        depth += i32::from(opens || (depth > 0 && char == '<'));
        if depth == 0 {
            name.push(char);
        }
        depth -= i32::from(depth > 0 && char == '>');
    }
    name.split(' ').any(|word| word == function)
}

fn read(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn cargo_mutants(args: &[&str]) -> Command {
    let mut command = tree::cargo();
    command.arg("mutants").args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_all_crates_can_be_read() {
        assert!(!all().unwrap().is_empty());
        assert!(parse("x".to_owned(), "Type::function\n").is_err());
        let guards = parse("x".to_owned(), "# A comment.\n\nT::f: why\n! a in T::f: equal\n").unwrap();
        assert_eq!(
            (guards.functions, guards.excluded),
            (vec!["T::f".to_owned()], vec!["a in T::f".to_owned()])
        );
    }

    #[test]
    fn a_change_belongs_to_its_function() {
        let line = "crates/x/src/a.rs:1:2: replace Rest<'a>::take -> Result<&'a [u8], E> with Ok(&[])";
        assert!(is_of(line, "Rest::take") && !is_of(line, "Rest::tak") && !is_of(line, "take"));
        assert!(is_of("a.rs:1:2: replace < with == in Rest<'a>::take", "Rest::take"));
        assert_eq!(pattern("Rest::take"), "(replace|in) Rest(<[^>]*>)?::take( |$)");
    }
}
