//! Checks of the supply: the oldest compiler that builds the workspace, and the licences of its dependencies.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// Builds with the `rust-version` of the manifest.
pub fn oldest_rust(checks: &mut Checks) -> Result<()> {
    let version = rust_version()?;
    let Ok(known) = Command::new("rustup").args(["run", &version, "cargo", "--version"]).output() else {
        checks.skip("msrv", "rustup is not here");
        return Ok(());
    };
    if !known.status.success() {
        checks.skip(
            "msrv",
            &format!("`rustup toolchain install {version} --profile minimal` brings the compiler"),
        );
        return Ok(());
    }
    let mut command = Command::new("rustup");
    command.args(["run", &version, "cargo", "check", "--quiet", "--workspace", "--target-dir"]);
    command.arg(tree::target().join("msrv")).current_dir(tree::root());
    // Cargo sets these for programs that it runs, and they name its own compiler.
    for variable in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC"] {
        command.env_remove(variable);
    }
    judge(checks, &format!("cargo check with Rust {version}"), command)
}

/// `cargo deny` with `deny.toml`.
pub fn dependencies(checks: &mut Checks) -> Result<()> {
    let there = tree::cargo().args(["deny", "--version"]).output()?;
    if !there.status.success() {
        checks.skip("deny", "`cargo install cargo-deny --locked` brings cargo-deny");
        return Ok(());
    }
    let mut command = tree::cargo();
    command.args(["deny", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"]);
    judge(checks, "cargo deny", command)?;
    let mut command = tree::cargo();
    command.args(["deny", "check", "--hide-inclusion-graph", "advisories"]);
    judge(checks, "cargo deny, advisories", command)
}

fn judge(checks: &mut Checks, name: &str, mut command: Command) -> Result<()> {
    let output = command.output().with_context(|| name.to_owned())?;
    match output.status.success() {
        true => checks.pass(),
        false => match String::from_utf8_lossy(&output.stderr) {
            said if said.contains("failed to download") => checks.skip(name, "crates.io is out of reach"),
            said if said.contains("advisory database") => {
                checks.skip(name, "there is no copy of RustSec's advisory database, and it is out of reach");
            }
            said => checks.fail(name, &said),
        },
    }
    Ok(())
}

/// The `rust-version` of the manifest.
pub fn rust_version() -> Result<String> {
    let output = tree::cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let version = metadata.pointer("/packages/0/rust_version").and_then(Value::as_str);
    Ok(version.context("the manifest has no rust-version")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::rust_version;
    use ferroce_harness::tree;

    #[test]
    fn the_pages_name_the_rust_version_of_the_manifest() {
        let version = rust_version().unwrap();
        for page in ["README.md", "docs/book/src/getting-started.md", "docs/book/src/support.md"] {
            let text = std::fs::read_to_string(tree::root().join(page)).unwrap();
            assert!(text.contains(&format!("{version} or later")), "{page} does not say {version}");
        }
    }
}
