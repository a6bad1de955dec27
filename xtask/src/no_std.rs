//! Proves that the protocol does no I/O: the crates that hold it build for a target that has no operating
//! system.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use ferroce_harness::report::Checks;
use ferroce_harness::tree;

const TARGET: &str = "x86_64-unknown-none";
const CRATES: [&str; 3] = ["ferroce-wire", "ferroce-proto", "ferroce-cm"];

/// Checks the crates for [`TARGET`]; skips where rustup has not installed that target.
pub fn check(checks: &mut Checks) -> Result<()> {
    if !is_installed()? {
        checks.skip(TARGET, &format!("not installed: rustup target add {TARGET}"));
        return Ok(());
    }
    let mut check = tree::cargo();
    check.args(["check", "--quiet", "--keep-going", "--no-default-features", "--target", TARGET]);
    check.args(CRATES.iter().flat_map(|name| ["--package", name]));
    let output = check.output()?;
    let result = if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr)) };
    checks.check("no_std", result);
    Ok(())
}

fn is_installed() -> Result<bool> {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output()?;
    Ok(output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}
