//! Where things lie: the workspace, its target directory, and a folder `shared/` beside it.

use std::path::{Path, PathBuf};

/// The workspace's root, from where this crate was compiled.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// The target directory: `CARGO_TARGET_DIR` or `target/`.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A path below `shared/`, which lies beside the workspace or beside one of the directories above it, if it exists.
pub fn shared(path: &str) -> Option<PathBuf> {
    root().ancestors().skip(1).map(|dir| dir.join("shared").join(path)).find(|p| p.exists())
}

/// A file of `tests/reference`.
pub fn reference(name: &str) -> PathBuf {
    root().join("tests/reference").join(name)
}

/// The cargo that runs us.
pub fn cargo() -> std::process::Command {
    let mut command = std::process::Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(root());
    command
}
