//! Descriptors that say to a program that something waits for it.
//!
//! Linux's descriptors of completion channels, asynchronous events and event channels report POLLIN and
//! nothing else. An `eventfd` reports POLLOUT as well, and event loops that ask for both directions would
//! spin. So a program gets an epoll descriptor, which is never writable and refuses `read`. Its member is an
//! eventfd that is always readable, the *source*; raising the signal sets the interest in it to EPOLLIN,
//! lowering the signal clears the interest. A source serves several signals, so that a program with many
//! channels needs no second descriptor for each. A umad port is always writable in Linux; its descriptor is
//! one end of a socket pair.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use crate::fork::{self, Guarded};

/// Signals on one source. The kernel allows 500 paths of two steps from one file to the epoll sets that wait
/// for it, and 100 of three steps (`path_limits` in Linux's fs/eventpoll.c). With 16 signals each of them can
/// be in 31 sets of the program.
const MEMBERS: usize = 16;

/// A descriptor that is readable between [`Self::raise`] and [`Self::lower`]. The caller serialises these two
/// calls.
pub enum Signal {
    /// Readable or not, never writable.
    Interest(Interest),
    /// Always writable.
    Writable(Writable),
}

impl Signal {
    /// Makes one that is never writable.
    pub fn new() -> io::Result<Self> {
        Interest::new().map(Self::Interest)
    }

    /// Makes one that is always writable.
    pub fn writable() -> io::Result<Self> {
        Writable::new().map(Self::Writable)
    }

    /// The descriptor that the program gets.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Interest(interest) => interest.set.as_fd(),
            Self::Writable(writable) => writable.ours_and_theirs.1.as_fd(),
        }
    }

    /// Makes it readable as well while `other` is. One descriptor at a time, and not for a writable signal.
    pub fn join(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Interest(interest) => {
                Ok(epoll::add(&interest.set, other, EventData::new_u64(1), EventFlags::IN)?)
            }
            Self::Writable(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Takes back [`Self::join`]. Closing `other` is not enough: another process may hold the same open file.
    pub fn part(&self, other: BorrowedFd<'_>) {
        if let Self::Interest(interest) = self
            && let Err(errno) = epoll::delete(&interest.set, other)
        {
            tracing::error!(%errno, "cannot take a socket out of a channel");
        }
    }

    /// Makes it readable, or, `again`, gives an edge to programs that wait for edges although it is readable.
    /// Never blocks.
    pub fn raise(&self, again: bool) {
        let raised = match self {
            Self::Interest(interest) if again => interest.source.touch(),
            Self::Interest(interest) => interest.set_interest(EventFlags::IN),
            Self::Writable(writable) => writable.raise(),
        };
        if let Err(error) = raised {
            tracing::error!(%error, "cannot signal an event");
        }
    }

    /// Makes it unreadable. Never blocks, whatever flags the program set on the descriptor.
    pub fn lower(&self) {
        let lowered = match self {
            Self::Interest(interest) => interest.lower(),
            Self::Writable(writable) => writable.lower(),
        };
        if let Err(error) = lowered {
            tracing::error!(%error, "cannot take a signal back");
        }
    }
}

/// An epoll set and its member.
pub struct Interest {
    set: Guarded<OwnedFd>,
    source: Arc<Source>,
}

impl Interest {
    fn new() -> io::Result<Self> {
        let source = Source::with_room()?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&set, &source.counter, EventData::new_u64(0), EventFlags::empty())?;
        Ok(Self { set: Guarded::new(set), source })
    }

    fn set_interest(&self, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.set, &self.source.counter, EventData::new_u64(0), interest)?)
    }

    fn lower(&self) -> io::Result<()> {
        self.set_interest(EventFlags::empty())?;
        // The member is still in the kernel's list of those that may be ready, and raising the signal would
        // give no edge. A look at the set takes it off the list.
        let mut events = [const { std::mem::MaybeUninit::<Event>::uninit() }; MEMBERS];
        epoll::wait(&self.set, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        Ok(())
    }
}

/// An eventfd that is always readable.
struct Source {
    counter: Guarded<OwnedFd>,
    epoch: u64,
}

/// The sources that exist.
static SOURCES: Mutex<Vec<Weak<Source>>> = Mutex::new(Vec::new());

impl Source {
    /// A source with fewer than [`MEMBERS`] signals.
    fn with_room() -> io::Result<Arc<Self>> {
        // In a forked child the lock may be held for ever, by a thread that only the parent has.
        let Some(mut sources) = SOURCES.try_lock() else { return Self::new() };
        sources.retain(|source| source.strong_count() > 0);
        let usable =
            |source: &Arc<Self>| source.epoch == fork::epoch() && Arc::strong_count(source) <= MEMBERS;
        if let Some(source) = sources.iter().filter_map(Weak::upgrade).find(usable) {
            return Ok(source);
        }
        let source = Self::new()?;
        sources.push(Arc::downgrade(&source));
        Ok(source)
    }

    fn new() -> io::Result<Arc<Self>> {
        let counter = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { counter: Guarded::new(counter), epoch: fork::epoch() }))
    }

    /// An edge for every set with interest, which are those whose signal is raised. Programs that wait for
    /// levels see no difference.
    fn touch(&self) -> io::Result<()> {
        rustix::io::write(&self.counter, &1u64.to_ne_bytes())?;
        Ok(())
    }
}

/// A socket pair, in which an octet lies for each time it was raised.
pub struct Writable {
    ours_and_theirs: (Guarded<OwnedFd>, Guarded<OwnedFd>),
}

impl Writable {
    fn new() -> io::Result<Self> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { ours_and_theirs: (Guarded::new(ours), Guarded::new(theirs)) })
    }

    fn raise(&self) -> io::Result<()> {
        match send(&self.ours_and_theirs.0, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            // Full, it is readable.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn lower(&self) -> io::Result<()> {
        let mut octets = [0; 64];
        loop {
            match recv(&self.ours_and_theirs.1, &mut octets, RecvFlags::DONTWAIT) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn state_of(fd: BorrowedFd<'_>) -> PollFlags {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll");
        fds[0].revents()
    }

    /// Held by each test: signals of one source get an edge when one of them is raised again.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A set of the program with `signal` in it, and whether it reports something now.
    fn set_with(signal: &Signal, flags: EventFlags) -> OwnedFd {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        epoll::add(&set, signal.fd(), EventData::new_u64(7), flags).expect("a set may hold it");
        set
    }

    fn reports(set: &OwnedFd) -> bool {
        let mut events = Vec::with_capacity(4);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(set, rustix::buffer::spare_capacity(&mut events), Some(&now)).expect("epoll_wait") > 0
    }

    #[test]
    fn readable_while_raised() {
        let _alone = ALONE.lock();
        let (interest, writable) = (Signal::new().expect("epoll"), Signal::writable().expect("sockets"));
        for (signal, always) in [(&interest, PollFlags::empty()), (&writable, PollFlags::OUT)] {
            for _ in 0..3 {
                assert_eq!(state_of(signal.fd()), always);
                signal.raise(false);
                signal.raise(true);
                assert_eq!(state_of(signal.fd()), always | PollFlags::IN);
                signal.lower();
            }
            signal.lower();
            assert_eq!(state_of(signal.fd()), always);
        }
    }

    #[test]
    fn each_raise_is_an_edge() {
        let _alone = ALONE.lock();
        for signal in [Signal::new().expect("epoll"), Signal::writable().expect("sockets")] {
            let set = set_with(&signal, EventFlags::IN | EventFlags::ET);
            for _ in 0..3 {
                assert!(!reports(&set));
                signal.raise(false);
                assert!(reports(&set) && !reports(&set));
                signal.raise(true);
                assert!(reports(&set) && !reports(&set));
                // No program looks between these two.
                signal.lower();
                signal.raise(false);
                assert!(reports(&set) && !reports(&set));
                signal.lower();
            }
        }
    }

    #[test]
    fn signals_of_one_source_are_apart() {
        let _alone = ALONE.lock();
        let signals: Vec<_> = (0..3 * MEMBERS).map(|_| Signal::new().expect("epoll")).collect();
        let sets: Vec<Vec<_>> = signals
            .iter()
            .map(|signal| (0..31).map(|_| set_with(signal, EventFlags::IN)).collect())
            .collect();
        signals[1].raise(false);
        signals[1].raise(true);
        for (index, (signal, sets)) in signals.iter().zip(&sets).enumerate() {
            assert_eq!(state_of(signal.fd()).contains(PollFlags::IN), index == 1);
            assert!(sets.iter().all(|set| reports(set) == (index == 1)));
        }
    }

    #[test]
    fn nobody_can_read_a_signal_away() {
        let _alone = ALONE.lock();
        let signal = Signal::new().expect("epoll");
        signal.raise(false);
        assert!(rustix::io::read(signal.fd(), &mut [0; 8]).is_err());
        assert_eq!(state_of(signal.fd()), PollFlags::IN);

        let port = Signal::writable().expect("sockets");
        port.raise(false);
        assert_eq!(rustix::io::read(port.fd(), &mut [0; 8]), Ok(1));
        port.lower();
    }
}
