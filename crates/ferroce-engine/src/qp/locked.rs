//! What a queue pair's lock guards, and what is done under it: packets in, packets out, completions.

use std::cell::Cell;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_proto::{QpEvent, QueuePair, Service};
use ferroce_wire::{Flow, Gid, Instant, Packet};
use parking_lot::MutexGuard;

use super::Qp;
use super::answers::{Answers, WAIT};
use super::patience::{HOLD, Patience};
use super::receives::Receives;
use crate::attr::AhAttr;
use crate::counters::{DeviceCounters, count_drop};
use crate::cq::Pushed;
use crate::hub::Hub;
use crate::lane::Lane;
use crate::memory::View;
use crate::outlets::{Exit, Outlets};
use crate::{CompletionQueue, Srq, clock, transmit};

/// What the queue pair's lock guards.
pub(super) struct Core {
    pub(super) transport: QueuePair,
    pub(super) memory: View,
    pub(super) ah: AhAttr,
    pub(super) path: Option<Path>,
    /// Of datagrams: the sockets they leave from.
    pub(super) outlets: Outlets,
    /// Of datagrams, from RTR on: the lanes they come in on. The first one runs its timers.
    pub(super) homes: Vec<Arc<Lane>>,
    /// In the lane's list of queue pairs to settle at the end of the batch.
    pub(super) touched: bool,
    /// An acknowledgement was put off, see [`Locked::settle_or_owe`].
    pub(super) owes: bool,
    pub(super) patience: Patience,
    pub(super) answers: Answers,
    pub(super) destroyed: bool,
    /// Multicast groups it is attached to.
    pub(super) groups: Vec<Gid>,
    /// Of raw packets: where frames are put together.
    pub(super) frame: Box<[u8]>,
}

/// Where the packets of a connection leave and arrive, from RTR on.
pub(super) struct Path {
    pub(super) lane: Arc<Lane>,
    pub(super) socket: Exit,
}

impl Core {
    /// The lane that runs its timers.
    pub(super) fn home(&self) -> Option<&Arc<Lane>> {
        self.path.as_ref().map(|path| &path.lane).or_else(|| self.homes.first())
    }

    /// Whether datagrams that came by a socket of this address are for it.
    fn hears(&self, destination: IpAddr) -> bool {
        destination.is_multicast() || self.homes.iter().any(|lane| lane.local() == destination)
    }
}

thread_local! {
    /// The queue pair whose lock this thread holds, or waits for. A signal handler asks.
    static INSIDE: Cell<*const Qp> = const { Cell::new(ptr::null()) };
}

/// The queue pair's state, while its lock is held.
pub(super) struct Inside<'a> {
    /// Given back before `INSIDE` says so.
    core: Option<MutexGuard<'a, Core>>,
    before: *const Qp,
}

impl<'a> Inside<'a> {
    /// Waits for the lock.
    pub(super) fn wait(qp: &'a Qp) -> Self {
        let before = INSIDE.replace(qp);
        Self { core: Some(qp.core.lock()), before }
    }

    /// As [`Self::wait`]; `None` if the lock is held by this very thread, which a signal handler interrupted.
    pub(super) fn unless_interrupted(qp: &'a Qp) -> Option<Self> {
        let interrupted = ptr::eq(INSIDE.get(), qp);
        if !interrupted {
            return Some(Self::wait(qp));
        }
        let before = INSIDE.get();
        qp.core.try_lock().map(|core| Self { core: Some(core), before })
    }
}

impl Deref for Inside<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core.as_deref().expect("only the destructor empties it")
    }
}

impl DerefMut for Inside<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_deref_mut().expect("only the destructor empties it")
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        drop(self.core.take());
        INSIDE.set(self.before);
    }
}

/// A queue pair whose lock is held.
pub(crate) struct Locked<'a> {
    pub(super) qp: &'a Qp,
    pub(super) core: Inside<'a>,
}

impl Locked<'_> {
    /// Gives it one packet.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        from: &Flow,
        packet: &Packet<'_>,
        counters: &DeviceCounters,
    ) {
        let core = &mut *self.core;
        if core.destroyed {
            DeviceCounters::count(&counters.rx_no_qp);
            return;
        }
        let by_rings = from.link.ifindex != 0;
        let hears = || if by_rings { self.qp.context().has(from) } else { core.hears(from.destination) };
        if self.qp.service == Service::Ud && !hears() {
            // Another device's address.
            DeviceCounters::count(&counters.rx_no_qp);
            return;
        }
        if let Err(reason) =
            core.transport.handle_datagram(now, from, packet, &mut Receives(self.qp), &mut core.memory)
        {
            count_drop(counters, reason);
        }
    }

    /// Gives it one Ethernet frame.
    pub(crate) fn receive_frame(&mut self, frame: &[u8], counters: &DeviceCounters) {
        let core = &mut *self.core;
        if core.destroyed {
            DeviceCounters::count(&counters.rx_no_qp);
        } else if let Err(reason) =
            core.transport.handle_frame(frame, &mut Receives(self.qp), &mut core.memory)
        {
            count_drop(counters, reason);
        }
    }

    /// Runs its timers.
    pub(crate) fn expire(&mut self, now: Instant) {
        if !self.core.destroyed {
            self.core.transport.handle_timeout(now);
        }
    }

    /// Notes whether it waits for the end of the batch; returns what was noted before.
    pub(crate) fn set_touched(&mut self, touched: bool) -> bool {
        std::mem::replace(&mut self.core.touched, touched)
    }

    /// Whether its acknowledgement was put off.
    pub(crate) fn owes(&self) -> bool {
        self.core.owes
    }

    /// An acknowledgement that was put off waited in vain.
    pub(crate) fn waited_in_vain(&mut self, now: Instant) {
        self.core.answers.left_alone(now);
        if self.core.transport.holds_ack() {
            self.core.patience.ran_out();
        }
    }

    /// The program posted send requests, which leave next.
    pub(crate) fn posted(&mut self, now: Instant) {
        let waits = self.core.owes;
        self.core.answers.posted(now, waits);
    }

    /// Sends what may leave, publishes what completed, notes the next deadline, and unlocks.
    pub(crate) fn settle(mut self, now: Instant) {
        self.core.transport.hold_ack(false);
        self.settle_posted(now);
    }

    /// As [`Self::settle`], for what the program posted: an acknowledgement that is held back stays so.
    pub(crate) fn settle_posted(mut self, now: Instant) {
        if self.core.destroyed {
            return;
        }
        let unsent = self.transmit(now);
        let published = self.qp.publish(&mut self.core, now);
        self.leave(now, unsent, published);
    }

    /// As [`Self::settle`], but if all there is to send is one acknowledgement, and the program has
    /// one completion to look at, that waits; see [`crate::lane`]. Returns until when it may, if it does: a
    /// time in the past says until the program comes back with something to send, or without. Puts off
    /// once, but for a peer that goes on without; an XRC target never, since another queue pair sends the answer.
    /// `by_epoll`: packets wake the program through its own epoll, so the acknowledgement should not leave before an answer
    /// that seems to follow.
    pub(crate) fn settle_or_owe(mut self, now: Instant, by_epoll: bool) -> Option<Instant> {
        if self.core.destroyed {
            return None;
        }
        let holding = self.core.owes && self.core.transport.holds_ack();
        let answers = self.qp.service != Service::XrcTarget;
        if !answers || (self.core.owes && !holding) || !self.core.transport.owes_only_ack() {
            self.settle(now);
            return None;
        }
        let published = self.qp.publish(&mut self.core, now);
        let owes = published.receives == 1 && published.overrun.is_empty();
        let hold = owes && !self.qp.sleeps() && self.core.patience.holds(holding);
        self.core.transport.hold_ack(hold);
        let unsent = if owes { false } else { self.transmit(now) };
        self.core.owes = owes;
        let until = match hold {
            true => now + HOLD,
            false if by_epoll && self.core.answers.is_expected() => now + WAIT,
            false => Instant::ZERO,
        };
        self.leave(now, unsent, published);
        owes.then_some(until)
    }

    /// Whether there is more to send.
    fn transmit(&mut self, now: Instant) -> bool {
        let Core { transport, memory, path, outlets, homes, owes, frame, .. } = &mut *self.core;
        let unsent = match path {
            Some(path) => transmit::drain(transport, memory, &path.socket, now, self.qp.counters_of_device()),
            None if self.qp.service == Service::Ud => {
                let mut drain =
                    || transmit::drain(transport, memory, outlets, now, self.qp.counters_of_device());
                // Without a lane nobody would come back for the rest, which is as good as lost.
                let mut unsent = drain();
                while unsent && homes.is_empty() {
                    unsent = drain();
                }
                unsent
            }
            None => match &self.qp.frames {
                Some(frames) => frames.port.drain(transport, memory, frame, self.qp.counters_of_device()),
                None => false,
            },
        };
        *owes &= transport.holds_ack();
        unsent
    }

    fn leave(self, now: Instant, unsent: bool, published: Published) {
        let Self { qp, mut core } = self;
        let mut overrun = published.overrun;
        if !overrun.is_empty() {
            core.transport.set_fatal();
            overrun.extend(qp.publish(&mut core, now).overrun);
        }
        let deadline = if unsent { now.as_nanos() } else { Hub::deadline(core.transport.poll_timeout()) };
        qp.show(&core.transport);
        qp.deadline.store(deadline, Ordering::SeqCst);
        if let Some(lane) = core.home() {
            lane.note_deadline(deadline);
        }
        drop(core);
        for cq in overrun {
            DeviceCounters::count(&qp.counters_of_device().cq_overruns);
            fail_users(&cq);
        }
    }
}

/// What [`Qp::publish`] handed out.
#[derive(Default)]
struct Published {
    /// Receive completions.
    receives: usize,
    /// Queues that just overflowed, normally none.
    overrun: Vec<Arc<CompletionQueue>>,
}

impl Qp {
    fn counters_of_device(&self) -> &DeviceCounters {
        self.context().counters()
    }

    /// Whether the program ever asked for events of its completions.
    fn sleeps(&self) -> bool {
        [&self.send_cq, &self.recv_cq].into_iter().flatten().any(|cq| cq.sleeps())
    }

    /// Sends an acknowledgement that was put off, because the queue pair is about to change.
    pub(super) fn pay(&self, core: &mut Core) {
        core.transport.hold_ack(false);
        if std::mem::take(&mut core.owes)
            && let Some(path) = &core.path
        {
            let counters = self.counters_of_device();
            transmit::drain(&mut core.transport, &mut core.memory, &path.socket, clock::now(), counters);
        }
    }

    /// Hands out completions and events.
    fn publish(&self, core: &mut Core, now: Instant) -> Published {
        let mut published = Published::default();
        while let Some(event) = core.transport.poll_event() {
            let queue;
            let (cq, completion) = match event {
                QpEvent::Send(completion) => (self.send_cq.as_ref(), completion),
                QpEvent::Recv(completion) => {
                    published.receives += 1;
                    (self.recv_cq.as_ref(), completion)
                }
                QpEvent::RecvXrc(number, completion) => {
                    published.receives += 1;
                    queue = self.xrcd().and_then(|xrcd| xrcd.domain().cq_of(number));
                    (queue.as_ref(), completion)
                }
                QpEvent::Async(event) => {
                    self.tell(event.into());
                    continue;
                }
            };
            // A queue that ended took its completions with it.
            let Some(cq) = cq else { continue };
            if cq.push(completion, now) == (Pushed::Lost { first: true }) {
                published.overrun.push(Arc::clone(cq));
            }
        }
        published
    }
}

/// A completion queue was overrun: every queue pair that uses it goes to the error state.
fn fail_users(cq: &Arc<CompletionQueue>) {
    let engine = cq.context().engine();
    for qp in engine.hub().table.iter().filter(|qp| qp.cqs().any(|of_qp| Arc::ptr_eq(of_qp, cq))) {
        qp.fail();
    }
    let srqs = Srq::table(engine);
    for srq in srqs.iter().filter(|srq| srq.xrc().is_some_and(|xrc| Arc::ptr_eq(&xrc.cq, cq))) {
        srq.fail();
    }
}
