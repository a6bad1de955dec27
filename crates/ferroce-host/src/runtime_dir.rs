//! The directories of ferroce's files: the log, a stored node GUID, and state that survives a reboot. No file in them
//! is needed to find the broker.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The environment variables that name the directories, beside ferroce's own. A broker that a program starts inherits
/// them, so that both find the same files.
pub const VARIABLES: [&str; 3] = ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME"];

/// `$FERROCE_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/ferroce`, else `/tmp/ferroce-UID`: owned by us, and writable by no
/// other user.
#[derive(Clone, Debug)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// Finds the directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// `PermissionDenied` if another user owns it or may write to it, or if it is a link; otherwise the errors of
    /// `mkdir(2)`.
    pub fn open() -> io::Result<Self> {
        let uid = nix::unistd::geteuid().as_raw();
        let path = match (variable("FERROCE_RUNTIME_DIR"), variable("XDG_RUNTIME_DIR")) {
            (Some(own), _) => own,
            (None, Some(users)) => users.join("ferroce"),
            (None, None) => PathBuf::from(format!("/tmp/ferroce-{uid}")),
        };
        Self::at(path, uid)
    }

    /// The directory of files that survive a reboot: `$FERROCE_RUNTIME_DIR`, else `/var/lib/ferroce` for root, else
    /// `$XDG_STATE_HOME/ferroce` or `$HOME/.local/state/ferroce`.
    ///
    /// # Errors
    /// `NotFound` if none of the variables is set.
    pub fn persistent_path() -> io::Result<PathBuf> {
        let uid = nix::unistd::geteuid().as_raw();
        let home = variable("HOME").map(|home| home.join(".local/state"));
        let state = variable("XDG_STATE_HOME").or(home).map(|state| state.join("ferroce"));
        let found = match variable("FERROCE_RUNTIME_DIR") {
            Some(own) => Some(own),
            None if uid == 0 => Some(PathBuf::from("/var/lib/ferroce")),
            None => state,
        };
        let none = "neither FERROCE_RUNTIME_DIR nor XDG_STATE_HOME nor HOME names a directory";
        found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, none))
    }

    /// Finds [`RuntimeDir::persistent_path`], and creates it if it does not exist.
    ///
    /// # Errors
    /// As [`RuntimeDir::open`], and `NotFound` without such a path.
    pub fn persistent() -> io::Result<Self> {
        let path = Self::persistent_path()?;
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        Self::at(path, nix::unistd::geteuid().as_raw())
    }

    fn at(path: PathBuf, uid: u32) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        Self::check(path, uid)
    }

    /// A directory that exists already.
    ///
    /// # Errors
    /// As [`RuntimeDir::open`], and `NotFound` if there is none.
    pub fn existing(path: PathBuf) -> io::Result<Self> {
        Self::check(path, nix::unistd::geteuid().as_raw())
    }

    fn check(path: PathBuf, uid: u32) -> io::Result<Self> {
        // It follows no link, which any user could have made in /tmp.
        let found = path.symlink_metadata()?;
        if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
            let text = format!("{} is not a directory that only uid {uid} can write to", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Size at which the log starts anew, in octets. The previous log is kept as `ferroced.log.old`.
    pub const MOST_LOG: u64 = 1 << 20;

    /// Opens the log of `ferroced` to append. A log larger than [`Self::MOST_LOG`] starts anew.
    pub fn log(&self) -> io::Result<File> {
        let path = self.0.join("ferroced.log");
        if path.symlink_metadata().is_ok_and(|log| log.len() > Self::MOST_LOG) {
            let _ = std::fs::rename(&path, self.0.join("ferroced.log.old"));
        }
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
    }

    /// The stored node GUID of interfaces without a hardware address; created if there is none.
    pub fn node_guid(&self) -> io::Result<[u8; 8]> {
        let path = self.0.join("node-guid");
        let mut stored = [0; 8];
        let mut old = OpenOptions::new();
        old.read(true).custom_flags(libc::O_NOFOLLOW);
        if old.open(&path).and_then(|mut file| file.read_exact(&mut stored)).is_ok() && stored != [0; 8] {
            return Ok(stored);
        }
        let guid = random_guid();
        let mut new = OpenOptions::new();
        new.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = new.open(&path)?;
        crate::output::without_signals(|| file.write_all(&guid))?;
        Ok(guid)
    }
}

/// A random locally administered EUI-64; never zero.
pub fn random_guid() -> [u8; 8] {
    let mut guid = [0_u8; 8];
    if rustix::rand::getrandom(&mut guid, rustix::rand::GetRandomFlags::empty()).is_err() {
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        guid = (time.as_nanos() as u64 ^ u64::from(std::process::id())).to_be_bytes();
    }
    guid[0] = guid[0] & !0b01 | 0b10; // not a group, local
    guid
}

/// A directory from the environment; a relative path is ignored.
fn variable(name: &str) -> Option<PathBuf> {
    debug_assert!(name.starts_with("FERROCE_") || VARIABLES.contains(&name), "{name} does not reach brokers");
    crate::environment::directory(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_directory_of_our_own_will_do() {
        let uid = nix::unistd::geteuid().as_raw();
        let base = std::env::temp_dir().join(format!("ferroce-test-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let dir = RuntimeDir::at(base.join("made"), uid).unwrap();
        assert_eq!(dir.path().metadata().unwrap().mode() & 0o777, 0o700);
        let guid = dir.node_guid().unwrap();
        assert_ne!(guid, [0; 8]);
        assert_eq!(RuntimeDir::at(base.join("made"), uid).unwrap().node_guid().unwrap(), guid, "stored");
        dir.log().unwrap();

        std::os::unix::fs::symlink(base.join("made"), base.join("link")).unwrap();
        std::fs::create_dir(base.join("open")).unwrap();
        std::fs::set_permissions(base.join("open"), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(base.join("file"), b"").unwrap();
        for wrong in ["link", "open", "file"] {
            for refused in [RuntimeDir::at(base.join(wrong), uid), RuntimeDir::existing(base.join(wrong))] {
                assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{wrong}");
            }
        }
        let none = RuntimeDir::existing(base.join("none")).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        assert!(!base.join("none").exists(), "looking for it does not create it");
        let error = RuntimeDir::at(base.join("made"), uid + 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
