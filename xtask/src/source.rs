//! The checks of the sources: format, lints, documentation, unit tests.

use std::ffi::OsString;
use std::io::Read;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::dist;
use crate::results::Results;
use ferroce_harness::report::{Checks, Count};
use ferroce_harness::{debian, tree};

/// Crates whose tests share a broker, or open its port, in the network namespace of the run. Their sets run
/// one after the other: a broker within a process of tests ends with that process, and so do packets on their
/// way through it.
const OF_BROKER: [&str; 10] = [
    "ferroce",
    "ferroce-broker",
    "ferroce-capi",
    "ferroce-cli",
    "ferroce-client",
    "ferroce-datapath",
    "ferroce-dropin",
    "ferroce-engine",
    "ferroce-paths",
    "ferroce-rsocket",
];

/// Runs one cargo command with its output shown only when it fails (or always, with `show`).
fn cargo(checks: &mut Checks, name: &str, args: &[&str], envs: &[(&str, &str)]) -> Result<()> {
    let mut command = tree::cargo();
    command.args(args).envs(envs.iter().copied());
    verdict(checks, name, command)
}

fn verdict(checks: &mut Checks, name: &str, mut command: Command) -> Result<()> {
    let output = command.output()?;
    if output.status.success() {
        checks.pass();
    } else {
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(120);
        checks.fail(name, &lines.get(from..).unwrap_or_default().join("\n"));
    }
    Ok(())
}

/// `cargo fmt --check`.
pub fn fmt(checks: &mut Checks) -> Result<()> {
    cargo(checks, "fmt", &["fmt", "--all", "--check"], &[])
}

/// `cargo clippy` over everything, warnings are errors.
pub fn clippy(checks: &mut Checks) -> Result<()> {
    let args = ["clippy", "--quiet", "--keep-going", "--workspace", "--all-targets", "--", "-D", "warnings"];
    cargo(checks, "clippy", &args, &[])
}

/// `cargo doc` with private items, warnings are errors. With an example, dependencies have the features that
/// they have in the stage `clippy`, and are not checked again.
pub fn doc(checks: &mut Checks) -> Result<()> {
    let args =
        "doc --quiet --keep-going --workspace --no-deps --lib --bins --example soak --document-private-items";
    let flags = [("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links")];
    cargo(checks, "doc", &args.split(' ').collect::<Vec<_>>(), &flags)
}

/// `cargo test` over the workspace, with two sets of tests at a time, at most one of those of a broker.
pub fn unit(checks: &mut Checks) -> Result<()> {
    // Without it, the tests of the library build it with the features of one package, and most of the
    // workspace once more.
    let mut envs = vec![("FERROCE_TEST_LIBRARY", dist::development_library()?.into_os_string())];
    envs.push(("FERROCE_TEST_AUDITOR", dist::auditor(&tree::target(), &[])?.into_os_string()));
    // The tests mostly wait, more of them at once than there are processors of a small machine.
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    envs.push(("RUST_TEST_THREADS", processors.max(4).to_string().into()));
    // With the headers here, no C program may be skipped for want of one.
    if Path::new(debian::UMAD_HEADER).exists() {
        envs.push(("FERROCE_C_PROGRAMS", "required".into()));
    }
    let built = build_tests()?;
    if !built.status.success() {
        checks.fail("cargo test", &told(&String::from_utf8_lossy(&built.stderr)));
        return Ok(());
    }
    // Most tests wait, and one set after another would leave the processors idle.
    let (of_broker, others): (Vec<_>, Vec<_>) =
        sets_in(&built.stdout)?.into_iter().partition(|set| OF_BROKER.contains(&set.package.as_str()));
    let work = |sets: &[TestSet]| {
        let (mut text, mut is_good) = (String::new(), true);
        for set in sets {
            let (good, output) = set.run(&envs).unwrap_or_else(|error| (false, format!("error: {error}")));
            text += &format!("     Running {}\n{output}\n", set.name);
            is_good &= good;
        }
        (is_good, text)
    };
    let outcomes = std::thread::scope(|scope| {
        let workers = [&of_broker, &others].map(|sets| scope.spawn(|| work(sets)));
        workers.map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let text: String = outcomes.iter().map(|(_, text)| text.as_str()).collect();
    count(checks, &text, outcomes.iter().all(|(good, _)| *good))
}

fn build_tests() -> Result<Output> {
    let args = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    Ok(tree::cargo().args(args).output()?)
}

/// Compiles what the stage `unit` runs, and says nothing.
pub fn compile_quietly() -> Result<()> {
    dist::development_library()?;
    dist::auditor(&tree::target(), &[])?;
    build_tests()?;
    Ok(())
}

/// A program of tests.
struct TestSet {
    /// The crate, the target, and the file.
    name: String,
    package: String,
    program: OsString,
    args: &'static [&'static str],
    /// The folder of the crate, where cargo runs it as well.
    folder: PathBuf,
}

/// The sets of tests in cargo's messages, and the tests in documentation.
fn sets_in(messages: &[u8]) -> Result<Vec<TestSet>> {
    let mut sets = Vec::new();
    for line in messages.split(|octet| *octet == b'\n').filter(|line| line.starts_with(b"{")) {
        let message: Value = serde_json::from_slice(line)?;
        let text = |pointer| message.pointer(pointer).and_then(Value::as_str);
        let is_test = message.pointer("/profile/test") == Some(&Value::Bool(true));
        let found = (text("/executable"), text("/manifest_path"), text("/target/name"));
        let (true, (Some(program), Some(manifest), Some(target))) = (is_test, found) else { continue };
        let folder = Path::new(manifest).parent().context("a manifest lies in a folder")?.to_owned();
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = format!("{package} {target} ({program})");
        sets.push(TestSet { name, package, program: program.into(), args: &[], folder });
    }
    ensure!(!sets.is_empty(), "cargo names no programs of tests");
    let program = tree::cargo().get_program().to_owned();
    let args = ["test", "--workspace", "--no-fail-fast", "--doc", "--"].as_slice();
    let (name, package) = ("documentation".to_owned(), String::new());
    sets.push(TestSet { name, package, program, args, folder: tree::root().to_owned() });
    Ok(sets)
}

impl TestSet {
    /// Runs it. Returns whether all is well, and the output of both streams.
    fn run(&self, envs: &[(&str, OsString)]) -> Result<(bool, String)> {
        let mut command = Command::new(&self.program);
        // The reason of a skip is in the output of a test that passed.
        command.args(self.args).arg("--show-output").current_dir(&self.folder);
        command.envs(envs.iter().map(|(name, value)| (name, value)));
        let (mut reader, writer) = std::io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer).stdin(Stdio::null());
        let mut child = command.spawn()?;
        drop(command);
        let mut text = Vec::new();
        reader.read_to_end(&mut text)?;
        let status = child.wait()?;
        let mut text = String::from_utf8_lossy(&text).into_owned();
        if !status.success() {
            // A program that a signal ended names no test.
            text += &format!("\nerror: {}: {status}", self.name);
        }
        Ok((status.success(), text))
    }
}

/// Counts the tests of all sets, not the sets. The output is kept in `target/xtask/cargo-test.log` if one
/// failed.
fn count(checks: &mut Checks, text: &str, is_good: bool) -> Result<()> {
    let results = Results::of(text);
    checks.absorb(Count { passed: results.passed, failed: results.failed, skipped: 0 });
    for (test, why) in &results.skips {
        checks.skip(test, why);
    }
    for (test, why) in &results.parts {
        checks.note(format!("in part {test}: {why}"));
    }
    if !is_good {
        let file = tree::target().join("xtask/cargo-test.log");
        std::fs::create_dir_all(tree::target().join("xtask"))?;
        std::fs::write(&file, text)?;
        checks.fail("cargo test", &told(text));
    }
    Ok(())
}

/// The part of a failed command's output that tells why: the output of each failed test, by name, and cargo's
/// errors. Where no test failed (a crate did not compile, a process was killed), it is the end of the output.
fn told(text: &str) -> String {
    const LINES: usize = 150;
    let mut lines = Vec::new();
    let (mut inside, mut successes) = (false, false);
    for line in text.lines() {
        // Each set of tests prints "successes:" and the output of its good tests, "failures:", the output of
        // its failed tests, "failures:" once more, and their names.
        let ends = line == "failures:" || line.starts_with("test result:");
        successes = (successes || line == "successes:") && !ends;
        inside = (inside || line.starts_with("---- ")) && !ends && !successes;
        if inside || line.starts_with("error") || line.starts_with("test result: FAILED") {
            lines.push(line);
        }
    }
    if lines.iter().any(|line| line.starts_with("---- ")) {
        lines.truncate(LINES);
        return lines.join("\n");
    }
    let lines: Vec<&str> = text.lines().filter(|line| !line.ends_with(" ... ok")).collect();
    let from = lines.len().saturating_sub(LINES);
    lines.get(from..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::told;

    const FAILED: &str = "running 2 tests
test good ... ok
test bad ... FAILED

successes:

---- good stdout ----
skipped: no namespace


successes:
    good

failures:

---- bad stdout ----
thread 'bad' panicked at tests/a.rs:1:1:
the reason

failures:
    bad

test result: FAILED. 1 passed; 1 failed; 0 ignored
     Running tests/b.rs
error: test failed, to rerun pass `-p a --test a`";

    #[test]
    fn a_failed_test_is_named_with_its_reason() {
        let told = told(FAILED);
        let lines: Vec<&str> = told.lines().filter(|line| !line.is_empty()).collect();
        let wanted = [
            "---- bad stdout ----",
            "thread 'bad' panicked at tests/a.rs:1:1:",
            "the reason",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored",
            "error: test failed, to rerun pass `-p a --test a`",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn without_a_failed_test_the_end_is_told() {
        let text: String = (0..400).map(|n| format!("line {n}\n")).collect();
        let told = told(&format!("{text}error: could not compile"));
        assert_eq!(
            (told.lines().next(), told.lines().last()),
            (Some("line 251"), Some("error: could not compile"))
        );
    }
}
