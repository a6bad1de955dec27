//! The network namespace the end-to-end stages run in.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use crate::debian::Programs;
use crate::report::Checks;

/// The front of a command that runs in a network namespace of its own.
pub fn enter() -> Result<Command> {
    let unshare = Programs::default().find("unshare").unwrap_or_else(|| PathBuf::from("unshare"));
    let flags: &[&str] = if geteuid().is_root() { &["-n"] } else { &["-U", "-r", "-n"] };
    let tried = Command::new(&unshare).args(flags).arg("true").output().context("unshare (util-linux)")?;
    if !tried.status.success() {
        bail!("no network namespace here: {}", String::from_utf8_lossy(&tried.stderr).trim());
    }
    let mut command = Command::new(unshare);
    command.args(flags).arg("--");
    Ok(command)
}

/// A namespace that was made for us has no other process in it. In any other one, [`nothing_left`] would end what is not ours.
pub fn is_our_own() -> Result<()> {
    let others = processes().len();
    ensure!(
        others == 0,
        "{others} other processes are in this network namespace, and what is there at the end is ended: run these stages \
         by `cargo xtask test --only STAGE`, which makes a namespace for them"
    );
    Ok(())
}

/// A fresh namespace's loopback is down.
pub fn raise_loopback() -> Result<()> {
    let ip = Programs::default().find("ip").unwrap_or_else(|| PathBuf::from("ip"));
    let status = Command::new(ip).args(["link", "set", "lo", "up"]).status().context("ip (iproute2)")?;
    ensure!(status.success(), "ip link set lo up: {status}");
    Ok(())
}

/// Why something over IPv6 groups cannot be tried.
pub const UNROUTED: &str = "no route for ff00::/8 can be added here";

/// lo has no route to IPv6 groups, so nobody can send to them there; in a namespace of ours we may add one. Whether it is
/// there now.
pub fn route_ipv6_groups(programs: &Programs) -> Result<bool> {
    let route = ["-6", "route", "replace", "local", "ff00::/8", "dev", "lo"];
    let ip = programs.find("ip").context("ip (iproute2)")?;
    Ok(Command::new(ip).args(route).output()?.status.success())
}

/// The network namespace of a process: `net:[INODE]`.
fn namespace_of(pid: &str) -> Option<PathBuf> {
    std::fs::read_link(Path::new("/proc").join(pid).join("ns/net")).ok()
}

/// Processes in a network namespace, this one excepted: id and name.
fn processes_in(namespace: &Path) -> Vec<(i32, String)> {
    let me = std::process::id().to_string();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    let pids = pids.filter(|name| name.bytes().all(|b| b.is_ascii_digit()) && *name != me);
    pids.filter(|pid| namespace_of(pid).is_some_and(|ns| ns == namespace))
        .filter_map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            Some((pid.parse().ok()?, name.trim().to_owned()))
        })
        .collect()
}

/// Processes in this process's network namespace, itself excepted.
fn processes() -> Vec<(i32, String)> {
    namespace_of("self").map(|own| processes_in(&own)).unwrap_or_default()
}

fn brokers_in(namespace: &Path) -> Vec<Pid> {
    let all = processes_in(namespace).into_iter().filter(|(_, name)| name.starts_with("ferroced"));
    all.map(|(pid, _)| Pid::from_raw(pid)).collect()
}

/// The brokers of this network namespace.
pub fn brokers() -> Vec<Pid> {
    namespace_of("self").map(|own| brokers_in(&own)).unwrap_or_default()
}

/// Ends the brokers of this network namespace, which is our own.
pub fn end_broker() {
    namespace_of("self").map(|own| end_brokers_in(&own));
}

/// The brokers in the network namespace of process `pid`.
pub fn brokers_of(pid: u32) -> Vec<Pid> {
    namespace_of(&pid.to_string()).map(|namespace| brokers_in(&namespace)).unwrap_or_default()
}

/// Ends the brokers in the network namespace of process `pid`, which we made.
pub fn end_brokers_of(pid: u32) {
    namespace_of(&pid.to_string()).map(|namespace| end_brokers_in(&namespace));
}

/// Ends the brokers in a network namespace that we made, and says how many there were.
pub fn end_brokers_in(namespace: &Path) -> usize {
    let brokers = brokers_in(namespace);
    for broker in &brokers {
        kill(*broker, Signal::SIGTERM).ok();
    }
    brokers.len()
}

/// Only the broker may be left; it must go when told. The namespace is ours, so is every process in it.
///
/// The process that keeps a program's sysfs files outlives its program by a moment, so all have two seconds.
pub fn nothing_left(checks: &mut Checks) -> Result<()> {
    let is_broker = |(_, name): &(i32, String)| name.starts_with("ferroced");
    let deadline = Instant::now() + Duration::from_secs(2);
    while !processes().iter().all(is_broker) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (brokers, strays): (Vec<_>, Vec<_>) = processes().into_iter().partition(is_broker);
    if strays.is_empty() {
        checks.pass();
    } else {
        checks.fail("leftovers", &format!("still running: {strays:?}"));
    }
    for (pid, _) in strays.iter().chain(&brokers) {
        kill(Pid::from_raw(*pid), Signal::SIGTERM).ok();
    }
    let deadline = Instant::now() + Duration::from_secs(3);
    while !processes().is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let stubborn = processes();
    for (pid, _) in &stubborn {
        kill(Pid::from_raw(*pid), Signal::SIGKILL).ok();
    }
    if stubborn.is_empty() {
        checks.pass();
    } else {
        checks.fail("leftovers", &format!("did not end within 3 s of SIGTERM: {stubborn:?}"));
    }
    Ok(())
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        ensure!(Instant::now() < deadline, "not within 60 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
