//! Completion queues and channels.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use ferroce_engine as engine;
use ferroce_engine::WorkCompletion;
use ferroce_wire::{Imm, Qpn, Rkey};

use crate::declare::setters;
use crate::error::Cause;
use crate::shared::{Channel, Queue};
use crate::{Context, Error, Opcode, Status};

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "its status says whether the work request succeeded"]
#[doc(alias = "ibv_wc")]
#[non_exhaustive]
pub struct Completion {
    /// The number given in the work request.
    pub wr_id: u64,
    /// Success, or the error.
    pub status: Status,
    /// The completed operation.
    pub opcode: Opcode,
    /// Octets received or read; 0 on errors.
    pub len: u32,
    /// Immediate data of a received message.
    pub imm: Option<Imm>,
    /// Local key that a received message invalidated.
    pub invalidated: Option<Rkey>,
    /// The queue pair of the work request.
    pub qpn: Qpn,
    /// The sender of a datagram.
    pub src_qp: Qpn,
}

impl Completion {
    pub(crate) fn of(completion: WorkCompletion) -> Self {
        let WorkCompletion { wr_id, status, opcode, byte_len, imm, invalidated, qpn, src_qp, .. } =
            completion;
        let (status, opcode) = (Status::of(status), Opcode::of(opcode));
        Self { wr_id, status, opcode, len: byte_len, imm, invalidated, qpn, src_qp }
    }

    /// Returns the completion of a work request that succeeded.
    ///
    /// # Errors
    ///
    /// The status of one that failed, with the kind of its fault: [`Peer::Ended`] if the connection is over
    /// or the peer could not execute the request, [`Peer::Unreachable`] if the peer does not answer or has
    /// no receive posted, [`Peer::Malformed`] for its invalid response, [`Device::Gone`] if the device
    /// failed, and [`Usage::Invalid`] if the work request, or the peer's memory for it, was wrong.
    ///
    /// [`Peer::Ended`]: crate::error::Peer::Ended
    /// [`Peer::Unreachable`]: crate::error::Peer::Unreachable
    /// [`Peer::Malformed`]: crate::error::Peer::Malformed
    /// [`Device::Gone`]: crate::error::Device::Gone
    /// [`Usage::Invalid`]: crate::error::Usage::Invalid
    pub fn ok(self) -> Result<Self, Error> {
        match self.status {
            Status::Success => Ok(self),
            status => Err(Cause::Status(status).into()),
        }
    }
}

/// Delay of a completion queue's events, for [`CompletionQueue::moderate`]: an event comes with the `count`th
/// completion after it was requested, or `period` after the first of them, whichever is earlier. The default
/// delays nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[doc(alias = "ibv_moderate_cq")]
#[non_exhaustive]
pub struct Moderation {
    /// Number of completions for one event; with 0 or 1 nothing is delayed.
    pub count: u16,
    /// Longest delay in microseconds; with 0 nothing is delayed. The event may come a millisecond later.
    pub period: u16,
}

setters! { Moderation { count: u16, period: u16, } }

impl Context {
    /// Creates a completion channel, a descriptor that becomes readable on completions.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn completion_channel(&self) -> Result<CompletionChannel, Error> {
        let open = Arc::clone(&self.open);
        let channel = open.context.create_channel()?;
        Ok(CompletionChannel { shared: Arc::new(Channel { channel, open }) })
    }

    /// Creates a completion queue for at least `entries` completions. Each queue pair created on it enlarges
    /// the queue to one completion for each work request that its queue pairs and their shared receive queues
    /// may have outstanding, up to the device's `max_cqe`, 1,048,576.
    ///
    /// An overflow ends the queue and the queue pairs that use it. A work request is outstanding until its
    /// completion is created, not until it is polled: a program that posts continuously must poll as often.
    #[doc(alias = "ibv_create_cq")]
    pub fn completion_queue(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, Error> {
        let open = Arc::clone(&self.open);
        let number = open.queues.number();
        let channel = channel.map(|channel| &channel.shared);
        let cq = open.context.create_cq(entries, number, channel.map(|channel| &channel.channel), 0)?;
        let shared = Arc::new(Queue { cq, channel: channel.cloned(), demand: Mutex::default(), open });
        shared.open.queues.insert(number, &shared);
        Ok(CompletionQueue { shared })
    }
}

/// A completion channel: wait on it, or add its descriptor to an event loop.
#[derive(Clone)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    shared: Arc<Channel>,
}

impl CompletionChannel {
    /// Waits for the event of a queue that requested one ([`CompletionQueue::request_event`]), and returns
    /// that queue. Several queues may report to one channel, and several threads may wait here: each event
    /// wakes one of them.
    ///
    /// [`CompletionQueue::wait`] takes no events from here.
    ///
    /// # Errors
    ///
    /// [`System::WouldBlock`](crate::error::System::WouldBlock) if the program made the descriptor
    /// non-blocking and no event is queued, [`System::Interrupted`](crate::error::System::Interrupted) if a
    /// signal handler without `SA_RESTART` ran.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(&self) -> Result<CompletionQueue, Error> {
        loop {
            let cq = self.shared.channel.get_event()?;
            cq.ack_events(1);
            // An event of a queue without handles is dropped.
            if let Some(shared) = self.shared.open.queues.get(cq.user()) {
                return Ok(CompletionQueue::of(shared));
            }
        }
    }
}

impl CompletionChannel {
    /// Takes an event without waiting, and returns whether there was one. The thread may receive the packet
    /// that made the descriptor readable.
    pub(crate) fn take_event(&self) -> bool {
        self.shared.channel.take_event().inspect(|cq| cq.ack_events(1)).is_some()
    }
}

impl AsFd for CompletionChannel {
    /// Readable while [`Self::wait`] would return at once.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.channel.fd()
    }
}

/// A completion queue. Clones are the same one, and equal.
#[derive(Clone)]
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    pub(crate) shared: Arc<Queue>,
}

impl PartialEq for CompletionQueue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for CompletionQueue {}

/// Completions that [`CompletionQueue::poll`] takes from the engine in one step.
const AT_ONCE: usize = 16;

impl CompletionQueue {
    pub(crate) fn of(shared: Arc<Queue>) -> Self {
        Self { shared }
    }

    pub(crate) fn engine(&self) -> &Arc<engine::CompletionQueue> {
        &self.shared.cq
    }

    /// Appends up to `most` completions to `out` and returns their number. Waits for none of them, but
    /// after polls in vain it sleeps for up to 6 ms if other threads compute on the cores.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, out: &mut Vec<Completion>, most: usize) -> Result<usize, Error> {
        let mut taken = 0;
        while taken < most {
            let mut batch = [WorkCompletion::BLANK; AT_ONCE];
            let free = AT_ONCE.min(most - taken);
            let count = self.shared.cq.poll(&mut batch[..free])?;
            out.extend(batch[..count].iter().map(|completion| Completion::of(*completion)));
            taken += count;
            if count < free {
                break;
            }
        }
        Ok(taken)
    }

    /// Takes completions that are there and returns their number, without receiving packets.
    pub(crate) fn take(&self, out: &mut [WorkCompletion]) -> Result<usize, engine::error::Overrun> {
        self.shared.cq.take(out)
    }

    /// Whether the device is gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.shared.cq.context().is_dead()
    }

    /// Takes one completion and the time of its creation, in nanoseconds of [`Context::clock`].
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn poll_timed(&self) -> Result<Option<(Completion, u64)>, Error> {
        let Some((poll, first)) = self.shared.cq.begin_poll()? else { return Ok(None) };
        Ok(Some((Completion::of(first), poll.completed_at().as_nanos())))
    }

    /// The capacity in completions.
    pub fn capacity(&self) -> u32 {
        self.shared.cq.capacity()
    }

    /// Changes the capacity to `entries`; completions in the queue stay. The next queue pair that is created
    /// on it enlarges it again if needed, see [`Context::completion_queue`].
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        Ok(self.shared.cq.resize(entries)?)
    }

    /// Delays events of the channel until more completions are queued. Polling still returns each completion
    /// at once.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, moderation: Moderation) {
        let Moderation { count, period } = moderation;
        self.shared.cq.moderate(engine::Moderation { count, period });
    }

    /// Waits for one completion and takes it. With a channel the thread sleeps; without one it polls, which
    /// reacts faster and uses a whole core.
    ///
    /// Any number of threads may wait for one queue, and for other queues of the same channel. The call
    /// neither requests nor takes events of the channel; [`Self::moderate`] delays the wake-up as it delays
    /// events.
    ///
    /// # Errors
    ///
    /// [`Usage::Overrun`](crate::error::Usage::Overrun) if the queue overflowed, after the earlier
    /// completions are taken. [`System::Interrupted`](crate::error::System::Interrupted) after a signal
    /// handler without `SA_RESTART` ran: wait again. [`Device::Gone`](crate::error::Device::Gone) if the
    /// device is gone and the queue is empty.
    pub fn wait(&self) -> Result<Completion, Error> {
        let mut found = [WorkCompletion::BLANK];
        let sleeps = self.shared.channel.is_some();
        let poll = if sleeps { engine::CompletionQueue::poll_awake } else { engine::CompletionQueue::poll };
        while poll(&self.shared.cq, &mut found)? == 0 {
            if self.is_dead() {
                return Err(engine::error::EventError::ended().into());
            }
            if sleeps {
                self.shared.cq.sleep()?;
            }
        }
        Ok(Completion::of(found[0]))
    }

    /// Waits as [`Self::wait`], then appends at least one and at most `most` completions to `out`. Returns
    /// their number. If `most` is 0, it returns 0 at once.
    ///
    /// # Errors
    ///
    /// As [`Self::wait`].
    pub fn wait_many(&self, out: &mut Vec<Completion>, most: usize) -> Result<usize, Error> {
        if most == 0 {
            return Ok(0);
        }
        out.push(self.wait()?);
        // The next call reports an overflow, because this one has a result.
        Ok(1 + self.poll(out, most - 1).unwrap_or_default())
    }

    /// Requests one event on the channel for the next completion. Completions already in the queue cause
    /// none: request, poll until the queue is empty, then wait.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_event(&self) {
        self.shared.cq.req_notify(false);
    }

    /// As [`Self::request_event`], for solicited and failed completions only.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_solicited_event(&self) {
        self.shared.cq.req_notify(true);
    }
}
