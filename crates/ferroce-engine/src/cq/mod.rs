//! Completion queues.

use std::collections::VecDeque;
use std::iter;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ferroce_host::fork::{self, Guarded};
use ferroce_host::idle::{Idle, Look, MEMORY};
use ferroce_host::latest::Reader;
use ferroce_host::sleepers::Sleepers;
use ferroce_ipc::ledger::records::{Block, CqRecord};
use ferroce_ipc::ledger::{self, Table};
use ferroce_proto::history::{Cause, Event, What};
use ferroce_proto::{AsyncEventKind, WcStatus, WorkCompletion};
use ferroce_wire::{Instant, Qpn};
use nix::sys::eventfd::EventFd;
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};

use crate::async_queue::{AckCount, EventSource};
use crate::device::{MAX_CQ, MAX_CQE};
use crate::error::{Busy, CqError, EventError, LimitReached, Overrun};
use crate::lane::{self, Lane, LaneSet};
use crate::moderation::{Moderate, Moderation, Moderator, Verdict};
use crate::sleep::{Held, Sleep};
use crate::{CompletionChannel, Context, Pd};

/// The parameters of a new completion queue (`ibv_cq_init_attr_ex`).
#[derive(Clone, Default)]
#[doc(alias = "ibv_cq_init_attr_ex")]
pub struct CqInit {
    /// Completions it shall hold, at least 1.
    pub entries: u32,
    /// The caller's own, given back by [`CompletionQueue::user`].
    pub user: u64,
    /// Channel that the queue reports to; `None` without events.
    pub channel: Option<Arc<CompletionChannel>>,
    /// Below [`Context::num_comp_vectors`]; means nothing here.
    pub comp_vector: u32,
    /// A full queue drops its oldest completion for a new one, instead of being at its end.
    pub ignore_overrun: bool,
    /// The parent domain that it counts as a user of.
    pub domain: Option<Arc<Pd>>,
}

/// The event that the program requested by `ibv_req_notify_cq`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// A completion and the time of the batch that made it.
#[derive(Clone, Copy)]
struct Entry {
    completion: WorkCompletion,
    at: Instant,
}

/// Entries and everything that must change together with them.
struct Ring {
    entries: VecDeque<Entry>,
    capacity: usize,
    armed: Armed,
    /// A completion came that the armed event is for; moderation may delay the event.
    asked: bool,
    moderator: Moderator,
    sleepers: Sleepers,
    /// Threads that polled in vain and sleep, for a moment at most.
    nappers: Sleepers,
    overrun: bool,
    destroyed: bool,
}

/// The outcome of adding a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// The completion can be polled.
    Queued,
    /// There was no room. The first time, the queue's other users must go to the error state too.
    Lost { first: bool },
}

/// A completion queue (`ibv_cq`).
///
/// Polling an empty queue receives and processes packets on the caller's thread; see
/// [`crate::lane`]. An overflow is an event and the end of the queue, never silent loss.
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    me: Weak<CompletionQueue>,
    context: Arc<Context>,
    channel: Option<Arc<CompletionChannel>>,
    user: u64,
    ignore_overrun: bool,
    domain: Option<Arc<Pd>>,
    ring: Mutex<Ring>,
    /// False only while the ring has nothing to say, written under its lock: an empty queue is looked at more
    /// often than any other, and without the lock.
    ready: AtomicBool,
    /// The program asked for an event once.
    sleeps: AtomicBool,
    /// Polls that found something, written under the ring's lock.
    polls: AtomicU64,
    capacity: AtomicU32,
    users: AtomicUsize,
    lanes: LaneSet,
    idle: Idle,
    comp_acks: AckCount,
    async_acks: AckCount,
    /// Held between `begin_poll` and the end of the polling.
    consumer: Arc<Mutex<()>>,
    /// Record of the queue in the ledger.
    entry: ledger::Entry,
    epoch: u64,
}

fn ledger_record(context: &Context, cqe: u32) -> CqRecord {
    CqRecord { block: Block::new(context.block()), context: context.number(), cqe }
}

impl Context {
    /// Makes a completion queue of `cqe` entries that reports to `channel`. `user` is the
    /// caller's own, given back by [`CompletionQueue::user`].
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(
        self: &Arc<Self>,
        cqe: u32,
        user: u64,
        channel: Option<&Arc<CompletionChannel>>,
        comp_vector: u32,
    ) -> Result<Arc<CompletionQueue>, CqError> {
        let channel = channel.cloned();
        self.create_cq_with(CqInit { entries: cqe, user, channel, comp_vector, ..CqInit::default() })
    }

    /// Makes a completion queue with everything that one can be made with.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq_with(self: &Arc<Self>, init: CqInit) -> Result<Arc<CompletionQueue>, CqError> {
        let CqInit { entries: cqe, user, channel, comp_vector, ignore_overrun, domain } = init;
        if cqe == 0 || cqe > MAX_CQE {
            return Err(CqError::Entries { asked: cqe, max: MAX_CQE });
        }
        let last = self.num_comp_vectors() - 1;
        if comp_vector > last {
            return Err(CqError::Vector { asked: comp_vector, last });
        }
        let of_others = channel.as_ref().is_some_and(|channel| !Arc::ptr_eq(channel.context(), self))
            || domain.as_ref().is_some_and(|domain| !Arc::ptr_eq(domain.context(), self));
        if of_others {
            return Err(CqError::Foreign);
        }
        let entries = fixed_ring(cqe).ok_or(CqError::Memory { entries: cqe })?;
        if !self.engine().cqs.take() {
            return Err(LimitReached { what: "completion queues", max: MAX_CQ }.into());
        }
        if let Some(domain) = &domain {
            domain.add_user();
        }
        if let Some(channel) = &channel {
            channel.add_cq();
        }
        self.engine().objects_changed();
        let entry = self.record(Table::Cq);
        entry.put(&ledger_record(self, cqe));
        Ok(Arc::new_cyclic(|me| CompletionQueue {
            me: me.clone(),
            context: Arc::clone(self),
            channel,
            user,
            ignore_overrun,
            domain,
            ring: Mutex::new(Ring {
                entries,
                capacity: cqe as usize,
                armed: Armed::No,
                asked: false,
                moderator: Moderator::default(),
                sleepers: Sleepers::default(),
                nappers: Sleepers::default(),
                overrun: false,
                destroyed: false,
            }),
            ready: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            capacity: AtomicU32::new(cqe),
            users: AtomicUsize::new(0),
            lanes: LaneSet::default(),
            idle: Idle::of(entry.number()),
            comp_acks: AckCount::default(),
            async_acks: AckCount::default(),
            consumer: Arc::new(Mutex::new(())),
            entry,
            epoch: fork::epoch(),
        }))
    }
}

impl CompletionQueue {
    /// The caller's own value.
    pub fn user(&self) -> u64 {
        self.user
    }

    /// The channel it reports to.
    pub fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
    }

    /// The context it was made in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Number of the queue in the ledger.
    pub(crate) fn number(&self) -> u32 {
        self.entry.number()
    }

    /// Completions it can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Takes up to `out.len()` completions, oldest first, and returns how many. If none is there it receives
    /// and processes what has arrived, and looks once more.
    ///
    /// After some 10 µs of polls in vain it yields. If other threads compute on the cores, it then sleeps
    /// instead until a packet arrives, for 750 µs at most, and for up to 6 ms after such sleeps in vain.
    ///
    /// After an overrun the completions before it are returned, then the error.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, Overrun> {
        if out.is_empty() || !self.comes(|in_vain| self.rest(in_vain)) { Ok(0) } else { self.take(out) }
    }

    /// Whether a poll would find nothing and has nothing to do, as most polls. Counts as one, if so. The
    /// caller is of the process that made the queue. `false` says nothing: [`Self::look`] tells.
    #[inline(always)]
    pub fn polled_in_vain(&self, reader: &Reader) -> bool {
        !self.is_ready() && self.lanes.are_quiet(reader, || self.idle.goes_on())
    }

    /// The first part of [`Self::poll`]: looks for completions, without taking them, and never sleeps.
    #[inline]
    pub fn look(&self, reader: &Reader) -> Look {
        self.idle.look(|| self.is_ready(), || self.progress(reader))
    }

    /// The second part of [`Self::poll`], behind [`Look::Rest`]: lets others run, and looks once more.
    /// Returns whether there is something to take. The caller reads nothing, since this may sleep.
    #[cold]
    pub fn look_behind_rest(&self) -> bool {
        self.rested(|in_vain| self.rest(in_vain))
    }

    fn rested(&self, rest: impl FnOnce(u32) -> u32) -> bool {
        self.idle.rested(|| self.is_ready(), || self.progress(&Reader::enter()), rest)
    }

    fn comes(&self, rest: impl FnOnce(u32) -> u32) -> bool {
        // In the head of the `match` the reader would live through the rest.
        let looked = {
            let reader = Reader::enter();
            let in_vain = self.epoch == fork::epoch() && self.polled_in_vain(&reader);
            if in_vain { Look::Nothing } else { self.look(&reader) }
        };
        match looked {
            Look::Found => true,
            Look::Nothing => false,
            Look::Rest => self.rested(rest),
        }
    }

    /// As [`Self::poll`], but it never sleeps: for a caller that holds a lock which other threads want.
    pub fn poll_awake(&self, out: &mut [WorkCompletion]) -> Result<usize, Overrun> {
        if out.is_empty() || !self.comes(yielded) { Ok(0) } else { self.take(out) }
    }

    /// Takes one completion for [`CqPoll`], like [`Self::poll_awake`].
    fn poll_one(&self) -> Result<Option<Entry>, Overrun> {
        if self.comes(yielded) { self.take_one() } else { Ok(None) }
    }

    #[inline(always)]
    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Takes up to `out.len()` completions that are there, oldest first, and returns how many.
    ///
    /// # Errors
    /// After an overrun the completions before it are returned, then the error.
    #[inline(never)]
    pub fn take(&self, out: &mut [WorkCompletion]) -> Result<usize, Overrun> {
        let mut ring = self.ring.lock();
        let mut count = 0;
        for (to, from) in out.iter_mut().zip(iter::from_fn(|| ring.entries.pop_front())) {
            *to = from.completion;
            count += 1;
        }
        self.note_poll(&ring, count > 0);
        if count == 0 && ring.overrun { Err(Overrun) } else { Ok(count) }
    }

    /// Why a work request failed, by what is recorded of its queue pair. `None` without that.
    pub fn why(&self, failed: &WorkCompletion) -> Option<Cause> {
        // Not by a reference of its own, whose end would end a queue pair that was destroyed meanwhile.
        let reader = Reader::enter();
        let endpoint = self.context.engine().hub().table.read(failed.qpn, &reader)?;
        let events = endpoint.entry.events().filter_map(Event::from_words);
        let WorkCompletion { wr_id, status, opcode, .. } = *failed;
        let it = What::Failed { status: status as u8, opcode: opcode as u8, wr_id };
        let last = events.clone().enumerate().filter(|(_, event)| event.what == it).last();
        let before = last.map_or(usize::MAX, |(place, _)| place);
        Some(Cause::of(events.take(before), status, opcode).with_hops(endpoint.entry.ends().hop_limit))
    }

    fn take_one(&self) -> Result<Option<Entry>, Overrun> {
        let mut found = None;
        self.take_by(|completion, at| found = Some(Entry { completion: *completion, at }))?;
        Ok(found)
    }

    /// As [`Self::take`], for one completion, which `give` is given. Returns whether there was one.
    #[inline(always)]
    pub fn take_by(&self, give: impl FnOnce(&WorkCompletion, Instant)) -> Result<bool, Overrun> {
        if !self.is_ready() {
            return Ok(false);
        }
        let mut ring = self.ring.lock();
        let Some(entry) = ring.entries.pop_front() else {
            self.note_poll(&ring, false);
            return if ring.overrun { Err(Overrun) } else { Ok(false) };
        };
        self.note_poll(&ring, true);
        drop(ring);
        give(&entry.completion, entry.at);
        Ok(true)
    }

    /// The program polled, and `found` something or not.
    fn note_poll(&self, ring: &Ring, found: bool) {
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.wrapping_add(found.into()), Ordering::Relaxed);
        self.note_ready(ring);
    }

    /// Polls that found something.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// The ring's lock is held.
    fn note_ready(&self, ring: &Ring) {
        self.ready.store(!ring.entries.is_empty() || ring.overrun, Ordering::Release);
    }

    /// Receives and processes on this thread, unless another one does. Returns the cost of finding nothing,
    /// in looks at shared memory.
    pub fn progress(&self, reader: &Reader) -> u32 {
        if self.epoch != fork::epoch() {
            return 0;
        }
        // Most looks behind `polled_in_vain` are for a packet, and the others for the clock.
        let is_idle = self.idle.is_for_clock() && self.lanes.are_idle(reader);
        if is_idle { MEMORY } else { self.lanes.serve_once(reader) }
    }

    /// Lets other threads run, see [`LaneSet::rest`].
    fn rest(&self, in_vain: u32) -> u32 {
        if self.epoch != fork::epoch() {
            return 0;
        }
        self.lanes.rest(in_vain, || self.is_ready(), || self.nap())
    }

    /// Has a completion that another thread makes wake this thread; `None` if the queue has one.
    fn nap(&self) -> Option<Napping<'_>> {
        let mut ring = self.ring.lock();
        if !ring.entries.is_empty() || ring.overrun {
            return None;
        }
        Some(Napping(self, ring.nappers.enter().ok()?))
    }

    /// Asks for one event on the channel: for the next completion, or with `solicited_only` for
    /// the next solicited or unsuccessful one. Completions that are there already do not count.
    /// A request for any completion is not weakened by one for solicited ones.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) {
        self.sleeps.store(true, Ordering::Relaxed);
        let mut ring = self.ring.lock();
        ring.armed = match (solicited_only, ring.armed) {
            (false, _) | (true, Armed::Any) => Armed::Any,
            (true, _) => Armed::Solicited,
        };
        drop(ring);
        if self.epoch == fork::epoch() {
            // The program is about to sleep, perhaps not in a call of ours.
            self.lanes.flush_gathered();
        }
    }

    /// Answers the request for an event without a completion; `false` if there was no request. The caller
    /// gives the event to the program.
    pub(crate) fn hand_out_extra(&self) -> bool {
        let mut ring = self.ring.lock();
        let armed = std::mem::replace(&mut ring.armed, Armed::No) != Armed::No && !ring.destroyed;
        if armed {
            // Under the lock: destroying the queue waits for this event or prevents it.
            self.comp_acks.handed_out(1);
        }
        armed
    }

    /// Whether the program ever asked for an event of this queue.
    pub(crate) fn sleeps(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Whether a completion would wake a thread of the program now.
    pub(crate) fn wakes_program(&self) -> bool {
        let ring = self.ring.lock();
        ring.armed != Armed::No || ring.sleepers.need_wake()
    }

    /// Has events wait for more completions. Polling sees every completion at once, as ever.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, moderation: Moderation) {
        let mut ring = self.ring.lock();
        if ring.moderator.set(moderation) {
            self.fire(&mut ring);
        }
    }

    /// Fires the event that was asked for, once, and wakes the threads in [`Self::sleep`].
    fn fire(&self, ring: &mut Ring) {
        if std::mem::take(&mut ring.asked) {
            ring.armed = Armed::No;
            if !ring.destroyed
                && let Some(channel) = &self.channel
            {
                channel.notify(&self.me);
            }
        }
        ring.sleepers.wake();
    }

    /// Sleeps until the queue has something to poll, receiving and processing packets meanwhile when no other
    /// thread does. It may return earlier, for example after packets for other queues: poll, and sleep again
    /// if the queue is empty.
    ///
    /// It neither needs nor takes an event of the queue's channel, so any number of threads may sleep here
    /// while others wait for the channel's events.
    ///
    /// # Errors
    ///
    /// [`EventError::Interrupted`] after a signal handler without `SA_RESTART`; [`EventError::Io`] if there
    /// is no descriptor left, or the device is dead.
    pub fn sleep(&self) -> Result<(), EventError> {
        // Delayed acknowledgements assume that a program which asks for no events polls again soon.
        self.sleeps.store(true, Ordering::Relaxed);
        let event = {
            let mut ring = self.ring.lock();
            if !ring.entries.is_empty() || ring.overrun {
                return Ok(());
            }
            // Under the lock, which `wake` takes after the device is marked as dead.
            if self.context.is_dead() {
                return Err(EventError::ended());
            }
            ring.sleepers.enter().map_err(EventError::Io)?
        };
        let _asleep = Asleep(self);
        self.lanes.fall_asleep(event.as_fd(), Held::Nothing).map_or(Ok(()), Sleep::sleep)
    }

    /// Wakes the threads in [`Self::sleep`], though there may be no completion.
    pub(crate) fn wake(&self) {
        self.ring.lock().sleepers.wake();
    }

    /// Acknowledges `events` completion events; destroying the queue waits for all of them.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn ack_events(&self, events: u32) {
        self.comp_acks.acknowledge(events);
    }

    /// Acknowledges one asynchronous event of this queue.
    pub fn ack_async_event(&self) {
        self.async_acks.acknowledge(1);
    }

    pub(crate) fn comp_acks(&self) -> &AckCount {
        &self.comp_acks
    }

    /// Gives it room for `cqe` completions, keeping those it holds. A smaller size than before is
    /// allowed as long as they fit.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, cqe: u32) -> Result<(), CqError> {
        if cqe == 0 || cqe > MAX_CQE {
            return Err(CqError::Entries { asked: cqe, max: MAX_CQE });
        }
        let mut fresh = fixed_ring(cqe).ok_or(CqError::Memory { entries: cqe })?;
        let mut ring = self.ring.lock();
        if ring.entries.len() > cqe as usize {
            return Err(CqError::Present { asked: cqe, present: ring.entries.len() as u32 });
        }
        fresh.append(&mut ring.entries);
        ring.entries = fresh;
        ring.capacity = cqe as usize;
        self.capacity.store(cqe, Ordering::Relaxed);
        self.entry.put(&ledger_record(&self.context, cqe));
        Ok(())
    }

    /// Starts a polling that returns completions one by one and keeps other such pollings of this
    /// queue out until it ends (`ibv_start_poll`). `None`: the queue is empty, nothing is held.
    #[doc(alias = "ibv_start_poll")]
    pub fn begin_poll(&self) -> Result<Option<(CqPoll, WorkCompletion)>, Overrun> {
        let held = self.consumer.lock_arc();
        let Some(cq) = self.me.upgrade() else { return Ok(None) };
        Ok(self.poll_one()?.map(|first| (CqPoll { cq, at: first.at, _held: held }, first.completion)))
    }

    /// Ends the queue. Refused while queue pairs use it; waits until all events it reported are
    /// acknowledged.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(&self) -> Result<(), Busy> {
        if self.epoch != fork::epoch() {
            return Ok(());
        }
        {
            let mut ring = self.ring.lock();
            let users = self.users.load(Ordering::Acquire);
            if users > 0 {
                return Err(Busy { users });
            }
            if std::mem::replace(&mut ring.destroyed, true) {
                return Ok(());
            }
            ring.entries = VecDeque::new();
        }
        if let Some(channel) = &self.channel {
            channel.purge(self);
        }
        self.context.async_events().purge(self);
        self.comp_acks.wait();
        self.async_acks.wait();
        if let Some(channel) = &self.channel {
            channel.remove_cq();
        }
        if let Some(domain) = &self.domain {
            domain.remove_user();
        }
        self.entry.end();
        self.context.engine().cqs.give_back();
        self.context.engine().objects_changed();
        Ok(())
    }

    /// A queue pair starts to use it; `false` if it is being destroyed.
    pub(crate) fn add_user(&self) -> bool {
        let ring = self.ring.lock();
        if ring.destroyed {
            return false;
        }
        self.users.fetch_add(1, Ordering::AcqRel);
        true
    }

    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// A queue pair that completes into this queue is on `lane`: a thread that polls or sleeps here serves
    /// it.
    pub(crate) fn add_lane(&self, lane: &Arc<Lane>) {
        self.lanes.add(lane);
        self.channel().inspect(|channel| channel.add_lane(lane));
    }

    /// Takes back [`Self::add_lane`].
    pub(crate) fn remove_lane(&self, lane: &Arc<Lane>) {
        self.lanes.remove(lane);
        self.channel().inspect(|channel| channel.remove_lane(lane));
    }

    /// Adds a completion and fires the event that was asked for: under one lock, so that no
    /// request falls between the two. Never inlined, so that the completion is copied in one piece.
    #[inline(never)]
    pub(crate) fn push(&self, completion: &WorkCompletion, now: Instant) -> Pushed {
        let mut ring = self.ring.lock();
        if ring.overrun || ring.destroyed {
            return Pushed::Lost { first: false };
        }
        if ring.entries.len() == ring.capacity {
            if !self.ignore_overrun {
                ring.overrun = true;
                self.note_ready(&ring);
                ring.sleepers.wake();
                ring.nappers.wake();
                drop(ring);
                self.context.async_events().push(AsyncEventKind::CqErr, self.me.clone());
                return Pushed::Lost { first: true };
            }
            ring.entries.pop_front();
        }
        ring.entries.push_back(Entry { completion: *completion, at: now });
        self.ready.store(true, Ordering::Release);
        ring.nappers.wake();
        let asked = match ring.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => completion.solicited || completion.status != WcStatus::Success,
        };
        ring.asked |= asked;
        if asked || ring.sleepers.need_wake() {
            match ring.moderator.completed(now) {
                Verdict::Fire => self.fire(&mut ring),
                Verdict::Wait => {}
                Verdict::List(due) => self.context.engine().moderate(self.me.clone(), due),
            }
        }
        Pushed::Queued
    }

    /// Removes what a destroyed or reset queue pair left behind.
    pub(crate) fn purge(&self, qpn: Qpn) {
        let mut ring = self.ring.lock();
        ring.entries.retain(|entry| entry.completion.qpn != qpn);
    }
}

impl EventSource for CompletionQueue {
    fn async_acks(&self) -> &AckCount {
        &self.async_acks
    }
}

impl Moderate for CompletionQueue {
    fn fire_moderated(&self, now: u64) {
        let mut ring = self.ring.lock();
        match ring.moderator.look(now) {
            Verdict::Fire => self.fire(&mut ring),
            Verdict::Wait => {}
            Verdict::List(due) => self.context.engine().moderate(self.me.clone(), due),
        }
    }
}

/// A thread in [`CompletionQueue::sleep`], until it returns or unwinds.
struct Asleep<'a>(&'a CompletionQueue);

/// A thread in [`LaneSet::rest`], and the descriptor that wakes it.
struct Napping<'a>(&'a CompletionQueue, Arc<Guarded<EventFd>>);

impl AsFd for Napping<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }
}

impl Drop for Napping<'_> {
    fn drop(&mut self) {
        self.0.ring.lock().nappers.leave();
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.ring.lock().sleepers.leave();
    }
}

/// A rest of [`Idle::rested`] that never sleeps.
fn yielded(in_vain: u32) -> u32 {
    lane::yield_core();
    in_vain
}

/// All the memory at once: the packet path never allocates.
fn fixed_ring(cqe: u32) -> Option<VecDeque<Entry>> {
    let mut entries = VecDeque::new();
    entries.try_reserve_exact(cqe as usize).ok()?;
    Some(entries)
}

/// A polling under way, see [`CompletionQueue::begin_poll`]. Dropping it ends it.
pub struct CqPoll {
    cq: Arc<CompletionQueue>,
    at: Instant,
    _held: ArcMutexGuard<RawMutex, ()>,
}

impl CqPoll {
    /// The next completion; `None` if the queue is empty. The polling goes on either way.
    #[doc(alias = "ibv_next_poll")]
    pub fn next_completion(&mut self) -> Result<Option<WorkCompletion>, Overrun> {
        let next = self.cq.take_one()?;
        if let Some(entry) = &next {
            self.at = entry.at;
        }
        Ok(next.map(|entry| entry.completion))
    }

    /// Time of the completion that was returned last, by the clock of [`Context::raw_clock`].
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn completed_at(&self) -> Instant {
        self.at
    }

    /// Ends the polling.
    #[doc(alias = "ibv_end_poll")]
    pub fn end(self) {}
}
