//! The guest of `shared/peer`: started once, ended when dropped.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::job;

/// Our own guest and network namespace, so that one that somebody else started is left alone.
const NAMESPACE: &str = "ferroce-xtask";

/// A running guest.
pub struct Guest {
    script: PathBuf,
}

/// The counters that a case looks at.
#[derive(Clone, Copy, Default)]
pub struct Errors {
    /// `retry_exceeded_err` of rxe0: work requests that the guest gave up.
    pub retry_exceeded: u64,
}

impl Guest {
    /// Boots it, building it first when that was never done. `pair`: also rxa and rxb on a wire of that MTU.
    pub fn up(script: PathBuf, pair: Option<u32>) -> Result<Self> {
        let guest = Self { script };
        guest.run(guest.script(&["down"]))?; // what a killed run left
        guest.run(guest.script(&["up"])).context("the peer's guest did not start")?;
        if let Some(mtu) = pair {
            guest.inside(&format!("rxe-pair up {mtu}"))?;
        }
        Ok(guest)
    }

    fn script(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.script);
        command.env("PEER_NS", NAMESPACE).stdin(Stdio::null()).args(args);
        command
    }

    fn run(&self, mut command: Command) -> Result<String> {
        let output = command.output()?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{}: {}: {out}{err}", job::line(&command), output.status);
        Ok(out.into_owned())
    }

    /// A program in the guest; the guest itself ends it after `limit`.
    pub fn command(&self, limit: Duration, words: &[String]) -> Command {
        let limit = limit.as_secs().saturating_sub(2).max(1).to_string();
        let mut command = self.script(&["exec", "-t", &limit, "--"]);
        command.args(words);
        command
    }

    /// The output of a line for the guest's shell.
    pub fn inside(&self, line: &str) -> Result<String> {
        self.run(self.script(&["sh", "-t", "30", line]))
    }

    /// The front of a command on the host, at its end of the wire.
    pub fn netns_command(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", NAMESPACE]);
        command
    }

    /// The output of a program on the host, at its end of the wire.
    pub fn in_netns(&self, words: &[&str]) -> Result<String> {
        let mut command = self.netns_command();
        command.args(words);
        self.run(command)
    }

    /// Sets the wire's MTU at both ends (of the guest's own pair as well, with `pair`).
    pub fn mtu(&self, mtu: u32, pair: bool) -> Result<()> {
        self.run(self.script(&["mtu", &mtu.to_string()]))?;
        if pair {
            self.inside(&format!("ip link set va mtu {mtu}; ip link set vb mtu {mtu}; sleep 1"))?;
        }
        Ok(())
    }

    /// rxe0's error counters.
    pub fn errors(&self) -> Result<Errors> {
        let text = self.inside("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/retry_exceeded_err")?;
        Ok(Errors { retry_exceeded: text.trim().parse().unwrap_or_default() })
    }

    /// rxe0's counters that are not zero.
    pub fn counters(&self) -> Result<String> {
        let line = "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep -H . * | tr : ' '";
        let text = self.inside(line)?;
        let moved = text.lines().filter(|l| !l.ends_with(" 0") && !l.starts_with("lifespan"));
        Ok(moved.collect::<Vec<_>>().join(", "))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The brokers that our programs started live in the namespace that ends with the guest.
        if let Ok(pids) = self.run({
            let mut command = Command::new("ip");
            command.args(["netns", "pids", NAMESPACE]);
            command
        }) {
            for pid in pids.split_whitespace().filter_map(|p| p.parse().ok()) {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                if name.starts_with("ferroced") {
                    let pid = nix::unistd::Pid::from_raw(pid);
                    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok();
                }
            }
        }
        if let Err(error) = self.run(self.script(&["down"])) {
            eprintln!("xtask: {error:#}");
        }
    }
}
