//! Threads of ferroce inside a program: their signals, their time slices, and calls that no cancellation interrupts.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Starts a thread that takes no signal of the program: all are blocked but those of faults.
///
/// # Errors
/// Those of `pthread_sigmask` and `pthread_create`.
pub fn spawn_quietly(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut blocked = SigSet::all();
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE]
        .into_iter()
        .for_each(|s| blocked.remove(s));
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    before.thread_set_mask()?;
    spawned.map(drop)
}

/// While it lives, `pthread_cancel` does not act on this thread: a request waits until the program comes to a cancellation
/// point of its own. Costs two calls of `pthread_setcancelstate`, about 25 ns.
pub struct Uncancellable {
    before: libc::c_int,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// `PTHREAD_CANCEL_DISABLE`, in glibc and in musl.
const CANCEL_DISABLE: libc::c_int = 1;

impl Uncancellable {
    /// Begins here.
    #[expect(clippy::new_without_default, reason = "it acts on the thread, and is no value")]
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: a valid state, and a place for the state before.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for Uncancellable {
    fn drop(&mut self) {
        // SAFETY: a state that the C library gave.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

/// The least slice that Linux gives.
const SHORT_SLICE: Duration = Duration::from_micros(100);

/// Asks for time slices of this thread's own, shorter than those of threads that compute. Linux 6.12 and later then runs a thread
/// that wakes up before such a thread has used up its slice. Older kernels ignore the request. It needs no privilege, and a thread
/// with a real-time policy is left alone.
pub fn ask_for_a_short_slice() {
    /// `struct sched_attr` of linux/sched/types.h, in its first version.
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SIZE: u32 = size_of::<SchedAttr>() as u32;
    let mut attr = SchedAttr { size: SIZE, ..Default::default() };
    // SAFETY: the kernel writes at most `SIZE` octets to `attr`, all of whose values are valid.
    let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, SIZE, 0) };
    if failed != 0 || attr.policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attr.runtime = SHORT_SLICE.as_nanos() as u64;
    // SAFETY: the kernel reads `attr.size` octets, which is what it wrote before.
    let failed = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if failed != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "the background thread keeps its time slice");
    }
}
