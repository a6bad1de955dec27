//! The queue of a context's asynchronous events, and the count of those not yet acknowledged.

use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, Weak};

use ferroce_proto::AsyncEventKind;
use parking_lot::{Condvar, Mutex};

use crate::error::EventError;
use crate::notify::NotifyQueue;
use crate::sleep::{Held, Sleep};

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
pub(crate) enum TakenEvent {
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
    pub(crate) fn pop(&self) -> Option<TakenEvent> {
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
fn hand_out(entry: Queued) -> Option<TakenEvent> {
    Some(match entry {
        Queued::Object(kind, weak) => {
            let source = weak.upgrade()?;
            source.async_acks().handed_out(1);
            TakenEvent::Object(kind, source)
        }
        Queued::Port(kind, port) => TakenEvent::Port(kind, port),
        Queued::Device(kind) => TakenEvent::Device(kind),
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
