//! Programs run by user nobody, who may do nothing that needs a privilege.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Bed;
use super::pyverbs::{NOBODY, has_nobody};
use crate::dist::Dist;
use crate::netns;

/// A copy of the distribution that anybody can read, and a runtime folder of nobody's own. Both go when this is
/// dropped, and so do the brokers of the network namespace: one of another user would refuse the next program.
pub struct Nobody<'a> {
    bed: &'a Bed,
    setpriv: PathBuf,
    copy: Dist,
    runtime: PathBuf,
    nobody: bool,
}

impl<'a> Nobody<'a> {
    /// `name` begins the name of the copy's folder. In a user namespace that maps one user only, that one is as good
    /// as nobody.
    pub fn new(bed: &'a Bed, name: &str) -> Result<Self> {
        let setpriv = bed.programs.find("setpriv").context("setpriv is missing")?;
        netns::end_broker();
        let copy = bed.dist.public_copy(name)?;
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

    /// `ferroce run -- PROGRAM` by nobody, with no_new_privs.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.setpriv);
        command.arg("--no-new-privs");
        if self.nobody {
            let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
            command.args(user).arg("--clear-groups");
        }
        command.arg("--").arg(self.copy.bin("ferroce")).args(["run", "--"]).arg(program);
        command.current_dir(&self.copy.root).env("FERROCE_RUNTIME_DIR", &self.runtime);
        if let Some(dirs) = self.bed.programs.libraries() {
            command.env("LD_LIBRARY_PATH", dirs);
        }
        command
    }
}

impl Drop for Nobody<'_> {
    fn drop(&mut self) {
        netns::end_broker();
        std::fs::remove_dir_all(&self.copy.root).ok();
    }
}
