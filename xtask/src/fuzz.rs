//! `cargo xtask fuzz`: builds the targets of `fuzz/` and runs them in turn, each with a corpus that is kept
//! below `target/fuzz`.
//!
//! The targets are built by the compiler of the workspace: libFuzzer's instrumentation is a pass of LLVM. The
//! sanitizer is an unstable flag, which this build alone permits (`RUSTC_BOOTSTRAP`).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use clap::Args;

use ferroce_harness::tree;

/// Which targets to run, and how long.
#[derive(Args)]
pub struct FuzzArgs {
    /// Targets; without one, all.
    targets: Vec<String>,
    /// The time of each target.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    time: u32,
    /// Targets that run at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: u16,
    /// Runs the target on this input alone, such as one that made it crash.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Without AddressSanitizer, which is faster and finds less.
    #[arg(long)]
    no_sanitizer: bool,
    /// Names the targets and stops.
    #[arg(long)]
    list: bool,
}

/// Options of `cargo fuzz` for LLVM: edges, their places, and comparisons.
const COVERAGE: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];
const ADDRESS: &str = "-Zsanitizer=address";

/// Runs the command; true when no target crashed.
///
/// # Errors
/// A target is unknown, a program is missing, the build fails, or a target does not start.
pub fn run(args: &FuzzArgs) -> Result<bool> {
    let known = targets()?;
    if args.list {
        known.iter().for_each(|name| println!("{name}"));
        return Ok(true);
    }
    for name in &args.targets {
        ensure!(known.contains(name), "no target is called {name}; there are {}", known.join(", "));
    }
    let chosen = if args.targets.is_empty() { known } else { args.targets.clone() };
    let input = args.input.as_deref().map(|path| path.canonicalize().context(path.display().to_string()));
    let input = input.transpose()?;
    ensure!(
        input.is_none() || chosen.len() == 1,
        "--input is of one target: cargo xtask fuzz TARGET --input FILE"
    );
    let programs = build(&chosen, !args.no_sanitizer)?;
    if let (Some(input), [name]) = (input, chosen.as_slice()) {
        return Ok(Command::new(programs.join(name)).arg(input).status()?.success());
    }
    let waiting = Mutex::new(chosen.into_iter());
    let next = || waiting.lock().ok().and_then(|mut names| names.next());
    let jobs: Vec<Result<bool>> = std::thread::scope(|scope| {
        let job = || -> Result<bool> {
            let mut good = true;
            while let Some(name) = next() {
                good &= run_one(&programs, &name, args.time)?;
            }
            Ok(good)
        };
        let all: Vec<_> = (0..args.jobs).map(|_| scope.spawn(job)).collect();
        all.into_iter().map(|job| job.join().unwrap_or_else(|_| anyhow::bail!("a job panicked"))).collect()
    });
    jobs.into_iter().try_fold(true, |good, job| Ok(good & job?))
}

/// The names of the targets.
fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(tree::root().join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Builds the targets; the folder of the programs.
fn build(targets: &[String], sanitized: bool) -> Result<PathBuf> {
    let compiler = std::env::var_os("CXX").unwrap_or("c++".into());
    let found = Command::new(&compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    ensure!(
        found.is_ok_and(|status| status.success()),
        "{} is missing, and libFuzzer is compiled from source (Debian: apt-get install g++)",
        compiler.to_string_lossy()
    );
    let (host, folder) = (host()?, folder("build"));
    let mut flags = COVERAGE.to_vec();
    let mut command = tree::cargo();
    if sanitized {
        flags.push(ADDRESS);
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    command.args([
        "build",
        "--release",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--target",
        &host,
        "--target-dir",
    ]);
    command.arg(&folder).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    for target in targets {
        command.args(["--bin", target]);
    }
    ensure!(command.status()?.success(), "the build of the targets failed");
    Ok(folder.join(host).join("release"))
}

/// The triple of the machine. With it, build scripts are built without the sanitizer.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV does not name the host")
}

fn folder(name: &str) -> PathBuf {
    tree::target().join("fuzz").join(name)
}

/// Runs a target, and reports; whether it did not crash.
fn run_one(programs: &Path, name: &str, seconds: u32) -> Result<bool> {
    let seeds = tree::root().join("fuzz/corpus").join(name);
    let corpus = folder("corpus").join(name);
    let (artifacts, logs) = (folder("artifacts"), folder("log"));
    for folder in [&corpus, &artifacts, &logs] {
        std::fs::create_dir_all(folder)?;
    }
    let mut command = Command::new(programs.join(name));
    command.args(["-timeout=30", "-rss_limit_mb=2048", &format!("-max_total_time={seconds}")]);
    command.arg(format!("-artifact_prefix={}/{name}-", artifacts.display()));
    let words = tree::root().join("fuzz/words").join(name);
    if words.exists() {
        command.arg(format!("-dict={}", words.display()));
    }
    let log = logs.join(name);
    let file = std::fs::File::create(&log)?;
    command.arg(corpus).arg(seeds).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    println!("{}", report(name, status, &String::from_utf8_lossy(&std::fs::read(&log)?), &log));
    Ok(status.success())
}

/// The last line of libFuzzer's that counts runs (`#`) and edges (`cov:`); after a crash, how to repeat it.
fn report(name: &str, status: ExitStatus, output: &str, log: &Path) -> String {
    let counts = output.lines().rev().find(|line| line.contains(" cov: ")).unwrap_or("no runs");
    if status.success() {
        return format!("ok   {name:<16} {counts}");
    }
    let show = |path: &Path| path.strip_prefix(tree::root()).unwrap_or(path).display().to_string();
    let mut text = format!("FAIL {name:<16} {counts}\n     log: {}", show(log));
    let input = output.lines().rev().find_map(|line| line.split_once("Test unit written to "));
    if let Some((_, input)) = input {
        text += &format!("\n     replay: cargo xtask fuzz {name} --input {}", show(Path::new(input.trim())));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_names_its_input() {
        use std::os::unix::process::ExitStatusExt;
        let text = "#2\tINITED cov: 15 ft: 16\n#77\tNEW    cov: 20 ft: 21\n\
                    artifact_prefix='/a/b-'; Test unit written to /a/b-crash-12\nBase64: AA==\n";
        let of = |status, text| report("body", ExitStatus::from_raw(status), text, Path::new("/log"));
        assert_eq!(of(0, text), "ok   body             #77\tNEW    cov: 20 ft: 21");
        assert!(of(77 << 8, text).ends_with("\n     replay: cargo xtask fuzz body --input /a/b-crash-12"));
        assert_eq!(of(9, ""), "FAIL body             no runs\n     log: /log");
    }

    /// A target that the manifest leaves out would never be built, and one without seeds begins at nothing.
    #[test]
    fn each_target_is_in_the_manifest_and_has_seeds() {
        let manifest = std::fs::read_to_string(tree::root().join("fuzz/Cargo.toml")).unwrap();
        let names = targets().unwrap();
        assert_eq!(manifest.matches("[[bin]]").count(), names.len());
        for name in names {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
            let seeds = std::fs::read_dir(tree::root().join("fuzz/corpus").join(&name)).unwrap();
            let seeds = seeds.filter(|seed| seed.as_ref().is_ok_and(|seed| seed.path().is_file())).count();
            assert!(seeds > 0, "{name} has no seed");
        }
    }
}
