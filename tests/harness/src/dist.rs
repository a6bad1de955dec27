//! The distribution, `target/dist`: what a user installs.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::tree;

/// The library's real file.
pub const LIBRARY: &str = "libibverbs.so.1";
/// The auditor of the loader that `ferroce run` names in `LD_AUDIT`.
pub const AUDITOR: &str = "libferroce-audit.so";
/// The library that the broker loads for links on devices of DPDK.
pub const DPDK: &str = "libferroce-dpdk.so";

/// A filled distribution directory.
#[derive(Clone, Debug)]
pub struct Dist {
    /// The directory with `bin/`, `lib/` and `share/`.
    pub root: PathBuf,
}

impl Dist {
    /// Where `dist` puts it, if it has been built.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Builds it by `cargo xtask dist`.
    ///
    /// # Errors
    /// The build fails.
    pub fn build() -> Result<Self> {
        let output = tree::cargo().args(["xtask", "dist"]).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "cargo xtask dist: {}", output.status);
        let said = String::from_utf8(output.stdout)?;
        Ok(Self::at(said.lines().last().context("cargo xtask dist printed no folder")?))
    }

    /// The folder to put into `LD_LIBRARY_PATH`.
    pub fn lib(&self) -> PathBuf {
        self.root.join("lib")
    }

    /// The program `name`.
    pub fn bin(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }

    /// The one library file.
    pub fn library(&self) -> PathBuf {
        self.lib().join(LIBRARY)
    }

    /// The suppressions that keep valgrind's memcheck silent about the library's own memory.
    pub fn suppressions(&self) -> PathBuf {
        self.root.join("share/ferroce/valgrind.supp")
    }

    /// The suppressions that keep ThreadSanitizer silent about accesses of the library, whose locks it does not see.
    pub fn thread_suppressions(&self) -> PathBuf {
        self.root.join("share/ferroce/tsan.supp")
    }

    /// A copy that any user can read, in a fresh directory below the system's temporary one.
    pub fn public_copy(&self, name: &str) -> Result<Self> {
        let root = std::env::temp_dir().join(format!("{name}.{}", std::process::id()));
        if root.exists() {
            std::fs::remove_dir_all(&root)?;
        }
        copy_tree(&self.root, &root)?;
        Ok(Self { root })
    }
}

/// Copies a folder with its links; anybody may enter the copy's folders.
pub fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755))?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            symlink(std::fs::read_link(entry.path())?, &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Where the builds of tests put the example `name`.
pub fn example(name: &str) -> PathBuf {
    tree::target().join("debug/examples").join(name)
}
