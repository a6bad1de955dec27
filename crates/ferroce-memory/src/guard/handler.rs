//! The handlers of SIGSEGV and SIGBUS.
//!
//! Programs and runtimes install handlers too, before and after us, and some of theirs go on to the one they
//! found. So each time we come on top of a foreign handler we do so by another entry, which remembers that
//! one alone: a foreign handler that goes on to an older entry of ours finds there what lay below itself, and
//! never itself.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, TryLockError};

use libc::{c_int, c_void, sigaction, siginfo_t};

use super::{arch, routines};

/// How often we can come on top of another foreign handler of a signal.
const ENTRIES: usize = 16;

type Entry = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// An entry for each place, so that entries are told apart by their addresses.
const SEGV: [Entry; ENTRIES] = entries::<{ libc::SIGSEGV }>();
const BUS: [Entry; ENTRIES] = entries::<{ libc::SIGBUS }>();

/// The handler below each entry. The boxes are leaked, because a handler may be reading one.
static BELOW_SEGV: [AtomicPtr<sigaction>; ENTRIES] = [const { AtomicPtr::new(ptr::null_mut()) }; ENTRIES];
static BELOW_BUS: [AtomicPtr<sigaction>; ENTRIES] = [const { AtomicPtr::new(ptr::null_mut()) }; ENTRIES];

/// Puts our handlers on top, if another's are. Cheap when nothing is to be done: two system calls.
///
/// To be called whenever a device is opened or memory registered, and now and then while packets come,
/// because programs install handlers at any time. A fault in a copy while another's handler is on top is that
/// handler's to pass on.
pub fn install() -> io::Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = match INSTALLING.try_lock() {
        Ok(held) => held,
        Err(TryLockError::Poisoned(held)) => held.into_inner(),
        // Another thread is at it; in a forked child perhaps one of the parent's, whose handlers the child
        // has.
        Err(TryLockError::WouldBlock) => return Ok(()),
    };
    come_on_top(libc::SIGSEGV, &SEGV, &BELOW_SEGV)?;
    come_on_top(libc::SIGBUS, &BUS, &BELOW_BUS)
}

fn come_on_top(
    signal: c_int,
    entries: &[Entry; ENTRIES],
    below: &[AtomicPtr<sigaction>; ENTRIES],
) -> io::Result<()> {
    let found = exchange(signal, None)?;
    if entries.iter().any(|&entry| entry as usize == found.sa_sigaction) {
        return Ok(());
    }
    let used = below.iter().take_while(|below| !below.load(Ordering::Relaxed).is_null()).count();
    // If all are used, the last entry serves again; should the handler below go on to it, it would come back
    // to itself.
    let place = used.min(ENTRIES - 1);
    // A handler that was installed again lies above us and below: the older entry must not lead up to it any
    // more.
    for i in 0..used {
        // SAFETY: entries below `used` are not null and point to leaked boxes that nobody writes to.
        let older = unsafe { &*below[i].load(Ordering::Relaxed) };
        if older.sa_sigaction == found.sa_sigaction && is_function(older) {
            let lower =
                i.checked_sub(1).map_or_else(|| leak(default_action()), |i| below[i].load(Ordering::Relaxed));
            below[i].store(lower, Ordering::Release);
        }
    }
    below[place].store(leak(found), Ordering::Release);

    // As the one below would run: its mask, and its wishes about stack, restart and nesting. Where there was
    // none, the alternate stack is right: threads of Go have no other that is large enough.
    let mut ours = found;
    ours.sa_sigaction = entries[place] as usize;
    ours.sa_flags = libc::SA_SIGINFO
        | if is_function(&found) {
            found.sa_flags & (libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER)
        } else {
            libc::SA_ONSTACK | libc::SA_RESTART
        };
    let replaced = exchange(signal, Some(&ours))?;
    if replaced.sa_sigaction != found.sa_sigaction && replaced.sa_sigaction != ours.sa_sigaction {
        // Another thread installed one between our two calls.
        below[place].store(leak(replaced), Ordering::Release);
    }
    Ok(())
}

const fn entries<const SIGNAL: c_int>() -> [Entry; ENTRIES] {
    [
        entry::<SIGNAL, 0>,
        entry::<SIGNAL, 1>,
        entry::<SIGNAL, 2>,
        entry::<SIGNAL, 3>,
        entry::<SIGNAL, 4>,
        entry::<SIGNAL, 5>,
        entry::<SIGNAL, 6>,
        entry::<SIGNAL, 7>,
        entry::<SIGNAL, 8>,
        entry::<SIGNAL, 9>,
        entry::<SIGNAL, 10>,
        entry::<SIGNAL, 11>,
        entry::<SIGNAL, 12>,
        entry::<SIGNAL, 13>,
        entry::<SIGNAL, 14>,
        entry::<SIGNAL, 15>,
    ]
}

/// Runs as a signal handler: no allocation, no lock, no thread-local.
extern "C" fn entry<const SIGNAL: c_int, const PLACE: usize>(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO, and a handler that passes on
    // does too.
    let code = unsafe { (*info).si_code };
    // A signal that somebody sent says nothing about the instruction it interrupted.
    let fault = code > 0 && !(signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO);
    if fault {
        // SAFETY: the third argument of such a handler is the interrupted thread's ucontext, ours to change.
        let ip = arch::instruction_pointer(unsafe { &mut *context.cast::<libc::ucontext_t>() });
        if let Some(end) = routines::resume_at(*ip as usize) {
            *ip = end as _;
            return;
        }
    }
    let below = if SIGNAL == libc::SIGBUS { &BELOW_BUS } else { &BELOW_SEGV };
    let below = below[PLACE].load(Ordering::Acquire);
    // SAFETY: an entry is installed after what lies below it was stored, a leaked box that nobody writes to.
    let Some(action) = (unsafe { below.as_ref() }) else { return };
    match action.sa_sigaction {
        // The kernel lets no fault be ignored.
        libc::SIG_IGN if !fault => {}
        libc::SIG_DFL | libc::SIG_IGN => die(signal, fault),
        handler => {
            if action.sa_flags & libc::SA_RESETHAND != 0 {
                reset(signal);
            }
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the address was installed as a handler of this type.
                let handler: Entry = unsafe { std::mem::transmute::<usize, Entry>(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: the address was installed as a handler of this type.
                let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
                handler(signal);
            }
        }
    }
}

/// Ends the process as if no handler were there: the instruction faults again, or the signal is sent again
/// and waits until the handler returns.
fn die(signal: c_int, fault: bool) {
    reset(signal);
    if !fault {
        // SAFETY: raise is async-signal-safe.
        unsafe { libc::raise(signal) };
    }
}

fn reset(signal: c_int) {
    // SAFETY: sigaction is async-signal-safe and is given a valid action and no place for the old one.
    unsafe { libc::sigaction(signal, &default_action(), ptr::null_mut()) };
}

fn default_action() -> sigaction {
    // SAFETY: all zeros is a valid action: SIG_DFL, no flags, an empty mask.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn is_function(action: &sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
}

fn leak(action: sigaction) -> *mut sigaction {
    Box::into_raw(Box::new(action))
}

/// Installs an action, if one is given, and returns the one before.
fn exchange(signal: c_int, new: Option<&sigaction>) -> io::Result<sigaction> {
    let mut old = default_action();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a valid action, whose handler is one of ours; `old` is a place for one.
    let rc = unsafe { libc::sigaction(signal, new, &raw mut old) };
    if rc == 0 { Ok(old) } else { Err(io::Error::last_os_error()) }
}
