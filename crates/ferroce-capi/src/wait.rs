//! The calls that wait: the only ones that are cancellation points.
//!
//! Such a call is a loop of attempts, each with cancellation disabled. An attempt that has no result prepares
//! a [`Sleep`]; the thread then sleeps in `poll`, a cancellation point, from a frame that holds no lock and
//! has no destructor. glibc cancels a thread by a forced unwind, which may pass such frames of Rust if their
//! functions can unwind; so the exported functions are `extern "C-unwind"`, and nothing that has a destructor
//! may live in them.
//!
//! The registrations of a sleep, such as that this thread receives packets, are taken back by the personality
//! routine of the frame that calls `poll` (`ferroce_poll`, written in assembly). The unwinder runs that
//! routine before any cleanup handler of the program, so the library is then as if the call had never been
//! made. No event is lost, because an attempt that took one is not cancelled any more.

use std::io;
use std::mem::{ManuallyDrop, needs_drop};
use std::time::Duration;

use core::ffi::{c_int, c_ulong, c_void};
use ferroce_engine::Sleep;

use crate::call::{self, Owner};
use crate::errno::{self, Errno};

/// The result of an attempt.
pub(crate) enum Step<T> {
    /// The call returns this.
    Done(T),
    /// The thread sleeps for at most this number of milliseconds, or without limit if the number is negative.
    Sleep(Sleep, c_int),
}

impl<T> Step<T> {
    /// Goes on with a result.
    pub(crate) fn then<R>(self, next: impl FnOnce(T) -> Result<R, Errno>) -> Result<Step<R>, Errno> {
        Ok(match self {
            Self::Done(value) => Step::Done(next(value)?),
            Self::Sleep(sleep, timeout) => Step::Sleep(sleep, timeout),
        })
    }
}

/// The outcome of the sleep before an attempt: EINTR after a signal handler that interrupts calls.
pub(crate) type Woken = Result<(), Errno>;

/// Calls `attempt` until it has a result, and sleeps between. `failed` is what the call returns for an error;
/// errno is set as well.
pub(crate) fn waiting<T: Copy, F>(failed: impl Fn(Errno) -> T + Copy, mut attempt: F) -> T
where
    F: FnMut(&Owner, Woken) -> Result<Step<T>, Errno>,
{
    const { assert!(!needs_drop::<F>(), "a thread may be cancelled while this is on its stack") };
    let mut asleep = ManuallyDrop::new(None::<(Sleep, c_int)>);
    let mut polled = Ok(());
    // SAFETY: nothing on the stack from here to the program has a destructor.
    unsafe { pthread_testcancel() };
    loop {
        let attempted = call::run(|owner| {
            let woken = match asleep.take() {
                Some((sleep, _)) => sleep.end(polled.map_err(io::Error::from_raw_os_error)),
                None => Ok(()),
            };
            match attempt(owner, woken.map_err(Errno::from))? {
                Step::Done(value) => Ok(Some(value)),
                Step::Sleep(sleep, timeout) => {
                    *asleep = Some((sleep, timeout));
                    Ok(None)
                }
            }
        });
        match attempted {
            Ok(Some(value)) => return value,
            Ok(None) => polled = poll(&mut asleep),
            Err(errno) => {
                errno::set(errno);
                return failed(errno);
            }
        }
    }
}

/// For calls that return a number, or -1 and errno.
pub(crate) fn minus_one<F>(attempt: F) -> c_int
where
    F: FnMut(&Owner, Woken) -> Result<Step<c_int>, Errno>,
{
    waiting(|_| -1, attempt)
}

/// For calls that return a number, or a negative errno.
pub(crate) fn negative<F>(attempt: F) -> c_int
where
    F: FnMut(&Owner, Woken) -> Result<Step<c_int>, Errno>,
{
    waiting(|errno| -errno.code(), attempt)
}

/// Converts a time to milliseconds, rounded up, so that the last millisecond is not spent spinning.
pub(crate) fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

/// Sleeps. The error is the errno of `poll`.
fn poll(asleep: &mut Option<(Sleep, c_int)>) -> Result<(), c_int> {
    let place = std::ptr::from_mut(asleep).cast::<c_void>();
    let Some((sleep, timeout)) = asleep else { return Ok(()) };
    let (fds, timeout) = (sleep.fds(), *timeout);
    // SAFETY: the elements live in `place`, which is left alone until the call returns, or is unwound and
    // empties it. Nothing on the stack from here to the program has a destructor.
    match unsafe { ferroce_poll(fds.as_mut_ptr(), fds.len() as c_ulong, timeout, place) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

unsafe extern "C-unwind" {
    /// A cancellation point.
    fn pthread_testcancel();

    /// `poll(fds, count, timeout)`. If it is unwound, `place` is emptied first.
    fn ferroce_poll(fds: *mut libc::pollfd, count: c_ulong, timeout: c_int, place: *mut c_void) -> c_int;
}

// `place` is kept in a register that calls preserve, where the personality routine finds it. The routine is
// named by its distance from the table (0x1b: relative to the place, 4 octets with a sign).
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.ferroce_poll,\"ax\",@progbits",
    ".globl ferroce_poll",
    ".hidden ferroce_poll",
    ".type ferroce_poll,@function",
    "ferroce_poll:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset 3, -16",
    "mov rbx, rcx",
    "call poll@PLT",
    "pop rbx",
    ".cfi_def_cfa_offset 8",
    ".cfi_restore 3",
    "ret",
    ".cfi_endproc",
    ".size ferroce_poll, .-ferroce_poll",
    ".popsection",
    personality = sym taken_back,
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.ferroce_poll,\"ax\",@progbits",
    ".globl ferroce_poll",
    ".hidden ferroce_poll",
    ".type ferroce_poll,@function",
    "ferroce_poll:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset 29, -32",
    ".cfi_offset 30, -24",
    "mov x29, sp",
    "str x19, [sp, #16]",
    ".cfi_offset 19, -16",
    "mov x19, x3",
    "bl poll",
    "ldr x19, [sp, #16]",
    "ldp x29, x30, [sp], #32",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore 19",
    ".cfi_restore 29",
    ".cfi_restore 30",
    "ret",
    ".cfi_endproc",
    ".size ferroce_poll, .-ferroce_poll",
    ".popsection",
    personality = sym taken_back,
);

/// The number that the unwinder gives the register with `place`: rbx or x19.
const PLACE: c_int = if cfg!(target_arch = "x86_64") { 3 } else { 19 };
/// `_UA_CLEANUP_PHASE` and `_URC_CONTINUE_UNWIND` of the unwinder's interface.
const CLEANUP_PHASE: c_int = 2;
const CONTINUE_UNWIND: c_int = 8;

/// The unwinder's knowledge of a frame.
#[repr(C)]
struct Frame {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn _Unwind_GetGR(frame: *mut Frame, register: c_int) -> usize;
}

/// The personality routine of `ferroce_poll`: its frame ends, so what the sleep had registered is taken back.
unsafe extern "C" fn taken_back(
    _version: c_int,
    actions: c_int,
    _class: u64,
    _exception: *mut u8,
    frame: *mut Frame,
) -> c_int {
    if actions & CLEANUP_PHASE != 0 {
        // SAFETY: the unwinder gives the frame, which preserved this register.
        let place = unsafe { _Unwind_GetGR(frame, PLACE) };
        let place = std::ptr::with_exposed_provenance_mut::<Option<(Sleep, c_int)>>(place);
        // SAFETY: `poll` gave it, its frame still stands, and nobody looks at it afterwards.
        drop(unsafe { place.replace(None) });
    }
    CONTINUE_UNWIND
}
