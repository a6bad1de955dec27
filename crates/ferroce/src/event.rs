//! Asynchronous events: what happens to a device and its objects by itself.

use std::os::fd::BorrowedFd;

use ferroce_engine::{AsyncElement, AsyncEventKind};
use ferroce_wire::Qpn;

use crate::{Context, Error};

/// What happened, and to what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub struct Event {
    /// What happened.
    pub kind: AsyncEventKind,
    /// The queue pair it happened to, if it was one.
    pub queue_pair: Option<Qpn>,
}

impl Context {
    /// Waits for the next event of the device, its port, and the objects made from this context. It needs no
    /// acknowledgement here: nothing is freed while its event is at hand.
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait_event(&self) -> Result<Event, Error> {
        let events = self.open.context.async_events();
        let event = events.get()?;
        events.ack(&event);
        let queue_pair = match &event.element {
            AsyncElement::Qp(qp) => Some(qp.qpn()),
            _ => None,
        };
        Ok(Event { kind: event.kind, queue_pair })
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
