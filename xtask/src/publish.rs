//! The crates that a registry may carry can be packaged: `ferroce` and all crates that it needs.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::arrows::package::{packages, text};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// Packages all publishable crates at once, without a build.
pub fn check(checks: &mut Checks) -> Result<()> {
    let packages = packages()?;
    let published: Vec<_> = packages.iter().filter(|package| is_published(&package.metadata)).collect();
    ensure!(published.iter().any(|package| package.name == "ferroce"), "the crate ferroce is not published");
    for package in &published {
        checks.check(&format!("{}: manifest", package.name), judge(&package.metadata));
        let manifest = Path::new(text(&package.metadata, "manifest_path"));
        // A link that was checked out as a file has the link's target as its text.
        let read = |path: &Path| std::fs::read(path).ok();
        let missing = ["LICENSE-MIT", "LICENSE-APACHE"].into_iter().find(|name| {
            let text = read(&manifest.with_file_name(name));
            text.is_none() || text != read(&tree::root().join(name))
        });
        checks.check(
            &format!("{}: licences", package.name),
            missing.map_or(Ok(()), |name| Err(format!("no {name}"))),
        );
    }
    let mut command = tree::cargo();
    command.args(["package", "--quiet", "--no-verify", "--allow-dirty"]);
    command.args(published.iter().flat_map(|package| ["--package", &package.name]));
    let output = command.output()?;
    let result = if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr)) };
    checks.check("cargo package", result);
    Ok(())
}

/// Whether the manifest permits a registry: an empty list stands for `publish = false`.
fn is_published(metadata: &Value) -> bool {
    metadata.get("publish").is_none_or(|registries| registries.as_array().is_none_or(|all| !all.is_empty()))
}

/// The text that a registry shows names the crate's content, and does not ask for it.
fn judge(metadata: &Value) -> Result<(), String> {
    for key in ["description", "license", "repository"] {
        if text(metadata, key).is_empty() {
            return Err(format!("no {key}"));
        }
    }
    if text(metadata, "description").contains('?') {
        return Err("the description is a question".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_empty_list_of_registries_is_not_published() {
        assert!(is_published(&json!({"publish": null})) && is_published(&json!({})));
        assert!(is_published(&json!({"publish": ["crates-io"]})) && !is_published(&json!({"publish": []})));
    }

    #[test]
    fn manifests_say_what_a_registry_shows() {
        let manifest = |description: &str| json!({"description": description, "license": "MIT", "repository": "https://example.com"});
        assert_eq!(judge(&manifest("RDMA in user space")), Ok(()));
        assert!(judge(&manifest("What is it?")).is_err() && judge(&manifest("")).is_err());
        assert!(judge(&json!({"description": "RDMA", "license": "MIT"})).is_err());
    }
}
