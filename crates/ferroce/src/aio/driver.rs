//! The driver: wakes futures when the descriptor says so.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use ferroce_engine::WorkCompletion;
use ferroce_engine::error::{EventError, Overrun};
use rustix::event::{Timespec, epoll};

use super::end::{Effects, End};
use super::lock;
use crate::{Completion, CompletionChannel, CompletionQueue, Context, Error, Qpn, Status};

/// Token of the completion channel's descriptor; others count from 1.
const CHANNEL: u64 = 0;
/// Completions and ready descriptors that are taken in one step.
const AT_ONCE: usize = 16;

/// A ready descriptor is reported once, until it is armed again.
const ONCE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

/// Wakes the futures of its endpoints, listeners and connections. Clones are the same driver.
///
/// A runtime waits until the descriptor ([`AsFd`]) is readable and then calls [`Self::turn`]. It may wait for
/// edges or for the level. Futures make no progress unless `turn` is called; apart from that, any thread
/// may poll them.
#[derive(Clone)]
pub struct Driver {
    pub(super) shared: Arc<Shared>,
}

/// Lock order: `turn`, `ends` or `watched`, the state of an endpoint. No lock is held while tasks are woken
/// or buffers return to their pools.
pub(super) struct Shared {
    pub(super) context: Context,
    channel: CompletionChannel,
    pub(super) queue: CompletionQueue,
    /// The channel, and the descriptors of connection management.
    epoll: OwnedFd,
    ends: Mutex<HashMap<Qpn, Arc<End>>>,
    watched: Mutex<Watched>,
    /// Held while completions are taken, so that they are delivered in order.
    turn: Mutex<Effects>,
}

/// The descriptors of connection management that somebody waits for.
#[derive(Default)]
struct Watched {
    last: u64,
    interests: HashMap<u64, Interest>,
    /// The driver failed: nothing will be reported.
    dead: Option<Dead>,
}

impl Watched {
    fn alive(&self) -> Result<(), Error> {
        self.dead.map_or(Ok(()), |dead| Err(dead.error()))
    }
}

/// The reason why a driver failed.
#[derive(Clone, Copy)]
enum Dead {
    /// The completion queue overflowed.
    Overrun,
    /// The device is gone.
    Gone,
}

impl Dead {
    fn error(self) -> Error {
        match self {
            Self::Overrun => Overrun.into(),
            Self::Gone => EventError::ended().into(),
        }
    }
}

/// The task or endpoint that waits for a descriptor.
pub(super) enum Interest {
    Wake(Waker),
    /// The connection is over.
    End(Arc<End>),
}

impl Driver {
    /// Creates a driver for endpoints on an open device, with a completion channel and a queue.
    ///
    /// # Errors
    ///
    /// [`Device::Limit`](crate::error::Device::Limit) at a limit of the device, and the kernel's error if the
    /// process has no free descriptor.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let channel = context.completion_channel()?;
        // Packets can wake the program directly if the descriptor is non-blocking.
        let flags = rustix::fs::fcntl_getfl(&channel).map_err(std::io::Error::from)?;
        rustix::fs::fcntl_setfl(&channel, flags | rustix::fs::OFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        // Each queue pair enlarges the queue.
        let queue = context.completion_queue(1, Some(&channel))?;
        queue.request_event();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        epoll::add(&epoll, &channel, epoll::EventData::new_u64(CHANNEL), ONCE)
            .map_err(std::io::Error::from)?;
        let shared = Shared {
            context: context.clone(),
            channel,
            queue,
            epoll,
            ends: Mutex::default(),
            watched: Mutex::default(),
            turn: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The device of the endpoints.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Takes all completions that are there, wakes the futures of their work requests, and requests the next
    /// event. It never waits.
    ///
    /// # Errors
    ///
    /// [`Device::Gone`](crate::error::Device::Gone) if the device is gone, and
    /// [`Usage::Overrun`](crate::error::Usage::Overrun) if the completion queue overflowed. The driver has
    /// then ended: all its futures fail, those that wait for connections with the same error. The descriptor
    /// may stay readable, so the loop that calls this must stop.
    ///
    /// The kernel's error if that refused a call.
    pub fn turn(&self) -> Result<(), Error> {
        self.shared.turn(true)
    }
}

impl Shared {
    /// Delivers the completions that are there and requests an event for the next one.
    pub(super) fn take_completions(&self) -> Result<(), Error> {
        self.turn(false)
    }

    /// Delivers the events of connection management if `all`, and the completions.
    fn turn(&self, all: bool) -> Result<(), Error> {
        let mut over = Vec::new();
        let mut turn = lock(&self.turn);
        let reported = if all { self.look_at_descriptors(&mut over, &mut turn) } else { Ok(false) };
        let taken = self.take(&mut over, &mut turn);
        // Packets that are left raise another edge.
        let armed = if matches!(reported, Ok(false)) { Ok(()) } else { self.arm_channel() };
        // Messages that arrived before the end are in the inboxes now, and a bad status explains the end.
        for end in &over {
            end.end(Status::WrFlushErr, &mut turn);
        }
        // Woken tasks may take a turn themselves.
        let mut effects = std::mem::take(&mut *turn);
        drop(turn);
        effects.finish();
        lock(&self.turn).reuse(effects);
        reported.and(taken).and(armed)
    }

    /// Collects the tasks that wait for ready descriptors, and the endpoints whose connections are over.
    /// Returns whether the completion channel is ready, which is then not reported until it is armed.
    fn look_at_descriptors(&self, over: &mut Vec<Arc<End>>, effects: &mut Effects) -> Result<bool, Error> {
        let mut reported = false;
        loop {
            let nothing =
                epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
            let mut events = [nothing; AT_ONCE];
            let count = match epoll::wait(&self.epoll, &mut events, Some(&Timespec::default())) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(std::io::Error::from(error).into()),
            };
            let mut watched = lock(&self.watched);
            for event in &events[..count] {
                reported |= event.data.u64() == CHANNEL;
                let Entry::Occupied(entry) = watched.interests.entry(event.data.u64()) else { continue };
                // The event may be older than the interest.
                if matches!(entry.get(), Interest::End(end) if !end.has_failed()) {
                    continue;
                }
                match entry.remove() {
                    Interest::Wake(waker) => effects.wake(waker),
                    Interest::End(end) => over.push(end),
                }
            }
            drop(watched);
            if count < AT_ONCE {
                return Ok(reported);
            }
        }
    }

    fn arm_channel(&self) -> Result<(), Error> {
        let armed = epoll::modify(&self.epoll, &self.channel, epoll::EventData::new_u64(CHANNEL), ONCE);
        Ok(armed.map_err(std::io::Error::from)?)
    }

    fn take(&self, over: &mut Vec<Arc<End>>, turn: &mut Effects) -> Result<(), Error> {
        while self.channel.take_event() {}
        let taken = self.deliver(turn).and_then(|()| {
            self.queue.request_event();
            // Completions since the last look raise no event.
            self.deliver(turn)
        });
        taken.map_err(|dead| {
            self.die(dead, over, turn);
            dead.error()
        })
    }

    /// Ends all endpoints, and wakes all tasks that wait for descriptors.
    fn die(&self, dead: Dead, over: &mut Vec<Arc<End>>, turn: &mut Effects) {
        let mut watched = lock(&self.watched);
        watched.dead = Some(dead);
        for (_, interest) in watched.interests.drain() {
            match interest {
                Interest::Wake(waker) => turn.wake(waker),
                Interest::End(end) => over.push(end),
            }
        }
        drop(watched);
        // An endpoint that is added later sees that the driver is dead.
        for end in lock(&self.ends).values() {
            // Before the buffers are free: a queue pair in its error state accesses no memory.
            end.fail();
            end.flush(turn);
        }
    }

    /// Checks that the driver has not failed.
    ///
    /// # Errors
    ///
    /// The reason why the driver failed.
    pub(super) fn alive(&self) -> Result<(), Error> {
        lock(&self.watched).alive()
    }

    fn deliver(&self, effects: &mut Effects) -> Result<(), Dead> {
        loop {
            let mut batch = [WorkCompletion::BLANK; AT_ONCE];
            let count = self.queue.take(&mut batch).map_err(|Overrun| Dead::Overrun)?;
            for completion in &batch[..count] {
                let end = lock(&self.ends).get(&completion.qpn).cloned();
                if let Some(end) = end {
                    end.complete(&Completion::of(*completion), effects);
                    effects.keep(end);
                }
            }
            if count == 0 && self.queue.is_dead() {
                return Err(Dead::Gone);
            }
            if count < AT_ONCE {
                return Ok(());
            }
        }
    }

    /// Delivers the completions of the endpoint.
    ///
    /// # Errors
    ///
    /// The reason why the driver failed.
    pub(super) fn add(&self, end: &Arc<End>) -> Result<(), Error> {
        // A queue pair with this number was destroyed if an endpoint is known.
        let _destroyed = lock(&self.ends).insert(end.qpn(), Arc::clone(end));
        self.alive()
    }

    /// Forgets the endpoint, unless another one has its number already.
    pub(super) fn remove(&self, end: &Arc<End>) {
        let mut ends = lock(&self.ends);
        let removed = match ends.entry(end.qpn()) {
            Entry::Occupied(entry) if Arc::ptr_eq(entry.get(), end) => Some(entry.remove()),
            _ => None,
        };
        drop(ends);
        drop(removed);
    }

    /// A descriptor that is not watched yet.
    pub(super) fn watch(self: &Arc<Self>) -> Watch {
        let mut watched = lock(&self.watched);
        watched.last += 1;
        Watch { shared: Arc::clone(self), token: watched.last, added: false }
    }
}

/// A descriptor of connection management in the driver's epoll set. [`Self::arm`] says how often it reports.
pub(super) struct Watch {
    shared: Arc<Shared>,
    token: u64,
    added: bool,
}

impl Watch {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Reports `interest` when `fd`, the same one each time, is readable or if it is now: once for a task,
    /// and with each event until the end of the connection.
    ///
    /// # Errors
    ///
    /// The reason why the driver failed, or the kernel's error.
    pub(super) fn arm(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<(), Error> {
        let flags = match &interest {
            Interest::Wake(_) => ONCE,
            // No code takes the events of a connection, so its descriptor stays readable.
            Interest::End(_) => epoll::EventFlags::IN | epoll::EventFlags::ET,
        };
        // Dropped without the lock: a waker may own a task with a future of this module.
        let mut watched = lock(&self.shared.watched);
        watched.alive()?;
        let _previous = watched.interests.insert(self.token, interest);
        drop(watched);
        let data = epoll::EventData::new_u64(self.token);
        let epoll = &self.shared.epoll;
        let armed = if self.added {
            epoll::modify(epoll, fd, data, flags)
        } else {
            epoll::add(epoll, fd, data, flags)
        };
        armed.map_err(std::io::Error::from)?;
        self.added = true;
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.shared.context.open.is_of_this_process() {
            return;
        }
        // The kernel removes the descriptor from the set when it is closed.
        let interest = lock(&self.shared.watched).interests.remove(&self.token);
        drop(interest);
    }
}

impl AsFd for Driver {
    /// Readable while [`Self::turn`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.epoll.as_fd()
    }
}

impl AsRawFd for Driver {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("fd", &self.as_raw_fd()).finish_non_exhaustive()
    }
}
