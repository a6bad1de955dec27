//! `lib/libferroce-dpdk.so`: DPDK for ferroced, where DPDK's headers are installed.
//!
//! The library belongs to the version of DPDK that it was built with, so a portable build has none.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use ferroce_harness::dist::DPDK;
use ferroce_harness::tree;

const SOURCE: &str = "crates/ferroce-datapath/shim/ferroce_dpdk.c";

/// Builds the library into `lib`. Returns the reason if it cannot be built here.
///
/// # Errors
/// The headers are there, and cc fails.
pub fn fill(lib: &Path) -> Result<Option<String>> {
    let output = Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]).output();
    let flags = match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(_) => return Ok(Some("DPDK's headers are not installed (Debian: libdpdk-dev)".to_owned())),
        Err(e) => return Ok(Some(format!("pkg-config cannot be started ({e})"))),
    };
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]);
    command.args(["-Wl,--as-needed,--build-id=sha1,-z,noexecstack", "-o"]).arg(lib.join(DPDK));
    command.arg(tree::root().join(SOURCE)).args(flags.split_whitespace());
    let output = command.output().context("cc (Debian: gcc)")?;
    ensure!(output.status.success(), "cc {SOURCE}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(None)
}
