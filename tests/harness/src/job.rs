//! Child processes with a time limit, whose output goes to a file.
//!
//! A file and not a pipe: a pipe would be held open by whatever the program leaves behind, and nobody would
//! see that it ended.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::os::unix::process::{CommandExt, ExitStatusExt};

/// A running child in a process group of its own; dropping it ends the group.
pub struct Job {
    child: Child,
    line: String,
    log: PathBuf,
    started: Instant,
    limit: Duration,
    reaped: bool,
}

/// How a job ended.
pub struct Ended {
    /// The command line, for messages.
    pub line: String,
    /// None: it ran into its time limit and was killed.
    pub status: Option<ExitStatus>,
    /// Standard output and standard error, in the order written.
    pub output: String,
    /// Wall-clock time from start to end.
    pub elapsed: Duration,
}

/// A command as a person would type it.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

impl Job {
    /// Starts `command`; what it prints is written to `log`. No standard input.
    pub fn start(mut command: Command, log: &Path, limit: Duration) -> Result<Self> {
        let line = line(&command);
        if let Some(dir) = log.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let out = File::create(log).with_context(|| format!("{}", log.display()))?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {line}"))?;
        Ok(Self { child, line, log: log.to_owned(), started: Instant::now(), limit, reaped: false })
    }

    /// The child's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Has it ended by itself?
    pub fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// The output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Sends a signal to the whole group. After SIGSTOP no thread of the child runs.
    pub fn signal(&self, signal: Signal) {
        let Ok(pid) = i32::try_from(self.child.id()) else { return };
        let pid = Pid::from_raw(pid);
        if killpg(pid, signal).is_ok() && signal == Signal::SIGSTOP {
            // Threads stop one after the other. The kernel tells the parent when the last one has stopped.
            let events = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            let _ = waitid(Id::Pid(pid), events);
        }
    }

    /// Waits for the end or the limit, whichever is first.
    pub fn wait(mut self) -> Result<Ended> {
        let mut pause = Duration::from_millis(1);
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break Some(status);
            }
            if self.started.elapsed() > self.limit {
                break None;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        let elapsed = self.started.elapsed();
        self.reaped = status.is_some();
        if status.is_none() {
            self.signal(Signal::SIGKILL);
            self.child.wait()?;
            self.reaped = true;
        }
        Ok(Ended { line: self.line.clone(), status, output: self.output(), elapsed })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.reaped && !self.ended() {
            self.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// Exit status 0 within the limit.
    pub fn ok(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// `exit 0`, `signal 9`, `time-out`.
    pub fn how(&self) -> String {
        match self.status {
            None => format!("time-out after {:.1} s", self.elapsed.as_secs_f32()),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => "ended".to_owned(),
            },
        }
    }

    /// The command, how it ended and the last lines it printed, indented, for a failure's report.
    pub fn describe(&self) -> String {
        let lines: Vec<&str> = self.output.lines().collect();
        let from = lines.len().saturating_sub(25);
        let mut text = format!("$ {}\n  {}", self.line, self.how());
        for line in lines.iter().skip(from) {
            text.push_str("\n  | ");
            text.extend(line.chars().take(200));
        }
        text
    }
}

/// Runs a command to its end and keeps what it printed.
pub fn run(command: Command, log: &Path, limit: Duration) -> Result<Ended> {
    Job::start(command, log, limit)?.wait()
}
