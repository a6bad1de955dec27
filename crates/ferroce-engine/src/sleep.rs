//! How a thread of the program sleeps inside a call: what it sleeps on, and what ends with the sleep.
//!
//! A call that waits is made of attempts. Each attempt either has its result or prepares a [`Sleep`]; a C
//! call returns that to its outermost frame, which sleeps where the thread may be cancelled, without any lock
//! and without a frame that has a destructor. Rust callers sleep by [`Sleep::sleep`].

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::{fmt, io};

use crate::error::EventError;
use crate::lane::{self, Lane, LaneSet, WATCHED, Watch};
use ferroce_host::{event, process};

/// The things that must live as long as a sleep: owners of the descriptors, and a destructor that takes back
/// what was registered.
pub enum Held {
    /// The caller has it.
    Nothing,
    /// An object that others hold as well.
    Shared(Arc<dyn Any + Send + Sync>),
    /// An object of this sleep alone.
    Own(Box<dyn Any + Send + Sync>),
}

/// A sleep that is prepared: while it lives, this thread watches the lanes and is in the lists of those who
/// wake it. Dropping it takes all of that back, so a thread that is cancelled in its sleep leaves nothing
/// behind.
pub struct Sleep {
    /// The lanes' descriptors are the last ones.
    fds: Fds,
    watch: Watch,
    /// The call stands for `poll`, `select` or `epoll_wait`, see [`Self::as_poll`].
    polls: bool,
    _held: Held,
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").finish_non_exhaustive()
    }
}

/// Few in completion channels, which must not allocate; any number in sets of rsockets.
enum Fds {
    Few([libc::pollfd; WATCHED + 1], usize),
    Many(Vec<libc::pollfd>),
}

/// `poll` leaves it alone.
const NO_FD: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };

impl Fds {
    fn new(all: impl Iterator<Item = libc::pollfd> + Clone) -> Self {
        let mut few = [NO_FD; WATCHED + 1];
        let count = all.clone().count();
        if count > few.len() {
            return Self::Many(all.collect());
        }
        few.iter_mut().zip(all).for_each(|(place, fd)| *place = fd);
        Self::Few(few, count)
    }

    fn slice(&mut self) -> &mut [libc::pollfd] {
        match self {
            Self::Few(fds, count) => &mut fds[..*count],
            Self::Many(fds) => fds,
        }
    }
}

impl Sleep {
    /// A sleep on these descriptors alone.
    pub fn on(fds: impl IntoIterator<Item = libc::pollfd, IntoIter: Clone>, held: Held) -> Self {
        Self { fds: Fds::new(fds.into_iter()), watch: Watch::default(), polls: false, _held: held }
    }

    /// A sleep until `event` is readable.
    pub fn until_readable(event: BorrowedFd<'_>, held: Held) -> Self {
        Self::on([event::readable(event)], held)
    }

    /// A sleep on these descriptors, in which the thread also receives on `lanes`. `None`: something arrived
    /// meanwhile.
    pub(crate) fn on_lanes(
        lanes: &[Arc<Lane>],
        fds: impl IntoIterator<Item = libc::pollfd, IntoIter: Clone>,
        held: Held,
    ) -> Option<Self> {
        let watch = lane::watch(lanes)?;
        let mut of_lanes = [NO_FD; WATCHED];
        of_lanes.iter_mut().zip(watch.fds()).for_each(|(place, fd)| *place = event::readable(fd));
        let fds = Fds::new(fds.into_iter().chain(of_lanes.into_iter().take(watch.fds().count())));
        Some(Self { fds, watch, polls: false, _held: held })
    }

    /// The call stands for `poll`, `select` or `epoll_wait`, which return EINTR after every signal handler.
    /// Without this a sleep stands for `read`, which a handler with SA_RESTART does not end (signal(7)).
    #[must_use]
    pub fn as_poll(self) -> Self {
        Self { polls: true, ..self }
    }

    /// The argument for `poll`.
    pub fn fds(&mut self) -> &mut [libc::pollfd] {
        self.fds.slice()
    }

    /// The sleep is over, with the outcome of `poll`: what arrived on the lanes is processed, and the
    /// preparations are taken back. The caller looks whether it has what it waits for.
    ///
    /// # Errors
    ///
    /// [`EventError::Interrupted`] after a signal whose handler requests the return, or after any handler,
    /// see [`Self::as_poll`].
    pub fn end(mut self, polled: io::Result<()>) -> Result<(), EventError> {
        match polled {
            Ok(()) => {
                let fds = self.fds.slice();
                let lanes = fds.len() - self.watch.fds().count();
                self.watch.serve(fds[lanes..].iter().map(|fd| fd.revents != 0));
                Ok(())
            }
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(EventError::Io(error)),
            Err(_) if self.polls || process::a_handler_interrupts() => Err(EventError::Interrupted),
            Err(_) => Ok(()),
        }
    }

    /// Sleeps here, for callers that are not cancelled.
    ///
    /// # Errors
    ///
    /// As for [`Self::end`].
    pub fn sleep(mut self) -> Result<(), EventError> {
        let polled = event::poll(self.fds(), -1);
        self.end(polled.map(drop))
    }
}

impl LaneSet {
    /// Prepares a sleep until `event` is readable or something arrived on a lane. `None`: something arrived
    /// meanwhile, and was processed. `held` lives as long as the sleep.
    pub(crate) fn fall_asleep(&self, event: BorrowedFd<'_>, held: Held) -> Option<Sleep> {
        Sleep::on_lanes(&self.all(), [event::readable(event)], held)
    }
}
