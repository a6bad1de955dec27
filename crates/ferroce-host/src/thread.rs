//! Threads of ferroce inside a program: signals, time slices and cancellation.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::time::{ClockId, clock_gettime};

/// Starts a thread that blocks all signals but those of faults.
///
/// # Errors
/// The errors of `pthread_sigmask` and `pthread_create`.
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

/// While it lives, `pthread_cancel` does not act on this thread: a request waits until the program's next
/// cancellation point. Costs two calls of `pthread_setcancelstate`, about 25 ns.
pub struct Uncancellable {
    before: libc::c_int,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// `PTHREAD_CANCEL_DISABLE`, in glibc and in musl.
const CANCEL_DISABLE: libc::c_int = 1;

impl Uncancellable {
    #[expect(clippy::new_without_default, reason = "it acts on the thread, and is no value")]
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: the state is valid, and `before` is valid for a write.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for Uncancellable {
    fn drop(&mut self) {
        // SAFETY: pthread_setcancelstate returned this state.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

/// The processor time that the other threads of the process had used at some time.
pub struct Others {
    used: Duration,
    at: Instant,
}

impl Others {
    /// The time up to now; `None` if it cannot be told.
    pub fn now() -> Option<Self> {
        // The C library's call: rustix looks for the kernel's vDSO, which valgrind hides.
        let time = |clock| clock_gettime(clock).ok().map(Duration::from);
        let process = time(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
        let used = process.saturating_sub(time(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
        Some(Self { used, at: Instant::now() })
    }

    /// Whether they have run since then, for half of the time at least.
    pub fn have_run(&self) -> bool {
        Self::now()
            .is_some_and(|now| 2 * now.used.saturating_sub(self.used) >= now.at.duration_since(self.at))
    }
}

/// Has sleeps of this thread end in time. The kernel may add 50 µs otherwise.
pub fn ask_for_short_sleeps() {
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
        tracing::debug!(%error, "the background thread keeps its timer slack");
    }
}

/// Puts this thread before those of usual niceness, if it has the usual one itself, and the right: that of
/// root, `CAP_SYS_NICE`, or `RLIMIT_NICE`.
pub fn ask_for_precedence() {
    const NICE: libc::c_int = -10;
    // SAFETY: the calls take numbers alone; on Linux 0 is this thread.
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) == 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        }
    }
}

/// The shortest slice that Linux grants.
const SHORT_SLICE: Duration = Duration::from_micros(100);

/// Requests shorter time slices for this thread than those of computing threads. Linux 6.12 and later then
/// runs it after a wake-up before a computing thread has used up its slice. Older kernels ignore the request.
/// It needs no privilege, and leaves a thread with a real-time policy unchanged.
pub fn ask_for_a_short_slice() {
    /// `struct sched_attr` of linux/sched/types.h, first version.
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
    // SAFETY: the kernel writes at most `SIZE` octets to `attr`, and all octets are valid values.
    let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, SIZE, 0) };
    if failed != 0 || attr.policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attr.runtime = SHORT_SLICE.as_nanos() as u64;
    // SAFETY: the kernel reads `attr.size` octets, which it set to the size it wrote before.
    let failed = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if failed != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "the background thread keeps its time slice");
    }
}
