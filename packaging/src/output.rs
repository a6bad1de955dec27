//! Finished files.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A finished file.
pub struct Package {
    /// The file's name.
    pub name: String,
    /// The file's content.
    pub bytes: Vec<u8>,
    /// Whether it is a program.
    pub executable: bool,
}

/// Writes packages to a folder; the paths.
///
/// # Errors
/// The folder cannot be written to.
pub fn write(packages: &[Package], folder: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let write = |package: &Package| -> Result<PathBuf> {
        let path = folder.join(&package.name);
        std::fs::write(&path, &package.bytes).with_context(|| path.display().to_string())?;
        let mode = if package.executable { 0o755 } else { 0o644 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
        Ok(path)
    };
    packages.iter().map(write).collect()
}
