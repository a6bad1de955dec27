//! Asynchronous events of a device and its objects.

use std::os::fd::BorrowedFd;

use ferroce_engine::AsyncElement;
use ferroce_wire::Qpn;

use crate::declare::mirror;
use crate::{CompletionQueue, Context, Error, SharedReceiveQueue};

/// An asynchronous event.
#[derive(Clone, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub struct Event {
    /// The kind of event.
    pub kind: EventKind,
    /// The object of the event.
    pub source: EventSource,
}

mirror! {
    /// The kind of an asynchronous event. Discriminants are those of `ibv_event_type`.
    #[doc(alias = "ibv_event_type")]
    pub enum EventKind of AsyncEventKind {
        /// A completion queue overflowed and lost a completion.
        CqErr = 0,
        /// A queue pair failed, for example because its completion queue overflowed.
        QpFatal = 1,
        /// The peer's request was invalid, and no receive could report it.
        QpReqErr = 2,
        /// The peer used a wrong key or range, and no receive could report it.
        QpAccessErr = 3,
        /// The first packet arrived at a queue pair in the state RTR.
        CommEst = 4,
        /// The send queue is drained: all started work requests have completed.
        SqDrained = 5,
        /// The device is gone.
        DeviceFatal = 8,
        /// The port carries traffic again.
        PortActive = 9,
        /// The port stopped carrying traffic.
        PortErr = 10,
        /// A shared receive queue failed.
        SrqErr = 14,
        /// Fewer receives than the limit are left in a shared receive queue. Its limit is 0 afterwards.
        SrqLimitReached = 15,
        /// A queue pair in its error state takes no more receives from its shared receive queue.
        QpLastWqeReached = 16,
        /// The GID table changed.
        GidChange = 18,
    }
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
    /// [`System::WouldBlock`](crate::error::System::WouldBlock) if the program made the descriptor
    /// non-blocking and no event is queued, [`System::Interrupted`](crate::error::System::Interrupted) if a
    /// signal handler without `SA_RESTART` ran, [`Device::Gone`](crate::error::Device::Gone) if the device is
    /// gone and its last event was taken.
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait_event(&self) -> Result<Event, Error> {
        let events = self.open.context.async_events();
        loop {
            let event = events.get()?;
            // Acknowledged before the handle is created: dropping the last handle waits for the
            // acknowledgement.
            events.ack(&event);
            if let Some(source) = self.source(&event.element) {
                return Ok(Event { kind: EventKind::of(event.kind), source });
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
