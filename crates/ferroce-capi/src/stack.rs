//! Stack for calls of threads that have little of it left.
//!
//! A thread may have a stack of `PTHREAD_STACK_MIN`, 16 KiB on x86-64, and a coroutine one of any size. A
//! call of rdma-core needs a few KiB, because the kernel does the work on a stack of its own. [`with_room`]
//! does likewise: the body of a call runs on a stack of the library if the caller's has less than [`ROOM`]
//! left. The thread stays the same one, and with it its thread-locals, locks, errno, credentials, namespaces
//! and signal mask.
//!
//! A stack pointer outside of the thread's own stack belongs to a coroutine or to a signal handler with a
//! stack of its own. How much is left there is unknown, so the body gets a stack of the library as well.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Octets that a call may need: `ibv_get_device_list` needs 50,000 where it starts the engine.
const ROOM: usize = 64 << 10;
/// Octets of a stack of the library. The kernel provides only the pages that a call touches.
const SIZE: usize = 256 << 10;
/// Octets below a stack that nobody can access. The largest page of an aarch64 kernel has that size.
const GUARD: usize = 64 << 10;
/// Octets of a main thread's stack that count, at most: the limit may be infinite.
const LONGEST: usize = 64 << 20;

/// Stacks that no call uses. A null pointer is an empty place.
static SPARE: [AtomicPtr<u8>; 16] = [const { AtomicPtr::new(ptr::null_mut()) }; 16];

thread_local! {
    /// The stack on which this thread runs, as far as it is known.
    static STACK: Cell<Stack> = const { Cell::new(Stack { low: 0, high: 0 }) };
}

/// The addresses of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stack {
    low: usize,
    high: usize,
}

/// There is no memory for a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// Runs `body`, which must not unwind, with [`ROOM`] octets of stack at least.
pub(crate) fn with_room<F: FnOnce() -> R, R>(body: F) -> Result<R, NoRoom> {
    let mut job = Job { body: Some(body), result: None };
    let place = ptr::from_mut(&mut job);
    let call = finish::<F, R>;
    if STACK.get().has_room() {
        call(place.cast());
    } else {
        elsewhere(call, place.cast())?;
    }
    job.result.ok_or(NoRoom)
}

struct Job<F, R> {
    body: Option<F>,
    result: Option<R>,
}

/// Runs the body of a job. Never inlined, so that the frames of the body are not part of the caller's.
#[inline(never)]
extern "C" fn finish<F: FnOnce() -> R, R>(job: *mut c_void) {
    // SAFETY: `with_room` passes its own job, which nobody else looks at before this returns.
    let job = unsafe { &mut *job.cast::<Job<F, R>>() };
    job.result = job.body.take().map(|body| body());
}

#[cold]
fn elsewhere(call: extern "C" fn(*mut c_void), job: *mut c_void) -> Result<(), NoRoom> {
    let mut own = STACK.get();
    if own.high == 0 {
        own = Stack::of_this_thread();
        STACK.set(own);
        if own.has_room() {
            call(job);
            return Ok(());
        }
    }
    let stack = Stack::take()?;
    STACK.set(stack);
    // SAFETY: `stack.high` is the end of a mapping that this thread alone uses, and aligned to pages. `call`
    // does not unwind.
    unsafe { ferroce_on_stack(stack.high, call, job) };
    STACK.set(own);
    stack.put_back();
    Ok(())
}

impl Stack {
    #[inline(always)]
    fn has_room(self) -> bool {
        let here = 0u8;
        (self.low.saturating_add(ROOM)..self.high).contains(&ptr::from_ref(&here).addr())
    }

    /// The stack that the kernel or `pthread_create` gave to this thread; all addresses if that cannot be
    /// found.
    fn of_this_thread() -> Self {
        // SAFETY: neither call has arguments.
        let is_main = unsafe { libc::getpid() == libc::gettid() };
        let found = if is_main { Self::of_main_thread() } else { Self::of_pthread() };
        found.unwrap_or(Self { low: 0, high: usize::MAX })
    }

    /// pthread_getattr_np would read `/proc/self/maps` for this.
    fn of_main_thread() -> Option<Self> {
        // SAFETY: getauxval only reads the auxiliary vector. The file name of the program is at the upper end
        // of the stack.
        let high = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize;
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is valid for a write.
        let failed = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } != 0;
        if failed || high == 0 {
            return None;
        }
        let size = usize::try_from(limit.rlim_cur).unwrap_or(LONGEST).min(LONGEST);
        Some(Self { low: high.saturating_sub(size), high })
    }

    fn of_pthread() -> Option<Self> {
        let mut attr = MaybeUninit::<libc::pthread_attr_t>::uninit();
        // SAFETY: `attr` is valid for a write, and initialised if the call succeeds.
        if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attr.as_mut_ptr()) } != 0 {
            return None;
        }
        let (mut low, mut size) = (ptr::null_mut(), 0);
        // SAFETY: `attr` is initialised, and both places are valid for writes.
        let failed = unsafe { libc::pthread_attr_getstack(attr.as_ptr(), &raw mut low, &raw mut size) } != 0;
        // SAFETY: `attr` is initialised, and nobody uses it afterwards.
        unsafe { libc::pthread_attr_destroy(attr.as_mut_ptr()) };
        (!failed).then(|| Self { low: low.addr(), high: low.addr().saturating_add(size) })
    }

    /// Takes a spare stack, or maps one.
    fn take() -> Result<Self, NoRoom> {
        let spare = SPARE.iter().map(|place| place.swap(ptr::null_mut(), Ordering::Acquire));
        let base = match spare.into_iter().find(|base| !base.is_null()) {
            Some(base) => base,
            None => map()?,
        };
        let low = base.expose_provenance() + GUARD;
        Ok(Self { low, high: low + SIZE })
    }

    /// Keeps a stack of [`Self::take`] for the next call that needs one.
    fn put_back(self) {
        let base = ptr::with_exposed_provenance_mut::<u8>(self.low - GUARD);
        let null = ptr::null_mut();
        let kept = SPARE
            .iter()
            .any(|place| place.compare_exchange(null, base, Ordering::Release, Ordering::Relaxed).is_ok());
        if !kept {
            valgrind::forget(base.wrapping_byte_add(GUARD));
            // SAFETY: the whole mapping of `map`, which nobody uses any more.
            unsafe { libc::munmap(base.cast(), GUARD + SIZE) };
        }
    }
}

fn map() -> Result<*mut u8, NoRoom> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let base = unsafe { libc::mmap(ptr::null_mut(), GUARD + SIZE, libc::PROT_NONE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(NoRoom);
    }
    // SAFETY: the part of the new mapping above the guard, which nobody uses yet.
    let failed =
        unsafe { libc::mprotect(base.byte_add(GUARD), SIZE, libc::PROT_READ | libc::PROT_WRITE) } != 0;
    if failed {
        // SAFETY: the new mapping, which nobody uses.
        unsafe { libc::munmap(base, GUARD + SIZE) };
        return Err(NoRoom);
    }
    valgrind::tell(base.cast::<u8>().wrapping_byte_add(GUARD));
    Ok(base.cast())
}

/// Requests to valgrind, which takes a stack pointer that jumps to memory it does not know as a stack for a
/// huge frame: it would call the caller's stack invalid. A request is a few instructions that change nothing
/// where the processor itself executes them.
mod valgrind {
    use super::SIZE;

    /// `VG_USERREQ__STACK_REGISTER` and `VG_USERREQ__STACK_DEREGISTER` of `valgrind/valgrind.h`.
    const REGISTER: usize = 0x1501;
    const DEREGISTER: usize = 0x1502;

    /// The stack from `low` on is one. Its number, which is not 0 under valgrind, is kept in its lowest
    /// octets.
    pub(super) fn tell(low: *mut u8) {
        let start = low.expose_provenance();
        match request([REGISTER, start, start + SIZE, 0, 0, 0]) {
            0 => {}
            // SAFETY: the lowest octets of a new stack, aligned to pages.
            number => unsafe { low.cast::<usize>().write(number) },
        }
    }

    /// The stack from `low` on is no more.
    pub(super) fn forget(low: *mut u8) {
        // SAFETY: as in `tell`; zeros if nothing was written.
        request([DEREGISTER, unsafe { low.cast::<usize>().read() }, 0, 0, 0, 0]);
    }

    #[cfg(not(miri))]
    fn request(words: [usize; 6]) -> usize {
        let mut result = 0_usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the rotations add up to 128 bits, and the last instruction does nothing. valgrind reads the
        // six words.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                inout("rdx") result,
                in("rax") words.as_ptr(),
                options(nostack),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above; the rotations of the scratch register add up to 128 bits.
        unsafe {
            std::arch::asm!(
                "ror x12, x12, #3",
                "ror x12, x12, #13",
                "ror x12, x12, #51",
                "ror x12, x12, #61",
                "orr x10, x10, x10",
                inout("x3") result,
                in("x4") words.as_ptr(),
                options(nostack),
            );
        }
        result
    }

    #[cfg(miri)]
    fn request(_words: [usize; 6]) -> usize {
        0
    }
}

unsafe extern "C" {
    /// Calls `call(job)` with the stack pointer at `high`, and returns on the caller's stack.
    fn ferroce_on_stack(high: usize, call: extern "C" fn(*mut c_void), job: *mut c_void);
}

/// Defines `ferroce_on_stack` with these instructions as its body.
macro_rules! on_stack {
    ($($line:literal),+ $(,)?) => {
        core::arch::global_asm!(
            ".pushsection .text.ferroce_on_stack,\"ax\",@progbits",
            ".globl ferroce_on_stack",
            ".hidden ferroce_on_stack",
            ".type ferroce_on_stack,@function",
            "ferroce_on_stack:",
            ".cfi_startproc",
            $($line,)+
            ".cfi_endproc",
            ".size ferroce_on_stack, .-ferroce_on_stack",
            ".popsection",
        );
    };
}

// The frame pointer keeps the caller's stack pointer, which debuggers and the unwinder follow.
#[cfg(target_arch = "x86_64")]
on_stack!(
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset 6, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register 6",
    "mov rsp, rdi",
    "mov rdi, rdx",
    "call rsi",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa 7, 8",
    "ret",
);
#[cfg(target_arch = "aarch64")]
on_stack!(
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset 29, -16",
    ".cfi_offset 30, -8",
    "mov x29, sp",
    ".cfi_def_cfa_register 29",
    "mov sp, x0",
    "mov x0, x2",
    "blr x1",
    "mov sp, x29",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa 31, 0",
    ".cfi_restore 29",
    ".cfi_restore 30",
    "ret",
);

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn stack_pointer() -> usize {
        let here = 0u8;
        ptr::from_ref(&here).addr()
    }

    #[test]
    fn a_thread_with_room_keeps_its_stack() {
        let outer = stack_pointer();
        let inner = with_room(stack_pointer).expect("nothing is mapped");
        assert!(outer.abs_diff(inner) < ROOM, "{outer:#x} and {inner:#x}");
    }

    #[test]
    fn a_thread_without_room_gets_a_stack_and_its_result() {
        let run = || {
            let thread = thread::current().id();
            let outer = stack_pointer();
            let own = Stack::of_this_thread();
            if own.has_room() {
                // glibc gives a thread of aarch64 at least 128 KiB.
                STACK.set(Stack { low: outer - ROOM / 2, ..own });
            }
            let inner = with_room(|| {
                assert_eq!(thread::current().id(), thread);
                let here = stack_pointer();
                // A call from a callback of the program finds room where it is.
                let nested = with_room(stack_pointer).expect("nothing is mapped");
                assert!(here.abs_diff(nested) < ROOM, "{here:#x} and {nested:#x}");
                vec![here]
            });
            let inner = inner.expect("there is memory")[0];
            assert!(outer.abs_diff(inner) >= ROOM, "{outer:#x} and {inner:#x}");
            assert!(STACK.get().high > outer && STACK.get().low < outer, "the thread's own again");
        };
        thread::Builder::new().stack_size(48 << 10).spawn(run).expect("a thread").join().expect("no panic");
    }

    #[test]
    fn a_stack_pointer_that_no_thread_has_gets_a_stack() {
        let elsewhere = Stack { low: 1 << 20, high: 8 << 20 };
        STACK.set(elsewhere);
        let (outer, inner) = (stack_pointer(), with_room(stack_pointer).expect("there is memory"));
        assert!(outer.abs_diff(inner) >= ROOM, "{outer:#x} and {inner:#x}");
        assert_eq!(STACK.get(), elsewhere);
        STACK.set(Stack { low: 0, high: 0 });
    }

    #[test]
    fn more_stacks_than_places_are_unmapped() {
        let stacks: Vec<_> = (0..40).map(|_| Stack::take().expect("there is memory")).collect();
        stacks.into_iter().for_each(Stack::put_back);
        let again: Vec<_> = (0..40).map(|_| Stack::take().expect("there is memory")).collect();
        again.into_iter().for_each(Stack::put_back);
    }
}
