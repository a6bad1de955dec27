//! The XDP programs of the conditions, compiled by clang.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::grid::{CONDITIONS, Condition};
use ferroce_harness::debian::{Program, Programs};

/// For the programs and their paths.
pub const NEEDED: &[Program] = &[
    Program { name: "clang", package: "clang" },
    Program { name: "/usr/include/bpf/bpf_helpers.h", package: "libbpf-dev" },
];

const SOURCE: &str = include_str!("impair.c");

/// The folder of the compiled programs.
pub struct Impairments(PathBuf);

impl Impairments {
    /// Compiles all of them into the folder.
    pub fn compile(folder: PathBuf, programs: &Programs) -> Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let source = folder.join("impair.c");
        std::fs::write(&source, SOURCE)?;
        let clang = programs.find("clang").unwrap_or_else(|| PathBuf::from("clang"));
        let all = Self(folder);
        for condition in CONDITIONS {
            for server in [false, true] {
                let mut command = Command::new(&clang);
                command.args(["-g", "-O2", "-Wall", "-target", "bpf"]);
                command.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
                let [loss, burst, reorder] = condition.parameters();
                let here = u32::from(server) + 1;
                for (name, value) in [("LOSS", loss), ("BURST", burst), ("REORDER", reorder), ("HERE", here)]
                {
                    command.arg(format!("-D{name}={value}"));
                }
                let output =
                    command.arg("-c").arg(&source).arg("-o").arg(all.file(condition, server)).output()?;
                let said = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success(), "clang: {}", said.trim());
            }
        }
        Ok(all)
    }

    /// The program of one end, whose Ethernet address ends with 1 (the client's) or 2 (the server's).
    pub fn file(&self, condition: Condition, server: bool) -> PathBuf {
        self.0.join(name(condition, server))
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }
}

/// The name of a program's file.
pub fn name(condition: Condition, server: bool) -> String {
    let parameters = condition.parameters().map(|value| value.to_string()).join("-");
    format!("impair-{parameters}-{}.o", if server { "server" } else { "client" })
}
