//! `cargo xtask arrows`: what may use what, and how long it may be.
//!
//! Crates use only the crates below them; modules and files of a crate do not use each other in circles; no file and no
//! crate outgrows its limit; one file reads environment variables; comments can be read alone. The tables are in `crates.rs`,
//! `modules.rs`, `sizes.rs`, `environment.rs` and `language.rs`. An entry of a table that the sources no longer need fails as
//! well.

mod crates;
mod environment;
mod language;
mod modules;
mod scan;
mod sizes;

use anyhow::{Context, Result};
use serde_json::Value;

use ferroce_harness::report::{Checks, Report};
use ferroce_harness::tree;
use scan::Sources;

/// Crates that are no part of the product.
const TOOLS: &[&str] = &["ferroce-bench", "ferroce-e2e", "ferroce-harness", "ferroce-packaging", "xtask"];

/// A crate of the workspace.
struct Package {
    name: String,
    metadata: Value,
    /// Library and programs; a crate with both has two.
    targets: Vec<Sources>,
}

/// Runs the command.
pub fn run() -> Result<bool> {
    let mut report = Report::default();
    report.stage("arrows", check);
    Ok(report.close())
}

/// The stage.
pub fn check(checks: &mut Checks) -> Result<()> {
    let packages = packages()?;
    crates::check(checks, &packages);
    modules::check(checks, &packages);
    sizes::check(checks, &packages);
    let product = packages.iter().filter(|package| !TOOLS.contains(&package.name.as_str()));
    let product: Vec<_> = product.map(|package| (&*package.name, &*package.targets)).collect();
    environment::check(checks, &product);
    language::check(checks)
}

/// Prints the size of each crate.
pub fn sizes(json: bool) -> Result<bool> {
    sizes::print(&packages()?, json)?;
    Ok(true)
}

/// The crates of the workspace, with their product code read.
fn packages() -> Result<Vec<Package>> {
    let output = tree::cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    anyhow::ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let all = metadata.get("packages").and_then(Value::as_array).context("no packages in the metadata")?;
    let package = |metadata: &Value| {
        let targets = metadata.get("targets").and_then(Value::as_array).into_iter().flatten();
        let kinds = |target: &Value| target.get("kind").map(ToString::to_string).unwrap_or_default();
        let product = targets.filter(|target| {
            let kinds = kinds(target);
            kinds.contains("lib") || kinds.contains("bin")
        });
        let targets = product.map(|target| Sources::read(tree::root(), text(target, "src_path")));
        Ok(Package {
            name: text(metadata, "name").to_owned(),
            metadata: metadata.clone(),
            targets: targets.collect::<Result<_>>()?,
        })
    };
    all.iter().map(package).collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}
