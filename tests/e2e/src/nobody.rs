//! Programs run by user nobody, who may do nothing that needs a privilege.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Bed;
use super::copy::PublicCopy;
use super::pyverbs::{NOBODY, has_nobody};
use ferroce_harness::dist;
use ferroce_harness::netns;

/// A copy of the distribution that anybody can read, and a runtime folder of nobody's own. Both go when this is
/// dropped, and so do the brokers of the network namespace: one of another user would refuse the next program.
pub struct Nobody<'a> {
    bed: &'a Bed,
    setpriv: PathBuf,
    copy: PublicCopy<'a>,
    runtime: PathBuf,
    nobody: bool,
}

impl<'a> Nobody<'a> {
    /// `name` begins the name of the copy's folder. In a user namespace that maps one user only, that one is as good
    /// as nobody.
    pub fn new(bed: &'a Bed, name: &str) -> Result<Self> {
        let setpriv = bed.programs.find("setpriv").context("setpriv is missing")?;
        netns::end_broker();
        let copy = PublicCopy::new(bed, name)?;
        let runtime = copy.root.join("run");
        let here = Self { bed, setpriv, copy, runtime, nobody: has_nobody() };
        std::fs::create_dir(&here.runtime)?;
        std::fs::set_permissions(&here.runtime, std::fs::Permissions::from_mode(0o700))?;
        if here.nobody {
            chown(&here.runtime, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(here)
    }

    /// Where nobody may write.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// A copy of a program that anybody can run.
    pub fn program(&self, from: &Path) -> Result<PathBuf> {
        let to = self.copy.root.join(from.file_name().context("a program without a name")?);
        std::fs::copy(from, &to).with_context(|| from.display().to_string())?;
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755))?;
        Ok(to)
    }

    /// A copy of a folder that anybody can read, as folder `name` of the distribution's copy.
    pub fn folder(&self, from: &Path, name: &str) -> Result<PathBuf> {
        let to = self.copy.root.join(name);
        if to.exists() {
            std::fs::remove_dir_all(&to)?;
        }
        dist::copy_tree(from, &to).with_context(|| from.display().to_string())?;
        Ok(to)
    }

    /// `ferroce run -- PROGRAM` by nobody, with no_new_privs.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = self.ferroce();
        command.args(["run", "--"]).arg(program);
        command
    }

    /// `ferroce` by nobody, with no_new_privs.
    pub fn ferroce(&self) -> Command {
        self.plain(&self.copy.bin("ferroce"))
    }

    /// A program by nobody, with no_new_privs and without ferroce.
    pub fn plain(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.setpriv);
        command.arg("--no-new-privs");
        if self.nobody {
            let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
            command.args(user).arg("--clear-groups");
        }
        command.arg("--").arg(program);
        command.current_dir(&self.copy.root).env("FERROCE_RUNTIME_DIR", &self.runtime);
        if let Some(dirs) = self.bed.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        command
    }

    /// An empty folder `name` that nobody may write to.
    pub fn scratch(&self, name: &str) -> Result<PathBuf> {
        let folder = self.runtime.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir(&folder)?;
        if self.nobody {
            chown(&folder, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(folder)
    }
}

impl Drop for Nobody<'_> {
    fn drop(&mut self) {
        netns::end_broker();
    }
}
