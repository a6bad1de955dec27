//! The fault guard beside the signal handlers of programs. Each scenario runs in a process of its own.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferroce_memory::{Access, MemoryTable, PdId, View, guard};
use ferroce_proto::{Memory, MemoryError};
use ferroce_wire::Lkey;

/// How a scenario's process ends.
#[derive(PartialEq, Debug)]
enum End {
    Code(i32),
    Signal(i32),
}

/// The child's end when all it asserted held.
const WELL: End = End::Code(77);
/// The child's end when the program's own handler ended it, as it should.
const HANDLED: End = End::Code(78);

const SCENARIOS: &[(&str, fn(), End)] = &[
    ("a handler from before is not called for our faults, but for the program's", handler_before, HANDLED),
    ("a handler from after neither, once a device is opened", handler_after, HANDLED),
    ("a handler from after that passes on needs no device opened", handler_after_that_passes_on, HANDLED),
    ("without a handler the program's fault kills", default_action, End::Signal(libc::SIGSEGV)),
    ("an ignored fault kills", ignored, End::Signal(libc::SIGSEGV)),
    ("an ignored signal that is sent does not", ignored_sent, WELL),
    ("a signal that is sent reaches the program", sent, HANDLED),
    ("a signal that is sent kills without a handler", sent_default, End::Signal(libc::SIGBUS)),
    ("a handler without SA_SIGINFO is called as it wants", plain_handler, HANDLED),
    ("its mask is honoured", mask, HANDLED),
    ("it runs on the alternate stack if it asked for it", on_stack, HANDLED),
    ("it runs on the thread's stack if it did not", off_stack, HANDLED),
    ("a handler for one time is called one time", one_time, End::Signal(libc::SIGSEGV)),
    (
        "handlers that pass on and are installed again and again do not go in circles",
        circles,
        End::Signal(libc::SIGSEGV),
    ),
    ("a thread that blocks all signals may copy", blocked, WELL),
    ("two threads may fault at once", threads, WELL),
    ("std still tells of an overflowed stack", overflow, End::Signal(libc::SIGABRT)),
];

#[test]
fn scenarios() {
    let mut wrong = Vec::new();
    for (index, (name, _, want)) in SCENARIOS.iter().enumerate() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env("FERROCE_SCENARIO", index.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let end = status.code().map_or_else(|| End::Signal(status.signal().unwrap()), End::Code);
        if end != *want {
            wrong.push(format!("{name}: {end:?}, not {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "a part of `scenarios`"]
fn child() {
    let Ok(index) = std::env::var("FERROCE_SCENARIO") else { return };
    // No core files, and no panic that libtest would turn into a good end.
    // SAFETY: a valid limit.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    (SCENARIOS[index.parse::<usize>().unwrap()].1)();
    exit(77);
}

fn exit(code: i32) -> ! {
    // SAFETY: ends the process, also from a handler.
    unsafe { libc::_exit(code) }
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn install(signal: c_int, handler: usize, flags: c_int, mask: &[c_int]) -> libc::sigaction {
    // SAFETY: zeros are a valid action and a place for one; the handler is of the type that the flags say.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        let mut old: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        mask.iter().for_each(|&signal| assert_eq!(libc::sigaddset(&raw mut action.sa_mask, signal), 0));
        assert_eq!(libc::sigaction(signal, &action, &raw mut old), 0);
        old
    }
}

fn install_both(handler: Handler, flags: c_int) {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        install(signal, handler as usize, flags | libc::SA_SIGINFO, &[]);
    }
}

/// A view and the key of a page that is not there.
struct Gone {
    table: MemoryTable,
    view: View,
    key: Lkey,
}

fn gone() -> Gone {
    let table = MemoryTable::new().unwrap();
    let pd = PdId::new(1);
    let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
    let key = table.register(pd, 4096, 4096, 0, access).unwrap();
    Gone { view: table.view(pd), key: Lkey::new(key.value()), table }
}

impl Gone {
    fn touch(&mut self) {
        assert_or_exit(self.view.read_local(self.key, 8, &mut [0; 3000], 0) == Err(MemoryError::Fault));
        assert_or_exit(self.view.write_local(self.key, 8, &[0; 30]) == Err(MemoryError::Fault));
        assert_or_exit(self.table.len() == 1);
    }
}

#[track_caller]
fn assert_or_exit(condition: bool) {
    if !condition {
        eprintln!("failed at {}", std::panic::Location::caller());
        exit(1);
    }
}

/// A fault of the program's own.
#[inline(never)]
fn fault() {
    // SAFETY: none; that it faults is the point.
    unsafe { ptr::read_volatile(std::hint::black_box(16 as *const u8)) };
}

extern "C" fn end_well(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: a handler with SA_SIGINFO is given a valid siginfo.
    let addr = unsafe { (*info).si_addr() } as usize;
    exit(if signal == libc::SIGSEGV && addr == 16 { 78 } else { 2 })
}

fn handler_before() {
    install_both(end_well, 0);
    let mut gone = gone();
    gone.touch();
    fault();
}

fn handler_after() {
    let mut gone = gone();
    gone.touch();
    install_both(end_well, 0);
    guard::install().unwrap();
    gone.touch();
    // Once more is nothing.
    guard::install().unwrap();
    gone.touch();
    fault();
}

static CALLS: AtomicU32 = AtomicU32::new(0);
static OLD: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Counts and passes on to `OLD[0]`, which stands in for its own variable.
extern "C" fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 100 {
        exit(3);
    }
    let old = OLD[0].load(Ordering::Relaxed);
    if old == libc::SIG_DFL {
        exit(78);
    }
    // SAFETY: the address of a handler with three arguments: ours or std's.
    let old: Handler = unsafe { std::mem::transmute(old) };
    old(signal, info, context);
}

fn handler_after_that_passes_on() {
    install_both(end_well, 0);
    let mut gone = gone();
    let old = install(libc::SIGSEGV, pass_on as *const () as usize, libc::SA_SIGINFO, &[]);
    OLD[0].store(old.sa_sigaction, Ordering::Relaxed);
    gone.touch();
    assert_or_exit(CALLS.load(Ordering::Relaxed) == 2);
    guard::install().unwrap();
    gone.touch();
    assert_or_exit(CALLS.load(Ordering::Relaxed) == 2);
    fault();
}

fn default_action() {
    install(libc::SIGSEGV, libc::SIG_DFL, 0, &[]);
    gone().touch();
    fault();
}

fn ignored() {
    install(libc::SIGSEGV, libc::SIG_IGN, 0, &[]);
    gone().touch();
    fault();
}

fn ignored_sent() {
    install(libc::SIGSEGV, libc::SIG_IGN, 0, &[]);
    let mut gone = gone();
    raise(libc::SIGSEGV);
    gone.touch();
}

fn raise(signal: c_int) {
    // SAFETY: sends a signal to this thread.
    unsafe { libc::raise(signal) };
}

extern "C" fn end_sent(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: a handler with SA_SIGINFO is given a valid siginfo.
    exit(if unsafe { (*info).si_code } <= 0 { 78 } else { 2 })
}

fn sent() {
    install_both(end_sent, 0);
    gone().touch();
    raise(libc::SIGBUS);
}

fn sent_default() {
    install(libc::SIGBUS, libc::SIG_DFL, 0, &[]);
    gone().touch();
    raise(libc::SIGBUS);
}

extern "C" fn end_plain(signal: c_int) {
    exit(if signal == libc::SIGSEGV { 78 } else { 2 })
}

fn plain_handler() {
    install(libc::SIGSEGV, end_plain as *const () as usize, 0, &[]);
    gone().touch();
    fault();
}

extern "C" fn end_masked(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: a place for a set, and a set that was filled.
    let blocked = unsafe {
        let mut set: libc::sigset_t = MaybeUninit::zeroed().assume_init();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut set);
        [libc::SIGUSR1, libc::SIGSEGV, libc::SIGUSR2].map(|signal| libc::sigismember(&set, signal))
    };
    exit(if blocked == [1, 1, 0] { 78 } else { 2 })
}

fn mask() {
    install(libc::SIGSEGV, end_masked as *const () as usize, libc::SA_SIGINFO, &[libc::SIGUSR1]);
    gone().touch();
    fault();
}

static STACK: AtomicUsize = AtomicUsize::new(0);
const STACK_LEN: usize = 1 << 16;

/// Gives the thread an alternate stack.
fn alternate_stack() {
    let stack = Vec::leak(vec![0_u8; STACK_LEN]).as_mut_ptr();
    STACK.store(stack as usize, Ordering::Relaxed);
    let stack = libc::stack_t { ss_sp: stack.cast(), ss_flags: 0, ss_size: STACK_LEN };
    // SAFETY: memory that is never freed.
    assert_eq!(unsafe { libc::sigaltstack(&stack, ptr::null_mut()) }, 0);
}

extern "C" fn end_on_stack(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let local = std::hint::black_box(0_u8);
    let here = std::hint::black_box(&raw const local) as usize;
    let stack = STACK.load(Ordering::Relaxed);
    let want = CALLS.load(Ordering::Relaxed) == 1;
    exit(if (stack..stack + STACK_LEN).contains(&here) == want { 78 } else { 2 })
}

fn on_stack() {
    alternate_stack();
    CALLS.store(1, Ordering::Relaxed);
    install_both(end_on_stack, libc::SA_ONSTACK);
    gone().touch();
    fault();
}

fn off_stack() {
    alternate_stack();
    install_both(end_on_stack, 0);
    gone().touch();
    fault();
}

extern "C" fn count(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 0 {
        exit(3);
    }
}

fn one_time() {
    install_both(count, libc::SA_RESETHAND);
    let mut gone = gone();
    gone.touch();
    assert_or_exit(CALLS.load(Ordering::Relaxed) == 0);
    // The handler returns, the instruction faults again.
    fault();
}

extern "C" fn pass_on_too(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 100 {
        exit(3);
    }
    // SAFETY: as in `pass_on`.
    let old: Handler = unsafe { std::mem::transmute(OLD[1].load(Ordering::Relaxed)) };
    old(signal, info, context);
}

fn circles() {
    install(libc::SIGSEGV, libc::SIG_DFL, 0, &[]);
    let mut gone = gone();
    for round in 0..14 {
        // Twice the same, then the other.
        let which = round / 2 % 2;
        let handler = [pass_on as *const () as usize, pass_on_too as *const () as usize][which];
        let old = install(libc::SIGSEGV, handler, libc::SA_SIGINFO, &[]);
        OLD[which].store(old.sa_sigaction, Ordering::Relaxed);
        guard::install().unwrap();
        gone.touch();
    }
    assert_or_exit(CALLS.load(Ordering::Relaxed) == 0);
    fault();
}

fn blocked() {
    let mut gone = gone();
    std::thread::spawn(move || {
        // SAFETY: a set that is filled before it is used.
        unsafe {
            let mut all = MaybeUninit::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut());
        }
        gone.touch();
    })
    .join()
    .unwrap();
}

fn threads() {
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let mut gone = gone();
            std::thread::spawn(move || (0..5_000).for_each(|_| gone.touch()))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn overflow() {
    #[expect(unconditional_recursion)]
    fn deeper(n: u64) -> u64 {
        std::hint::black_box([n; 64])[63] + deeper(std::hint::black_box(n + 1))
    }
    gone().touch();
    std::thread::spawn(|| deeper(0)).join().unwrap();
}
