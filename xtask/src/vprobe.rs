//! The peer's probe: one scripted verbs exchange at a time, each with a checked outcome on both ends.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::debian::Programs;
use crate::dist::Dist;
use crate::tree;

/// The scenarios of the RC service.
pub const RC: &[&str] = &[
    "send",
    "send_imm",
    "send_many",
    "write",
    "write_imm",
    "read",
    "read_many",
    "atomic",
    "send_inv",
    "psn_wrap",
    "bad_rkey_write",
    "bad_rkey_read",
    "no_perm",
    "out_of_range",
    "short_recv",
    "bad_atomic",
    "rnr",
    "rnr_exc",
    "retry_exc",
];

/// Those that are meant to fail on the wire: error counters move.
pub const ERRORS: &[&str] = &[
    "send_inv",
    "bad_rkey_write",
    "bad_rkey_read",
    "no_perm",
    "out_of_range",
    "short_recv",
    "bad_atomic",
    "rnr",
    "rnr_exc",
    "retry_exc",
];

/// Compiles the probe's source against the system's header and our library; None when the source is not
/// beside the workspace.
pub fn build(dist: &Dist, programs: &Programs) -> Result<Option<PathBuf>> {
    let Some(source) = tree::shared("peer/guest/src/vprobe.c") else { return Ok(None) };
    let program = tree::target().join("xtask").join("vprobe");
    compile(&source, &program, dist, programs)?;
    Ok(Some(program))
}

/// Compiles one C file against `infiniband/verbs.h` and our libibverbs.
pub fn compile(source: &Path, program: &Path, dist: &Dist, programs: &Programs) -> Result<()> {
    if let Some(dir) = program.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let mut command = Command::new("cc");
    command.args(["-O2", "-w", "-o"]).arg(program).arg(source);
    if let Some(root) = &programs.unpacked {
        command.arg("-I").arg(root.join("usr/include"));
    }
    command.arg("-L").arg(dist.lib()).arg("-libverbs");
    let output = command.output().context("cc (Debian: gcc)")?;
    ensure!(output.status.success(), "cc {}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    Ok(())
}
