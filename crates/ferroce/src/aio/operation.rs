//! The futures of an endpoint.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ferroce_engine::SendOp;

use super::end::{End, Sent};
use super::waiters::Ticket;
use super::{Buffer, Failed, Failure, Received};

/// The future of a send work request. It posts the work request when it is polled for the first time, or
/// later if the send queue is full, and returns the buffer when the work request has completed.
///
/// Dropping the future after the post cancels nothing: the work request continues, and then the buffer
/// returns to its pool.
#[must_use = "futures do nothing unless they are polled"]
pub struct Operation {
    end: Arc<End>,
    stage: Stage,
}

enum Stage {
    Unposted { buffer: Buffer, len: usize, op: SendOp, ticket: Ticket },
    Posted(u64),
    Done,
}

impl Operation {
    pub(super) fn new(end: Arc<End>, buffer: Buffer, len: usize, op: SendOp) -> Self {
        Self { end, stage: Stage::Unposted { buffer, len, op, ticket: None } }
    }
}

impl Future for Operation {
    type Output = Result<Buffer, Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { end, stage } = &mut *self;
        match std::mem::replace(stage, Stage::Done) {
            Stage::Unposted { buffer, len, op, mut ticket } => {
                match end.send(buffer, len, op, &mut ticket, cx.waker()) {
                    Sent::Posted(id) => *stage = Stage::Posted(id),
                    Sent::Full(buffer) => *stage = Stage::Unposted { buffer, len, op, ticket },
                    Sent::Failed(failed) => return Poll::Ready(Err(failed)),
                }
                Poll::Pending
            }
            Stage::Posted(id) => {
                let result = end.poll_sent(id, cx.waker());
                if result.is_pending() {
                    *stage = Stage::Posted(id);
                }
                result
            }
            Stage::Done => panic!("the future was polled after it was ready"),
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.end.is_of_this_process() {
            return;
        }
        match &mut self.stage {
            Stage::Unposted { ticket, .. } if ticket.is_some() => self.end.leave_senders(ticket),
            Stage::Posted(id) => self.end.abandon(*id),
            Stage::Unposted { .. } | Stage::Done => {}
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").finish_non_exhaustive()
    }
}

/// The future of an atomic: an [`Operation`] that also returns the previous value of the peer's octets.
#[must_use = "futures do nothing unless they are polled"]
#[derive(Debug)]
pub struct Atomic(pub(super) Operation);

impl Future for Atomic {
    type Output = Result<(u64, Buffer), Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let buffer = ready!(Pin::new(&mut self.0).poll(cx))?;
        let mut old = [0; 8];
        old.copy_from_slice(&buffer[..8]);
        Poll::Ready(Ok((u64::from_ne_bytes(old), buffer)))
    }
}

/// The future of [`Endpoint::recv`](super::Endpoint::recv).
#[must_use = "futures do nothing unless they are polled"]
pub struct Recv {
    end: Arc<End>,
    ticket: Ticket,
}

impl Recv {
    pub(super) fn new(end: Arc<End>) -> Self {
        Self { end, ticket: None }
    }
}

impl Future for Recv {
    type Output = Result<Received, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { end, ticket } = &mut *self;
        end.poll_received(ticket, cx.waker())
    }
}

impl Drop for Recv {
    fn drop(&mut self) {
        if self.ticket.is_some() && self.end.is_of_this_process() {
            self.end.leave_receivers(&mut self.ticket);
        }
    }
}

impl fmt::Debug for Recv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recv").finish_non_exhaustive()
    }
}
