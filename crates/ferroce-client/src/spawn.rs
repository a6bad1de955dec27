//! Starting a broker: the process `ferroced`.
//!
//! The daemon is started by `ferroced --detach`, which makes itself a stranger to us before it serves: own
//! session, no descriptor, directory or terminal of ours (see `ferroce-broker`). So nothing but `posix_spawn`
//! happens in this process, which may have threads and any number of descriptors. It says `ready` or a
//! sentence on its standard output and ends; the output is a pipe of ours and not the program's own, which
//! would keep `$(ibv_devices)` waiting.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ferroce_ipc::null_stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::program;
use ferroce_host::environment;

/// Why no broker could be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program `ferroced` is nowhere: neither beside the library nor in `PATH`, or strangers may change
    /// what is there.
    #[error(
        "ferroced was not found, neither in ../bin of the library nor in PATH, as a file that nobody but root and this \
         user may change"
    )]
    NotFound,
    /// This process was forked from one that uses ferroce, and has not called exec: it must not start
    /// processes.
    #[error("a forked child cannot start ferroced; its parent's is gone")]
    ForkedChild,
    /// `ferroced` said why it cannot run.
    #[error("{0}")]
    Said(String),
    /// `ferroced` did not say that it is ready in time.
    #[error("{} did not get ready in time", .0.display())]
    Late(PathBuf),
    /// `ferroced` could not be executed.
    #[error("cannot run {}", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// How to start `ferroced`: read from the environment once, on the program's own thread, because a C program
/// may change its environment while another thread of ours would read it.
#[derive(Clone, Debug)]
pub struct Starter {
    path: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
}

impl Starter {
    /// As the environment says now.
    pub fn from_environment() -> Self {
        let _ = ORIGIN.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
        let environment = environment::all().into_iter().filter(|(name, _)| is_passed_on(name)).collect();
        Self { path: program::find(), environment }
    }

    /// Starts the program at `path`, which inherits this program's whole environment.
    pub fn of(path: PathBuf) -> Self {
        Self { path: Some(path), environment: environment::all() }
    }

    /// Starts `ferroced` and waits until it is ready.
    ///
    /// # Errors
    /// All of [`SpawnError`].
    pub fn start(&self, deadline: Instant) -> Result<(), SpawnError> {
        let (path, mut child) = self.launch(Some(Stdio::piped()))?;
        let mut said = String::new();
        let heard = child.stdout.take().map_or(Ok(()), |stdout| read_until_end(stdout, &mut said, deadline));
        if heard.is_err() {
            let _ = child.kill();
        }
        let _ = child.wait(); // a program that reaps all children may have been faster
        match (heard, said.trim()) {
            (Err(_), _) => Err(SpawnError::Late(path)),
            (Ok(()), "ready") => Ok(()),
            (Ok(()), "") => Err(SpawnError::Said(format!("{} ended without a word", path.display()))),
            (Ok(()), sentence) => Err(SpawnError::Said(sentence.to_owned())),
        }
    }

    /// Starts `ferroced` and does not wait: the caller tries to connect, and reaps the child.
    ///
    /// # Errors
    /// As [`Starter::start`], but `Late` and `Said`.
    pub fn start_in_background(&self) -> Result<Child, SpawnError> {
        Ok(self.launch(None)?.1)
    }

    /// Runs `ferroced --detach`, whose output is lost if there is no `output`. No device node is needed for
    /// that.
    fn launch(&self, output: Option<Stdio>) -> Result<(PathBuf, Child), SpawnError> {
        if is_forked_child() {
            return Err(SpawnError::ForkedChild);
        }
        let path = self.path.clone().ok_or(SpawnError::NotFound)?;
        let failed = |e| SpawnError::Io(path.clone(), e);
        let null = || null_stream().map(Stdio::from).map_err(failed);
        let mut command = Command::new(&path);
        command.arg("--detach").stdin(null()?).stdout(output.map_or_else(null, Ok)?).stderr(null()?);
        command.env_clear().envs(self.environment.iter().cloned());
        let child = command.spawn().map_err(failed)?;
        Ok((path, child))
    }
}

/// Whether a broker that this program starts inherits an environment variable.
fn is_passed_on(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        name.starts_with("FERROCE_") || name == "PATH" || ferroce_host::runtime_dir::VARIABLES.contains(&name)
    })
}

fn read_until_end(
    mut pipe: impl Read + std::os::fd::AsFd,
    said: &mut String,
    deadline: Instant,
) -> io::Result<()> {
    let mut bytes = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        match pipe.read(&mut bytes)? {
            0 => return Ok(()),
            got => said.push_str(&String::from_utf8_lossy(bytes.get(..got).unwrap_or_default())),
        }
    }
}

/// The process that first used ferroce; a forked child is another.
static ORIGIN: AtomicU32 = AtomicU32::new(0);

fn is_forked_child() -> bool {
    !matches!(ORIGIN.load(Ordering::Relaxed), 0) && ORIGIN.load(Ordering::Relaxed) != std::process::id()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ferroce` starts a broker with its own environment: both must find the same `links.json`.
    #[test]
    fn a_broker_that_a_program_starts_finds_the_same_files() {
        for name in ["XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME", "FERROCE_RUNTIME_DIR", "PATH"] {
            assert!(is_passed_on(OsStr::new(name)), "{name}");
        }
        for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "XDG_CONFIG_HOME"] {
            assert!(!is_passed_on(OsStr::new(name)), "{name}");
        }
    }
}
