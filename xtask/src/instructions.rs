//! The stage `instructions`: how many instructions each step of a packet takes, under valgrind, beside a
//! committed baseline. Instructions are the same on a busy machine, where times are not.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// The committed counts: a line `CASE STEP INSTRUCTIONS` each.
const BASELINE: &str = "tests/instructions.txt";
/// How much more than the baseline fails, and how much less asks for a new one.
const TOLERANCE: f64 = 0.10;
/// Messages of a run. Start-up is not counted.
const COUNT: u32 = 3200;
/// The cases of `crates/ferroce-sim/benches/instructions.rs`, and its functions that are counted.
const CASES: [&str; 6] = ["write-8", "write-8-32", "send-8", "write-4096", "send-4096", "read-4096"];
const STEPS: [&str; 3] = ["post", "receive", "complete"];
const BLESS: &str = "`FERROCE_BLESS=1 cargo xtask test --only instructions` writes a new baseline";

/// Instructions a message by case and step.
type Counts = BTreeMap<(String, String), f64>;

/// Counts, and compares; or writes the baseline.
pub fn check(checks: &mut Checks) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        checks.skip("instructions", &format!("{BASELINE} is of x86_64"));
        return Ok(());
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        checks.skip("instructions", "valgrind is not here (Debian: valgrind)");
        return Ok(());
    }
    let program = build()?;
    let of_case = |case: &str| -> Result<Vec<_>> {
        let name = |step: &str| (case.to_owned(), step.to_owned());
        STEPS.iter().map(|step| Ok((name(step), count(&program, case, step)?))).collect()
    };
    // Each takes seconds of one processor.
    let counted: Vec<Result<Vec<_>>> = std::thread::scope(|scope| {
        let cases = CASES.map(|case| scope.spawn(move || of_case(case)));
        cases.map(|case| case.join().unwrap_or_else(|panic| resume_unwind(panic))).into()
    });
    let counts: Counts = counted.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    let path = tree::root().join(BASELINE);
    if std::env::var_os("FERROCE_BLESS").is_some() {
        std::fs::write(&path, written(&counts))?;
        checks.note(format!("{BASELINE} is written"));
        return Ok(());
    }
    let baseline = read(&std::fs::read_to_string(&path).context(BASELINE)?)?;
    judge(&counts, &baseline, checks);
    Ok(())
}

fn judge(counts: &Counts, baseline: &Counts, checks: &mut Checks) {
    let mut fewer = 0;
    for ((case, step), count) in counts {
        let name = format!("instructions of {case}, {step}");
        match baseline.get(&(case.clone(), step.clone())) {
            None => checks.fail(&name, &format!("not in {BASELINE}: {BLESS}")),
            Some(before) if *count > before * (1.0 + TOLERANCE) => checks
                .fail(&name, &format!("{count:.0} a message, {before:.0} before. If that is meant, {BLESS}")),
            Some(before) => {
                fewer += usize::from(*count < before * (1.0 - TOLERANCE));
                checks.pass();
            }
        }
    }
    if fewer > 0 {
        checks.note(format!("{fewer} steps need fewer instructions than {BASELINE} says: {BLESS}"));
    }
}

/// Builds the program as a release, without optimisation across crates, which would take minutes.
fn build() -> Result<PathBuf> {
    let target = tree::target().join("instructions");
    let mut command = tree::cargo();
    command.args(["build", "--release", "-p", "ferroce-sim", "--bench", "instructions"]);
    command
        .args(["--config", "profile.release.lto=false", "--message-format=json", "--target-dir"])
        .arg(target);
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout)?;
    let programs = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut paths = programs.filter_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)));
    paths.next_back().context("cargo named no program")
}

/// Instructions a message in one step of a case.
fn count(program: &Path, case: &str, step: &str) -> Result<f64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect=*instructions::{step}"));
    command.arg(program).args([case, &COUNT.to_string()]);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{case}: {text}");
    let collected = collected(&text).with_context(|| format!("no count: {text}"))?;
    ensure!(collected > 0, "{case}: the function {step} was not found");
    Ok(collected as f64 / f64::from(COUNT))
}

/// The number behind `Collected :`.
fn collected(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.trim().parse().ok()
}

fn written(counts: &Counts) -> String {
    let mut text = "# Instructions a message, by case and step, without those of the kernel: a WRITE, SEND or READ of so many bytes\n\
                    # (`-32`: 32 at once). `post` is from post_send to the packet, `receive` from the packet to its effect and the\n\
                    # answer, `complete` from the answer to the completion. `cargo xtask test --only instructions` compares.\n"
        .to_owned();
    for ((case, step), count) in counts {
        let _ = writeln!(text, "{case} {step} {count:.0}");
    }
    text
}

fn read(text: &str) -> Result<Counts> {
    let mut counts = Counts::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [case, step, count] = words[..] else { anyhow::bail!("{BASELINE}: {line}") };
        counts.insert((case.to_owned(), step.to_owned()), count.parse()?);
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(count: f64) -> Counts {
        Counts::from([(("write-8".to_owned(), "post".to_owned()), count)])
    }

    #[test]
    fn more_instructions_fail_and_fewer_do_not() {
        for (count, failed) in [(1000.0, 0), (1099.0, 0), (1101.0, 1), (100.0, 0)] {
            let mut checks = Checks::default();
            judge(&one(count), &one(1000.0), &mut checks);
            assert_eq!(checks.count().failed, failed, "{count}");
        }
        let mut checks = Checks::default();
        judge(&one(1.0), &Counts::new(), &mut checks);
        assert_eq!(checks.count().failed, 1);
    }

    #[test]
    fn the_baseline_reads_back_and_names_each_case() {
        let counts = one(1000.0);
        assert_eq!(read(&written(&counts)).unwrap(), counts);
        let committed = read(&std::fs::read_to_string(tree::root().join(BASELINE)).unwrap()).unwrap();
        assert_eq!(committed.len(), CASES.len() * STEPS.len());
        assert_eq!(collected("==1== Events    : Ir\n==1== Collected : 4864789\n"), Some(4_864_789));
    }
}
