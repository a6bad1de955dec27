//! The frames of the program that lead to a call.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;

/// Frames that are kept.
const DEPTH: usize = 8;
/// Frames that are looked at, with those of this library.
const DEEPEST: usize = 48;

/// Return addresses, innermost first, without the frames of this library.
#[derive(Clone, Default, Debug)]
pub(super) struct Trace(Vec<usize>);

impl Trace {
    /// The frames that lead to this call. Takes no lock: another thread may have held it when this process
    /// was forked, or may hold the loader's, which the lookup of a file needs.
    pub(super) fn here() -> Self {
        let mut all = Vec::with_capacity(DEEPEST);
        let keep = |frame: &backtrace::Frame| {
            all.push(frame.ip().addr());
            all.len() < DEEPEST
        };
        // SAFETY: the unwinder of libgcc serves many threads; the crate's lock is for other systems.
        unsafe { backtrace::trace_unsynchronized(keep) };
        let (own, _) = file(Self::here as *const () as usize);
        // The unwinder ends with an address of 0.
        let of_program = all.into_iter().skip_while(|at| file(*at).0 == own).filter(|at| *at != 0);
        Self(of_program.take(DEPTH).collect())
    }

    /// The place in the program that made the call; 0 if it is unknown.
    pub(super) fn place(&self) -> usize {
        self.0.first().copied().unwrap_or(0)
    }

    /// Whether the program returned from `main`: then its first function alone is outside of the C library,
    /// and the thread is the first one.
    pub(super) fn is_end_of_main(&self) -> bool {
        if rustix::thread::gettid() != rustix::process::getpid() {
            return false;
        }
        let (libc, _) = file(libc::exit as *const () as usize);
        self.0.iter().filter(|at| file(**at).0 != libc).count() <= 1
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for at in &self.0 {
            // The instruction that calls, not the next line.
            let (at, mut names) = (at - 1, Vec::new());
            let named = |symbol: &backtrace::Symbol| {
                let line = symbol.filename().zip(symbol.lineno());
                let line = line.map(|(file, line)| format!(" ({}:{line})", file.display()));
                names.extend(symbol.name().map(|name| format!("{name}{}", line.unwrap_or_default())));
            };
            // SAFETY: frames are printed under the lock of the state of the checks.
            unsafe { backtrace::resolve_unsynchronized(ptr::without_provenance_mut(at), named) };
            if names.is_empty() {
                let (base, file) = file(at);
                names.push(format!("{}+{:#x}", file.to_string_lossy(), at - base));
            }
            if names.iter().any(|name| name.starts_with("__libc_start")) {
                break;
            }
            names.iter().try_for_each(|name| write!(f, "\n    at {name}"))?;
        }
        Ok(())
    }
}

/// Returns where the file that has this code is mapped, and its name; 0 for code of no file.
fn file(at: usize) -> (usize, &'static CStr) {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, and `info` may be written to.
    unsafe { libc::dladdr(ptr::without_provenance::<c_void>(at), info.as_mut_ptr()) };
    // SAFETY: zeros are a value, and so is what dladdr writes.
    let info = unsafe { info.assume_init() };
    // SAFETY: a C string of the loader, which the file has for as long as its code is there.
    let name = if info.dli_fname.is_null() { c"?" } else { unsafe { CStr::from_ptr(info.dli_fname) } };
    (info.dli_fbase.addr(), name)
}
