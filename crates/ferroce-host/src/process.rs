//! Facts about the process that loads the library, and its fork and exit handlers.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Runs `child` in every process that this one forks, before `fork` returns there. Called at most once per
/// program, see [`crate::fork`].
pub fn at_fork_child(child: extern "C" fn()) {
    // SAFETY: `child` exists as long as the program (the library is linked `-z nodelete`), takes no argument,
    // and uses only async-signal-safe calls and atomics.
    let refused = unsafe { libc::pthread_atfork(None, None, Some(child)) };
    if refused != 0 {
        tracing::warn!(errno = refused, "no fork handler: a forked child keeps this process's sockets open");
    }
}

/// Runs `last` when the process calls `exit` or returns from `main`.
pub fn at_exit(last: extern "C" fn()) {
    // SAFETY: `last` exists as long as the program (the library is linked `-z nodelete`), takes no argument
    // and does not unwind.
    let refused = unsafe { libc::atexit(last) };
    if refused != 0 {
        tracing::warn!("no exit handler: a peer may miss a last acknowledgement");
    }
}

/// Closes a descriptor by number. Only the fork handler calls it: the owner of the number is an object of the
/// parent, and the child does not use it.
pub fn close_number(fd: RawFd) {
    // SAFETY: close takes any integer; the fork handler passes recorded numbers, which ferroce opened.
    unsafe { libc::close(fd) };
}

/// Returns whether a signal handler of the program interrupts system calls.
///
/// `poll` returns EINTR after every handler. The man page of `ibv_get_cq_event` describes a `read`, which is
/// restarted if the handler was installed with SA_RESTART. The handler that just ran is unknown, so a wait
/// reports EINTR only if the program has a handler without SA_RESTART. Handlers of faults do not count,
/// because they do not interrupt a wait.
pub fn a_handler_interrupts() -> bool {
    const FAULTS: [libc::c_int; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP];
    (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)).any(|signal| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a null new action only reads the present one into `action`, which is valid for writes.
        let failed = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
        if failed != 0 {
            return false; // the two signals that libc keeps for itself
        }
        // SAFETY: sigaction succeeded, so it filled `action`.
        let action = unsafe { action.assume_init() };
        action.sa_sigaction != libc::SIG_DFL
            && action.sa_sigaction != libc::SIG_IGN
            && action.sa_flags & libc::SA_RESTART == 0
    })
}

/// The file that this code was loaded from: the library, or the executable it is linked into. The kernel's
/// path is absolute; the loader may have a relative one, which a change of directory makes wrong.
pub fn own_file() -> Option<PathBuf> {
    match std::fs::read("/proc/self/maps") {
        Ok(maps) => mapped_at(&maps, own_file as *const () as usize),
        Err(_) => loaded_file().filter(|file| file.is_absolute()),
    }
}

/// The file of the mapping in `/proc/PID/maps` that contains an address.
fn mapped_at(maps: &[u8], address: usize) -> Option<PathBuf> {
    let number = |hex: &[u8]| usize::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok();
    let within = |line: &[u8]| -> Option<bool> {
        let range = line.split(|octet| *octet == b' ').next()?;
        let mut ends = range.split(|octet| *octet == b'-').map(number);
        Some((ends.next()??..ends.next()??).contains(&address))
    };
    let line = maps.split(|octet| *octet == b'\n').find(|line| within(line) == Some(true))?;
    let path = line.get(line.iter().position(|octet| *octet == b'/')?..)?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
}

/// The loader's path of the same file.
fn loaded_file() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let inside = own_file as *const libc::c_void;
    // SAFETY: `info` is valid for writes of a Dl_info, and dladdr accepts any address.
    if unsafe { libc::dladdr(inside, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded, so it filled `info`.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dli_fname is a C string that exists while the object is loaded, and this code is part of that
    // object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

/// Returns whether this program runs with more rights than the user who started it; its environment is then
/// not trusted.
pub fn is_privileged_program() -> bool {
    // SAFETY: getauxval takes any number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_file_is_the_one_that_is_mapped() {
        let exe = std::env::current_exe().unwrap();
        assert_eq!(own_file().and_then(|file| file.canonicalize().ok()), exe.canonicalize().ok());
        let maps =
            b"1000-2000 r-xp 00000000 08:01 7          /a b/lib.so\n2000-3000 rw-p 00000000 00:00 0 \n";
        assert_eq!(mapped_at(maps, 0x1fff), Some("/a b/lib.so".into()));
        assert_eq!(mapped_at(maps, 0x2000), None);
        assert_eq!(mapped_at(b"", 0x2000), None);
    }
}
