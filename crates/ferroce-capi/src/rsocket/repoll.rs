//! Sets of rsockets and descriptors that are waited for again and again: `epoll` of rsockets, of rdma-core
//! 65.
//!
//! Always level-triggered, as rdma-core's: what is ready is told until it is not. Failures are -1 and errno,
//! as of `epoll` and the man page's word that the calls are like it; rdma-core returns the errno itself.
//!
//! The kernel's set is used by system calls: librspreload of rdma-core 65 sends the C library's epoll calls
//! to the calls of this module, without end if they came back.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use std::{io, ptr};

use core::ffi::c_int;
use ferroce_host::fork::Guarded;
use ferroce_rsocket::Waker;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, POLLIN, epoll_event, pollfd};
use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags};

use super::poll;
use super::table::{self, Entry, Socket};
use crate::call;
use crate::entry::{Ptr, export};
use crate::errno::Errno;
use crate::wait::{self, Step};

/// The events that the set can report. The numbers are those of `poll`.
const KNOWN: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLPRI) as u32;

/// A set.
pub(super) struct Repoll {
    /// For its number; nobody wakes it.
    own: Arc<Waker>,
    interests: Mutex<Interests>,
    /// An epoll set of the descriptors that are no rsockets, from the first of them on. The kernel takes out
    /// what is closed.
    plain: OnceLock<Guarded<OwnedFd>>,
}

#[derive(Default)]
struct Interests {
    list: Vec<Interest>,
    /// Changes so far.
    changes: u64,
    /// The threads that wait on the set.
    waiting: Vec<Arc<Waker>>,
}

#[derive(Clone)]
struct Interest {
    fd: c_int,
    /// The rsocket that had the number when it was added.
    entry: Weak<Entry>,
    events: u32,
    data: u64,
}

impl Interest {
    /// Whether the number still stands for the rsocket. As epoll has it, a set forgets an rsocket that was
    /// closed.
    fn is_current(&self) -> bool {
        // The allocation lives as long as the `Weak`, so no other rsocket has its address.
        table::find(self.fd).is_some_and(|now| ptr::eq(Arc::as_ptr(&now), self.entry.as_ptr()))
    }
}

impl Repoll {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.own.fd()
    }

    /// Wakes the waiting threads: each checks the set again, or finds it closed.
    pub(super) fn changed(&self) {
        let mut interests = self.interests.lock();
        interests.changes += 1;
        interests.waiting.iter().for_each(|waker| waker.wake());
    }

    /// `waker` is woken by changes after `seen` of them; `false` if there were others already.
    pub(super) fn enter(&self, waker: &Arc<Waker>, seen: u64) -> bool {
        let mut interests = self.interests.lock();
        interests.waiting.push(Arc::clone(waker));
        interests.changes == seen
    }

    pub(super) fn leave(&self, waker: &Arc<Waker>) {
        self.interests.lock().waiting.retain(|known| !Arc::ptr_eq(known, waker));
    }

    fn control(&self, op: c_int, fd: c_int, event: Option<epoll_event>) -> Result<(), Errno> {
        let mut interests = self.interests.lock();
        interests.list.retain(Interest::is_current);
        let place = interests.list.iter().position(|known| known.fd == fd);
        let entry = table::find(fd).as_ref().map(Arc::downgrade);
        let fresh = |entry| {
            let event = event.ok_or(Errno::EFAULT)?;
            Ok::<_, Errno>(Interest { fd, entry, events: event.events & KNOWN, data: event.u64 })
        };
        let Some(entry) = entry else {
            self.control_plain(op, fd, event)?;
            drop(interests);
            self.changed();
            return Ok(());
        };
        match (op, place) {
            (EPOLL_CTL_ADD, None) => interests.list.push(fresh(entry)?),
            (EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EEXIST),
            (EPOLL_CTL_MOD, Some(place)) => interests.list[place] = fresh(entry)?,
            (EPOLL_CTL_DEL, Some(place)) => {
                interests.list.swap_remove(place);
            }
            (EPOLL_CTL_MOD | EPOLL_CTL_DEL, None) => return Err(Errno::ENOENT),
            _ => return Err(Errno::EINVAL),
        }
        drop(interests);
        self.changed();
        Ok(())
    }
}

impl Repoll {
    /// Changes the epoll set. Its errors are epoll's, such as EPERM for a file that cannot be waited for. The
    /// lock is held.
    fn control_plain(&self, op: c_int, fd: c_int, event: Option<epoll_event>) -> Result<(), Errno> {
        let set = match self.plain.get() {
            Some(set) => set,
            None => {
                let made = Guarded::new(epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from)?);
                self.plain.get_or_init(|| made)
            }
        };
        let mut event = event.map(|event| epoll_event { events: event.events & KNOWN, ..event });
        let event = event.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the set is open, and `event` is NULL or lives until the call returns.
        let done = unsafe { libc::syscall(libc::SYS_epoll_ctl, set.as_fd().as_raw_fd(), op, fd, event) };
        if done < 0 { Err(io::Error::last_os_error().into()) } else { Ok(()) }
    }

    fn plain_fd(&self) -> Option<RawFd> {
        self.plain.get().map(|set| set.as_fd().as_raw_fd())
    }
}

/// An empty set; [`super::rclose`] ends it. `EPOLL_CLOEXEC` is as good as set always.
pub extern "C" fn repoll_create(flags: c_int) -> c_int {
    call::minus_one(|_| {
        if flags & !(libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return Err(Errno::EINVAL);
        }
        let repoll = Repoll { own: Waker::alone()?, interests: Mutex::default(), plain: OnceLock::new() };
        Ok(table::insert(Entry::new(Socket::Repoll(repoll), 0, libc::FD_CLOEXEC)))
    })
}

export! {
    /// Adds an rsocket or descriptor, changes what is told of it, or takes it out. EBADF if the number is not
    /// open.
    pub fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: Ptr<epoll_event>) -> c_int = call::minus_one |_| {
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        let entry = table::get(epfd)?;
        if epfd == fd {
            return Err(Errno::EINVAL);
        }
        let event = event.lent().map(|event| event.read());
        entry.socket.repoll()?.control(op, fd, event)?;
        Ok(0)
    }

    /// Waits until something of the set is ready; `timeout` in milliseconds, negative for ever. How many were
    /// told. A cancellation point.
    pub waiting fn repoll_wait(
        epfd: c_int,
        events: Ptr<epoll_event>,
        maxevents: c_int,
        timeout: c_int,
    ) -> c_int {
        let mut waits = poll::Wait::new(u64::try_from(timeout).ok().map(Duration::from_millis));
        wait::minus_one(|_, woken| {
            woken?;
            let entry = table::get(epfd)?;
            let set = entry.socket.repoll()?;
            let room = usize::try_from(maxevents).ok().filter(|room| *room > 0).ok_or(Errno::EINVAL)?;
            if events.is_null() {
                return Err(Errno::EFAULT);
            }
            loop {
                let (list, changes, plain) = {
                    let mut interests = set.interests.lock();
                    interests.list.retain(Interest::is_current);
                    (interests.list.clone(), interests.changes, set.plain_fd())
                };
                let wanted = |known: &Interest| pollfd { fd: known.fd, events: known.events as i16, revents: 0 };
                let plain = plain.map(|fd| pollfd { fd, events: POLLIN, revents: 0 });
                let mut fds: Vec<_> = list.iter().map(wanted).chain(plain).collect();
                if let sleep @ Step::Sleep(..) = waits.attempt(&mut fds, Some((&entry, changes)))? {
                    return Ok(sleep);
                }
                let ready =
                    list.iter().zip(&fds).filter(|(_, fd)| fd.revents & libc::POLLNVAL == 0 && fd.revents != 0);
                let mut count = 0;
                for (known, fd) in ready.take(room) {
                    let event = epoll_event { events: fd.revents as u32 & KNOWN, u64: known.data };
                    // SAFETY: there is room for `maxevents`, and `count` is less.
                    unsafe { events.as_ptr().add(count).write_unaligned(event) };
                    count += 1;
                }
                if let Some(plain) = fds.get(list.len()).filter(|plain| plain.revents != 0 && count < room) {
                    let left = c_int::try_from(room - count).unwrap_or(c_int::MAX);
                    // SAFETY: there is room for `left` behind the first `count`, and the set lives as long as
                    // `entry`.
                    let told = unsafe {
                        let events = events.as_ptr().add(count);
                        libc::syscall(libc::SYS_epoll_pwait, plain.fd, events, left, 0, ptr::null::<u8>(), 8)
                    };
                    count += usize::try_from(told).map_err(|_| io::Error::last_os_error())?;
                }
                // Closed meanwhile, or something else was asked for.
                table::get(epfd)?;
                if count > 0 || waits.is_over() {
                    return Ok(Step::Done(count as c_int));
                }
            }
        })
    }
}
