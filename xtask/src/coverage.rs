//! `cargo xtask coverage`: which lines of the crates without I/O do their own tests run?
//!
//! cargo-llvm-cov builds the crates with LLVM's instrumentation, runs `cargo test` and adds up what was counted. A line that no test
//! runs is a fact; a line that is run says nothing about what was checked: `cargo xtask guards` asks that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use ferroce_harness::tree;

/// The crates that need no socket and no privilege.
const CRATES: [&str; 7] = [
    "ferroce-wire",
    "ferroce-proto",
    "ferroce-cm",
    "ferroce-fault",
    "ferroce-sim",
    "ferroce-ipc",
    "ferroce-rsocket",
];
const NO_LLVM_COV: &str = "cargo-llvm-cov is missing (cargo install cargo-llvm-cov --locked)";
const NO_LLVM_TOOLS: &str = "LLVM's tools are missing (rustup component add llvm-tools)";

/// Which crates to look at.
#[derive(Args)]
pub struct CoverageArgs {
    /// Crates; without one, those that need no socket and no privilege.
    crates: Vec<String>,
    /// Names each file as well.
    #[arg(long)]
    files: bool,
}

/// Lines that there are, and lines that were run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Lines {
    all: u64,
    run: u64,
}

impl Lines {
    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.run += other.run;
    }

    fn line(self, name: &str) -> String {
        let percent = if self.all == 0 { 0.0 } else { self.run as f64 * 100.0 / self.all as f64 };
        format!("{percent:>6.1} % {:>7} of {:>7} lines  {name}", self.run, self.all)
    }
}

/// Runs the tests of the crates and prints what they ran; true if all tests passed.
///
/// # Errors
/// cargo-llvm-cov is missing, a crate is unknown, or the report cannot be read.
pub fn run(args: &CoverageArgs) -> Result<bool> {
    let crates: Vec<&str> = match args.crates.is_empty() {
        true => CRATES.to_vec(),
        false => args.crates.iter().map(String::as_str).collect(),
    };
    for name in &crates {
        ensure!(tree::root().join("crates").join(name).is_dir(), "there is no crate {name} in crates/");
    }
    let missing = missing();
    ensure!(missing.is_empty(), "{}", missing.join("; "));
    let report = tree::target().join("coverage.json");
    std::fs::create_dir_all(tree::target())?;
    if !command(&crates, &report).status()?.success() {
        return Ok(false);
    }
    let text = std::fs::read_to_string(&report).with_context(|| report.display().to_string())?;
    let files = read(&text)?;
    for name in crates {
        let within = format!("crates/{name}/src/");
        let mut sum = Lines::default();
        for (file, lines) in files.iter().filter(|(file, _)| file.starts_with(&within)) {
            sum.add(*lines);
            if args.files {
                println!("{}", lines.line(file));
            }
        }
        println!("{}", sum.line(name));
    }
    Ok(true)
}

/// A sentence on each program that is not here, with the command that brings it.
fn missing() -> Vec<&'static str> {
    let mut version = tree::cargo();
    version.args(["llvm-cov", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    let runs = version.status().is_ok_and(|status| status.success());
    [(!runs).then_some(NO_LLVM_COV), (!has_llvm_tools()).then_some(NO_LLVM_TOOLS)]
        .into_iter()
        .flatten()
        .collect()
}

/// Whether `llvm-cov` and `llvm-profdata` are where cargo-llvm-cov looks for them: in its variables, or beside the libraries of the compiler.
fn has_llvm_tools() -> bool {
    let named = |name| std::env::var_os(name).map(PathBuf::from);
    let beside = || {
        let output = Command::new("rustc").args(["--print", "target-libdir"]).output().ok()?;
        let libraries = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        Some(libraries.parent()?.join("bin"))
    };
    [("LLVM_COV", "llvm-cov"), ("LLVM_PROFDATA", "llvm-profdata")].into_iter().all(|(variable, program)| {
        named(variable).or_else(|| Some(beside()?.join(program))).is_some_and(|path| path.is_file())
    })
}

fn command(crates: &[&str], report: &Path) -> Command {
    let mut command = tree::cargo();
    command.args(["llvm-cov", "--json", "--summary-only", "--output-path"]).arg(report);
    for name in crates {
        command.args(["-p", name]);
    }
    command
}

/// The files of a report, by their path below the workspace. Tests within a source file count as its lines.
fn read(text: &str) -> Result<BTreeMap<String, Lines>> {
    let report: Value = serde_json::from_str(text)?;
    let files = report["data"][0]["files"].as_array().context("the report of cargo-llvm-cov has no files")?;
    let root = format!("{}/", tree::root().display());
    let mut found = BTreeMap::new();
    for file in files {
        let name = file["filename"].as_str().context("a file without a name")?;
        let lines = &file["summary"]["lines"];
        let number = |key: &str| lines[key].as_u64().with_context(|| format!("{name} has no {key}"));
        let lines = Lines { all: number("count")?, run: number("covered")? };
        found.insert(name.strip_prefix(&root).unwrap_or(name).to_owned(), lines);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_and_added_up() {
        let root = tree::root().display();
        let file = |name: &str, count: u64, covered: u64| {
            format!(
                r#"{{"filename":"{root}/crates/{name}","summary":{{"lines":{{"count":{count},"covered":{covered}}}}}}}"#
            )
        };
        let text = format!(
            r#"{{"data":[{{"files":[{},{}]}}]}}"#,
            file("a/src/b.rs", 10, 9),
            file("a/src/c.rs", 30, 30)
        );
        let files = read(&text).unwrap();
        assert_eq!(files["crates/a/src/b.rs"], Lines { all: 10, run: 9 });
        let mut sum = Lines::default();
        files.values().for_each(|lines| sum.add(*lines));
        assert_eq!(sum.line("a"), "  97.5 %      39 of      40 lines  a");
        assert!(read("{}").is_err());
    }

    #[test]
    fn each_crate_exists() {
        for name in CRATES {
            assert!(tree::root().join("crates").join(name).is_dir(), "{name}");
        }
    }
}
