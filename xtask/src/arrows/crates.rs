//! The one direction of dependency: each crate uses crates of the floors below its own, and no others.

use serde_json::Value;

use super::package::{Package, text};
use ferroce_harness::report::Checks;

/// The floors, lowest first. Crates of one floor do not use each other, and tests may use more (a simulator,
/// a peer).
const FLOORS: &[&str] = &[
    "ferroce-wire ferroce-host ferroce-abi ferroce-audit ferroce-harness",
    "ferroce-fault ferroce-proto ferroce-cm ferroce-datapath ferroce-gpu ferroce-bench ferroce-packaging",
    "ferroce-ipc ferroce-sim ferroce-e2e",
    "ferroce-client ferroce-memory ferroce-broker xtask",
    "ferroce-paths",
    "ferroce-engine",
    "ferroce-rsocket ferroce",
    "ferroce-capi ferroce-cli",
    "ferroce-dropin",
];

/// Compares the manifests with the table.
pub fn check(checks: &mut Checks, packages: &[Package]) {
    for package in packages {
        checks.check(&package.name, judge(&package.name, &package.metadata));
    }
    for name in FLOORS.iter().flat_map(|floor| floor.split_whitespace()) {
        if !packages.iter().any(|package| package.name == name) {
            checks.fail(name, "FLOORS in xtask/src/arrows/crates.rs names it, but there is no such crate");
        }
    }
}

/// The number of a crate's floor.
fn floor(name: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.split_whitespace().any(|of| of == name))
}

/// A crate that its manifest names as a normal or build dependency must be below it.
fn judge(name: &str, manifest: &Value) -> Result<(), String> {
    let own = floor(name).ok_or("a crate that FLOORS in xtask/src/arrows/crates.rs does not know")?;
    let all = manifest.get("dependencies").and_then(Value::as_array).into_iter().flatten();
    let ours = all.filter(|of| of.get("path").is_some() && text(of, "kind") != "dev");
    let mut upward = ours.map(|of| text(of, "name")).filter(|of| floor(of).is_none_or(|of| of >= own));
    upward.next().map_or(Ok(()), |of| Err(format!("uses {of}, which is not below it")))
}

#[cfg(test)]
mod tests {
    use super::judge;
    use serde_json::json;

    #[test]
    fn an_upward_arrow_fails_and_a_dev_arrow_does_not() {
        let package = json!({"dependencies": [
            {"name": "ferroce-wire", "kind": null, "path": "/x"},
            {"name": "ferroce-sim", "kind": null, "path": "/x"},
            {"name": "ferroce-engine", "kind": "dev", "path": "/x"},
            {"name": "libc", "kind": null},
        ]});
        assert_eq!(judge("ferroce-engine", &package), Ok(()));
        for name in ["ferroce-proto", "ferroce-ipc"] {
            assert!(judge(name, &package).is_err_and(|why| why.contains("uses ferroce-sim")), "{name}");
        }
        assert!(judge("ferroce-new", &package).is_err());
    }
}
