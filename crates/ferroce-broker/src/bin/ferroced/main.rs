//! The program `ferroced`, a broker in a process of its own.
//!
//! | call | does |
//! |---|---|
//! | `ferroced` | serves in the foreground, logs to standard error |
//! | `ferroced --detach` | starts a broker that shares nothing with the caller, waits until it serves, prints `ready` or an error |
//! | `ferroced --serve` | the second half of `--detach` |
//! | `ferroced --system` | serves programs of all users, in the foreground or with `--detach` |
//!
//! A library starts `--detach` from within any program, so nothing of that program may live on in the broker:
//! not its descriptors (a pipe kept open would hang `$(ibv_devices)`), session, terminal, directory, signal
//! mask or limits. All that is done here, in a fresh process with one thread, and needs nothing unsafe.
//! `--detach` leads the new session and `--serve` does not, which makes the two what is known as a double
//! fork.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod detach;
mod log;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use ferroce_broker::{Access, Server, ServerError, ServerOptions, Stopper};
use ferroce_host::{environment, limits, output};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Group;
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};

const HELP: &str = "\
Usage: ferroced [--idle SECONDS]
       ferroced --detach
       ferroced --system [--group GROUP] [--mode MODE]

The broker of ferroce. It owns UDP port 4791 of this network namespace, the devices and their GID tables. Programs start
it when they need it. It exits after a minute in which nobody needed it. It serves programs of its own user, or with
--system those of all users that an administrator admits.

Options:
      --detach         run in the background; return when the broker serves
      --idle SECONDS   exit after this idle time, 0 for never [default: FERROCE_IDLE or 60]
      --system         serve programs of other users as well, and never exit; for root and service managers
      --group GROUP    with --system: the group whose members may connect [default: rdma, if there is such a group]
      --mode MODE      with --system: 0660 admits the group, 0666 every user, 0600 root alone [default: 0660 with a
                       group, else 0666]
  -h, --help           print this help
  -V, --version        print the version

Environment: FERROCE_LOG (error, warn, info, debug, trace), FERROCE_RUNTIME_DIR (log, node GUID, links), FERROCE_IDLE.
Manual page: ferroced(8).
";

/// How long the main thread may take to end after a signal.
const MOST_TO_END: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq)]
enum Role {
    Foreground,
    Detach,
    Serve,
}

fn main() -> ExitCode {
    output::report_panics();
    let (role, idle, access) = match arguments(std::env::args().skip(1)) {
        Ok(Some(found)) => found,
        Ok(None) => return ExitCode::SUCCESS,
        Err(sentence) => {
            output::line_of(format_args!("ferroced: {sentence}"));
            return ExitCode::from(2);
        }
    };
    // `--detach` starts this program by its path or its descriptor, after which the kernel may call it "exe".
    let _ = nix::sys::prctl::set_name(c"ferroced");
    match role {
        Role::Detach => detach::detach(idle, access.as_ref()),
        Role::Foreground | Role::Serve => serve(role, idle, access),
    }
}

/// Parses the arguments; `None` after `--help` and `--version`, which are answered here.
fn arguments(mut given: impl Iterator<Item = String>) -> Result<Option<(Role, u64, Option<Access>)>, String> {
    let seconds = |text: String| text.parse::<u64>().map_err(|_| format!("{text:?} is no number of seconds"));
    let mut idle = match environment::text("FERROCE_IDLE") {
        Some(text) => seconds(text)?,
        None => 60,
    };
    let mut role = Role::Foreground;
    let (mut system, mut group, mut mode) = (false, None, None);
    let mut idle_given = false;
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--detach" => role = Role::Detach,
            "--serve" => role = Role::Serve,
            "--idle" => {
                idle = seconds(given.next().ok_or("--idle needs a number of seconds")?)?;
                idle_given = true;
            }
            "--system" => system = true,
            "--group" => group = Some(given.next().ok_or("--group needs a group")?),
            "--mode" => mode = Some(given.next().ok_or("--mode needs a mode, such as 0660")?),
            "-h" | "--help" => {
                say(HELP);
                return Ok(None);
            }
            "-V" | "--version" => {
                say(concat!("ferroced ", env!("CARGO_PKG_VERSION"), "\n"));
                return Ok(None);
            }
            other => return Err(format!("unknown argument {other:?}; try --help")),
        }
    }
    if !system {
        return match group.or(mode) {
            Some(_) => Err("--group and --mode belong to --system".to_owned()),
            None => Ok(Some((role, idle, None))),
        };
    }
    if !idle_given {
        idle = 0;
    }
    Ok(Some((role, idle, Some(access(group.as_deref(), mode.as_deref())?))))
}

/// The users that a broker for all of them serves.
fn access(group: Option<&str>, mode: Option<&str>) -> Result<Access, String> {
    let find = |name: &str| -> Result<Option<(String, u32)>, String> {
        let by_number = name.parse().ok().map(|gid: u32| (name.to_owned(), gid));
        let found = Group::from_name(name).map_err(|e| format!("group {name} cannot be looked up: {e}"))?;
        Ok(found.map(|group| (group.name, group.gid.as_raw())).or(by_number))
    };
    let group = match group {
        Some(name) => Some(find(name)?.ok_or_else(|| format!("there is no group {name:?}"))?),
        None => find("rdma")?,
    };
    match (mode, group) {
        (Some("0600" | "600"), _) => Ok(Access { group: None, everybody: false }),
        (Some("0660" | "660"), None) => {
            Err("mode 0660 needs a group: there is no group rdma, name another by --group".to_owned())
        }
        (None | Some("0660" | "660"), group @ Some(_)) => Ok(Access { group, everybody: false }),
        (None | Some("0666" | "666"), group) => Ok(Access { group, everybody: true }),
        (Some(other), _) => Err(format!("mode {other:?}: one of 0600, 0660 and 0666 is possible")),
    }
}

fn serve(role: Role, idle: u64, access: Option<Access>) -> ExitCode {
    let level =
        environment::text("FERROCE_LOG").and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::INFO);
    let log = log::Log { ours: role == Role::Serve };
    let lines = tracing_subscriber::fmt().with_max_level(level).with_writer(log).with_ansi(false);
    lines.log_internal_errors(false).init();
    limits::ignore_signals();
    if role == Role::Serve {
        limits::leave_inherited().iter().for_each(|sentence| warn!("{sentence}"));
    }
    let idle = (idle > 0).then(|| Duration::from_secs(idle));
    let signals = block_signals();
    let bound = Server::raise_descriptor_limit()
        .and_then(|()| Server::bind(&ServerOptions { idle, access, ..ServerOptions::default() }));
    let mut server = match bound {
        Ok(server) => server,
        // The caller of --detach only needs some broker, and there is one.
        Err(e @ ServerError::Running(_)) if role == Role::Serve => {
            info!("{e}");
            say("ready\n");
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            let sentence = chain(&e);
            error!("{sentence}");
            if role == Role::Serve {
                say(&format!("{sentence}\n"));
            }
            return ExitCode::FAILURE;
        }
    };
    info!(pid = std::process::id(), "serving");
    if let Some(signals) = signals {
        end_on(signals, server.stopper());
    }
    if role == Role::Foreground {
        server.tell_watchdog();
    }
    if role == Role::Serve {
        say("ready\n");
        detach::leave_output();
    }
    match server.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            error!("cannot go on: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Blocks the signals that end a service, before there are other threads. The broker then ends in order, and
/// removes what would outlive it.
fn block_signals() -> Option<SigSet> {
    let ignored = ignored_signals(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        // A shell's script starts `ferroced &` with SIGINT ignored.
        if ignored >> (signal as u32 - 1) & 1 == 0 {
            signals.add(signal);
        }
    }
    match signals.thread_block() {
        Ok(()) => Some(signals),
        Err(e) => {
            warn!("signals end this ferroced at once: {e}");
            None
        }
    }
}

/// The ignored signals in `/proc/PID/status`, one bit each, from SIGHUP on.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Ends the server at the first signal, and the process at the second.
fn end_on(signals: SigSet, stopper: Stopper) {
    let wait = move || {
        if let Ok(signal) = signals.wait() {
            info!("{signal} received: this ferroced ends");
            stopper.stop();
            // In order, if the main thread answers; whatever it waits for, the process ends.
            let end = || {
                std::thread::sleep(MOST_TO_END);
                error!("what ferroced does has no end: it ends without order");
                std::process::exit(1);
            };
            if std::thread::Builder::new().name("ferroced-end".to_owned()).spawn(end).is_err() {
                std::process::exit(1);
            }
        }
        if signals.wait().is_ok() {
            std::process::exit(1);
        }
    };
    if let Err(e) = std::thread::Builder::new().name("ferroced-signal".to_owned()).spawn(wait) {
        warn!("signals end this ferroced at once: {e}");
        let _ = signals.thread_unblock();
    }
}

/// Prints to standard output, which may be closed.
fn say(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
