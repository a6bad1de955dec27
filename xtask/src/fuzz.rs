//! `cargo xtask fuzz`: builds the targets of `fuzz/` and runs them in turn, each with a corpus that is kept below `target/fuzz`.
//!
//! The targets are built by the compiler of the workspace: libFuzzer's instrumentation is a pass of LLVM. The sanitizer is an unstable
//! flag, which this build alone permits (`RUSTC_BOOTSTRAP`).

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::sanitizer;
use ferroce_harness::tree;

/// Which targets to run, and how long.
#[derive(Args)]
pub struct FuzzArgs {
    /// Targets; without one, all.
    targets: Vec<String>,
    /// The time of each target: seconds, or a number with s, m or h.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    time: Duration,
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

/// A target runs so long before it is the next one's turn.
const TURN: Duration = Duration::from_secs(300);
/// What `cargo fuzz` gives to LLVM: edges, their places, and comparisons.
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
    let turns = chosen.into_iter().map(|name| Target { name, left: args.time, tally: Tally::default() });
    let waiting = Mutex::new(turns.collect::<VecDeque<_>>());
    let jobs: Vec<Result<bool>> = std::thread::scope(|scope| {
        let job = || take_turns(&programs, &waiting);
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

/// A time such as `90`, `90s`, `10m` or `8h`; a second to 30 days.
fn time(text: &str) -> Result<Duration, String> {
    let (number, scale) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) if text.ends_with('m') => (number, 60),
        Some(number) if text.ends_with('h') => (number, 3600),
        Some(number) => (number, 1),
        None => (text, 1),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    let seconds = seconds.filter(|seconds| (1..=30 * 86_400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or("expected a number of seconds, or one with s, m or h".to_owned())
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
    let (host, folder) = (sanitizer::host()?, folder("build"));
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

fn folder(name: &str) -> PathBuf {
    tree::target().join("fuzz").join(name)
}

/// A target with the rest of its time.
struct Target {
    name: String,
    left: Duration,
    tally: Tally,
}

/// What a target did so far.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Tally {
    runs: u64,
    /// Edges that the corpus reaches, and all that there are.
    edges: u64,
    all_edges: u64,
    seconds: u64,
}

/// A crash of a target.
struct Crash {
    /// The input, if libFuzzer wrote one.
    input: Option<PathBuf>,
    log: PathBuf,
}

/// Gives one target after the other its turn until none has time left; whether none crashed.
fn take_turns(programs: &Path, waiting: &Mutex<VecDeque<Target>>) -> Result<bool> {
    let mut good = true;
    let next = || waiting.lock().ok().and_then(|mut queue| queue.pop_front());
    while let Some(mut target) = next() {
        let turn = target.left.min(TURN);
        target.left -= turn;
        let crash = target.turn(programs, turn)?;
        good &= crash.is_none();
        // After a crash the same input would come up again and again.
        if crash.is_some() || target.left.is_zero() {
            target.report(crash.as_ref());
        } else if let Ok(mut queue) = waiting.lock() {
            queue.push_back(target);
        }
    }
    Ok(good)
}

impl Target {
    fn turn(&mut self, programs: &Path, turn: Duration) -> Result<Option<Crash>> {
        let name = &self.name;
        let seeds = tree::root().join("fuzz/corpus").join(name);
        let corpus = folder("corpus").join(name);
        let (artifacts, logs) = (folder("artifacts"), folder("log"));
        for folder in [&corpus, &artifacts, &logs] {
            std::fs::create_dir_all(folder)?;
        }
        let mut command = Command::new(programs.join(name));
        command.args(["-print_final_stats=1", "-timeout=30", "-rss_limit_mb=2048"]);
        command.arg(format!("-max_total_time={}", turn.as_secs()));
        command.arg(format!("-artifact_prefix={}/{name}-", artifacts.display()));
        let words = tree::root().join("fuzz/words").join(name);
        if words.exists() {
            command.arg(format!("-dict={}", words.display()));
        }
        let log = logs.join(name);
        let file = std::fs::File::create(&log)?;
        command.arg(corpus).arg(seeds).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let status = command.status().with_context(|| format!("cannot start {name}"))?;
        let text = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
        self.tally.add(&text, turn);
        Ok(crash(status, &text, log))
    }

    fn report(&self, crash: Option<&Crash>) {
        let Self { name, tally: Tally { runs, edges, all_edges, seconds }, .. } = self;
        let (word, crashes) = if crash.is_some() { ("FAIL", 1) } else { ("ok", 0) };
        let mut text = format!(
            "{word:<4} {name:<16} {runs:>11} runs {edges:>6} of {all_edges:>6} edges {crashes} crashes {seconds:>6} s"
        );
        if let Some(Crash { input, log }) = crash {
            let show = |path: &Path| path.strip_prefix(tree::root()).unwrap_or(path).display().to_string();
            text += &format!("\n     log: {}", show(log));
            if let Some(input) = input {
                text += &format!("\n     replay: cargo xtask fuzz {name} --input {}", show(input));
            }
        }
        println!("{text}");
    }
}

/// How a turn ended, by the output of libFuzzer.
fn crash(status: ExitStatus, text: &str, log: PathBuf) -> Option<Crash> {
    const WRITTEN: &str = "Test unit written to ";
    if status.success() {
        return None;
    }
    let input = text.lines().rev().find_map(|line| line.split_once(WRITTEN));
    Some(Crash { input: input.map(|(_, path)| PathBuf::from(path.trim())), log })
}

impl Tally {
    /// Adds what libFuzzer printed in a turn.
    fn add(&mut self, text: &str, turn: Duration) {
        let after = |line: &str, word: &str| {
            let (_, rest) = line.split_once(word)?;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        let mut runs = None;
        for line in text.lines() {
            if let Some(edges) = after(line, " cov: ") {
                self.edges = edges;
                // Without the statistics of an end in order, the last line has the number.
                runs = after(line, "#").or(runs);
            }
            runs = after(line, "stat::number_of_executed_units:").or(runs);
            if line.contains("inline 8-bit counters") {
                self.all_edges = after(line, "(").unwrap_or(self.all_edges);
            }
        }
        self.runs += runs.unwrap_or(0);
        self.seconds += turn.as_secs();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("1", 1), ("90s", 90), ("10m", 600), ("8h", 28_800)] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0", "s", "-1", "1d", "1.5h", "99999999999999999h", "31000000"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_output_of_libfuzzer_is_added_up() {
        let text = "INFO: Loaded 1 modules   (24233 inline 8-bit counters): 24233 [0x1, 0x2),\n\
                    #2\tINITED cov: 15 ft: 16 corp: 1/1b exec/s: 0 rss: 39Mb\n\
                    #77\tNEW    cov: 20 ft: 21 corp: 2/2b lim: 4 exec/s: 0 rss: 39Mb L: 1/1 MS: 1 -\n";
        let mut tally = Tally::default();
        tally.add(text, Duration::from_secs(60));
        assert_eq!(tally, Tally { runs: 77, edges: 20, all_edges: 24_233, seconds: 60 });
        tally.add(&format!("{text}stat::number_of_executed_units: 100\n"), Duration::from_secs(1));
        assert_eq!(tally, Tally { runs: 177, edges: 20, all_edges: 24_233, seconds: 61 });
    }

    #[test]
    fn a_crash_names_its_input() {
        use std::os::unix::process::ExitStatusExt;
        let text = "artifact_prefix='/a/b-'; Test unit written to /a/b-crash-12\nBase64: AA==\n";
        let found = crash(ExitStatus::from_raw(77 << 8), text, PathBuf::new()).and_then(|crash| crash.input);
        assert_eq!(found, Some(PathBuf::from("/a/b-crash-12")));
        assert!(crash(ExitStatus::from_raw(0), text, PathBuf::new()).is_none());
        assert!(
            crash(ExitStatus::from_raw(9), "", PathBuf::new()).is_some_and(|crash| crash.input.is_none())
        );
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
