//! Trust decisions of a process: the user at the other end of a socket, and the users who may change a file.

use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerPidfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, test_kill_process};

/// The number that the kernel shows for a user that this user namespace does not map, where nobody set
/// `/proc/sys/kernel/overflowuid`.
const OVERFLOW: u32 = 65_534;
/// Number of possible user ids; -1 names no user.
const ALL_USERS: u64 = u32::MAX as u64;

/// Whether `uid` may stand for several users: this user namespace does not map all of them, and the kernel
/// shows those that it does not map as this number. Without `/proc` the answer is the cautious one.
pub fn is_ambiguous(uid: u32) -> bool {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    let overflow = overflow.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW);
    uid == overflow && !maps_all_users(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
}

/// Whether a `/proc/PID/uid_map` maps every user.
fn maps_all_users(map: &str) -> bool {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum::<u64>() >= ALL_USERS
}

/// Whether the process at the other end of a Unix socket, number `pid` here, is of our own user, although the
/// kernel shows its user as it shows others. The kernel lets a process send a signal to another one if both
/// are of one user, whatever user namespaces they are in and whatever these show (kill(2)); or if it has
/// CAP_KILL over the other, and so may do worse to it.
pub(crate) fn is_of_our_user(socket: &impl AsFd, pid: u32) -> bool {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if process.is_none_or(|process| test_kill_process(process).is_err()) {
        return false;
    }
    // The number was the other end's all the time if that process still lives. Kernels before 6.5 do not
    // tell.
    match getsockopt(socket, PeerPidfd) {
        Ok(process) => poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&Timespec::default())) == Ok(0),
        Err(nix::errno::Errno::ENOPROTOOPT) => true,
        Err(_) => false,
    }
}

/// The users who may change the files that this process executes.
#[derive(Clone, Debug)]
pub struct Files {
    us: u32,
    /// The owner of the code that asks, which runs in this process already.
    code: Option<u32>,
    /// The group that may write to the folder of that code.
    group: Option<u32>,
    /// The owner of the root directory, who may change everything.
    root: Option<u32>,
}

/// Why a file is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    /// The file cannot be looked at.
    #[error("it cannot be found")]
    Missing(#[from] io::Error),
    /// The file is no program.
    #[error("it is no file that can be executed")]
    NoProgram,
    /// A stranger owns it, or a folder that leads to it.
    #[error("{} belongs to uid {uid}", .path.display())]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// Owner of the file or folder at `path`.
        uid: u32,
    },
    /// Strangers may write to it, or to a folder that leads to it.
    #[error("{} may be written to by others (mode {mode:o})", .path.display())]
    Writable {
        /// The file or folder.
        path: PathBuf,
        /// Permissions of the file or folder at `path`.
        mode: u32,
    },
}

impl Files {
    /// `code` is the file that our own code was loaded from: its owner, and a group that may write to its
    /// folder, can make this process do anything as it is.
    pub fn new(code: Option<&Path>) -> Self {
        let folder = code.and_then(Path::parent).and_then(|folder| folder.metadata().ok());
        Self {
            us: nix::unistd::geteuid().as_raw(),
            code: code.and_then(|code| code.metadata().ok()).map(|code| code.uid()),
            group: folder.filter(|folder| folder.mode() & 0o022 == 0o020).map(|folder| folder.gid()),
            root: Path::new("/").metadata().ok().map(|root| root.uid()),
        }
    }

    /// The program at `path`, with links followed, if nobody but root, our user and the owner of our code can
    /// replace it: the file and each folder that leads to it belong to one of these and are writable by
    /// nobody else. A folder in which everybody may make files but not rename others' (`/tmp`) will do if
    /// what leads on from it is theirs.
    ///
    /// Folders above `shared` are not looked at, if the program lies within it: it is a folder that leads to
    /// our own code as well, so who may rename one above it can replace that code.
    ///
    /// # Errors
    /// All of [`Untrusted`].
    pub fn program(&self, path: &Path, shared: Option<&Path>) -> Result<PathBuf, Untrusted> {
        let file = path.canonicalize()?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.mode() & 0o111 == 0 {
            return Err(Untrusted::NoProgram);
        }
        let shared = shared.filter(|shared| file.starts_with(shared));
        let mut inner = self.check(&file, &metadata, None)?;
        for folder in file.ancestors().skip(1) {
            inner = self.check(folder, &folder.metadata()?, Some(inner))?;
            if Some(folder) == shared {
                break;
            }
        }
        Ok(file)
    }

    /// Looks at one file or folder; `inner` is the owner of what leads on from a folder. Returns the owner.
    fn check(&self, path: &Path, metadata: &Metadata, inner: Option<u32>) -> Result<u32, Untrusted> {
        let (uid, mode) = (metadata.uid(), metadata.mode() & 0o7777);
        if !self.is_ours(uid) && self.root != Some(uid) {
            return Err(Untrusted::Owner { path: path.to_owned(), uid });
        }
        // In a folder where anybody may make files, a file of a user whom we cannot tell from others may be
        // anybody's.
        let sticky =
            mode & 0o1000 != 0 && inner.is_some_and(|inner| self.is_ours(inner) && !is_ambiguous(inner));
        let group = mode & 0o020 != 0 && !self.may_write(metadata);
        if (mode & 0o002 != 0 || group) && !sticky {
            return Err(Untrusted::Writable { path: path.to_owned(), mode });
        }
        Ok(uid)
    }

    fn is_ours(&self, uid: u32) -> bool {
        uid == 0 || uid == self.us || self.code == Some(uid)
    }

    /// Whether the group of a file is root's, that of our own code, or our user's alone: distributions that
    /// give each user a group of the same number make files writable by it (`usergroups` of pam_umask(8)).
    fn may_write(&self, metadata: &Metadata) -> bool {
        let (uid, gid) = (metadata.uid(), metadata.gid());
        gid == 0 || self.group == Some(gid) || (gid == uid && self.is_ours(uid) && !is_ambiguous(uid))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_map_of_all_users_is_told_from_one_of_some() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        assert!(maps_all_users("0 100000 65536\n65536 65536 4294901759\n"));
        for some in ["", "0 1000 1\n", "0 1000 1\n1 100000 65536\n", "nonsense"] {
            assert!(!maps_all_users(some), "{some}");
        }
        assert!(!is_ambiguous(0) && !is_ambiguous(1234));
    }

    /// A folder of its own below the temporary one, which everybody may write to.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ferroce-trust-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            Self(path.canonicalize().unwrap())
        }

        fn make(&self, folder: &str) -> PathBuf {
            let folder = self.0.join(folder);
            fs::create_dir_all(&folder).unwrap();
            for made in folder.ancestors().take_while(|made| *made != self.0) {
                fs::set_permissions(made, fs::Permissions::from_mode(0o755)).unwrap();
            }
            let program = folder.join("ferroced");
            fs::write(&program, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            program
        }

        fn mode(&self, path: &str, mode: u32) {
            fs::set_permissions(self.0.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The fault, as a path below the folder and a word.
    fn fault(folder: &Folder, program: &Path, shared: Option<&Path>) -> Option<String> {
        let below = |path: &Path| path.strip_prefix(&folder.0).map(|path| path.display().to_string());
        match Files::new(None).program(program, shared) {
            Ok(_) => None,
            Err(Untrusted::Owner { path, .. }) => Some(format!("owner {}", below(&path).unwrap())),
            Err(Untrusted::Writable { path, .. }) => Some(format!("mode {}", below(&path).unwrap())),
            Err(other) => Some(other.to_string()),
        }
    }

    #[test]
    fn nobody_else_may_write_to_a_program_or_a_folder_that_leads_to_it() {
        let folder = Folder::new("modes");
        let program = folder.make("a/b");
        assert_eq!(fault(&folder, &program, None), None);
        for (path, mode, want) in [
            ("a/b/ferroced", 0o644, Some("it is no file that can be executed")),
            ("a/b/ferroced", 0o757, Some("mode a/b/ferroced")),
            ("a/b", 0o757, Some("mode a/b")),
            ("a", 0o757, Some("mode a")),
            // Everybody may make files there, and rename none of ours.
            ("a", 0o1777, None),
            ("a/b", 0o1777, None),
        ] {
            let before = fs::metadata(folder.0.join(path)).unwrap().mode();
            folder.mode(path, mode);
            assert_eq!(fault(&folder, &program, None).as_deref(), want, "{path} {mode:o}");
            let shared = folder.0.join("a/b");
            let within = path != "a";
            let want = want.filter(|_| within);
            assert_eq!(
                fault(&folder, &program, Some(&shared)).as_deref(),
                want,
                "{path} {mode:o}, from a/b on"
            );
            folder.mode(path, before);
        }
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&program, &link).unwrap();
        folder.mode("a", 0o777);
        assert_eq!(fault(&folder, &link, None).as_deref(), Some("mode a"), "what a link leads to counts");
        assert_eq!(fault(&folder, &folder.0.join("none"), None).as_deref(), Some("it cannot be found"));
    }

    #[test]
    fn a_group_of_our_own_may_write() {
        let folder = Folder::new("group");
        let program = folder.make("a/b");
        folder.mode("a/b", 0o775);
        let (us, gid) = {
            let made = fs::metadata(folder.0.join("a/b")).unwrap();
            (made.uid(), made.gid())
        };
        let private = us == gid || gid == 0;
        assert_eq!(fault(&folder, &program, None).is_none(), private, "uid {us}, gid {gid}");
        if !nix::unistd::geteuid().is_root() {
            println!("skipped the rest: to give files to other groups and users needs root");
            return;
        }
        std::os::unix::fs::chown(folder.0.join("a/b"), None, Some(1234)).unwrap();
        assert_eq!(fault(&folder, &program, None).as_deref(), Some("mode a/b"));
        // A group that may replace our own code is trusted.
        let library = folder.make("a/lib");
        folder.mode("a/lib", 0o775);
        std::os::unix::fs::chown(folder.0.join("a/lib"), None, Some(1234)).unwrap();
        assert!(Files::new(Some(&library)).program(&program, None).is_ok());
        folder.mode("a/b", 0o755);
        for path in ["a/b/ferroced", "a/b", "a"] {
            let path = folder.0.join(path);
            std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
            let found = Files::new(None).program(&program, None);
            assert!(
                matches!(&found, Err(Untrusted::Owner { path: at, uid: 1234 }) if *at == path),
                "{found:?}"
            );
            // The user owns our own code as well.
            let library = folder.make("theirs/lib");
            std::os::unix::fs::chown(&library, Some(1234), None).unwrap();
            assert!(Files::new(Some(&library)).program(&program, None).is_ok());
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
        // Another user owns a file in a folder that every user may write to.
        folder.mode("a/b", 0o1777);
        assert!(Files::new(None).program(&program, None).is_ok());
        std::os::unix::fs::chown(&program, Some(1234), None).unwrap();
        assert!(Files::new(None).program(&program, None).is_err());
    }
}
