//! `cargo xtask demo`: Debian's unmodified programs exchange RoCEv2 packets between two unprivileged
//! processes.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use nix::unistd::geteuid;

use crate::dist;
use ferroce_harness::debian::{self, Programs};
use ferroce_harness::dist::Dist;
use ferroce_harness::job::{self, Job};
use ferroce_harness::netns;

const NOBODY: u32 = 65_534;
/// The value of net.core.rmem_max on a fresh Debian.
const RECEIVE_BUFFER: u32 = 212_992;
const LIMIT: Duration = Duration::from_secs(60);

/// Arguments of the demo.
#[derive(Args)]
pub struct DemoArgs {
    /// Installs and fetches no Debian packages; missing programs are named.
    #[arg(long)]
    no_install: bool,
    /// Set by the demo itself in its own network namespace: the files to show.
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

/// Builds, then shows; true when every program did what it should.
pub fn run(args: &DemoArgs) -> Result<bool> {
    if let Some(dir) = &args.inside {
        netns::raise_loopback()?;
        return show(&Dist::at(dir));
    }
    if args.no_install {
        debian::decline();
    }
    let programs = Programs::ensure(&[debian::BASIC])?;
    let dist = dist::build()?;
    if !geteuid().is_root() {
        // Nothing to drop, and the user's own network namespace is the place to be.
        return show_with(&dist, &programs, &dist.root);
    }
    let copy = dist.public_copy("ferroce-demo")?;
    let shown = in_namespace(&copy);
    std::fs::remove_dir_all(&copy.root).ok();
    shown
}

/// As root: a network namespace of our own, so that no other user's broker is in the way.
fn in_namespace(copy: &Dist) -> Result<bool> {
    let run = copy.root.join("run");
    std::fs::create_dir_all(&run)?;
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o700))?;
    chown(&run, Some(NOBODY), Some(NOBODY))?;
    let mut command = netns::enter()?;
    command.arg(std::env::current_exe()?).args(["demo", "--inside"]).arg(&copy.root);
    Ok(command.status()?.success())
}

fn show(dist: &Dist) -> Result<bool> {
    let programs = Programs::ensure(&[debian::BASIC])?;
    let shown = show_with(dist, &programs, &dist.root);
    netns::end_broker();
    shown
}

struct Stage<'a> {
    dist: &'a Dist,
    programs: &'a Programs,
    logs: PathBuf,
    /// The front of every command: limits and the user.
    front: Vec<String>,
}

impl Stage<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut all = self.front.clone();
        all.push(self.dist.bin("ferroce").display().to_string());
        all.extend(["run", "--"].map(str::to_owned));
        let program = self.programs.find(words[0]).unwrap_or_else(|| PathBuf::from(words[0]));
        all.push(program.display().to_string());
        all.extend(words[1..].iter().map(|w| (*w).to_owned()));
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).current_dir("/").env("FERROCE_RCVBUF", RECEIVE_BUFFER.to_string());
        // The commands name fr0.
        command.env("FERROCE_RUNTIME_DIR", self.logs.join("run")).env("FERROCE_LOOPBACK", "1");
        if let Some(dirs) = self.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        command
    }

    fn one(&self, words: &[&str]) -> Result<String> {
        let ended = job::run(self.command(words), &self.logs.join("demo.log"), LIMIT)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output)
    }

    /// A server, then its client; the client's output.
    fn two(&self, words: &[&str]) -> Result<String> {
        let server = Job::start(self.command(words), &self.logs.join("server.log"), LIMIT)?;
        std::thread::sleep(Duration::from_millis(300));
        let mut client = self.command(words);
        client.arg("127.0.0.1");
        let client = job::run(client, &self.logs.join("client.log"), LIMIT)?;
        if !client.ok() {
            server.signal(nix::sys::signal::Signal::SIGTERM);
        }
        let server = server.wait()?;
        ensure!(client.ok() && server.ok(), "client: {}\nserver: {}", client.describe(), server.describe());
        Ok(client.output)
    }
}

/// The command that the programs run under, and its description.
fn front(programs: &Programs) -> Result<(Vec<String>, String)> {
    let path = |name: &str| -> Result<String> {
        Ok(programs.find(name).with_context(|| format!("{name} is missing"))?.display().to_string())
    };
    let limits = [path("prlimit")?, "--nofile=1024:1024".into(), path("setpriv")?, "--no-new-privs".into()];
    let mut words = Vec::from(limits);
    let mut who = geteuid().as_raw();
    if geteuid().is_root() {
        words.extend([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".into()]);
        who = NOBODY;
    }
    words.push("--".into());
    Ok((
        words,
        format!("uid {who}, no_new_privs, 1024 descriptors, {RECEIVE_BUFFER} bytes of receive buffer"),
    ))
}

fn show_with(dist: &Dist, programs: &Programs, logs: &Path) -> Result<bool> {
    let (front, who) = front(programs)?;
    let stage = Stage { dist, programs, logs: logs.to_owned(), front };
    println!("ferroce: RoCEv2 in user space. Everything below runs as {who}.\n");
    let devices = stage.one(&["ibv_devices"])?;
    println!("$ ferroce run -- ibv_devices\n{}", devices.trim_end());
    let info = stage.one(&["ibv_devinfo", "-d", "fr0"])?;
    println!("\n$ ferroce run -- ibv_devinfo -d fr0\n{}\n", info.trim_end());
    let mut good = true;
    println!("{:<58} result", "between two processes");
    for words in [
        "ibv_rc_pingpong -d fr0 -g 0 -c",
        "ibv_rc_pingpong -d fr0 -g 1 -c",
        "ibv_rc_pingpong -d fr0 -g 0 -s 65536 -n 2000",
        "ibv_rc_pingpong -d fr0 -g 0 -e",
        "ib_write_bw -d fr0 -F -s 65536 -n 5000",
        "ib_write_bw -d fr0 -F -s 1048576 -n 500",
    ] {
        let line: Vec<&str> = words.split(' ').collect();
        match stage.two(&line) {
            Ok(output) => println!("{words:<58} {}", result(&output)),
            Err(error) => {
                good = false;
                println!("{words:<58} FAILED\n{error:#}");
            }
        }
    }
    println!("\n{}", if good { "demo: ok" } else { "demo: failed" });
    Ok(good)
}

/// The figure in a program's output.
fn result(output: &str) -> String {
    // ibv_rc_pingpong: "1000 iters in 0.01 seconds = 12.34 usec/iter"
    if let Some(line) = output.lines().find(|l| l.ends_with("usec/iter")) {
        let round_trip = line.rsplit(' ').nth(1).unwrap_or_default();
        let rate = output.lines().find(|l| l.ends_with("Mbit/sec")).unwrap_or_default();
        return format!(
            "{round_trip} us a round trip, {} Mbit/s",
            rate.rsplit(' ').nth(1).unwrap_or_default()
        );
    }
    // perftest: bytes, iterations, peak, average, message rate
    let row = output.lines().rev().find(|l| l.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    match row.map(|l| l.split_whitespace().collect::<Vec<_>>()).as_deref() {
        Some([_, _, _, average, ..]) => format!("{average} MB/s"),
        _ => "ok".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::result;

    #[test]
    fn figures_are_found_in_the_programs_output() {
        let pingpong = "  local address: x\n8192000 bytes in 0.01 seconds = 5461.33 Mbit/sec\n\
            1000 iters in 0.01 seconds = 12.00 usec/iter\n";
        assert_eq!(result(pingpong), "12.00 us a round trip, 5461.33 Mbit/s");
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
            65536      5000             2300.10            2211.55              0.035385\n-----\n";
        assert_eq!(result(bandwidth), "2211.55 MB/s");
    }
}
