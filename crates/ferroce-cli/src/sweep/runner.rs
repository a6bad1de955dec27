//! A run of the program, with a limit in time and a place of its own.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferroce_host::environment;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::plan;

/// Time in which the processes that a program started end after it; on a busy machine they need some.
const GRACE: Duration = Duration::from_secs(10);

/// Runs the program; dropping it removes the files of all runs.
pub struct Runner {
    ferroce: PathBuf,
    command: Vec<OsString>,
    shared_net: bool,
    folder: PathBuf,
    runs: AtomicUsize,
    live: Live,
}

/// The process groups of runs that go on.
type Live = Arc<Mutex<BTreeSet<i32>>>;

/// The end of a run.
pub struct Ended {
    /// The exit status, as shells have it; `None` if it did not end in time.
    pub status: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub elapsed: Duration,
    /// The rules that acted, in order.
    pub hits: Vec<String>,
    /// The names of processes that were left.
    pub left: Vec<String>,
}

impl Ended {
    /// Standard error without the report of faults.
    pub fn message(&self) -> String {
        let mut in_report = false;
        let own = |line: &&str| {
            in_report =
                line.starts_with("ferroce: faults of process") || (in_report && line.starts_with("  "));
            !in_report
        };
        self.stderr.lines().filter(own).collect::<Vec<_>>().join("\n")
    }
}

/// The signals that end a sweep.
pub fn ends() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect()
}

impl Runner {
    pub fn new(command: Vec<OsString>, shared_net: bool) -> Result<Self> {
        let ferroce = std::env::current_exe().context("/proc/self/exe")?;
        let temporary = environment::directory("TMPDIR").unwrap_or_else(|| "/tmp".into());
        let folder = temporary.join(format!("ferroce-sweep-{}", std::process::id()));
        private(&folder)?;
        // Crashes are expected, and their core files are not read.
        if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
        }
        let runner =
            Self { ferroce, command, shared_net, folder, runs: AtomicUsize::new(0), live: Live::default() };
        runner.end_on_signals()?;
        Ok(runner)
    }

    /// Ends all runs and removes their files on a signal: they are in process groups of their own, which the
    /// terminal's signals do not reach.
    fn end_on_signals(&self) -> Result<()> {
        let ends = ends();
        // Children inherit it, so `ferroce run` takes it back.
        ends.thread_block()?;
        let (live, folder) = (Arc::clone(&self.live), self.folder.clone());
        thread::spawn(move || {
            if let Ok(signal) = ends.wait() {
                // The lock is kept until the end, so no further run begins.
                let live = live.lock().unwrap_or_else(PoisonError::into_inner);
                live.iter().for_each(|group| end(*group));
                let _ = fs::remove_dir_all(&folder);
                std::process::exit(128 + signal as i32);
            }
        });
        Ok(())
    }

    /// Runs the program with a plan of faults, or without faults if `rules` is empty.
    pub fn run(&self, rules: &str, limit: Duration) -> Result<Ended> {
        let folder = self.folder.join(self.runs.fetch_add(1, Ordering::Relaxed).to_string());
        private(&folder)?;
        let (out, err, log) = (folder.join("stdout"), folder.join("stderr"), folder.join("hits"));
        let mut command = Command::new(&self.ferroce);
        command.args(["run", "--quiet", "--unblock"]);
        if !self.shared_net {
            command.arg("--private-net").env("FERROCE_RUNTIME_DIR", &folder);
            // Else the brokers of many namespaces stay for a minute.
            command.env("FERROCE_IDLE", "1");
        }
        if !rules.is_empty() {
            command.arg("--fault").arg(format!("{rules}; log={}", log.display()));
        }
        command.arg("--").args(&self.command).env_remove(plan::VARIABLE).env("TMPDIR", &folder);
        command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?).process_group(0);
        let (start, mut live) = (Instant::now(), self.live.lock().unwrap_or_else(PoisonError::into_inner));
        let mut child = command.spawn().context("cannot start `ferroce run`")?;
        let group = child.id() as i32;
        live.insert(group);
        drop(live);
        let mut is_over = has_ended(group)?;
        while !is_over && start.elapsed() < limit {
            thread::sleep(Duration::from_millis(5));
            is_over = has_ended(group)?;
        }
        let elapsed = start.elapsed();
        let left = if is_over { wait_for_group(group) } else { Vec::new() };
        end(group);
        // Once it is waited for, its number may be another group's, which a signal must not end.
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let status = child.wait()?;
        live.remove(&group);
        drop(live);
        let ended = Ended {
            status: is_over.then(|| code(status)),
            stdout: fs::read(&out)?,
            stderr: String::from_utf8_lossy(&fs::read(&err)?).into_owned(),
            elapsed,
            hits: fs::read_to_string(&log).map(|log| hits(&log)).unwrap_or_default(),
            left,
        };
        // A broker that ends may still write there; the whole folder is removed at last.
        let _ = fs::remove_dir_all(&folder);
        Ok(ended)
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Makes a folder that nobody else can enter.
fn private(folder: &Path) -> Result<()> {
    DirBuilder::new().mode(0o700).create(folder).with_context(|| folder.display().to_string())
}

/// Whether a child has ended. It stays a zombie, so its number remains that of its group.
fn has_ended(child: i32) -> Result<bool> {
    let how = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    Ok(waitid(Id::Pid(Pid::from_raw(child)), how)? != WaitStatus::StillAlive)
}

fn end(group: i32) {
    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
}

/// The status as shells have it.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The rules of a log: each line has the text of its rule as a comment.
fn hits(log: &str) -> Vec<String> {
    log.lines().filter_map(|line| line.split_once(" # ")).map(|(_, rule)| rule.to_owned()).collect()
}

/// Waits until a process group is empty; the names of the processes that stay.
fn wait_for_group(group: i32) -> Vec<String> {
    let start = Instant::now();
    loop {
        let left = members(group);
        if left.is_empty() || start.elapsed() >= GRACE {
            return left;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The names of the running processes of a group.
fn members(group: i32) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    stats.filter_map(|stat| member(&stat, group)).collect()
}

/// The name of a process by its `/proc/PID/stat` if it is of the group and not a zombie.
fn member(stat: &str, group: i32) -> Option<String> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let (state, _, of) = (fields.next()?, fields.next()?, fields.next()?);
    let is_one = of.parse() == Ok(group) && !matches!(state, "Z" | "X");
    is_one.then(|| head.split_once(" (").map_or("", |(_, name)| name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_names_the_rules_that_acted() {
        let log = "seed=1\nstall=0s if verb=reg_mr,nth=1 # stall=0ns if verb=reg_mr,nth=1\nseed=1\n";
        assert_eq!(hits(log), ["stall=0ns if verb=reg_mr,nth=1"]);
    }

    #[test]
    fn a_child_that_has_ended_remains_a_zombie() {
        let mut child =
            Command::new("sh").args(["-c", "read line; exit 3"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!has_ended(pid).unwrap());
        drop(child.stdin.take());
        while !has_ended(pid).unwrap() {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(has_ended(pid).unwrap());
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }

    #[test]
    fn zombies_are_no_members_of_a_group() {
        let stat = |state: &str| format!("17 (a) b) {state} 1 16 16 0 -1 0 0");
        assert_eq!(member(&stat("S"), 16).as_deref(), Some("a) b"));
        assert_eq!(member(&stat("S"), 17), None);
        assert_eq!(member(&stat("Z"), 16), None);
    }
}
