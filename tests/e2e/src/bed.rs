//! The common set-up of end-to-end checks: the distribution, Debian's programs, and a place for logs.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::Result;

use ferroce_harness::debian::Programs;
use ferroce_harness::dist::Dist;
use ferroce_harness::exchange::Logs;
use ferroce_harness::tree;

/// The index of the entry of `address` in the output of `ferroce gid show`, for `version` v1 or v2 of RoCE.
pub fn gid_index(shown: &str, address: &str, version: &str) -> Option<u32> {
    // IPv4 addresses are shown as mapped ones.
    let entry = format!("{address} type RoCE {version}");
    let line = shown.lines().find(|line| line.contains(&entry))?;
    line.split_whitespace().skip_while(|word| *word != "index").nth(1)?.parse().ok()
}

/// The test bed.
pub struct Bed {
    /// The distribution under test.
    pub dist: Dist,
    /// Debian's programs.
    pub programs: Programs,
    /// The whole matrix, not only the quick part.
    pub all: bool,
    /// Where programs' output goes.
    pub logs: Logs,
    next_port: AtomicU16,
}

impl Bed {
    /// Logs go to `target/xtask/e2e`.
    pub fn new(dist: Dist, programs: Programs, all: bool) -> Result<Self> {
        let logs = tree::target().join("xtask").join("e2e");
        std::fs::create_dir_all(&logs)?;
        Ok(Self { dist, programs, all, logs: Logs(logs), next_port: AtomicU16::new(20_000) })
    }

    /// A TCP port that no earlier check of this run used.
    pub fn port(&self) -> u16 {
        self.next_port.fetch_add(1, Ordering::Relaxed)
    }

    /// `ferroce run -- PROGRAM`.
    pub fn ours(&self, program: &str) -> Command {
        self.on(&self.dist, program)
    }

    /// The same with another distribution's library.
    pub fn on(&self, dist: &Dist, program: &str) -> Command {
        let mut command = Command::new(dist.bin("ferroce"));
        let program = self.programs.find(program).unwrap_or_else(|| PathBuf::from(program));
        command.arg("run").arg("--").arg(program);
        if let Some(dirs) = self.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        command
    }
}
