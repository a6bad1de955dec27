//! Becoming a stranger to the process that started us.

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};

use ferroce_broker::Access;
use ferroce_host::runtime_dir::RuntimeDir;
use ferroce_host::{environment, limits};
use ferroce_ipc::null_stream;
use nix::sys::signal::SigSet;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{getresgid, getresuid, setresgid, setresuid};

use crate::say;

/// Starts `ferroced --serve` in a session of its own, with nothing of ours but the environment, and passes on
/// what it says.
pub fn detach(idle: u64, access: Option<&Access>) -> ExitCode {
    close_inherited();
    if let Err(e) = leave_real_user() {
        return fail(&format!("the real user cannot be changed: {e}"));
    }
    // Not a group leader, since whoever started us forked; should it be one after all, only the terminal
    // stays ours.
    let _ = nix::unistd::setsid();
    umask(Mode::from_bits_truncate(0o077));
    limits::heed_signals();
    // A program's background thread, which starts a broker when one died, has all signals blocked.
    if let Err(e) = SigSet::empty().thread_set_mask() {
        return fail(&format!("the signal mask cannot be cleared: {e}"));
    }
    if let Err(e) = std::env::set_current_dir("/") {
        return fail(&format!("cannot change to the root directory: {e}"));
    }
    // A broker without a log serves as well.
    let log = RuntimeDir::open().and_then(|dir| dir.log()).map(Stdio::from);
    let streams =
        null_stream().and_then(|input| Ok((input, log.or_else(|_| null_stream().map(Stdio::from))?)));
    let (input, log) = match streams {
        Ok(streams) => streams,
        Err(e) => return fail(&format!("ferroced has no standard input for itself: {e}")),
    };
    let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut serve = Command::new(program);
    // Once the users are one, the kernel no longer marks the environment as a stranger's.
    serve.env_clear().envs(environment::all());
    serve.args(["--serve", "--idle", &idle.to_string()]).stdin(input).stdout(Stdio::piped()).stderr(log);
    if let Some(Access { group, everybody }) = access {
        let mode = match (group, everybody) {
            (_, true) => "0666",
            (Some(_), false) => "0660",
            (None, false) => "0600",
        };
        serve.args(["--system", "--mode", mode]);
        serve.args(group.iter().flat_map(|(_, gid)| ["--group".to_owned(), gid.to_string()]));
    }
    let mut child = match serve.spawn() {
        Ok(child) => child,
        Err(e) => return fail(&format!("ferroced cannot start itself: {e}")),
    };
    let mut said = String::new();
    if let Some(mut output) = child.stdout.take() {
        let _ = output.read_to_string(&mut said);
    }
    if said == "ready\n" {
        say(&said);
        return ExitCode::SUCCESS;
    }
    // The child ends, or has ended, and said why or could not.
    let _ = child.wait();
    fail(if said.is_empty() { "ferroced ended without a word" } else { said.trim_end() })
}

/// A set-user-ID program that started us has its user as the real one. That user might stop the broker, for
/// the kernel lets the real user send signals.
fn leave_real_user() -> nix::Result<()> {
    let (users, groups) = (getresuid()?, getresgid()?);
    if groups.real != groups.effective {
        setresgid(groups.effective, groups.effective, groups.effective)?;
    }
    if users.real != users.effective {
        setresuid(users.effective, users.effective, users.effective)?;
    }
    Ok(())
}

/// The broker serves: whoever waits for the end of its output may go on.
pub fn leave_output() {
    if let Err(e) = null_stream().and_then(|null| Ok(rustix::stdio::dup2_stdout(&null)?)) {
        tracing::warn!("standard output stays open: {e}");
    }
}

fn fail(sentence: &str) -> ExitCode {
    say(&format!("{sentence}\n"));
    ExitCode::FAILURE
}

/// Closes what the starting program forgot to mark close-on-exec. Nothing of ours is open yet.
fn close_inherited() {
    let open: Vec<i32> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => {
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
        }
        Err(_) => (0..1024).collect(),
    };
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The directory that was read is among them and closed already: an error that means nothing.
        let _ = nix::unistd::close(fd);
    }
}
