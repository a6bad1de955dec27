//! Asynchronous events of a device and its objects.

use std::os::fd::BorrowedFd;

use ferroce_engine::{AsyncElement, AsyncEventKind};
use ferroce_wire::Qpn;

use crate::{CompletionQueue, Context, Error, SharedReceiveQueue};

/// An asynchronous event.
#[derive(Clone, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub struct Event {
    /// The kind of event.
    pub kind: AsyncEventKind,
    /// The object of the event.
    pub source: EventSource,
}

/// The object of an [`Event`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EventSource {
    /// The queue pair with this number.
    QueuePair(Qpn),
    /// A completion queue: it overflowed.
    CompletionQueue(CompletionQueue),
    /// A shared receive queue.
    SharedReceiveQueue(SharedReceiveQueue),
    /// A port of the device; its only one has number 1.
    Port(u8),
    /// The device as a whole.
    Device,
}

impl Event {
    /// Returns the queue pair of the event, if its object is one.
    pub fn queue_pair(&self) -> Option<Qpn> {
        match self.source {
            EventSource::QueuePair(qpn) => Some(qpn),
            _ => None,
        }
    }
}

impl Context {
    /// Waits for the next event of the device, its port, and the objects created from this context. It needs
    /// no acknowledgement.
    ///
    /// # Errors
    ///
    /// [`Error::Event`]: the program made the descriptor non-blocking and no event is queued, or a signal
    /// handler without `SA_RESTART` ran; with EIO if the device is gone and its last event was taken.
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait_event(&self) -> Result<Event, Error> {
        let events = self.open.context.async_events();
        loop {
            let event = events.get()?;
            // Acknowledged before the handle is created: dropping the last handle waits for the
            // acknowledgement.
            events.ack(&event);
            if let Some(source) = self.source(&event.element) {
                return Ok(Event { kind: event.kind, source });
            }
        }
    }

    /// Returns `None` if the last handle of the object was dropped meanwhile.
    fn source(&self, element: &AsyncElement) -> Option<EventSource> {
        Some(match element {
            AsyncElement::Cq(cq) => {
                EventSource::CompletionQueue(CompletionQueue::of(self.open.queues.get(cq.user())?))
            }
            AsyncElement::Srq(srq) => EventSource::SharedReceiveQueue(SharedReceiveQueue::of(
                self.open.shared_queues.get(srq.user())?,
            )),
            AsyncElement::Qp(qp) => EventSource::QueuePair(qp.qpn()),
            AsyncElement::SharedQp(share) => EventSource::QueuePair(share.qp().qpn()),
            AsyncElement::Port(port) => EventSource::Port(*port),
            AsyncElement::Device => EventSource::Device,
        })
    }

    /// Readable while [`Self::wait_event`] would return at once.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.open.context.async_events().fd()
    }

    /// The clock of [`crate::CompletionQueue::poll_timed`], in nanoseconds: `CLOCK_MONOTONIC`.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn clock(&self) -> u64 {
        self.open.context.raw_clock().as_nanos()
    }
}
