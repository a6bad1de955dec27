//! The one-file `ferroce`: a program that carries the library and the broker, and unpacks itself when it is
//! called.
//!
//! The program unpacks itself once, to a folder of the caller's that is named by the content, and executes
//! the `ferroce` there. A folder that exists is compared with the content each time, octet by octet, and
//! replaced if it differs. Nothing is taken from a folder that another user could change.

#[path = "one_file/format.rs"]
mod format;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use ferroce_host::environment;
use ferroce_host::runtime_dir::RuntimeDir;
use ferroce_ipc::trust::Files;

use format::{MAGIC, OneFile, PROGRAM, TRAILER};

/// Executes the unpacked program with the same arguments if this one carries files; `None` if it does not.
pub fn enter() -> Option<ExitCode> {
    let program = match carried().map(|one| one.map(|one| unpacked(&one))) {
        Ok(None) => return None,
        Ok(Some(Ok(program))) => program,
        Ok(Some(Err(error))) | Err(error) => {
            eprintln!("ferroce: the files in this program cannot be used: {error:#}");
            return Some(ExitCode::FAILURE);
        }
    };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(&program);
    // The name tells which script the program is to be.
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).exec();
    eprintln!(
        "ferroce: {}: {error}; if its file system is mounted noexec, name another folder by XDG_CACHE_HOME",
        program.display()
    );
    Some(ExitCode::from(126))
}

/// The files that this program carries.
fn carried() -> Result<Option<OneFile>> {
    let mut own = File::open("/proc/self/exe").context("/proc/self/exe")?;
    let mut end = [0; MAGIC.len()];
    let length = own.seek(SeekFrom::End(0))?;
    if length < TRAILER as u64 {
        return Ok(None);
    }
    own.seek(SeekFrom::End(-(MAGIC.len() as i64)))?;
    own.read_exact(&mut end)?;
    if end != MAGIC {
        return Ok(None);
    }
    own.rewind()?;
    let mut bytes = Vec::new();
    own.read_to_end(&mut bytes)?;
    Ok(OneFile::parse(bytes)?)
}

/// The unpacked program in the first folder that will do.
fn unpacked(one: &OneFile) -> Result<PathBuf> {
    let mut problems = Vec::new();
    for base in [cache_folder(), runtime_folder()] {
        match base.and_then(|base| within(&base, one)) {
            Ok(program) => return Ok(program),
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    bail!("{}", problems.join("; "))
}

/// `$XDG_CACHE_HOME/ferroce` or `$HOME/.cache/ferroce`, if the folder of that variable is our user's.
fn cache_folder() -> Result<RuntimeDir> {
    let (home, below) = match (environment::directory("XDG_CACHE_HOME"), environment::directory("HOME")) {
        (Some(cache), _) => (cache, "ferroce"),
        (None, Some(home)) => (home, ".cache/ferroce"),
        (None, None) => bail!("neither XDG_CACHE_HOME nor HOME is set"),
    };
    let owner = home.metadata().with_context(|| home.display().to_string())?.uid();
    // As root with the home of another user, who could not remove our files.
    if owner != nix::unistd::geteuid().as_raw() {
        bail!("{} belongs to uid {owner}", home.display());
    }
    let folder = home.join(below);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.with_context(|| folder.display().to_string())?;
    Ok(RuntimeDir::existing(folder)?)
}

/// The folder of the log, for users without a home.
fn runtime_folder() -> Result<RuntimeDir> {
    Ok(RuntimeDir::open()?.within("cache")?)
}

/// The program in `base/KEY`, which has the content of `one` afterwards.
fn within(base: &RuntimeDir, one: &OneFile) -> Result<PathBuf> {
    let (held, named) = (base.held_path(), base.path().join(one.key()));
    let folder = held.join(one.key());
    if !holds(&folder, one) {
        one.check()?;
        unpack(&held, &folder, one).with_context(|| named.display().to_string())?;
    }
    Files::new(None)
        .program(&folder.join(PROGRAM), None)
        .with_context(|| named.join(PROGRAM).display().to_string())
}

/// Whether a folder of our own has exactly this content, apart from further files.
fn holds(folder: &Path, one: &OneFile) -> bool {
    RuntimeDir::existing(folder.to_owned()).is_ok()
        && one.files().all(|(path, content)| is_file(&folder.join(path), content))
        && one.links().iter().all(|link| {
            fs::read_link(folder.join(&link.path)).is_ok_and(|target| target == Path::new(&link.target))
        })
}

fn is_file(path: &Path, content: &[u8]) -> bool {
    let Ok(found) = path.symlink_metadata() else { return false };
    found.is_file()
        && found.mode() & 0o7777 == 0o755
        && found.len() == content.len() as u64
        && fs::read(path).is_ok_and(|bytes| bytes == content)
}

/// Unpacks beside `folder`, and renames. Of several processes that do it at once one wins, and all have the
/// same content.
fn unpack(base: &Path, folder: &Path, one: &OneFile) -> Result<()> {
    let name = |kind: &str| base.join(format!(".{}.{}.{kind}", one.key(), std::process::id()));
    let (fresh, old) = (name("new"), name("old"));
    // Left by a process of this number that was killed.
    let _ = (fs::remove_dir_all(&fresh), fs::remove_dir_all(&old));
    let done = fill(&fresh, one).map_err(anyhow::Error::from).and_then(|()| {
        for _ in 0..100 {
            match fs::rename(&fresh, folder) {
                Ok(()) => return Ok(()),
                Err(_) if holds(folder, one) => return Ok(()),
                // Something else is there. Programs that run from it keep their files.
                Err(_) => drop(fs::rename(folder, &old)),
            }
            let _ = fs::remove_dir_all(&old);
        }
        bail!("it cannot be replaced")
    });
    let _ = (fs::remove_dir_all(&fresh), fs::remove_dir_all(&old));
    done
}

fn fill(folder: &Path, one: &OneFile) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder)?;
    let made = |path: &str| -> io::Result<PathBuf> {
        let path = folder.join(path);
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        Ok(path)
    };
    for (path, content) in one.files() {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o700).open(made(path)?)?;
        file.write_all(content)?;
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    for link in one.links() {
        symlink(&link.target, made(&link.path)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
