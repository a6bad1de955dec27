//! Completion queues and channels.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{Moderation, WcOpcode, WcStatus, WorkCompletion};
use ferroce_wire::{Imm, Qpn, Rkey};

use crate::device::Open;
use crate::{Context, Error};

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wc")]
pub struct Completion {
    /// From the work request.
    pub wr_id: u64,
    /// Success or why not.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Octets received or read; 0 on errors.
    pub len: u32,
    /// Immediate data of a received message.
    pub imm: Option<Imm>,
    /// Key of ours that a received message ended.
    pub invalidated: Option<Rkey>,
    /// The queue pair it completed on.
    pub qpn: Qpn,
    /// Who sent a datagram.
    pub src_qp: Qpn,
}

impl From<WorkCompletion> for Completion {
    fn from(completion: WorkCompletion) -> Self {
        let WorkCompletion { wr_id, status, opcode, byte_len, imm, invalidated, qpn, src_qp, .. } =
            completion;
        Self { wr_id, status, opcode, len: byte_len, imm, invalidated, qpn, src_qp }
    }
}

/// A completion channel: sleep on it, or put its descriptor into your own event loop.
#[derive(Clone)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    shared: Arc<SharedChannel>,
}

struct SharedChannel {
    channel: Arc<engine::CompletionChannel>,
    _open: Arc<Open>,
}

impl Drop for SharedChannel {
    fn drop(&mut self) {
        // The queues that report to it hold it.
        let _ = self.channel.destroy();
    }
}

impl CompletionChannel {
    pub(crate) fn new(device: &Context) -> Result<Self, Error> {
        let open = Arc::clone(&device.open);
        Ok(Self { shared: Arc::new(SharedChannel { channel: open.context.create_channel()?, _open: open }) })
    }

    /// Waits until a queue that asked for it ([`CompletionQueue::request_event`]) has something.
    /// Returns at once with an error if the descriptor is non-blocking and nothing is there.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(&self) -> Result<(), Error> {
        let cq = self.shared.channel.get_event()?;
        cq.ack_events(1);
        Ok(())
    }
}

impl AsFd for CompletionChannel {
    /// Readable while [`Self::wait`] would return at once.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.channel.fd()
    }
}

/// A completion queue. Clones are the same one.
#[derive(Clone)]
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    shared: Arc<SharedQueue>,
}

struct SharedQueue {
    cq: Arc<engine::CompletionQueue>,
    channel: Option<CompletionChannel>,
    _open: Arc<Open>,
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // The queue pairs that use it hold it.
        let _ = self.cq.destroy();
    }
}

/// Completions that [`CompletionQueue::wait`] takes at once.
const AT_ONCE: usize = 16;

impl CompletionQueue {
    pub(crate) fn new(
        device: &Context,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self, Error> {
        let open = Arc::clone(&device.open);
        let cq = open.context.create_cq(entries, 0, channel.map(|channel| &channel.shared.channel), 0)?;
        Ok(Self { shared: Arc::new(SharedQueue { cq, channel: channel.cloned(), _open: open }) })
    }

    pub(crate) fn engine(&self) -> &Arc<engine::CompletionQueue> {
        &self.shared.cq
    }

    /// Takes completions that are there, at most as many as `out` has room for. Never blocks.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, out: &mut Vec<Completion>, most: usize) -> Result<usize, Error> {
        let mut taken = 0;
        while taken < most {
            let mut batch = [WorkCompletion::BLANK; AT_ONCE];
            let room = AT_ONCE.min(most - taken);
            let count = self.shared.cq.poll(&mut batch[..room])?;
            out.extend(batch[..count].iter().map(|completion| Completion::from(*completion)));
            taken += count;
            if count < room {
                break;
            }
        }
        Ok(taken)
    }

    /// Takes one completion, and when it came to be, in nanoseconds of [`Context::clock`].
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn poll_timed(&self) -> Result<Option<(Completion, u64)>, Error> {
        let Some((poll, first)) = self.shared.cq.begin_poll()? else { return Ok(None) };
        Ok(Some((first.into(), poll.completed_at().as_nanos())))
    }

    /// Gives it room for `entries` completions; those it holds stay.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        Ok(self.shared.cq.resize(entries)?)
    }

    /// Has events of the channel wait for more completions. Polling sees each completion at once, as ever.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, moderation: Moderation) {
        self.shared.cq.moderate(moderation);
    }

    /// Waits for completions: asleep if the queue has a channel of its own, otherwise polling.
    pub fn wait(&self) -> Result<Vec<Completion>, Error> {
        let mut found = Vec::new();
        loop {
            if self.poll(&mut found, AT_ONCE)? > 0 {
                return Ok(found);
            }
            let Some(channel) = &self.shared.channel else { continue };
            self.request_event();
            if self.poll(&mut found, AT_ONCE)? > 0 {
                return Ok(found);
            }
            channel.wait()?;
        }
    }

    /// Asks for one event on the channel when the next completion comes. What is there already does
    /// not count: ask, poll until empty, then wait.
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
