//! Completion channels: how a thread sleeps until something completes.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::error::{Busy, CreateChannelError, EventError};
use crate::lane::LaneSet;
use crate::notify::NotifyQueue;
use crate::sleep::{Held, Sleep};
use crate::{CompletionQueue, Context, fork};

/// A completion channel (`ibv_comp_channel`): a descriptor and the queues that had something to report.
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    context: Arc<Context>,
    queue: NotifyQueue<Weak<CompletionQueue>>,
    cqs: AtomicUsize,
    lanes: LaneSet,
    epoch: u64,
}

impl CompletionChannel {
    pub(crate) fn create(context: &Arc<Context>) -> Result<Arc<Self>, CreateChannelError> {
        Ok(Arc::new(Self {
            context: Arc::clone(context),
            queue: NotifyQueue::new().map_err(CreateChannelError::Descriptor)?,
            cqs: AtomicUsize::new(0),
            lanes: LaneSet::default(),
            epoch: fork::epoch(),
        }))
    }

    /// Readable while an event is there. O_NONBLOCK, if the program sets it, is honoured.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

    /// The context it was made in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The queue that reported first; waits for one unless the descriptor is non-blocking. While
    /// it waits it receives and processes packets itself, when no other thread does.
    ///
    /// Each must be acknowledged: [`CompletionQueue::ack_events`].
    #[doc(alias = "ibv_get_cq_event")]
    pub fn get_event(&self) -> Result<Arc<CompletionQueue>, EventError> {
        loop {
            if let Some(cq) = self.take_event() {
                return Ok(cq);
            }
            if let Some(sleep) = self.fall_asleep(Held::Nothing)? {
                sleep.sleep()?;
            }
        }
    }

    /// The queue that reported first, if one did.
    pub fn take_event(&self) -> Option<Arc<CompletionQueue>> {
        let hand_out = |cq: Weak<CompletionQueue>| {
            let cq = cq.upgrade()?;
            cq.comp_acks().handed_out(1);
            Some(cq)
        };
        std::iter::from_fn(|| self.queue.pop(hand_out)).flatten().next()
    }

    /// Prepares a sleep until a queue may have reported, in which the thread receives packets when no other one does. `None`:
    /// something arrived meanwhile, and was processed. `held` keeps the channel alive meanwhile.
    ///
    /// # Errors
    ///
    /// [`EventError::WouldBlock`] if the descriptor is non-blocking.
    pub fn fall_asleep(&self, held: Held) -> Result<Option<Sleep>, EventError> {
        if self.queue.is_nonblocking() {
            return Err(EventError::WouldBlock);
        }
        Ok(self.lanes.fall_asleep(self.queue.fd(), held))
    }

    /// Prepares a sleep until a queue reported, or somebody nudged, or something arrived. `None`: one of these is the case.
    /// For one queue alone, whose owner looks at it then and takes back what was reported.
    pub(crate) fn doze(&self, held: Held) -> Option<Sleep> {
        if self.take_back() > 0 { None } else { self.lanes.fall_asleep(self.queue.fd(), held) }
    }

    /// Takes back what was reported, and says how much that was.
    pub(crate) fn take_back(&self) -> usize {
        self.queue.purge(|_| true)
    }

    /// Wakes who sleeps, though no queue reports.
    pub(crate) fn nudge(&self) {
        self.queue.push(Weak::new());
    }

    /// Ends the channel. Refused while completion queues report to it.
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn destroy(&self) -> Result<(), Busy> {
        if self.epoch != fork::epoch() {
            return Ok(());
        }
        match self.cqs.load(Ordering::Acquire) {
            0 => Ok(()),
            users => Err(Busy { users }),
        }
    }

    pub(crate) fn add_cq(&self) {
        self.cqs.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove_cq(&self) {
        self.cqs.fetch_sub(1, Ordering::AcqRel);
    }

    /// The lanes whose packets may lead to an event here.
    pub(crate) fn lanes(&self) -> &LaneSet {
        &self.lanes
    }

    pub(crate) fn notify(&self, cq: &Weak<CompletionQueue>) {
        self.queue.push(cq.clone());
    }

    pub(crate) fn purge(&self, cq: &CompletionQueue) {
        self.queue.purge(|entry| std::ptr::eq(entry.as_ptr(), cq));
    }
}
