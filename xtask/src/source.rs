//! The checks of the sources: format, lints, documentation, unit tests.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::dist;
use crate::results::Results;
use ferroce_harness::report::{Checks, Count};
use ferroce_harness::{debian, tree};

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

/// `cargo doc`, warnings are errors: with private items, which may be linked to, and as users see the crates.
/// With an example, dependencies have the features that they have in the stage `clippy`, and are not checked
/// again.
pub fn doc(checks: &mut Checks) -> Result<()> {
    let public = "doc --quiet --keep-going --workspace --no-deps --lib --bins --example soak".split(' ');
    let public: Vec<&str> = public.collect();
    let flags = [("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links")];
    cargo(checks, "doc", &[&*public, &["--document-private-items"]].concat(), &flags)?;
    cargo(checks, "doc of public items", &public, &flags)
}

/// `cargo test` over the workspace.
pub fn unit(checks: &mut Checks) -> Result<()> {
    let mut command = tree::cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]);
    // Without it, the tests of the library build it with the features of one package, and most of the
    // workspace once more.
    command.env("FERROCE_TEST_LIBRARY", dist::development_library()?);
    // The tests mostly wait, more of them at once than there are processors of a small machine.
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    command.env("RUST_TEST_THREADS", processors.max(4).to_string());
    // With the headers here, no C program may be skipped for want of one.
    if Path::new(debian::UMAD_HEADER).exists() {
        command.env("FERROCE_C_PROGRAMS", "required");
    }
    tests(checks, command)
}

/// Runs a `cargo test` command and counts its tests, not itself. The output of a failed command is kept in
/// `target/xtask/cargo-test.log`.
fn tests(checks: &mut Checks, mut command: Command) -> Result<()> {
    // The reason of a skip is in the output of a test that passed.
    command.args(["--", "--show-output"]);
    // Both outputs share a stream: cargo's lines between the sets of tests are on standard error, the tests'
    // own on standard output.
    let (mut reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer).stdin(Stdio::null());
    let mut child = command.spawn()?;
    drop(command);
    let mut text = Vec::new();
    reader.read_to_end(&mut text)?;
    let status = child.wait()?;
    let text = String::from_utf8_lossy(&text);
    let results = Results::of(&text);
    checks.absorb(Count { passed: results.passed, failed: results.failed, skipped: 0 });
    for (test, why) in &results.skips {
        checks.skip(test, why);
    }
    for (test, why) in &results.parts {
        checks.note(format!("in part {test}: {why}"));
    }
    if !status.success() {
        let file = tree::target().join("xtask/cargo-test.log");
        std::fs::create_dir_all(tree::target().join("xtask"))?;
        std::fs::write(&file, text.as_bytes())?;
        checks.fail("cargo test", &told(&text));
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
