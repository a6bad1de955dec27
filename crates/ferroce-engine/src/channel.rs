//! Completion channels: how a thread sleeps until something completes.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::{Busy, CreateChannelError, EventError};
use crate::lane::{Lane, LaneSet, Served};
use crate::notify::NotifyQueue;
use crate::sleep::{Held, Sleep};
use crate::{CompletionQueue, Context};
use ferroce_host::fork;
use ferroce_host::latest::Reader;

/// A completion channel (`ibv_comp_channel`): a descriptor and the queues that had something to report.
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    context: Arc<Context>,
    queue: NotifyQueue<Weak<CompletionQueue>>,
    cqs: AtomicUsize,
    lanes: LaneSet,
    epoch: u64,
    /// The lane whose packets make the descriptor readable, see [`Self::get_event`].
    attached: Mutex<Option<Arc<Lane>>>,
    /// `attached` holds a lane: read before the lock is taken.
    is_attached: AtomicBool,
    /// The queue whose event was taken last.
    last: Mutex<Weak<CompletionQueue>>,
    /// The last event was an extra one for which not even a packet was found.
    guessed: AtomicBool,
}

impl Context {
    /// Makes a completion channel.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<CompletionChannel>, CreateChannelError> {
        let channel = Arc::new(CompletionChannel {
            context: Arc::clone(self),
            queue: NotifyQueue::new().map_err(CreateChannelError)?,
            cqs: AtomicUsize::new(0),
            lanes: LaneSet::default(),
            epoch: fork::epoch(),
            attached: Mutex::default(),
            is_attached: AtomicBool::new(false),
            last: Mutex::default(),
            guessed: AtomicBool::new(false),
        });
        let ends = Arc::downgrade(&channel);
        let end = move || {
            if let Some(channel) = ends.upgrade() {
                channel.queue.end();
            }
        };
        self.add_channel(Arc::as_ptr(&channel).addr(), Arc::new(end));
        Ok(channel)
    }
}

impl CompletionChannel {
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
    /// A program that waits for a non-blocking descriptor by `poll` or `epoll` and takes each event soon is
    /// woken by packets directly, and this call then receives them. If such a packet completes nothing, an
    /// *extra* event is returned for a queue that was asked to notify: `ibv_get_cq_event(3)` allows events
    /// without a completion, and a readable descriptor promises an event.
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

    /// The queue that reported first, if one did, or reports about the packet that woke the program.
    pub fn take_event(&self) -> Option<Arc<CompletionQueue>> {
        let reported = std::iter::from_fn(|| self.queue.pop(Self::hand_out)).flatten().next();
        match reported {
            Some(cq) => Some(self.taken(cq)),
            // In a forked child a thread of the parent may hold the locks.
            None if self.is_attached.load(Ordering::Relaxed) && self.epoch == fork::epoch() => {
                self.receive_event()
            }
            None => None,
        }
    }

    /// Prepares a sleep until a queue may have reported, in which the thread receives packets when no other
    /// one does. `None`: something arrived meanwhile, and was processed. `held` keeps the channel alive
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// [`EventError::WouldBlock`] if the descriptor is non-blocking; EIO if the device is dead.
    pub fn fall_asleep(&self, held: Held) -> Result<Option<Sleep>, EventError> {
        self.queue.may_sleep()?;
        if self.is_attached.load(Ordering::Relaxed) {
            self.detach();
        }
        Ok(self.lanes.fall_asleep(self.queue.fd(), held))
    }

    /// `None`: the queue is gone, and with it the event.
    fn hand_out(cq: Weak<CompletionQueue>) -> Option<Arc<CompletionQueue>> {
        let cq = cq.upgrade()?;
        cq.comp_acks().handed_out(1);
        Some(cq)
    }

    /// The program takes an event of `cq`.
    fn taken(&self, cq: Arc<CompletionQueue>) -> Arc<CompletionQueue> {
        self.guessed.store(false, Ordering::Relaxed);
        *self.last.lock() = Arc::downgrade(&cq);
        if let Some(lane) = self.lanes.only()
            && lane.follow().took(this_thread())
            && lane.traits().wakes_programs
            && self.queue.is_nonblocking()
        {
            self.attach(&lane);
        }
        cq
    }

    /// A packet of the lane may have woken the program: receives it, and returns an event if there is one.
    fn receive_event(&self) -> Option<Arc<CompletionQueue>> {
        let lane = self.attached.lock().clone()?;
        if !self.queue.is_nonblocking() {
            // The program changed its mind and sleeps in the call. Packets that lead to no event here, such
            // as an acknowledgement for a queue pair of this very process, must not show on the descriptor
            // any more.
            self.detach();
            return None;
        }
        let mut served = Served::Nothing;
        let work = || {
            served = lane.serve_inline(&Reader::enter());
            if served == Served::Busy {
                // The thread that has the packet is about to report its event.
                lane.wait_for_holder();
            }
        };
        if let Some(Some(cq)) = self.queue.pop_after(work, Self::hand_out) {
            return Some(self.taken(cq));
        }
        if (served == Served::Some && lane.follow().woke_in_vain()) || lane.follow().is_unwanted() {
            lane.follow().back_off();
            self.detach();
        }
        // Another thread may have taken the packet that woke this one. Once in a row this is believed; a
        // program that takes events until there are none would otherwise never come to the end.
        let guess = served != Served::Some;
        if guess && self.guessed.swap(true, Ordering::Relaxed) {
            return None;
        }
        self.last.lock().upgrade().filter(|cq| cq.hand_out_extra())
    }

    fn attach(&self, lane: &Arc<Lane>) {
        let mut attached = self.attached.lock();
        if attached.is_some() || !lane.follow().attach() {
            return;
        }
        match self.queue.join(lane.fd()) {
            Ok(()) => {
                *attached = Some(Arc::clone(lane));
                // The background thread was, because the program looked at its queue only now and then.
                lane.state().end_eager();
                self.is_attached.store(true, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::debug!(%error, "a channel's descriptor cannot hold a socket");
                lane.follow().detach();
            }
        }
    }

    fn detach(&self) {
        if self.epoch != fork::epoch() {
            return;
        }
        let mut attached = self.attached.lock();
        if let Some(lane) = attached.take() {
            self.is_attached.store(false, Ordering::Relaxed);
            self.queue.part(lane.fd());
            lane.follow().detach();
        }
    }

    /// Prepares a sleep until a queue reports, another thread wakes it, or a packet arrives. `None`: one of
    /// these has happened already. It is meant for a single queue, whose owner then polls it and takes the
    /// report back.
    pub fn doze(&self, held: Held) -> Option<Sleep> {
        if self.take_back() > 0 { None } else { self.lanes.fall_asleep(self.queue.fd(), held) }
    }

    /// Takes back what was reported, and says how much that was.
    pub fn take_back(&self) -> usize {
        self.queue.purge(|_| true)
    }

    /// Wakes the sleeping threads, though no queue reports.
    pub fn nudge(&self) {
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

    /// Packets of `lane` may lead to an event here.
    pub(crate) fn add_lane(&self, lane: &Arc<Lane>) {
        self.lanes.add(lane);
        self.detach();
    }

    /// Takes back [`Self::add_lane`].
    pub(crate) fn remove_lane(&self, lane: &Arc<Lane>) {
        self.lanes.remove(lane);
        self.detach();
    }

    pub(crate) fn notify(&self, cq: &Weak<CompletionQueue>) {
        self.queue.push(cq.clone());
    }

    pub(crate) fn purge(&self, cq: &CompletionQueue) {
        self.queue.purge(|entry| std::ptr::eq(entry.as_ptr(), cq));
    }
}

impl Sleep {
    /// A sleep on these descriptors, in which the thread receives what arrives for `channels`; the
    /// descriptors of the channels must be among `fds` if their events count. `None`: something arrived
    /// meanwhile, and was processed.
    pub fn on_channels(
        channels: &[Arc<CompletionChannel>],
        fds: impl IntoIterator<Item = libc::pollfd, IntoIter: Clone>,
        held: Held,
    ) -> Option<Self> {
        let mut lanes = Vec::new();
        for lane in channels.iter().flat_map(|channel| Vec::clone(&channel.lanes().all())) {
            if !lanes.iter().any(|known| Arc::ptr_eq(known, &lane)) {
                lanes.push(lane);
            }
        }
        Self::on_lanes(&lanes, fds, held)
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        self.detach();
        if self.epoch == fork::epoch() {
            self.context.remove_channel(std::ptr::from_ref(self).addr());
        }
    }
}

/// A number that no other thread has now.
fn this_thread() -> u64 {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.try_with(|here| std::ptr::from_ref(here).addr() as u64).unwrap_or(0)
}
