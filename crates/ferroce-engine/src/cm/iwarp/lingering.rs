//! The end of a connection: the last octets leave, the peer's are read to their end, and then the socket is
//! closed.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ferroce_wire::Instant;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::manager::{Results, Wait, Waiting};

/// The socket is closed after this time, whatever the peer does.
const LONGEST: Duration = Duration::from_secs(2);
/// Octets of the peer that are read at most.
const MOST: usize = 16 << 20;
/// Octets that are read before other connections have their turn.
const AT_ONCE: usize = 1 << 20;
const PIECE: usize = 64 << 10;

/// The consequence of FIN: the program is told that the connection ended. A program that waits for this
/// before it exits gives the peer its time.
type Then = Box<dyn FnOnce() + Send>;

/// A connection that ended for its queue pair. Octets of the peer that nobody reads would make TCP send a
/// RST, which can overtake our last message.
pub(super) struct Lingering {
    socket: Arc<dyn AsFd + Send + Sync>,
    until: Instant,
    /// The last octets, those before `sent` with TCP.
    unsent: Vec<u8>,
    sent: usize,
    /// FIN does not leave before.
    fin_at: Instant,
    /// FIN is on its way.
    finished: bool,
    /// Called when it is, or cannot be.
    then: Option<Then>,
    /// Octets that are still read.
    left: usize,
}

impl Lingering {
    /// FIN leaves at `fin_at`, or when the octets have left.
    pub(super) fn new(
        socket: Arc<dyn AsFd + Send + Sync>,
        unsent: Vec<u8>,
        fin_at: Instant,
        now: Instant,
        then: Then,
    ) -> Self {
        let (then, until) = (Some(then), now + LONGEST);
        Self { socket, until, unsent, sent: 0, fin_at, finished: false, then, left: MOST }
    }

    /// The consequence, if it is time for it.
    pub(super) fn take_then(&mut self, continues: bool) -> Option<Then> {
        if self.finished || !continues { self.then.take() } else { None }
    }

    /// Time at which FIN leaves; `None` if it has left.
    fn fin_at(&self) -> Option<Instant> {
        (!self.finished).then_some(self.fin_at)
    }

    /// Goes on; returns whether there is more to wait for.
    pub(super) fn continues(&mut self, now: Instant) -> bool {
        self.send(now) && self.read()
    }

    /// Sends the last octets and FIN, as far as TCP takes them. `false` if the connection is broken.
    fn send(&mut self, now: Instant) -> bool {
        while let Some(octets) = self.unsent.get(self.sent..).filter(|octets| !octets.is_empty()) {
            match rustix::net::send(&*self.socket, octets, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        if !self.finished && now >= self.fin_at {
            self.finished = true;
            return rustix::net::shutdown(&*self.socket, Shutdown::Write).is_ok();
        }
        true
    }

    /// Reads and forgets what the peer sent. `false` at its end.
    fn read(&mut self) -> bool {
        let mut piece = [0; PIECE];
        let mut read = 0;
        while read < AT_ONCE {
            match rustix::net::recv(&*self.socket, &mut piece, RecvFlags::DONTWAIT) {
                Ok((len, _)) if len > 0 && len < self.left => {
                    self.left -= len;
                    read += len;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }
}

impl Waiting for Lingering {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn interest(&self) -> Option<EventFlags> {
        let all_sent = self.sent == self.unsent.len();
        Some(if all_sent { EventFlags::IN } else { EventFlags::IN | EventFlags::OUT })
    }

    fn until(&self) -> Option<Instant> {
        // While octets wait, room for them is the next thing to happen.
        let all_sent = self.sent == self.unsent.len();
        Some(self.fin_at().filter(|_| all_sent).map_or(self.until, |fin_at| fin_at.min(self.until)))
    }

    fn go_on(mut self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        let continues = now < self.until && self.continues(now);
        if let Some(then) = self.take_then(continues) {
            results.deliver(then);
        }
        if continues { Some(self) } else { None }
    }

    fn expire(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        self.go_on(now, results)
    }

    /// Closes the connection early.
    fn unwatched(mut self: Box<Self>, _: Errno, _: Instant, results: &mut Results) -> Option<Wait> {
        if let Some(then) = self.take_then(false) {
            results.deliver(then);
        }
        None
    }
}
