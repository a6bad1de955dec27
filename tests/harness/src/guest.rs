//! The guest: started once, ended when dropped.

mod image;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub use image::{GuestArgs, Image, build};

use crate::dist::{AUDITOR, Dist, LIBRARY};
use crate::job;

/// Front of the name of a guest and its network namespace; the id of the run that made it follows. So each run has
/// a guest of its own, and one that somebody else started is left alone.
const NAME: &str = "ferroce-xtask-";

/// A running guest.
pub struct Guest {
    image: Image,
    namespace: String,
}

/// The counters that a case looks at.
#[derive(Clone, Copy, Default)]
pub struct Errors {
    /// `retry_exceeded_err` of rxe0: work requests that the guest gave up.
    pub retry_exceeded: u64,
}

impl Guest {
    /// Boots the guest. `pair`: also rxa and rxb on a wire of that MTU.
    pub fn up(image: Image, pair: Option<u32>) -> Result<Self> {
        let guest = Self::boot(image, &["up"])?;
        if let Some(mtu) = pair {
            guest.inside(&format!("rxe-pair up {mtu}"))?;
        }
        Ok(guest)
    }

    /// Boots it with the device siw0 on eth0, and without rxe0.
    pub fn up_with_siw(image: Image) -> Result<Self> {
        let guest = Self::boot(image, &["up", "--rxe", "none", "--mtu", "1500"])?;
        let mut load = guest.image.command("siw.sh");
        load.env("PEER_NS", &guest.namespace).arg("load");
        guest.run(load).context("siw could not be built or loaded")?;
        Ok(guest)
    }

    fn boot(image: Image, words: &[&str]) -> Result<Self> {
        end_orphans(&image);
        let guest = Self { image, namespace: format!("{NAME}{}", std::process::id()) };
        guest.run(guest.script(words)).context("the peer's guest did not start")?;
        Ok(guest)
    }

    fn script(&self, args: &[&str]) -> Command {
        let mut command = self.image.command("peer.sh");
        command.env("PEER_NS", &self.namespace).args(args);
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

    /// Copies a file into the guest, as one to run.
    pub fn push(&self, from: &Path, to: &str) -> Result<()> {
        let from = from.to_str().context("a path that is not UTF-8")?;
        self.run(self.script(&["push", from, to]))?;
        self.inside(&format!("chmod 755 {to}")).map(drop)
    }

    /// Copies what `ferroce run` needs of a distribution into this folder of the guest.
    pub fn push_dist(&self, dist: &Dist, folder: &str) -> Result<()> {
        self.inside(&format!("mkdir -p {folder}/bin {folder}/lib"))?;
        for name in ["ferroce", "ferroced"] {
            self.push(&dist.bin(name), &format!("{folder}/bin/{name}"))?;
        }
        for name in [LIBRARY, AUDITOR] {
            self.push(&dist.lib().join(name), &format!("{folder}/lib/{name}"))?;
        }
        let links = "for name in libibverbs.so librdmacm.so.1 libibumad.so.3";
        self.inside(&format!("{links}; do ln -sf {LIBRARY} {folder}/lib/$name; done")).map(drop)
    }

    /// Copies a file out of the guest.
    pub fn pull(&self, from: &str, to: &Path) -> Result<()> {
        let to = to.to_str().context("a path that is not UTF-8")?;
        self.run(self.script(&["pull", from, to])).map(drop)
    }

    /// The output of a line for the guest's shell.
    pub fn inside(&self, line: &str) -> Result<String> {
        self.run(self.script(&["sh", "-t", "60", line]))
    }

    /// The front of a command on the host, at its end of the wire.
    pub fn netns_command(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]);
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

/// Ends guests whose run was killed: those named after a process that is no more.
fn end_orphans(image: &Image) {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    for namespace in names.filter(|name| is_orphan(name, |pid| Path::new("/proc").join(pid).exists())) {
        drop(Guest { image: image.clone(), namespace });
    }
}

fn is_orphan(namespace: &str, lives: impl Fn(&str) -> bool) -> bool {
    let pid = namespace.strip_prefix(NAME).filter(|pid| pid.parse::<u32>().is_ok());
    pid.is_some_and(|pid| !lives(pid))
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The brokers that our programs started live in the namespace that ends with the guest.
        if let Ok(pids) = self.run({
            let mut command = Command::new("ip");
            command.args(["netns", "pids", &self.namespace]);
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

#[cfg(test)]
mod tests {
    use super::is_orphan;

    #[test]
    fn only_guests_of_dead_runs_are_ended() {
        let lives = |pid: &str| pid == "17";
        assert!(is_orphan("ferroce-xtask-18", lives));
        for other in ["ferroce-xtask-17", "ferroce-xtask", "ferroce-xtask-x", "ferroce-peer", "18"] {
            assert!(!is_orphan(other, lives), "{other}");
        }
    }
}
