//! The crates of the workspace, as cargo describes them.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::scan::Sources;
use ferroce_harness::tree;

/// Crates that are no part of the product.
pub const TOOLS: &[&str] = &["ferroce-bench", "ferroce-e2e", "ferroce-harness", "ferroce-packaging", "xtask"];

/// A crate of the workspace.
pub struct Package {
    pub name: String,
    pub metadata: Value,
    /// Library and programs; a crate with both has two.
    pub targets: Vec<Sources>,
}

/// The crates of the workspace, with their product code read.
pub fn packages() -> Result<Vec<Package>> {
    let output = tree::cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
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

/// Returns the text of a key; an empty one if the metadata lacks it.
pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}
