//! The one direction of dependency: each crate may use only the crates named here.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::report::Checks;
use crate::tree;

/// Who may use whom, by normal and build dependencies. Tests may use more (a simulator, a peer).
const MAY_USE: &[(&str, &[&str])] = &[
    ("ferroce-wire", &[]),
    ("ferroce-proto", &["ferroce-wire"]),
    ("ferroce-ipc", &["ferroce-wire"]),
    ("ferroce-datapath", &["ferroce-wire", "ferroce-ipc"]),
    ("ferroce-host", &["ferroce-ipc"]),
    ("ferroce-engine", &["ferroce-proto", "ferroce-datapath", "ferroce-host", "ferroce-ipc", "ferroce-wire"]),
    ("ferroce-rsocket", &["ferroce-engine", "ferroce-host", "ferroce-proto", "ferroce-wire"]),
    ("ferroce-broker", &["ferroce-proto", "ferroce-datapath", "ferroce-host", "ferroce-ipc", "ferroce-wire"]),
    ("ferroce", &["ferroce-broker", "ferroce-engine", "ferroce-wire"]),
    ("ferroce-abi", &[]),
    ("ferroce-capi", &["ferroce-abi", "ferroce-broker", "ferroce-engine", "ferroce-rsocket", "ferroce-wire"]),
    ("ferroce-dropin", &["ferroce-capi"]),
    ("ferroce-cli", &["ferroce-host", "ferroce-ipc", "ferroce-wire"]),
    ("ferroce-sim", &["ferroce-wire", "ferroce-proto"]),
    ("xtask", &[]),
];

/// Compares `cargo metadata` with the table.
pub fn check(checks: &mut Checks) -> Result<()> {
    let output = tree::cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    anyhow::ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages =
        metadata.get("packages").and_then(Value::as_array).context("no packages in the metadata")?;
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for package in packages {
        let name = text(package, "name");
        let Some(may_use) = allowed.get(name) else {
            checks.fail(name, "a crate that the table in xtask/src/arrows.rs does not know");
            continue;
        };
        let wrong = forbidden(package, may_use);
        if wrong.is_empty() {
            checks.pass();
        } else {
            checks.fail(name, &format!("uses {}, which is not below it", wrong.join(", ")));
        }
    }
    Ok(())
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The workspace crates that `package` depends on against the table.
fn forbidden<'a>(package: &'a Value, may_use: &[&str]) -> Vec<&'a str> {
    let dependencies = package.get("dependencies").and_then(Value::as_array);
    let ours = dependencies.into_iter().flatten().filter(|d| d.get("path").is_some());
    let ours = ours.filter(|d| text(d, "kind") != "dev").map(|d| text(d, "name"));
    ours.filter(|name| !may_use.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::forbidden;
    use serde_json::json;

    #[test]
    fn an_upward_arrow_is_seen_and_a_dev_arrow_is_not() {
        let package = json!({"dependencies": [
            {"name": "ferroce-wire", "kind": null, "path": "/x"},
            {"name": "ferroce-engine", "kind": null, "path": "/x"},
            {"name": "ferroce-sim", "kind": "dev", "path": "/x"},
            {"name": "libc", "kind": null},
        ]});
        assert_eq!(forbidden(&package, &["ferroce-wire"]), ["ferroce-engine"]);
    }
}
