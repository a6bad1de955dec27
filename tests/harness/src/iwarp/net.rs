//! A network namespace of its own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::debian::Programs;
use crate::exchange::has_listener;
use crate::netns;

/// A network namespace. A process that waits keeps it; the drop ends that process, the namespace and the brokers inside.
pub struct Namespace {
    holder: Child,
    nsenter: PathBuf,
}

impl Namespace {
    /// Makes a namespace whose lo is up.
    pub fn new(programs: &Programs) -> Result<Self> {
        let find = |name: &str| programs.find(name).with_context(|| format!("{name} is missing"));
        let (unshare, nsenter) = (find("unshare")?, find("nsenter")?);
        let holder = Command::new(unshare).args(["-n", "--", "cat"]).stdin(Stdio::piped()).spawn()?;
        let namespace = Self { holder, nsenter };
        // The holder has its namespace once its link differs from ours.
        let own = std::fs::read_link("/proc/self/ns/net")?;
        let entered = format!("/proc/{}/ns/net", namespace.pid());
        netns::until("a network namespace is made", || {
            std::fs::read_link(&entered).is_ok_and(|link| link != own)
        })?;
        std::thread::sleep(Duration::from_millis(5));
        namespace.run("ip link set lo up")?;
        Ok(namespace)
    }

    /// The process that keeps it.
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// The front of a command inside.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.nsenter);
        command.args(["-t", &self.pid().to_string(), "-n", "--"]);
        command
    }

    /// Runs a line inside, word by word.
    pub fn run(&self, line: &str) -> Result<String> {
        output(self.command(), line)
    }

    /// Whether something inside listens at the TCP port.
    pub fn listens(&self, port: u16) -> bool {
        let table = |name: &str| std::fs::read_to_string(format!("/proc/{}/net/{name}", self.pid()));
        ["tcp", "tcp6"].iter().any(|name| has_listener(&table(name).unwrap_or_default(), port))
    }
}

/// Runs a line behind the front of a command, word by word.
pub fn output(mut command: Command, line: &str) -> Result<String> {
    let output = command.args(line.split_whitespace()).output().with_context(|| line.to_owned())?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{line}: {}: {out}{err}", output.status);
    Ok(out.into_owned())
}

impl Drop for Namespace {
    fn drop(&mut self) {
        netns::end_brokers_of(self.holder.id());
        self.holder.kill().ok();
        self.holder.wait().ok();
    }
}
