//! Lines of text for people, written so that a line that cannot be written harms nobody.
//!
//! Standard error belongs to the program: it may be a full disk, a pipe without a reader, a pipe or a
//! terminal that nobody empties. A line that such a stream does not take at once is lost. Nothing here
//! panics, waits, or lets the kernel's signal for a failed write end the process. Nothing here takes a lock
//! either, so a forked child may write.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt::Display;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::panic::PanicHookInfo;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::SendFlags;

/// Writes `ferroce: line` to standard error.
pub fn say(line: impl Display) {
    line_of(format_args!("ferroce: {line}"));
}

/// Writes a line without a prefix to standard error.
pub fn line_of(line: impl Display) {
    write(stderr(), format!("{line}\n").as_bytes());
}

/// Standard error of the process, which may be closed.
pub fn stderr() -> BorrowedFd<'static> {
    rustix::stdio::stderr()
}

/// Writes as much of the text as the stream takes at once.
///
/// A regular file is written in any case: it does not wait for a reader.
pub fn write(to: BorrowedFd<'_>, text: &[u8]) {
    without_signals(|| {
        let mut left = text;
        while !left.is_empty() {
            match write_some(to, left) {
                Ok(written @ 1..) => left = left.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return,
            }
        }
    });
}

/// Octets that a pipe takes without waiting once `poll` calls it writable: `PIPE_BUF`, see pipe(7).
const PIPE_ROOM: usize = 4096;

fn write_some(to: BorrowedFd<'_>, text: &[u8]) -> rustix::io::Result<usize> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(to)?.st_mode);
    match kind {
        FileType::RegularFile => return rustix::io::write(to, text),
        FileType::Socket => return rustix::net::send(to, text, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        _ => {}
    }
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&to, PollFlags::OUT)], Some(&now))? == 0 {
        return Err(Errno::AGAIN);
    }
    // The offset of all ones stands for the file's own position.
    match rustix::io::pwritev2(to, &[IoSlice::new(text)], u64::MAX, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::SPIPE) => {}
        done => return done,
    }
    // A terminal. Another open file of the same terminal can be told not to wait, and leaves the program's as
    // it is.
    if kind == FileType::CharacterDevice
        && let Ok(own) = reopen(to)
    {
        return rustix::io::write(own, text);
    }
    rustix::io::write(to, text.get(..PIPE_ROOM).unwrap_or(text))
}

fn reopen(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Without allocation, for lines out of signal handlers.
    let mut path = [0; 32];
    let _ = io::Write::write_fmt(&mut path.as_mut_slice(), format_args!("/proc/self/fd/{}", fd.as_raw_fd()));
    rustix::fs::open(CStr::from_bytes_until_nul(&path).unwrap_or_default(), flags, Mode::empty())
}

/// Signals that the kernel sends to the thread whose write fails, or to the group of a background process
/// that writes to its terminal.
const OF_WRITES: [Signal; 3] = [Signal::SIGPIPE, Signal::SIGXFSZ, Signal::SIGTTOU];

/// Runs `work` with the signals blocked by which a failed write ends a process. Such a signal that came
/// meanwhile is taken away.
pub fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let writes: SigSet = OF_WRITES.into_iter().collect();
    let Ok(before) = writes.thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return work() };
    let earlier = pending();
    let done = work();
    let new: SigSet = OF_WRITES.into_iter().filter(|signal| !earlier.contains(*signal)).collect();
    while new.iter().next().is_some() && take(&new) {}
    let _ = before.thread_set_mask();
    done
}

/// The signals that wait for this thread or for its process.
fn pending() -> SigSet {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is valid for writes of a sigset_t.
    if unsafe { libc::sigpending(set.as_mut_ptr()) } != 0 {
        return SigSet::all();
    }
    // SAFETY: sigpending succeeded, so it filled `set`.
    unsafe { SigSet::from_sigset_t_unchecked(set.assume_init()) }
}

/// Takes one of the signals if it waits; whether it did. The call is the kernel's, because libc's is a
/// cancellation point.
fn take(signals: &SigSet) -> bool {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    /// Size of the kernel's set of 64 signals, in octets.
    const SET: usize = 8;
    let none = std::ptr::null_mut::<libc::siginfo_t>();
    let set: *const libc::sigset_t = signals.as_ref();
    // SAFETY: the kernel reads `SET` octets of the larger set of libc, and the time; it writes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, set, none, &raw const now, SET) > 0 }
}

/// A writer of log lines to one stream, each of which is written whole or lost. Reports success in any case:
/// the writer of a formatter that reports an error prints a sentence of its own, and panics where that fails
/// too.
#[derive(Debug)]
pub struct LogWriter<F>(pub F);

impl<F: std::os::fd::AsFd> io::Write for LogWriter<F> {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        write(self.0.as_fd(), octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reports panics through [`say`], in place of the standard hook, which waits for a stream that takes
/// nothing. For programs of ours, and libraries with a standard library of their own.
pub fn report_panics() {
    std::panic::set_hook(Box::new(report));
}

fn report(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or("without a message");
    match panic.location() {
        Some(place) => say(format_args!("a bug: thread {name} panicked at {place}: {message}")),
        None => say(format_args!("a bug: thread {name} panicked: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    const LINE: &[u8] = b"a line\n";

    /// Longer than a pipe or a socket has room for.
    fn long() -> Vec<u8> {
        vec![b'x'; 1 << 20]
    }

    #[test]
    fn a_stream_that_takes_nothing_loses_the_line() {
        // A pipe that waits, full, with a reader that does not read.
        let (mut reader, writer) = io::pipe().unwrap();
        write(writer.as_fd(), &long());
        write(writer.as_fd(), LINE);
        drop(writer);
        let mut text = Vec::new();
        reader.read_to_end(&mut text).unwrap();
        assert!(text.len() >= PIPE_ROOM && text.len() < long().len(), "{}", text.len());
        // A socket, likewise.
        let (reader, writer) = UnixStream::pair().unwrap();
        write(writer.as_fd(), &long());
        write(writer.as_fd(), LINE);
        drop(reader);
        write(writer.as_fd(), LINE);
        // A full disk, and a descriptor that cannot be written to.
        write(File::options().write(true).open("/dev/full").unwrap().as_fd(), LINE);
        write(File::open("/dev/null").unwrap().as_fd(), LINE);
    }

    #[test]
    fn a_terminal_that_nobody_reads_or_that_has_gone_loses_the_line() {
        let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let terminal = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        write(terminal.as_fd(), LINE);
        let mut text = [0; 100];
        assert!(File::from(master.try_clone().unwrap()).read(&mut text).unwrap() > LINE.len() - 1);
        write(terminal.as_fd(), &long());
        write(terminal.as_fd(), LINE);
        drop(master);
        write(terminal.as_fd(), LINE);
    }

    #[test]
    fn signals_of_failed_writes_do_not_arrive() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let sigpipe = SigSet::from(Signal::SIGPIPE);
        // The test's harness ignores SIGPIPE, and a blocked signal that is ignored does not wait either; a
        // default one would. SAFETY: the default action replaces no handler that anybody needs, and the
        // signal is blocked on this thread.
        unsafe {
            let before = sigpipe.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap();
            nix::sys::signal::signal(Signal::SIGPIPE, nix::sys::signal::SigHandler::SigDfl).unwrap();
            write(writer.as_fd(), LINE);
            assert!(!pending().contains(Signal::SIGPIPE), "it was taken away");
            rustix::io::write(&writer, LINE).unwrap_err();
            write(writer.as_fd(), LINE);
            assert!(pending().contains(Signal::SIGPIPE), "one from before is the program's");
            nix::sys::signal::signal(Signal::SIGPIPE, nix::sys::signal::SigHandler::SigIgn).unwrap();
            before.thread_set_mask().unwrap();
        }
    }

    #[test]
    fn a_log_writer_always_succeeds() {
        let mut full = LogWriter(File::options().write(true).open("/dev/full").unwrap());
        full.write_all(LINE).unwrap();
        full.flush().unwrap();
    }
}
