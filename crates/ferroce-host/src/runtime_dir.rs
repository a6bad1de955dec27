//! The directories of ferroce's files: the log, a stored node GUID, and state that survives a reboot. No file
//! in them is needed to find the broker.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use rustix::fs::OFlags;
use rustix::fs::{AtFlags, Mode, fstat, fsync, mkdirat, open, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

/// The environment variables that name the directories, beside ferroce's own. A broker that a program starts
/// inherits them, so that both find the same files.
pub const VARIABLES: [&str; 3] = ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME"];

/// `$FERROCE_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/ferroce`, else `/tmp/ferroce-UID`: owned by us, writable by
/// no other user, and in a directory of ours or root's.
#[derive(Clone, Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    folder: Arc<OwnedFd>,
}

impl RuntimeDir {
    /// Finds the directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// `PermissionDenied` if another user owns it or may write to it, if it is a link, or if the directory
    /// above is another user's; otherwise the errors of `open(2)` and `mkdir(2)`.
    pub fn open() -> io::Result<Self> {
        let uid = nix::unistd::geteuid().as_raw();
        let path = match (variable("FERROCE_RUNTIME_DIR"), variable("XDG_RUNTIME_DIR")) {
            (Some(own), _) => own,
            (None, Some(users)) => users.join("ferroce"),
            (None, None) => PathBuf::from(format!("/tmp/ferroce-{uid}")),
        };
        Self::at(path, uid)
    }

    /// The directory of files that survive a reboot: `$FERROCE_RUNTIME_DIR`, else `/var/lib/ferroce` for
    /// root, else `$XDG_STATE_HOME/ferroce` or `$HOME/.local/state/ferroce`.
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
        Self::held(path, uid, true)
    }

    /// A directory that exists already.
    ///
    /// # Errors
    /// As [`RuntimeDir::open`], and `NotFound` if the directory does not exist.
    pub fn existing(path: PathBuf) -> io::Result<Self> {
        Self::held(path, nix::unistd::geteuid().as_raw(), false)
    }

    /// Opens and judges the directory. Its files are opened by the descriptor, because whoever may rename a
    /// directory above can put another one in its place at any moment.
    fn held(path: PathBuf, uid: u32, create: bool) -> io::Result<Self> {
        let refused = |text: String| io::Error::new(io::ErrorKind::PermissionDenied, text);
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refused(format!("{} is no directory for files of ferroce", path.display())));
        };
        let parent = open(above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let owner = fstat(&parent)?.st_uid;
        // In a user namespace root may be shown as nobody; the root directory is root's.
        if ![0, uid].contains(&owner) && Path::new("/").metadata().ok().is_none_or(|root| root.uid() != owner)
        {
            return Err(refused(format!("{} belongs to uid {owner}", above.display())));
        }
        if create {
            match mkdirat(&parent, name, Mode::RWXU) {
                Err(e) if e != Errno::EXIST => return Err(e.into()),
                _ => {}
            }
        }
        let ours = format!("{} is not a directory that only uid {uid} can write to", path.display());
        // The flags follow no link, which any user could have made in /tmp.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match openat(&parent, name, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(refused(ours)),
            folder => folder?,
        };
        let found = fstat(&folder)?;
        if found.st_uid != uid || found.st_mode & 0o022 != 0 {
            return Err(refused(ours));
        }
        Ok(Self { path, folder: Arc::new(folder) })
    }

    /// The path, to name it; another directory may be there by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path to the directory that this value holds, for as long as it does, whatever [`RuntimeDir::path`]
    /// leads to by now.
    pub fn held_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()))
    }

    /// Opens a directory within this one, created if it does not exist.
    ///
    /// # Errors
    /// As [`RuntimeDir::open`].
    pub fn within(&self, name: &str) -> io::Result<Self> {
        let found = Self::at(self.held_path().join(name), nix::unistd::geteuid().as_raw())?;
        Ok(Self { path: self.path.join(name), ..found })
    }

    /// Opens a file of the directory by `flags`, and follows no link. A new file is for our user alone.
    ///
    /// # Errors
    /// As `openat(2)`.
    pub fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Gives a file of the directory another name there.
    ///
    /// # Errors
    /// As `renameat(2)`.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.folder, from, &self.folder, to)?)
    }

    /// Removes a file of the directory.
    ///
    /// # Errors
    /// As `unlinkat(2)`.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.folder, name, AtFlags::empty())?)
    }

    /// Makes the names of the directory outlive a power cut.
    ///
    /// # Errors
    /// As `fsync(2)`.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.folder)?)
    }

    /// Size at which the log starts anew, in octets. The previous log is kept as `ferroced.log.old`.
    pub const MOST_LOG: u64 = 1 << 20;

    /// Opens the log of `ferroced` to append. A log larger than [`Self::MOST_LOG`] starts anew.
    pub fn log(&self) -> io::Result<File> {
        let found = statat(&self.folder, "ferroced.log", AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|log| u64::try_from(log.st_size).is_ok_and(|size| size > Self::MOST_LOG)) {
            let _ = self.rename("ferroced.log", "ferroced.log.old");
        }
        self.file("ferroced.log", OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
    }

    /// The stored node GUID of interfaces without a hardware address. The first call creates and stores it.
    pub fn node_guid(&self) -> io::Result<[u8; 8]> {
        let mut stored = [0; 8];
        let old = self.file("node-guid", OFlags::RDONLY);
        if old.and_then(|mut file| file.read_exact(&mut stored)).is_ok() && stored != [0; 8] {
            return Ok(stored);
        }
        let guid = random_guid();
        let mut file = self.file("node-guid", OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
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
        // A directory that takes the place of a renamed one receives nothing.
        std::fs::rename(base.join("made"), base.join("away")).unwrap();
        std::fs::create_dir(base.join("made")).unwrap();
        std::fs::remove_file(base.join("away/node-guid")).unwrap();
        dir.log().unwrap();
        dir.node_guid().unwrap();
        dir.within("cache").unwrap().log().unwrap();
        assert_eq!(std::fs::read_dir(base.join("made")).unwrap().count(), 0);
        assert!(base.join("away/node-guid").exists());
        assert!(base.join("away/cache/ferroced.log").exists());
        if uid == 0 {
            std::os::unix::fs::chown(base.join("away"), Some(1234), None).unwrap();
            let strangers = RuntimeDir::at(base.join("away/run"), uid).unwrap_err();
            assert_eq!(strangers.kind(), io::ErrorKind::PermissionDenied);
            assert!(strangers.to_string().contains("belongs to uid 1234"), "{strangers}");
        } else {
            println!("skipped a directory in another user's: needs root");
        }
        let none = RuntimeDir::existing(base.join("none")).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        assert!(!base.join("none").exists(), "looking for it does not create it");
        let error = RuntimeDir::at(base.join("made"), uid + 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
