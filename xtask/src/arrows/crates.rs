//! The one direction of dependency: each crate uses the crates named here, and no others.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Package, text};
use ferroce_harness::report::Checks;

/// Which crates each crate uses, by normal and build dependencies. Tests may use more (a simulator, a peer).
const USES: &[(&str, &[&str])] = &[
    ("ferroce-wire", &[]),
    ("ferroce-fault", &["ferroce-wire"]),
    ("ferroce-proto", &["ferroce-wire"]),
    ("ferroce-cm", &["ferroce-wire"]),
    ("ferroce-host", &[]),
    ("ferroce-ipc", &["ferroce-cm", "ferroce-host", "ferroce-wire"]),
    ("ferroce-client", &["ferroce-cm", "ferroce-host", "ferroce-ipc", "ferroce-wire"]),
    ("ferroce-datapath", &["ferroce-host", "ferroce-wire"]),
    ("ferroce-memory", &["ferroce-host", "ferroce-ipc", "ferroce-proto", "ferroce-wire"]),
    (
        "ferroce-paths",
        &[
            "ferroce-client",
            "ferroce-datapath",
            "ferroce-fault",
            "ferroce-host",
            "ferroce-ipc",
            "ferroce-memory",
            "ferroce-proto",
            "ferroce-wire",
        ],
    ),
    (
        "ferroce-engine",
        &[
            "ferroce-client",
            "ferroce-cm",
            "ferroce-proto",
            "ferroce-datapath",
            "ferroce-fault",
            "ferroce-host",
            "ferroce-ipc",
            "ferroce-memory",
            "ferroce-paths",
            "ferroce-wire",
        ],
    ),
    ("ferroce-rsocket", &["ferroce-engine", "ferroce-host", "ferroce-proto", "ferroce-wire"]),
    (
        "ferroce-broker",
        &["ferroce-cm", "ferroce-datapath", "ferroce-fault", "ferroce-host", "ferroce-ipc", "ferroce-wire"],
    ),
    ("ferroce", &["ferroce-broker", "ferroce-client", "ferroce-engine", "ferroce-memory", "ferroce-wire"]),
    ("ferroce-abi", &[]),
    (
        "ferroce-capi",
        &[
            "ferroce-abi",
            "ferroce-broker",
            "ferroce-client",
            "ferroce-engine",
            "ferroce-host",
            "ferroce-memory",
            "ferroce-rsocket",
            "ferroce-wire",
        ],
    ),
    ("ferroce-dropin", &["ferroce-capi"]),
    (
        "ferroce-cli",
        &["ferroce-client", "ferroce-fault", "ferroce-host", "ferroce-ipc", "ferroce-sim", "ferroce-wire"],
    ),
    ("ferroce-sim", &["ferroce-fault", "ferroce-proto", "ferroce-wire"]),
    ("ferroce-packaging", &[]),
    ("ferroce-harness", &[]),
    ("ferroce-e2e", &["ferroce-harness", "ferroce-packaging"]),
    ("ferroce-bench", &["ferroce-harness"]),
    ("xtask", &["ferroce-e2e", "ferroce-harness", "ferroce-packaging"]),
];

/// Compares the manifests with the table.
pub fn check(checks: &mut Checks, packages: &[Package]) {
    let table: BTreeMap<&str, &[&str]> = USES.iter().copied().collect();
    for package in packages {
        let Some(allowed) = table.get(package.name.as_str()) else {
            checks.fail(&package.name, "a crate that the table in xtask/src/arrows/crates.rs does not know");
            continue;
        };
        checks.check(&package.name, compare(&package.metadata, allowed));
    }
    for (name, _) in USES {
        if !packages.iter().any(|package| package.name == *name) {
            checks.fail(name, "the table in xtask/src/arrows/crates.rs names it, but there is no such crate");
        }
    }
}

/// The workspace crates that a manifest names against those of the table.
fn compare(package: &Value, allowed: &[&str]) -> Result<(), String> {
    let dependencies = package.get("dependencies").and_then(Value::as_array);
    let ours = dependencies.into_iter().flatten().filter(|d| d.get("path").is_some());
    let used: BTreeSet<&str> = ours.filter(|d| text(d, "kind") != "dev").map(|d| text(d, "name")).collect();
    let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
    let list = |names: Vec<&&str>| names.into_iter().copied().collect::<Vec<_>>().join(", ");
    let upward = list(used.difference(&allowed).collect());
    let unused = list(allowed.difference(&used).collect());
    match (upward.is_empty(), unused.is_empty()) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("uses {upward}, which is not below it")),
        (true, false) => Err(format!("does not use {unused}: remove it from the table")),
    }
}

#[cfg(test)]
mod tests {
    use super::compare;
    use serde_json::json;

    #[test]
    fn an_upward_arrow_and_an_unused_row_fail_and_a_dev_arrow_does_not() {
        let package = json!({"dependencies": [
            {"name": "ferroce-wire", "kind": null, "path": "/x"},
            {"name": "ferroce-engine", "kind": null, "path": "/x"},
            {"name": "ferroce-sim", "kind": "dev", "path": "/x"},
            {"name": "libc", "kind": null},
        ]});
        let compared = |allowed| compare(&package, allowed).map_err(|why| why.split(',').count());
        assert_eq!(compared(&["ferroce-wire", "ferroce-engine"]), Ok(()));
        assert!(compare(&package, &["ferroce-wire"]).is_err_and(|why| why.contains("uses ferroce-engine")));
        let loose = &["ferroce-wire", "ferroce-engine", "ferroce-ipc"];
        assert!(compare(&package, loose).is_err_and(|why| why.contains("does not use ferroce-ipc")));
    }
}
