//! The work requests of an endpoint, and the tasks that wait for them.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use ferroce_engine as engine;
use ferroce_engine::error::{PostRecvError, PostSendError};
use ferroce_engine::{RecvWr, SendOp, SendWr};

use super::driver::Driver;
use super::received::Message;
use super::waiters::{Ticket, Waiters};
use super::{Buffer, Failed, Failure, Received, lock};
use crate::error::Cause;
use crate::shared::Open;
use crate::{Completion, Error, QpOptions, Qpn, Status};

/// A queue pair's outstanding work requests. Their slots are allocated when the endpoint is created, so that
/// a work request allocates nothing.
pub(super) struct End {
    qp: Arc<engine::Qp>,
    open: Arc<Open>,
    options: QpOptions,
    state: Mutex<State>,
}

struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Send work requests that may still be posted.
    room: u32,
    /// Receives that may still be posted. The queue pair frees the place of a receive before the completion
    /// is taken, and the completion queue has one place for each.
    places: u32,
    /// Tasks that wait for room.
    senders: Waiters,
    /// Received messages, in order.
    inbox: VecDeque<Received>,
    /// Tasks that wait for a message.
    receivers: Waiters,
    /// The first bad status: the queue pair is in its error state.
    ended: Option<Status>,
}

/// A work request with the `wr_id` `generation << 32 | index`.
struct Slot {
    generation: u32,
    content: Content,
}

enum Content {
    Free,
    Receive(Buffer),
    /// `None`: the future was dropped.
    Send(Buffer, Option<Waker>),
    /// The future takes the result.
    Completed(Buffer, Status),
}

/// The outcome of [`End::send`].
pub(super) enum Sent {
    /// The work request with this number is outstanding.
    Posted(u64),
    /// The task waits for room and keeps the buffer.
    Full(Buffer),
    Failed(Failed),
}

/// Work to do without the lock of an endpoint: tasks to wake, and buffers that return to their pools.
#[derive(Default)]
pub(super) struct Effects {
    wakers: Vec<Waker>,
    buffers: Vec<Buffer>,
    /// Endpoints that may have been dropped meanwhile, with buffers.
    ends: Vec<Arc<End>>,
}

impl Effects {
    pub(super) fn wake(&mut self, waker: Waker) {
        self.wakers.push(waker);
    }

    pub(super) fn keep(&mut self, end: Arc<End>) {
        if self.ends.last().is_none_or(|last| !Arc::ptr_eq(last, &end)) {
            self.ends.push(end);
        }
    }

    /// Uses the allocations of `spare`, whose lists are empty, unless these lists are in use.
    pub(super) fn reuse(&mut self, spare: Self) {
        if self.wakers.is_empty() && self.buffers.is_empty() && self.ends.is_empty() {
            *self = spare;
        }
    }

    /// Wakes the tasks and frees the buffers, which wakes tasks as well. No lock is held. A panic of a task's
    /// waker continues after the other tasks are woken.
    pub(super) fn finish(&mut self) {
        let freed = attempt(self.buffers.drain(..), drop);
        let woken = attempt(self.wakers.drain(..), Waker::wake);
        let ended = attempt(self.ends.drain(..), drop);
        if let Some(panic) = freed.or(woken).or(ended) {
            resume_unwind(panic);
        }
    }
}

/// Consumes all items, and returns the first panic.
fn attempt<T>(items: impl Iterator<Item = T>, consume: fn(T)) -> Option<Box<dyn Any + Send>> {
    let mut first = None;
    for item in items {
        let panic = catch_unwind(AssertUnwindSafe(|| consume(item))).err();
        first = first.or(panic);
    }
    first
}

impl State {
    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id as u32 as usize)?;
        (slot.generation == (id >> 32) as u32).then_some(slot)
    }

    fn insert(&mut self, content: Content) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            // Completed work requests keep their slots until their futures are polled, so more slots than
            // the queues have places may be in use.
            self.slots.push(Slot { generation: 0, content: Content::Free });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.content = content;
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// Frees the slot; its number is not used again.
    fn release(&mut self, id: u64) {
        if let Some(slot) = self.slot(id) {
            slot.generation = slot.generation.wrapping_add(1);
            slot.content = Content::Free;
            self.free.push(id as u32);
        }
    }

    /// A send work request is no longer outstanding.
    fn make_room(&mut self, effects: &mut Effects) {
        self.room += 1;
        effects.wakers.extend(self.senders.first());
    }

    /// Work request `id` has completed. `message` is that of a successful receive.
    fn complete(&mut self, id: u64, status: Status, message: Message, effects: &mut Effects) {
        let Some(slot) = self.slot(id) else { return };
        match std::mem::replace(&mut slot.content, Content::Free) {
            Content::Receive(buffer) => {
                self.release(id);
                self.places += 1;
                if status == Status::Success {
                    self.inbox.push_back(Received::new(buffer, message));
                    effects.wakers.extend(self.receivers.first());
                } else {
                    effects.buffers.push(buffer);
                }
            }
            Content::Send(buffer, Some(waker)) => {
                slot.content = Content::Completed(buffer, status);
                effects.wakers.push(waker);
                self.make_room(effects);
            }
            Content::Send(buffer, None) => {
                self.release(id);
                effects.buffers.push(buffer);
                self.make_room(effects);
            }
            content @ (Content::Completed(..) | Content::Free) => {
                slot.content = content;
                return;
            }
        }
        if status != Status::Success {
            self.end(status, effects);
        }
    }

    fn end(&mut self, status: Status, effects: &mut Effects) {
        if self.ended.is_none() {
            self.ended = Some(status);
            effects.wakers.extend(self.senders.take_all());
            effects.wakers.extend(self.receivers.take_all());
        }
    }
}

impl End {
    pub(super) fn new(driver: &Driver, qp: &Arc<engine::Qp>, options: QpOptions) -> Self {
        let (sends, receives) = (options.max_send_wr as usize, options.max_recv_wr as usize);
        let state = State {
            slots: Vec::with_capacity(sends + receives),
            free: Vec::with_capacity(sends + receives),
            room: options.max_send_wr,
            places: options.max_recv_wr,
            senders: Waiters::default(),
            inbox: VecDeque::with_capacity(receives),
            receivers: Waiters::default(),
            ended: None,
        };
        Self {
            qp: Arc::clone(qp),
            open: Arc::clone(&driver.shared.context.open),
            options,
            state: Mutex::new(state),
        }
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// In a forked child, threads of the parent may have left locks locked.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.open.is_of_this_process()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Posts a receive.
    pub(super) fn receive(&self, mut buffer: Buffer) -> Result<(), Failed> {
        let sges = [buffer.slice(buffer.len()).sge()];
        let mut state = self.state();
        if let Some(status) = state.ended {
            drop(state);
            return Err(Failed::status(status, buffer));
        }
        if state.places == 0 {
            drop(state);
            let full = PostRecvError::QueueFull { max: self.options.max_recv_wr };
            return Err(Failed::refused(Cause::PostRecv(0, full).into(), buffer));
        }
        state.places -= 1;
        let wr_id = state.insert(Content::Receive(buffer));
        drop(state);
        let posted = self.qp.post_recv([RecvWr { wr_id, sges: &sges }]);
        posted.or_else(|(index, source)| self.refused(wr_id, Cause::PostRecv(index, source).into()))
    }

    /// Posts a send work request with the first `len` octets of `buffer` if there is room and no other task
    /// waits for it. A task that fails or is refused no longer waits.
    pub(super) fn send(
        &self,
        mut buffer: Buffer,
        len: usize,
        op: SendOp,
        ticket: &mut Ticket,
        waker: &Waker,
    ) -> Sent {
        let sges = [buffer.slice(len).sge()];
        let mut state = self.state();
        if let Some(status) = state.ended {
            let _left = state.senders.leave(ticket);
            drop(state);
            return Sent::Failed(Failed::status(status, buffer));
        }
        if self.options.max_send_wr == 0 {
            drop(state);
            let full = PostSendError::QueueFull { max: 0 };
            return Sent::Failed(Failed::refused(Cause::PostSend(0, full).into(), buffer));
        }
        if state.room == 0 || !state.senders.is_first(*ticket) {
            let _earlier = state.senders.wait(ticket, waker);
            drop(state);
            return Sent::Full(buffer);
        }
        let _left = state.senders.leave(ticket);
        state.room -= 1;
        let wr_id = state.insert(Content::Send(buffer, Some(waker.clone())));
        let next = if state.room > 0 { state.senders.first() } else { None };
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
        // Without the lock, because posting transmits.
        match self.qp.post_send([SendWr::signaled(wr_id, op, &sges)]) {
            Ok(()) => Sent::Posted(wr_id),
            Err((index, source)) => match self.refused(wr_id, Cause::PostSend(index, source).into()) {
                Ok(()) => Sent::Posted(wr_id),
                Err(failed) => Sent::Failed(failed),
            },
        }
    }

    /// The queue pair refused the work request. `Ok`: the endpoint ended meanwhile and has completed it.
    fn refused(&self, id: u64, error: Error) -> Result<(), Failed> {
        let mut state = self.state();
        let Some(slot) = state.slot(id) else { return Ok(()) };
        let mut effects = Effects::default();
        let (buffer, _waker) = match std::mem::replace(&mut slot.content, Content::Free) {
            Content::Receive(buffer) => {
                state.places += 1;
                (buffer, None)
            }
            Content::Send(buffer, waker) => {
                state.make_room(&mut effects);
                (buffer, waker)
            }
            content @ (Content::Completed(..) | Content::Free) => {
                slot.content = content;
                return Ok(());
            }
        };
        state.release(id);
        drop(state);
        effects.finish();
        Err(Failed::refused(error, buffer))
    }

    /// The result of a posted send work request.
    pub(super) fn poll_sent(&self, id: u64, waker: &Waker) -> Poll<Result<Buffer, Failed>> {
        let mut state = self.state();
        let slot = state.slot(id).expect("a slot belongs to its future until that has the result");
        if let Content::Send(_, known) = &mut slot.content {
            let _earlier = known.replace(waker.clone());
            drop(state);
            return Poll::Pending;
        }
        let content = std::mem::replace(&mut slot.content, Content::Free);
        state.release(id);
        drop(state);
        let Content::Completed(buffer, status) = content else { unreachable!("a send completes once") };
        let success = status == Status::Success;
        Poll::Ready(if success { Ok(buffer) } else { Err(Failed::status(status, buffer)) })
    }

    /// The future of a posted send work request was dropped. An outstanding work request keeps its buffer.
    pub(super) fn abandon(&self, id: u64) {
        let mut state = self.state();
        let Some(slot) = state.slot(id) else { return };
        if let Content::Send(_, waker) = &mut slot.content {
            let _dropped = waker.take();
            drop(state);
            return;
        }
        let content = std::mem::replace(&mut slot.content, Content::Free);
        state.release(id);
        drop(state);
        drop(content);
    }

    /// A task no longer waits for room.
    pub(super) fn leave_senders(&self, ticket: &mut Ticket) {
        let mut state = self.state();
        let _left = state.senders.leave(ticket);
        let next = if state.room > 0 { state.senders.first() } else { None };
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
    }

    /// The next message. Messages that arrived before the end of the connection are returned first.
    pub(super) fn poll_received(
        &self,
        ticket: &mut Ticket,
        waker: &Waker,
    ) -> Poll<Result<Received, Failure>> {
        let mut state = self.state();
        if state.receivers.is_first(*ticket)
            && let Some(received) = state.inbox.pop_front()
        {
            drop(state);
            self.leave_receivers(ticket);
            return Poll::Ready(Ok(received));
        }
        if let Some(status) = state.ended {
            let _left = state.receivers.leave(ticket);
            drop(state);
            return Poll::Ready(Err(Failure::Status(status)));
        }
        let _earlier = state.receivers.wait(ticket, waker);
        drop(state);
        Poll::Pending
    }

    /// A task no longer waits for a message.
    pub(super) fn leave_receivers(&self, ticket: &mut Ticket) {
        let mut state = self.state();
        let _left = state.receivers.leave(ticket);
        let next = if state.inbox.is_empty() { None } else { state.receivers.first() };
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
    }

    /// Takes a completion of the queue pair.
    pub(super) fn complete(&self, completion: &Completion, effects: &mut Effects) {
        let Completion { wr_id, status, .. } = *completion;
        self.state().complete(wr_id, status, Message::of(completion), effects);
    }

    /// The connection is over: new work requests fail.
    pub(super) fn end(&self, status: Status, effects: &mut Effects) {
        self.state().end(status, effects);
    }

    /// Whether the queue pair is in its error state.
    pub(super) fn has_failed(&self) -> bool {
        self.qp.state() == engine::QpState::Error
    }

    /// Moves the queue pair to its error state, which completes all work requests.
    pub(super) fn fail(&self) {
        // A queue pair that was destroyed has no outstanding work requests.
        let _ = crate::cm::fail(&self.qp);
    }

    /// Completes the outstanding work requests. The queue pair is in its error state or destroyed.
    pub(super) fn flush(&self, effects: &mut Effects) {
        let mut state = self.state();
        for index in 0..state.slots.len() {
            let id = u64::from(state.slots[index].generation) << 32 | index as u64;
            state.complete(id, Status::WrFlushErr, Message::default(), effects);
        }
        state.end(Status::WrFlushErr, effects);
    }
}
