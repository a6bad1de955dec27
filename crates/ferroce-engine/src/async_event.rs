//! Asynchronous events, with the objects that they happened to.

use std::any::Any;
use std::sync::Arc;

use crate::async_queue::{EventSource, TakenEvent};
use crate::error::EventError;
use crate::sleep::Held;
use crate::{AsyncEventKind, AsyncQueue, CompletionQueue, Qp, QpShare, Srq};

/// To what it happened.
#[derive(Clone)]
pub enum AsyncElement {
    /// A completion queue.
    Cq(Arc<CompletionQueue>),
    /// A queue pair.
    Qp(Arc<Qp>),
    /// A queue pair that was opened by its number.
    SharedQp(Arc<QpShare>),
    /// A shared receive queue.
    Srq(Arc<Srq>),
    /// A port, by number.
    Port(u8),
    /// The device as a whole.
    Device,
}

/// An asynchronous event (`ibv_async_event`). Each must be acknowledged: destroying its object waits for it.
#[derive(Clone)]
#[doc(alias = "ibv_async_event")]
pub struct AsyncEvent {
    /// The kind of the event.
    pub kind: AsyncEventKind,
    /// The object of the event.
    pub element: AsyncElement,
}

impl AsyncEvent {
    /// The caller's own value of the object, `None` for ports and the device.
    pub fn user(&self) -> Option<u64> {
        match &self.element {
            AsyncElement::Cq(cq) => Some(cq.user()),
            AsyncElement::Qp(qp) => Some(qp.user()),
            AsyncElement::SharedQp(share) => Some(share.user()),
            AsyncElement::Srq(srq) => Some(srq.user()),
            AsyncElement::Port(_) | AsyncElement::Device => None,
        }
    }
}

impl AsyncElement {
    /// `None` for an object that is not the program's.
    fn of(source: Arc<dyn EventSource>) -> Option<Self> {
        let object: Arc<dyn Any + Send + Sync> = source;
        let object = match object.downcast().map(Self::Qp) {
            Ok(found) => return Some(found),
            Err(object) => object,
        };
        let object = match object.downcast().map(Self::Cq) {
            Ok(found) => return Some(found),
            Err(object) => object,
        };
        let object = match object.downcast().map(Self::Srq) {
            Ok(found) => return Some(found),
            Err(object) => object,
        };
        object.downcast().map(Self::SharedQp).ok()
    }
}

impl AsyncQueue {
    /// The oldest event; waits for one unless the descriptor is non-blocking.
    #[doc(alias = "ibv_get_async_event")]
    pub fn get(&self) -> Result<AsyncEvent, EventError> {
        loop {
            if let Some(event) = self.take() {
                return Ok(event);
            }
            self.fall_asleep(Held::Nothing)?.sleep()?;
        }
    }

    /// The oldest event, if there is one.
    pub fn take(&self) -> Option<AsyncEvent> {
        Some(match self.pop()? {
            TakenEvent::Object(kind, source) => AsyncEvent { kind, element: AsyncElement::of(source)? },
            TakenEvent::Port(kind, port) => AsyncEvent { kind, element: AsyncElement::Port(port) },
            TakenEvent::Device(kind) => AsyncEvent { kind, element: AsyncElement::Device },
        })
    }

    /// Acknowledges an event that [`Self::get`] returned, exactly once.
    #[doc(alias = "ibv_ack_async_event")]
    pub fn ack(&self, event: &AsyncEvent) {
        match &event.element {
            AsyncElement::Cq(cq) => cq.ack_async_event(),
            AsyncElement::Qp(qp) => qp.ack_async_event(),
            AsyncElement::SharedQp(share) => share.ack_async_event(),
            AsyncElement::Srq(srq) => srq.ack_async_event(),
            AsyncElement::Port(_) | AsyncElement::Device => {}
        }
    }
}
