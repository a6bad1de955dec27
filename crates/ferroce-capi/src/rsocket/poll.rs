//! Waiting for several rsockets and descriptors at once.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use core::ffi::{c_int, c_short};
use ferroce_engine::rsocket::{Ready, Settings, Waker, attend};
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, nfds_t, pollfd, timeval};

use super::repoll::Repoll;
use super::table::{self, Entry};
use crate::call;
use crate::errno::Errno;

/// What a program asked for that is there.
fn events(ready: Ready, asked: c_short) -> c_short {
    let said = |is: bool, event: c_short| if is { event } else { 0 };
    let wanted = said(ready.readable, POLLIN) | said(ready.writable, POLLOUT);
    wanted & asked | said(ready.hang_up, POLLHUP) | said(ready.error, POLLERR)
}

/// `poll` of the system; the number of elements with events.
fn poll(fds: &mut [pollfd], timeout: c_int) -> Result<c_int, Errno> {
    // SAFETY: so many elements may be read and written.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout) };
    if count < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(count) }
}

/// The elements of one call, and which of them are rsockets.
struct Set<'a> {
    fds: &'a mut [pollfd],
    entries: Vec<Option<Arc<Entry>>>,
    /// For the system: all that are no rsockets; -1 in the place of those.
    plain: Vec<pollfd>,
}

impl<'a> Set<'a> {
    fn new(fds: &'a mut [pollfd]) -> Self {
        let entries: Vec<_> = fds.iter().map(|fd| table::find(fd.fd)).collect();
        let plain = fds.iter().zip(&entries).map(|(fd, entry)| match entry {
            Some(_) => pollfd { fd: -1, events: 0, revents: 0 },
            None => pollfd { revents: 0, ..*fd },
        });
        Self { plain: plain.collect(), entries, fds }
    }

    fn count(&self) -> c_int {
        self.fds.iter().filter(|fd| fd.revents != 0).count() as c_int
    }

    /// What is there now; how many.
    fn look(&mut self) -> Result<c_int, Errno> {
        if self.entries.iter().any(Option::is_none) {
            poll(&mut self.plain, 0)?;
        }
        for ((fd, entry), plain) in self.fds.iter_mut().zip(&self.entries).zip(&self.plain) {
            fd.revents = match entry {
                Some(entry) => events(entry.socket.ready(), fd.events),
                None => plain.revents,
            };
        }
        Ok(self.count())
    }

    /// Sleeps until something may be there, or `timeout` milliseconds are over. `there`: do not.
    fn sleep(&self, waker: &Arc<Waker>, mut there: bool, timeout: c_int) -> Result<(), Errno> {
        let mut real = self.plain.clone();
        let mut channels = Vec::new();
        for (fd, entry) in self.fds.iter().zip(&self.entries) {
            let Some(entry) = entry else { continue };
            // What cannot be watched is found not to work by the call that the program makes next.
            let Ok((ready, of)) = entry.socket.watch(waker) else {
                there = true;
                continue;
            };
            there |= events(ready, fd.events) != 0;
            // They live as long as the system looks at their descriptors.
            channels.extend(of);
        }
        let of = |fd: BorrowedFd<'_>| pollfd { fd: fd.as_raw_fd(), events: POLLIN, revents: 0 };
        real.extend(channels.iter().map(|channel| of(channel.fd())));
        real.push(of(waker.fd()));
        let slept = if there {
            Ok(())
        } else {
            attend(&channels, |lanes| {
                let from = real.len();
                real.extend(lanes.iter().map(|lane| of(*lane)));
                poll(&mut real, timeout)?;
                let readable = real[from..].iter().enumerate().filter(|(_, fd)| fd.revents != 0);
                Ok(readable.fold(0, |readable, (index, _)| readable | 1 << index))
            })
        };
        self.entries.iter().flatten().for_each(|entry| entry.socket.unwatch(waker));
        slept
    }
}

/// Waits until something is there, `timeout` is over, or `of`, whose elements these are, changed after so many changes.
pub(super) fn wait(
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    of: Option<(&Repoll, u64)>,
) -> Result<c_int, Errno> {
    let mut set = Set::new(fds);
    let start = Instant::now();
    let left = |now: Instant| timeout.map(|timeout| timeout.saturating_sub(now.duration_since(start)));
    loop {
        let count = set.look()?;
        let now = Instant::now();
        if count > 0 || left(now) == Some(Duration::ZERO) {
            return Ok(count);
        }
        if now.duration_since(start) > Settings::polling() {
            break;
        }
    }
    let waker = Waker::own()?;
    loop {
        // Rounded up, lest the last millisecond is spent spinning.
        let milliseconds = left(Instant::now())
            .map_or(-1, |left| c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX));
        waker.clear();
        let same = of.is_none_or(|(of, changes)| of.enter(&waker, changes));
        let slept = set.sleep(&waker, !same, milliseconds);
        if let Some((of, _)) = of {
            of.leave(&waker);
        }
        slept?;
        let count = set.look()?;
        // What belongs to a set that may have changed is looked at by its owner.
        if count > 0 || of.is_some() || left(Instant::now()) == Some(Duration::ZERO) {
            return Ok(count);
        }
    }
}

/// Waits until one of several rsockets and descriptors is ready; `timeout` in milliseconds, negative for ever.
///
/// # Safety
///
/// `fds` is NULL or has `nfds` elements.
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    call::minus_one(|_| {
        let fds = match (fds.is_null(), nfds as usize) {
            (_, 0) => &mut [],
            (true, _) => return Err(Errno::EFAULT),
            // SAFETY: as the caller says.
            (false, count) => unsafe { slice::from_raw_parts_mut(fds, count) },
        };
        wait(fds, u64::try_from(timeout).ok().map(Duration::from_millis), None)
    })
}

/// What a program wants of descriptors below `nfds`.
///
/// # Safety
///
/// Each set is NULL or readable.
unsafe fn asked(nfds: usize, sets: [(*mut fd_set, c_short); 3]) -> Vec<pollfd> {
    let mut fds = Vec::new();
    for fd in 0..nfds as c_int {
        let wanted = sets.iter().filter(|(set, _)| {
            // SAFETY: NULL is not looked at, and the number is below FD_SETSIZE.
            !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) }
        });
        let events = wanted.map(|(_, event)| *event).reduce(|all, event| all | event);
        fds.extend(events.map(|events| pollfd { fd, events, revents: 0 }));
    }
    fds
}

/// As [`rpoll`], by sets. The timeout is not changed.
///
/// # Safety
///
/// Each pointer is NULL, or may be read and written.
pub unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    call::minus_one(|_| {
        let nfds =
            usize::try_from(nfds).ok().filter(|nfds| *nfds <= libc::FD_SETSIZE).ok_or(Errno::EINVAL)?;
        // SAFETY: as the caller says.
        let timeout = match unsafe { timeout.as_ref() } {
            None => None,
            Some(time) => {
                let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::EINVAL)?;
                let micros = u64::try_from(time.tv_usec).map_err(|_| Errno::EINVAL)?;
                Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
            }
        };
        // SAFETY: as the caller says.
        let mut fds = unsafe { asked(nfds, [(readfds, POLLIN), (writefds, POLLOUT), (exceptfds, POLLPRI)]) };
        wait(&mut fds, timeout, None)?;
        if fds.iter().any(|fd| fd.revents & POLLNVAL != 0) {
            return Err(Errno::EBADF);
        }
        // As the system has it: what broke is readable and writable.
        let sets = [
            (readfds, POLLIN, POLLIN | POLLHUP | POLLERR),
            (writefds, POLLOUT, POLLOUT | POLLERR),
            (exceptfds, POLLPRI, POLLPRI),
        ];
        let mut count = 0;
        for (set, asked, said) in sets.into_iter().filter(|(set, ..)| !set.is_null()) {
            // SAFETY: not NULL, and writable as the caller says.
            unsafe { libc::FD_ZERO(set) };
            for fd in fds.iter().filter(|fd| fd.events & asked != 0 && fd.revents & said != 0) {
                // SAFETY: as above; the number is below FD_SETSIZE.
                unsafe { libc::FD_SET(fd.fd, set) };
                count += 1;
            }
        }
        Ok(count)
    })
}
