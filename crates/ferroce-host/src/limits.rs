//! Limits that a process inherits from the program that started it, and that are not meant for a service of
//! all programs.
#![allow(unsafe_code)]

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};

/// The limits that end a service, or make its requests fail, and their units.
const LIMITS: [(Resource, &str); 4] = [
    (Resource::RLIMIT_CPU, "seconds of processor time"),
    (Resource::RLIMIT_AS, "octets of address space"),
    (Resource::RLIMIT_DATA, "octets of data"),
    (Resource::RLIMIT_FSIZE, "octets in a file"),
];

/// Frees this process, which has one thread, of the limits, the niceness, the scheduling policy and the
/// choice of processors of the program that started it, as far as the kernel permits. Returns a sentence for
/// each that stays.
pub fn leave_inherited() -> Vec<String> {
    let mut stays: Vec<String> = LIMITS
        .into_iter()
        .filter_map(|(resource, unit)| {
            Some(format!("the program that started this ferroced limits it to {} {unit}", remains(resource)?))
        })
        .collect();
    raise_stack();
    // Whoever may not leave the policy stays with it, as with the choice of processors: neither ends a
    // service.
    let usual = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is this thread, and the kernel reads the structure.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual) };
    // The kernel leaves out the processors that this process may not use: bits for 8192 of them.
    let all = [u64::MAX; 128];
    // SAFETY: 0 is this thread, and the kernel reads the array, whose size it is told.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&all), all.as_ptr()) };
    // SAFETY: the calls take numbers alone; 0 is this process.
    let nice = unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        libc::getpriority(libc::PRIO_PROCESS, 0)
    };
    if nice > 0 {
        stays.push(format!("this ferroced has the niceness {nice} of the program that started it"));
    }
    // A program that the kernel is to end first, when memory is short, speaks for itself alone. Less than was
    // given needs a right.
    if std::fs::read_to_string("/proc/self/oom_score_adj").is_ok_and(|text| !text.starts_with(['-', '0'])) {
        let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    }
    stays
}

/// Raises a limit as far as possible; what remains, or `None` without a limit.
fn remains(resource: Resource) -> Option<u64> {
    let Ok((soft, hard)) = getrlimit(resource) else { return None };
    if soft == RLIM_INFINITY || setrlimit(resource, RLIM_INFINITY, RLIM_INFINITY).is_ok() {
        return None;
    }
    let _ = setrlimit(resource, hard, hard);
    getrlimit(resource).ok().map(|(soft, _)| soft).filter(|soft| *soft != RLIM_INFINITY)
}

/// The least stack that the first thread shall have, in octets: the usual one.
const STACK: u64 = 8 << 20;

/// Raises a small limit of the first thread's stack, as far as the hard limit permits.
fn raise_stack() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_STACK)
        && soft < STACK
    {
        let _ = setrlimit(Resource::RLIMIT_STACK, STACK.min(hard), hard);
    }
}

/// Gives every signal its default effect; the program that started this process may have had some ignored.
/// The process has just begun, and goes on to execute another program.
pub fn heed_signals() {
    for of_program in
        Signal::iterator().filter(|s| !matches!(s, Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGPIPE))
    {
        // SAFETY: SIG_DFL runs no code, and replaces no handler in a process that has just begun.
        let _ = unsafe { signal(of_program, SigHandler::SigDfl) };
    }
}

/// Runs `work`, which waits for children, with SIGCHLD in default. While SIGCHLD is ignored the kernel keeps
/// no status of a child, and a wait for it fails with ECHILD.
pub fn with_children<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: SIG_DFL runs no code, and the program has no handler.
    let before = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    let done = work();
    if let Ok(before @ SigHandler::SigIgn) = before {
        // SAFETY: SIG_IGN runs no code.
        let _ = unsafe { signal(Signal::SIGCHLD, before) };
    }
    done
}

/// A write beyond the limit of a file, or processor time beyond the soft limit, fails or counts, and does not
/// end this process.
pub fn ignore_signals() {
    for of_limit in [Signal::SIGXFSZ, Signal::SIGXCPU] {
        // SAFETY: SIG_IGN runs no code, and replaces no handler in a process that has just begun.
        let _ = unsafe { signal(of_limit, SigHandler::SigIgn) };
    }
}
