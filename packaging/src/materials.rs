//! The crates that the programs and the library are made of: their licences, and a bill of materials in
//! CycloneDX.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::version::VERSION;
use ferroce_harness::tree;

/// The crates that become files of the distribution.
const ROOTS: [&str; 3] = ["ferroce-broker", "ferroce-cli", "ferroce-dropin"];
/// Beginnings of the names of files with licences.
const LICENCES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// Licences and bill of materials.
pub struct Materials {
    /// Each foreign crate with its licence, and the texts.
    pub licences: String,
    /// CycloneDX 1.5, JSON.
    pub bill: String,
}

/// A crate of the registry.
struct Component {
    name: String,
    version: String,
    licence: String,
    /// SHA-256 of the crate, of `Cargo.lock`.
    sum: Option<String>,
    /// Licence files.
    texts: Vec<String>,
    /// The identifiers of crates that it uses.
    uses: Vec<String>,
}

impl Component {
    fn reference(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

impl Materials {
    /// Asks cargo for the crates.
    ///
    /// # Errors
    /// cargo fails, or a foreign crate names no licence.
    pub fn gather() -> Result<Self> {
        let mut command = tree::cargo();
        command.args(["metadata", "--format-version", "1", "--locked", "--filter-platform"]);
        let output = command.arg("x86_64-unknown-linux-gnu").output()?;
        ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        let components = components(&serde_json::from_slice(&output.stdout)?, &sums()?)?;
        Ok(Self { licences: licences(&components)?, bill: bill(&components)? })
    }
}

/// The crates that [`ROOTS`] reach by normal dependencies, by identifier; macros run in the compiler and are
/// none of them.
fn components(
    metadata: &Value,
    sums: &BTreeMap<(String, String), String>,
) -> Result<BTreeMap<String, Component>> {
    let list =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(metadata, "packages").into_iter().map(|package| (text(&package, "id"), package)).collect();
    let nodes: BTreeMap<String, Value> = list(metadata.get("resolve").context("no resolve")?, "nodes")
        .into_iter()
        .map(|node| (text(&node, "id"), node))
        .collect();
    let is_macro = |id: &str| {
        let targets = packages.get(id).map(|package| list(package, "targets")).unwrap_or_default();
        targets.iter().any(|target| list(target, "kind").iter().any(|kind| kind == "proc-macro"))
    };
    let uses = |id: &str| -> Vec<String> {
        let deps = nodes.get(id).map(|node| list(node, "deps")).unwrap_or_default();
        let normal = deps.iter().filter(|dep| {
            list(dep, "dep_kinds").iter().any(|kind| kind.get("kind").is_none_or(Value::is_null))
        });
        normal.map(|dep| text(dep, "pkg")).filter(|id| !is_macro(id)).collect()
    };
    let is_root = |package: &Value| ROOTS.contains(&text(package, "name").as_str());
    let mut todo: Vec<String> =
        packages.iter().filter(|(_, package)| is_root(package)).map(|(id, _)| id.clone()).collect();
    ensure!(todo.len() == ROOTS.len(), "cargo metadata names {} of {ROOTS:?}", todo.len());
    let mut found = BTreeMap::new();
    while let Some(id) = todo.pop() {
        if found.contains_key(&id) {
            continue;
        }
        let package = packages.get(&id).with_context(|| format!("no package {id}"))?;
        let (name, version, licence) =
            (text(package, "name"), text(package, "version"), text(package, "license"));
        ensure!(!licence.is_empty(), "{name} names no licence");
        let folder = text(package, "manifest_path");
        let foreign = package.get("source").is_some_and(|source| !source.is_null());
        let texts = match Path::new(&folder).parent().filter(|_| foreign) {
            Some(folder) => texts(folder)?,
            None => Vec::new(),
        };
        let uses = uses(&id);
        todo.extend(uses.iter().cloned());
        let sum = sums.get(&(name.clone(), version.clone())).cloned();
        ensure!(sum.is_some() == foreign, "Cargo.lock does not agree about {name} {version}");
        found.insert(id, Component { name, version, licence, sum, texts, uses });
    }
    Ok(found)
}

/// The licence files in the folder of a crate, sorted by name.
fn texts(folder: &Path) -> Result<Vec<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && LICENCES.iter().any(|word| name.to_uppercase().starts_with(word)) {
            names.insert(name);
        }
    }
    names
        .iter()
        .map(|name| Ok(String::from_utf8_lossy(&std::fs::read(folder.join(name))?).into_owned()))
        .collect()
}

/// The checksums of `Cargo.lock`, by name and version.
fn sums() -> Result<BTreeMap<(String, String), String>> {
    Ok(sums_of(&std::fs::read_to_string(tree::root().join("Cargo.lock"))?))
}

fn sums_of(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |part: &str, key: &str| {
        let line = part.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.and_then(|line| line.strip_suffix('"')).map(str::to_owned)
    };
    let packages = lock.split("[[package]]").skip(1);
    let sum = |part: &str| Some(((value(part, "name")?, value(part, "version")?), value(part, "checksum")?));
    packages.filter_map(sum).collect()
}

fn licences(components: &BTreeMap<String, Component>) -> Result<String> {
    let foreign: Vec<&Component> = components.values().filter(|component| component.sum.is_some()).collect();
    let mut out = String::from(
        "ferroce contains code of these crates, and of Rust's standard library. All of them come from https://crates.io.\n\n",
    );
    let mut by_text: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for component in &foreign {
        let name = format!("{} {}", component.name, component.version);
        writeln!(out, "{name}: {}", component.licence)?;
        for text in &component.texts {
            by_text.entry(text.trim()).or_default().push(name.clone());
        }
    }
    writeln!(out, "std ({}): MIT OR Apache-2.0", compiler()?)?;
    for (text, names) in by_text {
        writeln!(out, "\n{}\n{}\n\n{text}", "-".repeat(80), names.join(", "))?;
    }
    Ok(out)
}

/// As `rustc 1.95.0`.
fn compiler() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let output = Command::new(rustc).arg("--version").current_dir(tree::root()).output().context("rustc")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(said.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

fn bill(components: &BTreeMap<String, Component>) -> Result<String> {
    let component = |of: &Component| {
        let mut value = json!({
            "type": "library",
            "bom-ref": of.reference(),
            "name": of.name,
            "version": of.version,
            "purl": of.reference(),
            // Cargo still takes a slash for OR.
            "licenses": [{ "expression": of.licence.replace('/', " OR ") }],
        });
        if let (Some(sum), Some(object)) = (&of.sum, value.as_object_mut()) {
            object.insert("hashes".to_owned(), json!([{ "alg": "SHA-256", "content": sum }]));
        }
        value
    };
    let dependency = |of: &Component| {
        let on: BTreeSet<String> =
            of.uses.iter().filter_map(|id| components.get(id)).map(Component::reference).collect();
        json!({ "ref": of.reference(), "dependsOn": on })
    };
    let is_root = |of: &&Component| ROOTS.contains(&of.name.as_str());
    let roots: Vec<String> = components.values().filter(is_root).map(Component::reference).collect();
    let own = json!({ "ref": "ferroce", "dependsOn": roots });
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": { "type": "application", "bom-ref": "ferroce", "name": "ferroce", "version": VERSION },
        },
        "components": components.values().map(component).collect::<Vec<_>>(),
        "dependencies": std::iter::once(own).chain(components.values().map(dependency)).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_listed_with_its_licence_and_tools_are_not() {
        let found = Materials::gather().unwrap();
        let bill: Value = serde_json::from_str(&found.bill).unwrap();
        let names: BTreeSet<&str> =
            bill["components"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        for name in ["ferroce-wire", "ferroce-capi", "rustix", "clap"] {
            assert!(names.contains(name), "no {name} in {names:?}");
        }
        for name in ["proptest", "xtask", "serde_derive", "syn", "ferroce-harness"] {
            assert!(!names.contains(name), "{name}");
        }
        assert!(
            found.licences.contains("\nrustix ") && found.licences.contains("Permission is hereby granted")
        );
        assert!(!found.licences.contains("ferroce-wire"), "these have the licence of the package");
        let references: BTreeSet<&str> =
            bill["components"].as_array().unwrap().iter().map(|c| c["bom-ref"].as_str().unwrap()).collect();
        for dependency in bill["dependencies"].as_array().unwrap() {
            for on in dependency["dependsOn"].as_array().unwrap() {
                assert!(references.contains(on.as_str().unwrap()), "{on} is no component");
            }
        }
    }

    #[test]
    fn sums_are_read_and_own_crates_have_none() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"abc\"\n\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let sums = sums_of(lock);
        assert_eq!(sums.len(), 1);
        assert_eq!(sums[&("a".to_owned(), "1.0.0".to_owned())], "abc");
    }
}
