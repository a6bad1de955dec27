//! Where things lie: the workspace, its target directory, and the reference material beside it.

use std::path::{Path, PathBuf};

use crate::report::Checks;

/// The workspace's root, from where this crate was compiled.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The target directory: `CARGO_TARGET_DIR` or `target/`.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A path below `shared/`, which lies beside the workspace (or beside one of the directories above it), if
/// it exists. `FERROCE_SHARED` names another place.
pub fn shared(path: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("FERROCE_SHARED") {
        return Some(Path::new(&dir).join(path)).filter(|p| p.exists());
    }
    root().ancestors().skip(1).map(|dir| dir.join("shared").join(path)).find(|p| p.exists())
}

/// A path below `shared/`; without it `checks` skips `what` and says so.
pub fn shared_or_skip(checks: &mut Checks, what: &str, path: &str) -> Option<PathBuf> {
    let found = shared(path);
    if found.is_none() {
        checks.skip(what, &format!("shared/{path} is not beside the workspace"));
    }
    found
}

/// The cargo that runs us.
pub fn cargo() -> std::process::Command {
    let mut command = std::process::Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(root());
    command
}
