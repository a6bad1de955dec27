//! Waiting for several rsockets and descriptors at once.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use core::ffi::{c_int, c_short};
use ferroce_engine::{Held, Sleep};
use ferroce_rsocket::{Ready, Settings, Waker};
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, nfds_t, pollfd, timeval};

use super::table::{self, Entry};
use crate::entry::{Ptr, export};
use crate::errno::Errno;
use crate::wait::{self, Step};

/// Returns the requested events that are ready.
fn events(ready: Ready, asked: c_short) -> c_short {
    let said = |is: bool, event: c_short| if is { event } else { 0 };
    let wanted = said(ready.readable, POLLIN) | said(ready.writable, POLLOUT);
    wanted & asked | said(ready.hang_up, POLLHUP) | said(ready.error, POLLERR)
}

/// `poll` of the system; the number of elements with events.
fn poll(fds: &mut [pollfd], timeout: c_int) -> Result<c_int, Errno> {
    // SAFETY: the pointer and the count are those of one exclusively borrowed slice.
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

    /// Fills in the events that are ready now, and returns the number of elements with events.
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

    /// Prepares a sleep until something may be there. `None`: something may be there now.
    fn fall_asleep(&self, of: Option<(&Arc<Entry>, u64)>) -> Result<Option<Sleep>, Errno> {
        let waker = Waker::own()?;
        let mut watch = Watch { waker, entries: Vec::new(), of: None };
        if let Some((entry, changes)) = of {
            let same = entry.socket.repoll()?.enter(&watch.waker, changes);
            watch.of = Some(Arc::clone(entry));
            if !same {
                return Ok(None);
            }
        }
        let mut there = false;
        let mut channels = Vec::new();
        for (fd, entry) in self.fds.iter().zip(&self.entries) {
            let Some(entry) = entry else { continue };
            // If the library cannot watch a socket, the program's next call on the socket returns the error.
            let Ok((ready, of)) = entry.socket.watch(&watch.waker) else {
                there = true;
                continue;
            };
            watch.entries.push(Arc::clone(entry));
            there |= events(ready, fd.events) != 0;
            channels.extend(of);
        }
        if there {
            return Ok(None);
        }
        let of = |fd: BorrowedFd<'_>| pollfd { fd: fd.as_raw_fd(), events: POLLIN, revents: 0 };
        let mut fds = self.plain.clone();
        fds.extend(channels.iter().map(|channel| of(channel.fd())));
        fds.push(of(watch.waker.fd()));
        // `held` keeps the channels as long as the system looks at their descriptors.
        let held = Held::Own(Box::new((watch, channels.clone())));
        Ok(Sleep::on_channels(&channels, fds, held).map(Sleep::as_poll))
    }
}

/// That a thread waits for rsockets, and perhaps for changes of a set of them.
struct Watch {
    waker: Arc<Waker>,
    entries: Vec<Arc<Entry>>,
    of: Option<Arc<Entry>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.entries.iter().for_each(|entry| entry.socket.unwatch(&self.waker));
        if let Some(set) = self.of.as_ref().and_then(|entry| entry.socket.repoll().ok()) {
            set.leave(&self.waker);
        }
    }
}

/// A wait for several rsockets and descriptors, over its sleeps.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    start: Instant,
    timeout: Option<Duration>,
    slept: bool,
}

impl Wait {
    /// The wait begins now and has this limit.
    pub(super) fn new(timeout: Option<Duration>) -> Self {
        Self { start: Instant::now(), timeout, slept: false }
    }

    fn left(&self, now: Instant) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(now.duration_since(self.start)))
    }

    /// The time is over.
    pub(super) fn is_over(&self) -> bool {
        self.left(Instant::now()) == Some(Duration::ZERO)
    }

    /// Checks whether an event is ready, `timeout` is over, or the set `of`, to which these elements belong,
    /// has another count of changes; if not, prepares a sleep. Returns the number of elements with events.
    pub(super) fn attempt(
        &mut self,
        fds: &mut [pollfd],
        of: Option<(&Arc<Entry>, u64)>,
    ) -> Result<Step<c_int>, Errno> {
        let mut set = Set::new(fds);
        loop {
            let count = set.look()?;
            let now = Instant::now();
            if count > 0 || self.left(now) == Some(Duration::ZERO) {
                return Ok(Step::Done(count));
            }
            if self.slept || now.duration_since(self.start) > Settings::polling() {
                break;
            }
        }
        loop {
            self.slept = true;
            let sleep = set.fall_asleep(of)?;
            if let Some(sleep) = sleep {
                let left = self.left(Instant::now()).map_or(-1, wait::milliseconds);
                return Ok(Step::Sleep(sleep, left));
            }
            let count = set.look()?;
            // The owner of a set looks at its members, which may have changed.
            if count > 0 || of.is_some() || self.is_over() {
                return Ok(Step::Done(count));
            }
        }
    }
}

export! {
    /// Waits until one of several rsockets and descriptors is ready; `timeout` in milliseconds, negative for
    /// ever. A cancellation point.
    pub waiting fn rpoll(fds: Ptr<pollfd>, nfds: nfds_t, timeout: c_int) -> c_int {
        let mut waits = Wait::new(u64::try_from(timeout).ok().map(Duration::from_millis));
        wait::minus_one(|_, woken| {
            woken?;
            let fds = match (fds.is_null(), nfds as usize) {
                (_, 0) => &mut [],
                (true, _) => return Err(Errno::EFAULT),
                // SAFETY: `nfds` is the length of `fds`, which is the program's to lend during the call.
                (false, count) => unsafe { slice::from_raw_parts_mut(fds.as_ptr(), count) },
            };
            waits.attempt(fds, None)
        })
    }
}

/// Collects the events that the program requests for descriptors below `nfds`.
fn asked(nfds: usize, sets: [(Ptr<fd_set>, c_short); 3]) -> Vec<pollfd> {
    let mut fds = Vec::new();
    for fd in 0..nfds as c_int {
        let wanted = sets.iter().filter(|(set, _)| {
            // SAFETY: NULL is not looked at, and the number is below FD_SETSIZE.
            !set.is_null() && unsafe { libc::FD_ISSET(fd, set.as_ptr()) }
        });
        let events = wanted.map(|(_, event)| *event).reduce(|all, event| all | event);
        fds.extend(events.map(|events| pollfd { fd, events, revents: 0 }));
    }
    fds
}

/// Converts the program's timeout; there is no limit if the program gives no time.
fn time(timeout: Ptr<timeval>) -> Result<Option<Duration>, Errno> {
    let Some(time) = timeout.lent() else { return Ok(None) };
    let time = time.read();
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::EINVAL)?;
    let micros = u64::try_from(time.tv_usec).map_err(|_| Errno::EINVAL)?;
    Ok(Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros))))
}

export! {
    /// As [`rpoll`], by sets. The timeout is not changed. A cancellation point.
    pub waiting fn rselect(
        nfds: c_int,
        readfds: Ptr<fd_set>,
        writefds: Ptr<fd_set>,
        exceptfds: Ptr<fd_set>,
        timeout: Ptr<timeval>,
    ) -> c_int {
        let mut waits = None;
        wait::minus_one(|_, woken| {
            woken?;
            let nfds =
                usize::try_from(nfds).ok().filter(|nfds| *nfds <= libc::FD_SETSIZE).ok_or(Errno::EINVAL)?;
            let waits = match &mut waits {
                Some(waits) => waits,
                None => waits.insert(Wait::new(time(timeout)?)),
            };
            let mut fds = asked(nfds, [(readfds, POLLIN), (writefds, POLLOUT), (exceptfds, POLLPRI)]);
            if let sleep @ Step::Sleep(..) = waits.attempt(&mut fds, None)? {
                return Ok(sleep);
            }
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
                // SAFETY: not NULL, so writable.
                unsafe { libc::FD_ZERO(set.as_ptr()) };
                for fd in fds.iter().filter(|fd| fd.events & asked != 0 && fd.revents & said != 0) {
                    // SAFETY: not NULL, so writable; the number is below FD_SETSIZE.
                    unsafe { libc::FD_SET(fd.fd, set.as_ptr()) };
                    count += 1;
                }
            }
            Ok(Step::Done(count))
        })
    }
}
