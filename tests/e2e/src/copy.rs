//! A copy of the distribution for programs and brokers of other users.

use std::ffi::OsString;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::Bed;
use ferroce_harness::debian::Programs;
use ferroce_harness::dist::Dist;
use ferroce_harness::netns;

/// A copy that all users can read, removed with this.
pub struct PublicCopy<'a> {
    dist: Dist,
    programs: &'a Programs,
}

/// A broker, which ends by SIGKILL when this is dropped.
pub struct Broker(Child);

impl<'a> PublicCopy<'a> {
    /// `name` begins the name of the copy's folder.
    pub fn new(bed: &'a Bed, name: &str) -> Result<Self> {
        Ok(Self { dist: bed.dist.public_copy(name)?, programs: &bed.programs })
    }

    /// A runtime folder in the copy that `owner` alone may use.
    pub fn runtime(&self, name: &str, owner: u32) -> Result<PathBuf> {
        let folder = self.root.join(name);
        if !folder.exists() {
            std::fs::create_dir(&folder)?;
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700))?;
            chown(&folder, Some(owner), Some(owner)).with_context(|| format!("chown to {owner}"))?;
        }
        Ok(folder)
    }

    /// The file of a program: the copy's `ferroce`, or a program of Debian's.
    pub fn find(&self, program: &str) -> Result<PathBuf> {
        match program {
            "ferroce" => Ok(self.bin(program)),
            _ => self.programs.find(program).with_context(|| format!("{program} is missing")),
        }
    }

    /// A program on ferroce's libraries behind the front of a command, as user `uid` with these groups beside its own, with no_new_privs
    /// and without a capability.
    pub fn as_user(&self, front: Command, uid: u32, groups: &[u32], program: &str) -> Result<Command> {
        self.as_user_with(front, uid, groups, &[], program)
    }

    /// The same with further words for `setpriv(1)`, such as those that keep a capability.
    pub fn as_user_with(
        &self,
        mut front: Command,
        uid: u32,
        groups: &[u32],
        words: &[&str],
        program: &str,
    ) -> Result<Command> {
        front.arg(self.find("setpriv")?).arg("--no-new-privs").args(words);
        front.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        match groups.is_empty() {
            true => front.arg("--clear-groups"),
            false => front.arg(format!("--groups={}", groups.join(","))),
        };
        front.arg("--").arg(self.find(program)?).current_dir("/").env("LD_LIBRARY_PATH", self.libraries()?);
        Ok(front)
    }

    fn libraries(&self) -> Result<OsString> {
        let mut libraries = vec![self.lib()];
        libraries.extend(self.programs.libraries().iter().flat_map(std::env::split_paths));
        Ok(std::env::join_paths(libraries)?)
    }
}

impl Deref for PublicCopy<'_> {
    type Target = Dist;

    fn deref(&self) -> &Dist {
        &self.dist
    }
}

impl Drop for PublicCopy<'_> {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.dist.root).ok();
    }
}

impl Broker {
    /// Starts `ferroced` and waits until `ferroce status`, the output of which `status` returns, shows it.
    pub fn start(mut ferroced: Command, log: File, status: impl Fn() -> Result<String>) -> Result<Self> {
        ferroced.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut broker = Self(ferroced.spawn()?);
        let mut ended = None;
        netns::until("ferroced answers", || {
            ended = broker.0.try_wait().ok().flatten();
            ended.is_some() || status().is_ok_and(|said| said.contains("broker pid"))
        })?;
        ensure!(ended.is_none(), "ferroced ended before it answered: {ended:?}");
        Ok(broker)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
