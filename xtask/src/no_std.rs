//! Proves that the protocol does no I/O: the crates that hold it build for a target that has no operating system.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use ferroce_harness::report::Checks;
use ferroce_harness::tree;

const TARGET: &str = "x86_64-unknown-none";
const CRATES: [&str; 3] = ["ferroce-wire", "ferroce-proto", "ferroce-cm"];

/// Builds each crate for [`TARGET`]; skips where rustup has not installed that target.
pub fn check(checks: &mut Checks) -> Result<()> {
    if !is_installed()? {
        checks.skip(TARGET, &format!("not installed: rustup target add {TARGET}"));
        return Ok(());
    }
    for name in CRATES {
        let mut build = tree::cargo();
        build.args(["build", "--quiet", "--no-default-features", "--target", TARGET, "--package", name]);
        let output = build.output()?;
        if output.status.success() {
            checks.pass();
        } else {
            checks.fail(name, &String::from_utf8_lossy(&output.stderr));
        }
    }
    Ok(())
}

fn is_installed() -> Result<bool> {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output()?;
    Ok(output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}
