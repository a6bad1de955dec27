//! The queue of a context's asynchronous events, and the count of those not yet acknowledged.

use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use crate::error::EventError;
use crate::notify::NotifyQueue;
use crate::sleep::{Held, Sleep};

/// The kind of an event. Discriminants are those of `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_event_type")]
#[repr(u8)]
pub enum AsyncEventKind {
    /// A completion was lost because the queue was full.
    CqErr = 0,
    /// A queue pair cannot go on.
    QpFatal = 1,
    /// The peer asked what it may not.
    QpReqErr = 2,
    /// The peer used a bad key or range.
    QpAccessErr = 3,
    /// First request processed in RTR.
    CommEst = 4,
    /// SQD reached.
    SqDrained = 5,
    /// The device is gone.
    DeviceFatal = 8,
    /// The netdev came up.
    PortActive = 9,
    /// The netdev went down.
    PortErr = 10,
    /// A shared receive queue failed.
    SrqErr = 14,
    /// Fewer work requests than the limit are left in a shared receive queue.
    SrqLimitReached = 15,
    /// No more WQE will be taken from the shared receive queue.
    QpLastWqeReached = 16,
    /// The GID table changed.
    GidChange = 18,
}

impl From<ferroce_proto::AsyncEvent> for AsyncEventKind {
    fn from(event: ferroce_proto::AsyncEvent) -> Self {
        match event {
            ferroce_proto::AsyncEvent::QpFatal => Self::QpFatal,
            ferroce_proto::AsyncEvent::QpReqErr => Self::QpReqErr,
            ferroce_proto::AsyncEvent::QpAccessErr => Self::QpAccessErr,
            ferroce_proto::AsyncEvent::CommEst => Self::CommEst,
            ferroce_proto::AsyncEvent::SqDrained => Self::SqDrained,
            ferroce_proto::AsyncEvent::QpLastWqeReached => Self::QpLastWqeReached,
        }
    }
}

impl From<ferroce_proto::SrqEvent> for AsyncEventKind {
    fn from(event: ferroce_proto::SrqEvent) -> Self {
        match event {
            ferroce_proto::SrqEvent::Error => Self::SrqErr,
            ferroce_proto::SrqEvent::LimitReached => Self::SrqLimitReached,
        }
    }
}

/// An object that asynchronous events happen to.
pub(crate) trait EventSource: Any + Send + Sync {
    /// The count of its events.
    fn async_acks(&self) -> &AckCount;
}

/// An entry of the queue: it must not keep its object alive.
enum Queued {
    Object(AsyncEventKind, Weak<dyn EventSource>),
    Port(AsyncEventKind, u8),
    Device(AsyncEventKind),
}

/// An event that was taken out, with its object.
pub(crate) enum Taken {
    Object(AsyncEventKind, Arc<dyn EventSource>),
    Port(AsyncEventKind, u8),
    Device(AsyncEventKind),
}

/// The asynchronous events of one context.
pub struct AsyncQueue {
    queue: NotifyQueue<Queued>,
}

impl AsyncQueue {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { queue: NotifyQueue::new()? })
    }

    /// Readable while an event is there. O_NONBLOCK, if the program sets it, is honoured.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

    /// Prepares a sleep until there may be an event. `held` keeps the context alive meanwhile.
    ///
    /// # Errors
    ///
    /// [`EventError::WouldBlock`] if the descriptor is non-blocking; EIO if the device is dead.
    pub fn fall_asleep(&self, held: Held) -> Result<Sleep, EventError> {
        self.queue.fall_asleep(held)
    }

    /// Takes the oldest event of an object that is still there, and counts it as handed out.
    pub(crate) fn pop(&self) -> Option<Taken> {
        std::iter::from_fn(|| self.queue.pop(hand_out)).flatten().next()
    }

    pub(crate) fn push(&self, kind: AsyncEventKind, source: Weak<dyn EventSource>) {
        self.queue.push(Queued::Object(kind, source));
    }

    pub(crate) fn push_port(&self, kind: AsyncEventKind, port: u8) {
        self.queue.push(Queued::Port(kind, port));
    }

    pub(crate) fn push_device(&self, kind: AsyncEventKind) {
        self.queue.push(Queued::Device(kind));
    }

    /// No event will be added any more: the device is dead.
    pub(crate) fn end(&self) {
        self.queue.end();
    }

    /// Drops the events of an object that ends.
    pub(crate) fn purge(&self, source: &dyn EventSource) {
        self.queue
            .purge(|entry| matches!(entry, Queued::Object(_, weak) if ptr::addr_eq(weak.as_ptr(), source)));
    }
}

/// `None`: the object is gone, and with it the event.
fn hand_out(entry: Queued) -> Option<Taken> {
    Some(match entry {
        Queued::Object(kind, weak) => {
            let source = weak.upgrade()?;
            source.async_acks().handed_out(1);
            Taken::Object(kind, source)
        }
        Queued::Port(kind, port) => Taken::Port(kind, port),
        Queued::Device(kind) => Taken::Device(kind),
    })
}

/// Events handed out and acknowledged of one object; destroying it waits until both are equal.
#[derive(Default)]
pub struct AckCount {
    outstanding: Mutex<i64>,
    settled: Condvar,
}

impl AckCount {
    /// Counts events that the program received.
    pub fn handed_out(&self, events: u32) {
        *self.outstanding.lock() += i64::from(events);
    }

    /// Counts events that the program acknowledged.
    pub fn acknowledge(&self, events: u32) {
        let mut outstanding = self.outstanding.lock();
        *outstanding -= i64::from(events);
        if *outstanding <= 0 {
            self.settled.notify_all();
        }
    }

    /// Sleeps until the program is through with all.
    pub fn wait(&self) {
        let mut outstanding = self.outstanding.lock();
        while *outstanding > 0 {
            self.settled.wait(&mut outstanding);
        }
    }
}
