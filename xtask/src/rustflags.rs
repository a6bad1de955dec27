//! Flags of rustc for the release: no path of the machine that builds is in the files, so that two machines
//! with one compiler build the same bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use ferroce_harness::tree;

/// The folder that debuggers and messages show for the workspace.
const SOURCES: &str = "/usr/src/ferroce";
/// The folder that they show for the crates of the registry.
const CRATES: &str = "/usr/src/crates";
/// The separator of `CARGO_ENCODED_RUSTFLAGS`.
const SEPARATOR: &str = "\u{1f}";

/// The value of `CARGO_ENCODED_RUSTFLAGS`: the flags of the environment, `more`, and the renamed paths.
///
/// # Errors
/// rustc does not run, or a path is no UTF-8.
pub fn encoded(more: &[String]) -> Result<String> {
    let inherited = match (std::env::var("CARGO_ENCODED_RUSTFLAGS"), std::env::var("RUSTFLAGS")) {
        (Ok(encoded), _) => encoded.split(SEPARATOR).map(str::to_owned).collect(),
        (_, Ok(words)) => words.split_whitespace().map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    let flags = inherited.into_iter().chain(more.iter().cloned()).chain(renamed()?);
    Ok(flags.filter(|flag| !flag.is_empty()).collect::<Vec<_>>().join(SEPARATOR))
}

/// A `--remap-path-prefix` for each folder. If several match a path, rustc takes the last one.
fn renamed() -> Result<Vec<String>> {
    let folders = [
        (tree::target(), format!("{SOURCES}/target")),
        (tree::root().to_owned(), SOURCES.to_owned()),
        (cargo_home()?.join("registry/src"), CRATES.to_owned()),
        standard_library()?,
    ];
    folders.into_iter().map(|(from, to)| remap(&from, &to)).collect()
}

fn remap(from: &Path, to: &str) -> Result<String> {
    let from = from.to_str().with_context(|| format!("{} is no UTF-8", from.display()))?;
    Ok(format!("--remap-path-prefix={from}={to}"))
}

fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home).context("neither CARGO_HOME nor HOME is set")
}

/// The sources of the standard library, where the component rust-src is installed, and the name that rustc
/// gives them elsewhere.
fn standard_library() -> Result<(PathBuf, String)> {
    let ask = |arguments: &[&str]| -> Result<String> {
        let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
        let output = Command::new(rustc).args(arguments).current_dir(tree::root()).output()?;
        ensure!(output.status.success(), "rustc {arguments:?}: {}", output.status);
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let version = ask(&["-vV"])?;
    let commit = version.lines().find_map(|line| line.strip_prefix("commit-hash: ")).unwrap_or("unknown");
    let sources = PathBuf::from(ask(&["--print", "sysroot"])?).join("lib/rustlib/src/rust");
    Ok((sources, format!("/rustc/{commit}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_and_the_registry_are_renamed_and_other_flags_stay() {
        let flags = encoded(&["-Cfoo=bar baz".to_owned()]).unwrap();
        let flags: Vec<&str> = flags.split(SEPARATOR).collect();
        assert!(flags.contains(&"-Cfoo=bar baz"), "{flags:?}");
        let root = format!("--remap-path-prefix={}={SOURCES}", tree::root().display());
        assert!(flags.contains(&root.as_str()), "{flags:?}");
        assert!(flags.iter().any(|flag| flag.ends_with(&format!("/registry/src={CRATES}"))), "{flags:?}");
    }
}
