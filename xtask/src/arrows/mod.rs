//! `cargo xtask arrows`: what may use what, and how long it may be.
//!
//! Crates use only the crates below them; modules and files of a crate do not use each other in circles; no
//! file and no crate outgrows its limit; one file reads environment variables; comments can be read alone.
//! The tables are in `crates.rs`, `modules.rs`, `sizes.rs`, `environment.rs` and `language.rs`. An entry of a
//! table that the sources no longer need fails as well.

mod crates;
mod environment;
mod language;
mod modules;
pub mod package;
mod scan;
mod sizes;

use anyhow::{Result, ensure};
use serde_json::Value;

use ferroce_harness::report::{Checks, Report};
use ferroce_harness::tree;
use package::{Package, TOOLS, packages};

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
    packages
        .iter()
        .for_each(|package| checks.check(&format!("{}: doctests", package.name), doctests(package)));
    language::check(checks)
}

/// A crate whose manifest says `doctest = false`, which saves a run of rustdoc, has no examples in its
/// comments.
fn doctests(package: &Package) -> Result<()> {
    let targets = package.metadata.get("targets").and_then(Value::as_array).into_iter().flatten();
    let tests = |target: &Value| target.get("doctest").and_then(Value::as_bool) == Some(true);
    if targets.clone().any(tests) {
        return Ok(());
    }
    for file in package.targets.iter().flat_map(|target| &target.files) {
        let text = std::fs::read_to_string(tree::root().join(&file.path))?;
        let comments = text.lines().map(str::trim_start);
        let comments = comments.filter_map(|line| line.strip_prefix("///").or(line.strip_prefix("//!")));
        let fences = comments.filter_map(|line| line.trim_start().strip_prefix("```"));
        // Every second one ends a block.
        let mut kinds = fences.filter(|kind| !kind.starts_with('`')).step_by(2);
        ensure!(kinds.all(|kind| kind == "text"), "{} has an example", file.path.display());
    }
    Ok(())
}

/// Prints the size of each crate.
pub fn sizes(json: bool) -> Result<bool> {
    sizes::print(&packages()?, json)?;
    Ok(true)
}
