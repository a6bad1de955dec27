//! The few calls of the operating system that no safe wrapper offers, and the clock.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use ferroce_wire::Instant;
use nix::time::{ClockId, clock_gettime};

/// The monotonic clock, in nanoseconds. About 25 ns a call: read it once a batch.
pub(crate) fn now() -> Instant {
    match clock_gettime(ClockId::CLOCK_MONOTONIC) {
        Ok(time) => {
            let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
            let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
            Instant::from_nanos(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos))
        }
        // Linux always has this clock; without one, timers would only stop.
        Err(_) => Instant::from_nanos(0),
    }
}

/// Runs `child` in every process that this one forks, before `fork` returns there.
///
/// Called at most once per program, see [`crate::fork`].
pub(crate) fn at_fork_child(child: extern "C" fn()) {
    // SAFETY: `child` is a function of the whole program's lifetime (the library is linked
    // `-z nodelete`), takes nothing, and only uses async-signal-safe calls and atomics.
    let refused = unsafe { libc::pthread_atfork(None, None, Some(child)) };
    if refused != 0 {
        tracing::warn!(errno = refused, "no fork handler: a forked child keeps this process's sockets open");
    }
}

/// Runs `last` when the process exits by `exit` or by returning from `main`.
pub(crate) fn at_exit(last: extern "C" fn()) {
    // SAFETY: `last` is a function of the whole program's lifetime (the library is linked
    // `-z nodelete`) that takes nothing and does not unwind.
    let refused = unsafe { libc::atexit(last) };
    if refused != 0 {
        tracing::warn!("no exit handler: a last acknowledgement may be missed by its peer");
    }
}

/// Closes a descriptor by number, whoever owned it. For the fork handler only: the owner of the
/// number exists in the parent, in the child nobody will use it again.
pub(crate) fn close_number(fd: RawFd) {
    // SAFETY: close takes any integer; the number stands in the table of descriptors that only
    // ferroce opened, so nobody else's descriptor is closed.
    unsafe { libc::close(fd) };
}

/// An element for `poll` that waits until a descriptor is readable.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

/// `poll` of the system, `timeout` in milliseconds, negative for ever; how many elements have events.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: libc::c_int) -> io::Result<usize> {
    // SAFETY: so many elements may be read and written.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Adds one to an eventfd. The system call is a raw one, as all of the packet path: the C library's is a cancellation point.
pub(crate) fn signal(event: impl AsFd) -> io::Result<()> {
    rustix::io::write(event, &1_u64.to_ne_bytes())?;
    Ok(())
}

/// Takes back what was added to an eventfd; fails if nothing was and it is non-blocking. As [`signal`] a raw system call.
pub(crate) fn silence(event: impl AsFd) -> io::Result<()> {
    rustix::io::read(event, &mut [0; 8])?;
    Ok(())
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
pub(crate) fn ask_for_a_short_slice() {
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

/// Whether a signal handler of the program asks for system calls to be interrupted.
///
/// `poll` returns EINTR after every handler. `read`, which the man page of `ibv_get_cq_event`
/// promises, is restarted if the handler was installed with SA_RESTART. Which handler just ran
/// cannot be known, so a wait reports EINTR only if some handler exists that would not restart.
/// Handlers of faults do not count: they do not interrupt a wait.
pub(crate) fn a_handler_interrupts() -> bool {
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

/// The speed that a network interface claims, in Mb/s; `None` where it does not say, as `lo`. Linux makes up what it says of a veth.
pub(crate) fn link_speed(netdev: &str) -> Option<u32> {
    const ETHTOOL_GSET: u32 = 1;
    let mut command = EthtoolCmd { cmd: ETHTOOL_GSET, ..EthtoolCmd::default() };
    // SAFETY: it is `struct ethtool_cmd`, all numbers.
    let told = unsafe { ethtool(netdev, &mut command) };
    let speed = u32::from(command.speed_high) << 16 | u32::from(command.speed);
    (told && speed != 0 && speed != u32::MAX && speed != u32::from(u16::MAX)).then_some(speed)
}

/// The name of an interface's driver; empty if it has none that tells.
pub(crate) fn driver(netdev: &str) -> String {
    const ETHTOOL_GDRVINFO: u32 = 3;
    let mut info = EthtoolDrvinfo { cmd: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    // SAFETY: it is `struct ethtool_drvinfo`, all octets.
    if !unsafe { ethtool(netdev, &mut info) } {
        return String::new();
    }
    let end = info.driver.iter().position(|octet| *octet == 0).unwrap_or(0);
    let name = String::from_utf8_lossy(info.driver.get(..end).unwrap_or_default()).into_owned();
    if name.chars().any(char::is_control) { String::new() } else { name }
}

/// An interface's pause frames: negotiated, obeyed, sent. `None` where the driver does not tell.
pub(crate) fn pause(netdev: &str) -> Option<[bool; 3]> {
    const ETHTOOL_GPAUSEPARAM: u32 = 0x12;
    let mut param = [ETHTOOL_GPAUSEPARAM, 0, 0, 0];
    // SAFETY: it is `struct ethtool_pauseparam`: the command and three numbers.
    let told = unsafe { ethtool(netdev, &mut param) };
    told.then(|| [param[1] != 0, param[2] != 0, param[3] != 0])
}

/// Whether the driver of an interface answered `command`.
///
/// # Safety
///
/// `T` begins with a command's number and is what the kernel writes for that number, of its size; all bytes are values.
unsafe fn ethtool<T>(netdev: &str, command: &mut T) -> bool {
    let kind = (rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM);
    let Ok(socket) = rustix::net::socket(kind.0, kind.1, None) else { return false };
    // SAFETY: all of it is plain data, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last octet stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(netdev.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(command).cast();
    // SAFETY: the request names an interface and points to a command of the size that its number has, as the caller says.
    unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), SIOCETHTOOL, &mut request) == 0 }
}

/// `struct ethtool_cmd` of the kernel's interface.
#[repr(C)]
#[derive(Default)]
struct EthtoolCmd {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    duplex: u8,
    port: u8,
    phy_address: u8,
    transceiver: u8,
    autoneg: u8,
    mdio_support: u8,
    max_tx_packets: u32,
    max_rx_packets: u32,
    speed_high: u16,
    tp_mdix: u8,
    tp_mdix_ctrl: u8,
    lp_advertising: u32,
    reserved: [u32; 2],
}

const _: () = assert!(size_of::<EthtoolCmd>() == 44);

/// `struct ethtool_drvinfo`: the name alone is looked at.
#[repr(C)]
struct EthtoolDrvinfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

const _: () = assert!(size_of::<EthtoolDrvinfo>() == 196);
const SIOCETHTOOL: libc::Ioctl = 0x8946;
