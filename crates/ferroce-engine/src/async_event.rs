//! Asynchronous events of a context and the count of those not yet acknowledged.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use crate::error::EventError;
use crate::notify::NotifyQueue;
use crate::sleep::{Held, Sleep};
use crate::{CompletionQueue, Qp, QpShare, Srq};

/// What happened. Discriminants are those of `enum ibv_event_type`.
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
    /// What happened.
    pub kind: AsyncEventKind,
    /// To what.
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

/// An entry of the queue: it must not keep its object alive.
enum Queued {
    Cq(AsyncEventKind, Weak<CompletionQueue>),
    Qp(AsyncEventKind, Weak<Qp>),
    Shared(AsyncEventKind, Weak<QpShare>),
    Srq(AsyncEventKind, Weak<Srq>),
    Port(AsyncEventKind, u8),
    Device(AsyncEventKind),
}

/// The asynchronous events of one context.
pub struct AsyncQueue {
    queue: NotifyQueue<Queued>,
}

impl AsyncQueue {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { queue: NotifyQueue::new()? })
    }

    /// Readable while an event is there. O_NONBLOCK, if the program sets it, is honoured.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

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
        std::iter::from_fn(|| self.queue.pop(hand_out)).flatten().next()
    }

    /// Prepares a sleep until there may be an event. `held` keeps the context alive meanwhile.
    ///
    /// # Errors
    ///
    /// [`EventError::WouldBlock`] if the descriptor is non-blocking.
    pub fn fall_asleep(&self, held: Held) -> Result<Sleep, EventError> {
        self.queue.fall_asleep(held)
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

    pub(crate) fn push_cq(&self, kind: AsyncEventKind, cq: &Weak<CompletionQueue>) {
        self.queue.push(Queued::Cq(kind, cq.clone()));
    }

    pub(crate) fn push_qp(&self, kind: AsyncEventKind, qp: &Weak<Qp>) {
        self.queue.push(Queued::Qp(kind, qp.clone()));
    }

    pub(crate) fn push_share(&self, kind: AsyncEventKind, share: &Weak<QpShare>) {
        self.queue.push(Queued::Shared(kind, share.clone()));
    }

    pub(crate) fn purge_share(&self, share: &QpShare) {
        self.queue
            .purge(|entry| matches!(entry, Queued::Shared(_, weak) if std::ptr::eq(weak.as_ptr(), share)));
    }

    pub(crate) fn push_srq(&self, kind: AsyncEventKind, srq: &Weak<Srq>) {
        self.queue.push(Queued::Srq(kind, srq.clone()));
    }

    pub(crate) fn push_port(&self, kind: AsyncEventKind, port: u8) {
        self.queue.push(Queued::Port(kind, port));
    }

    pub(crate) fn push_device(&self, kind: AsyncEventKind) {
        self.queue.push(Queued::Device(kind));
    }

    pub(crate) fn purge_cq(&self, cq: &CompletionQueue) {
        self.queue.purge(|entry| matches!(entry, Queued::Cq(_, weak) if std::ptr::eq(weak.as_ptr(), cq)));
    }

    pub(crate) fn purge_srq(&self, srq: &Srq) {
        self.queue.purge(|entry| matches!(entry, Queued::Srq(_, weak) if std::ptr::eq(weak.as_ptr(), srq)));
    }

    pub(crate) fn purge_qp(&self, qp: &Qp) {
        self.queue.purge(|entry| matches!(entry, Queued::Qp(_, weak) if std::ptr::eq(weak.as_ptr(), qp)));
    }
}

/// `None`: the object is gone, and with it the event.
fn hand_out(entry: Queued) -> Option<AsyncEvent> {
    let event = match entry {
        Queued::Cq(kind, weak) => {
            let cq = weak.upgrade()?;
            cq.async_acks().handed_out(1);
            AsyncEvent { kind, element: AsyncElement::Cq(cq) }
        }
        Queued::Qp(kind, weak) => {
            let qp = weak.upgrade()?;
            qp.async_acks().handed_out(1);
            AsyncEvent { kind, element: AsyncElement::Qp(qp) }
        }
        Queued::Shared(kind, weak) => {
            let share = weak.upgrade()?;
            share.async_acks().handed_out(1);
            AsyncEvent { kind, element: AsyncElement::SharedQp(share) }
        }
        Queued::Srq(kind, weak) => {
            let srq = weak.upgrade()?;
            srq.async_acks().handed_out(1);
            AsyncEvent { kind, element: AsyncElement::Srq(srq) }
        }
        Queued::Port(kind, port) => AsyncEvent { kind, element: AsyncElement::Port(port) },
        Queued::Device(kind) => AsyncEvent { kind, element: AsyncElement::Device },
    };
    Some(event)
}

/// Events handed out and acknowledged of one object; destroying it waits until both are equal.
#[derive(Default)]
pub struct AckCount {
    outstanding: Mutex<i64>,
    settled: Condvar,
}

impl AckCount {
    /// So many events were given to the program.
    pub fn handed_out(&self, events: u32) {
        *self.outstanding.lock() += i64::from(events);
    }

    /// The program is through with so many.
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
