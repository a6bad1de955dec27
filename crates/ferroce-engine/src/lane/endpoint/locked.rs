//! An endpoint's lock: what it guards, and what is done under it: packets in, packets out, completions.

use std::any::Any;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferroce_host::starvation;
use ferroce_memory::View;
use ferroce_paths::delayed_ack::DelayedAck;
use ferroce_paths::faults::{self, Harm, Held};
use ferroce_paths::rx::Arrival;
use ferroce_paths::tx_path::{Transmit, TxPath};
use ferroce_paths::{clock, transmit};
use ferroce_proto::history::Event;
use ferroce_proto::{Backlog, Domain, QueuePair, ReceiveSource, RecvWqe, Service, Taken};
use ferroce_wire::{BatchLimits, Gid, Instant, Packet, SrqNumber};
use parking_lot::MutexGuard;

use super::attachment::{Attachment, ConnectedPath, Datagrams, Frames, TcpConnection};
use super::direct::DirectState;
use super::gathering::{Gathering, Visit};
use super::{Endpoint, Outputs, Published};
use crate::lane::{Hub, Lane};
use ferroce_ipc::ledger::DeviceCounters;
use ferroce_paths::counters::count_drop;

/// Small messages that fill a batch of a pipe. More of them would make the peer wait, and save nothing: a
/// pipe costs no system call.
const GATHERED_IN_PIPES: usize = 16;

/// The state that an endpoint's lock guards.
pub(crate) struct Core {
    pub(crate) transport: QueuePair,
    pub(crate) memory: View,
    pub(crate) attachment: Attachment,
    /// The endpoint is in its lane's list of those whose batch is not finished.
    touched: bool,
    delayed_ack: DelayedAck,
    gathering: Gathering,
    /// The endpoint is in its lane's list of those that wait for the process's budget.
    queued_up: bool,
    pub(crate) direct: DirectState,
    /// Packets that a plan of faults delays before they leave.
    pub(crate) held: Held,
    pub(crate) destroyed: bool,
    /// Something changed that the transport does not know of, and that decides on the rights of the peer.
    pub(crate) changed: bool,
    /// Nothing was posted since the connection began.
    pub(crate) unused: bool,
    /// Multicast groups that the queue pair is attached to.
    pub(crate) groups: Vec<Gid>,
    /// The queue pair, which so lives until it is destroyed.
    pub(crate) keep: Option<Arc<dyn Any + Send + Sync>>,
}

/// The outcome of [`Locked::take_turn`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// The budget may have room for the next endpoint.
    pub(crate) sent: bool,
    /// The endpoint waits for another turn.
    pub(crate) waits: bool,
}

impl Core {
    /// In RESET.
    pub(crate) fn new(transport: QueuePair, memory: View, attachment: Attachment) -> Self {
        Self {
            transport,
            memory,
            attachment,
            touched: false,
            delayed_ack: DelayedAck::new(),
            gathering: Gathering::new(),
            queued_up: false,
            direct: DirectState::default(),
            held: Held::default(),
            destroyed: false,
            changed: true,
            unused: false,
            groups: Vec::new(),
            keep: None,
        }
    }

    /// Whether what was just posted waits to fill a batch. Rings take packets one by one. `outputs`: those of
    /// the endpoint.
    fn gathers(&mut self, outputs: &dyn Outputs, now: impl Fn() -> Instant) -> bool {
        let Attachment::Connected(Some(ConnectedPath { socket, .. })) = &self.attachment else {
            return false;
        };
        let limits = match socket {
            TxPath::Socket(_) | TxPath::Xdp(..) => socket.limits(),
            TxPath::Pipe(..) => BatchLimits { max_segments: GATHERED_IN_PIPES, gso: true },
            TxPath::Rings(..) => return false,
        };
        let mut backlog = self.transport.backlog();
        if socket.direct().is_some() && self.transport.direct_request(0).is_some() {
            let run = self.direct.posted(now(), outputs.send_polls());
            backlog = backlog.map(|backlog| Backlog { in_flight: run, ..backlog });
        }
        // An answer takes the acknowledgement along.
        !self.destroyed && !self.delayed_ack.is_pending() && self.gathering.posted(backlog, limits, now)
    }

    /// The path of a connection by packets, from RTR on.
    pub(crate) fn path(&self) -> Option<&ConnectedPath> {
        match &self.attachment {
            Attachment::Connected(path) => path.as_ref(),
            _ => None,
        }
    }

    /// Publishes the rights of the peer for direct copies, if they changed.
    pub(crate) fn follow_target(&mut self) {
        self.direct.follow_target(&mut self.transport, &self.memory, !self.destroyed);
    }

    /// All lanes that may receive what its one peer sends.
    pub(crate) fn peer_lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let has_peer = matches!(self.attachment, Attachment::Connected(_) | Attachment::Tcp(_));
        self.attachment.lanes().filter(move |_| has_peer)
    }

    /// The connection of iWARP, in RTS.
    pub(super) fn connection(&mut self) -> Option<&mut TcpConnection> {
        match &mut self.attachment {
            Attachment::Tcp(connection) => connection.as_mut(),
            _ => None,
        }
    }
}

thread_local! {
    /// The endpoint whose lock this thread holds, or waits for. A signal handler asks.
    static INSIDE: Cell<*const Endpoint> = const { Cell::new(ptr::null()) };
}

/// The endpoint's state, while its lock is held.
pub(crate) struct Inside<'a> {
    /// Given back before `INSIDE` says so.
    core: Option<MutexGuard<'a, Core>>,
    before: *const Endpoint,
}

impl<'a> Inside<'a> {
    /// Waits for the lock.
    pub(super) fn wait(endpoint: &'a Endpoint) -> Self {
        let before = INSIDE.replace(endpoint);
        Self { core: Some(endpoint.core.lock()), before }
    }

    /// As [`Self::wait`]; `None` if the lock is held by this very thread, which a signal handler interrupted.
    #[inline(always)]
    pub(super) fn unless_interrupted(endpoint: &'a Endpoint) -> Option<Self> {
        let interrupted = ptr::eq(INSIDE.get(), endpoint);
        if !interrupted {
            return Some(Self::wait(endpoint));
        }
        let before = INSIDE.get();
        endpoint.core.try_lock().map(|core| Self { core: Some(core), before })
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

/// An endpoint whose lock is held.
pub(crate) struct Locked<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(crate) core: Inside<'a>,
}

/// The shared receive queues that an endpoint's transport takes from. Each call locks the queue it takes
/// from.
pub(super) struct Receives<'a>(pub(super) &'a dyn Outputs);

impl ReceiveSource for Receives<'_> {
    fn take(&mut self, number: Option<SrqNumber>, wqe: &mut RecvWqe, least: u64) -> Taken {
        self.0.take(number, wqe, least)
    }

    fn domain_of(&self, number: SrqNumber) -> Option<Domain> {
        self.0.domain_of(number)
    }
}

impl Locked<'_> {
    /// Gives it one packet.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        packet: &Packet<'_>,
        counters: &DeviceCounters,
    ) {
        let from = arrival.flow;
        let core = &mut *self.core;
        if core.destroyed {
            DeviceCounters::count(&counters.rx_no_qp);
            return;
        }
        if let Attachment::Datagrams(Datagrams { lanes, .. }) = &core.attachment {
            let destination = from.destination;
            let is_ours = match from.link.ifindex {
                0 => destination.is_multicast() || lanes.iter().any(|lane| lane.local() == destination),
                _ => self.endpoint.hub.devices.has(self.endpoint.device, from),
            };
            if !is_ours {
                // Another device's address.
                DeviceCounters::count(&counters.rx_no_qp);
                return;
            }
        }
        let receives = &mut Receives(&*self.endpoint.outputs);
        let handled = core.transport.handle_datagram(now, from, packet, receives, &mut core.memory);
        match handled {
            Ok(()) if Event::is_middle(arrival.octets) => {}
            Ok(()) => {
                let event = Event::received(now, arrival.octets);
                self.endpoint.entry.happened_again(event, Event::merged);
            }
            Err(reason) => {
                count_drop(counters, reason);
                let event = Event::dropped(now, arrival.octets, reason);
                self.endpoint.entry.happened_again(event, Event::merged);
            }
        }
    }

    /// Gives it one Ethernet frame.
    pub(crate) fn receive_frame(&mut self, frame: &[u8], counters: &DeviceCounters) {
        let core = &mut *self.core;
        if core.destroyed {
            DeviceCounters::count(&counters.rx_no_qp);
        } else if let Err(reason) =
            core.transport.handle_frame(frame, &mut Receives(&*self.endpoint.outputs), &mut core.memory)
        {
            count_drop(counters, reason);
        }
    }

    /// Runs its timers.
    pub(crate) fn expire(&mut self, now: Instant) {
        if !self.core.destroyed {
            match self.core.path().map(|path| &path.socket) {
                Some(socket) if socket.keeps_waiting() => self.core.transport.excuse_peer(now),
                // A peer that has read what came by a pipe, and does not answer, is not starved.
                Some(socket) if !socket.is_pipe() => {
                    self.core.transport.ask_if_starved(now, starvation::was_starved);
                }
                _ => {}
            }
            let before = self.core.transport.counters().timeouts;
            self.core.transport.handle_timeout(now);
            if self.core.transport.counters().timeouts != before {
                self.endpoint.entry.happened_again(Event::timed_out(now), Event::merged);
            }
            self.expire_stream(now);
        }
    }

    /// Notes whether it waits for the end of the batch; returns what was noted before.
    pub(crate) fn set_touched(&mut self, touched: bool) -> bool {
        std::mem::replace(&mut self.core.touched, touched)
    }

    /// Whether its acknowledgement waits for something to leave with.
    pub(crate) fn delayed_ack_pending(&self) -> bool {
        self.core.delayed_ack.is_pending()
    }

    /// Nothing came for the delayed acknowledgement to leave with.
    pub(crate) fn ack_waited_in_vain(&mut self, now: Instant) {
        let held = self.core.transport.delays_ack();
        self.core.delayed_ack.waited_in_vain(now, held);
    }

    /// The program posted send requests: sends what may leave, as [`Self::finish_batch`], but an
    /// acknowledgement that is held back stays so, and small messages may wait to fill a batch. `me` is the
    /// endpoint itself.
    pub(crate) fn finish_post(mut self, me: &Arc<Endpoint>) {
        self.core.delayed_ack.posts();
        if self.core.gathers(&*self.endpoint.outputs, clock::now) {
            let Core { gathering, attachment, .. } = &mut *self.core;
            if !gathering.listed
                && let (Some(until), Attachment::Connected(Some(path))) = (gathering.until(), attachment)
            {
                gathering.listed = path.lane.gather(me, until);
            }
            if gathering.listed {
                return;
            }
        }
        let now = clock::now();
        self.core.delayed_ack.posted(now);
        self.finish(now);
    }

    /// The endpoint was taken out of the lane's list of those with waiting messages. Sends those, or returns
    /// until when they wait: then the endpoint belongs into the list again.
    pub(crate) fn visit_gathering(mut self, visit: Visit, now: Instant) -> Option<Instant> {
        let Core { transport, gathering, .. } = &mut *self.core;
        if gathering.visited(visit, || transport.backlog().map_or(0, |backlog| backlog.waiting)) {
            gathering.listed = false;
            self.finish(now);
            return None;
        }
        gathering.listed = gathering.waits();
        gathering.until()
    }

    /// Sends what it may, after a wait for the process's budget. The endpoint was taken out of the lane's
    /// list of those that wait.
    pub(crate) fn take_turn(mut self, now: Instant) -> Turn {
        if self.core.destroyed {
            return Turn { sent: true, waits: false };
        }
        let before = self.core.transport.counters().sent_pkts;
        let unsent = self.transmit(now);
        let sent = self.core.transport.counters().sent_pkts != before;
        let waits = self.core.transport.waits_for_budget();
        self.core.queued_up = waits;
        let published = self.endpoint.outputs.publish(&mut self.core.transport, &self.endpoint.entry, now);
        self.leave(now, unsent, published);
        // The next one may send even if this one had nothing to send any more.
        Turn { sent: sent || !waits, waits }
    }

    /// The endpoint could not be listed again after [`Self::take_turn`].
    pub(crate) fn forget_turn(&mut self) {
        self.core.queued_up = false;
    }

    /// The endpoint could not be listed again after [`Self::visit_gathering`]: sends what waits.
    pub(crate) fn end_gathering(mut self, now: Instant) {
        self.core.gathering.listed = false;
        self.finish(now);
    }

    /// Sends what may leave, publishes what completed, notes the next deadline, and unlocks.
    pub(crate) fn finish_batch(mut self, now: Instant) {
        self.core.transport.delay_ack(false);
        self.finish(now);
    }

    fn finish(self, now: Instant) {
        self.finish_after(now, Published::default());
    }

    /// As [`Self::finish`], after some of the completions of the batch were published.
    pub(super) fn finish_after(mut self, now: Instant, mut published: Published) {
        if self.core.destroyed {
            return;
        }
        let unsent = self.transmit(now);
        published.join(self.endpoint.outputs.publish(&mut self.core.transport, &self.endpoint.entry, now));
        self.leave(now, unsent, published);
    }

    /// As [`Self::finish_batch`], but if all there is to send is one acknowledgement, and the program has
    /// one completion to look at, that waits; see [`crate::lane`]. Returns until when it may, if it does: a
    /// time in the past says until the program comes back with something to send, or without. Puts off
    /// once, but for a peer that goes on without; an XRC target never, since another queue pair sends the
    /// answer. `by_epoll`: packets wake the program through its own epoll, so the acknowledgement should not
    /// leave before an answer that seems to follow.
    pub(crate) fn finish_batch_delaying_ack(mut self, now: Instant, by_epoll: bool) -> Option<Instant> {
        if self.core.destroyed {
            return None;
        }
        let pending = self.core.delayed_ack.is_pending();
        let holding = pending && self.core.transport.delays_ack();
        let answers = self.endpoint.service != Service::XrcTarget;
        if !answers || (pending && !holding) || !self.core.transport.only_ack_pending() {
            self.finish_batch(now);
            return None;
        }
        let sleeps = self.endpoint.outputs.reports_by_events();
        if sleeps && self.endpoint.outputs.wakes_program() && self.core.delayed_ack.leaves_before_wake_up(now)
        {
            self.finish_batch(now);
            return None;
        }
        let published = self.endpoint.outputs.publish(&mut self.core.transport, &self.endpoint.entry, now);
        let polls_pipe = !sleeps && !by_epoll && self.core.path().is_some_and(|path| path.socket.is_pipe());
        let delays = published.receives == 1
            && published.overrun == 0
            && !(polls_pipe && self.core.delayed_ack.leaves_with_batch(now));
        let delay = delays.then(|| self.core.delayed_ack.delay(now, holding, sleeps, by_epoll));
        self.core.transport.delay_ack(delay.is_some_and(|delay| delay.held));
        let unsent = if delays { None } else { self.transmit(now) };
        self.core.delayed_ack.set_pending(delays);
        self.leave(now, unsent, published);
        delay.map(|delay| delay.until)
    }

    /// Sends as much as may leave now. Returns the time at which more may leave; `None` if nothing waits for
    /// a time.
    fn transmit(&mut self, now: Instant) -> Option<Instant> {
        let Core { transport, memory, attachment, delayed_ack, gathering, direct, held, .. } =
            &mut *self.core;
        gathering.left();
        let record = &self.endpoint.entry;
        if let Attachment::Connected(Some(ConnectedPath { socket: TxPath::Pipe(end, _), .. })) = attachment
            && !faults::on()
            && held.is_empty()
        {
            let is_silent = transport.is_silent();
            if is_silent {
                end.set_owing(false);
            }
            // A copy needs no packet.
            let may_copy = end.direct().is_some() && transport.is_direct_next();
            if may_copy {
                direct.follow(transport);
            }
            let mut sends_one = || {
                let counters = self.endpoint.counters();
                !may_copy && transmit::straight(transport, memory, end, now, counters, record)
            };
            if is_silent || sends_one() {
                delayed_ack.set_pending(delayed_ack.is_pending() && transport.delays_ack());
                return None;
            }
        }
        let (of, counters) = (&self.endpoint.name, self.endpoint.counters());
        let unsent = match attachment {
            Attachment::Connected(Some(path)) => {
                let sleeps = || self.endpoint.outputs.reports_by_events();
                transport
                    .put_ack_first(path.socket.may_part() && (path.socket.sends_one_by_one() || sleeps()));
                if faults::on() {
                    // A direct copy has no packets.
                    transport.prefer_direct(false);
                } else if let Some(way) = path.socket.direct()
                    && direct.copy(transport, memory, way, counters, record)
                {
                    path.socket.has_more();
                    return Some(now);
                }
                transmit::drain(transport, memory, &path.socket, now, counters, record, Harm { of, held })
            }
            Attachment::Connected(None) => None,
            Attachment::Datagrams(Datagrams { paths, lanes }) => {
                let mut drain = || {
                    let harm = Harm { of, held: &mut *held };
                    transmit::drain(transport, memory, paths, now, counters, record, harm)
                };
                // Without a lane nobody would come back for the rest, which is as good as lost.
                let mut unsent = drain();
                while unsent.is_some() && lanes.is_empty() {
                    unsent = drain();
                }
                unsent
            }
            Attachment::Frames(Frames { port, buffer, .. }) => {
                port.drain(transport, memory, buffer, counters).then_some(now)
            }
            Attachment::Tcp(connection) => {
                return connection.as_mut()?.port.drain(transport, memory, now, counters);
            }
        };
        delayed_ack.set_pending(delayed_ack.is_pending() && transport.delays_ack());
        if transport.waits_for_budget()
            && !self.core.queued_up
            && let (Some(path), Some(me)) = (self.core.path(), self.endpoint.me.upgrade())
        {
            self.core.queued_up = path.lane.queue_up(me);
        }
        unsent
    }

    fn leave(self, now: Instant, unsent: Option<Instant>, published: Published) {
        let Self { endpoint, mut core } = self;
        let mut overrun = published.overrun;
        let strayed = core.transport.take_strayed() | std::mem::take(&mut core.changed);
        if !strayed && overrun == 0 && core.held.is_empty() {
            endpoint.show_straight(&core.transport);
            let deadline = core.transport.next_timeout().as_nanos();
            let deadline = unsent.map_or(deadline, |at| deadline.min(at.as_nanos()));
            if deadline < endpoint.deadline.load(Ordering::Relaxed) {
                endpoint.note_deadline(&core, deadline);
            } else {
                // A thread that sees the earlier one looks for nothing, and notes this one then.
                endpoint.deadline.store(deadline, Ordering::Relaxed);
            }
            return;
        }
        if overrun > 0 {
            core.transport.set_fatal();
            overrun += endpoint.outputs.publish(&mut core.transport, &endpoint.entry, now).overrun;
        }
        let deadline = core.transport.next_timeout().as_nanos();
        let deadline = unsent.map_or(deadline, |at| deadline.min(at.as_nanos()));
        let deadline = deadline.min(Hub::deadline(core.held.next()));
        let of_stream = endpoint.follow_stream(&mut core);
        let deadline = deadline.min(Hub::deadline(of_stream));
        core.follow_target();
        endpoint.show(&core.transport);
        endpoint.note_deadline(&core, deadline);
        drop(core);
        if overrun > 0 {
            DeviceCounters::add(&endpoint.counters().cq_overruns, overrun);
            endpoint.outputs.fail_overrun();
        }
    }
}

impl Endpoint {
    /// Has a thread run the timers at this time.
    fn note_deadline(&self, core: &Core, deadline: u64) {
        self.deadline.store(deadline, Ordering::SeqCst);
        if let Some(lane) = core.attachment.lanes().next() {
            lane.note_deadline(deadline);
        }
    }

    /// Sends the delayed acknowledgement and the messages that wait to fill a batch, because the queue pair
    /// is about to change.
    pub(crate) fn flush(&self, core: &mut Core) {
        core.transport.delay_ack(false);
        let waits = core.gathering.waits();
        core.gathering.left();
        if core.delayed_ack.take_pending() || waits || !core.held.is_empty() {
            self.drain(core);
        }
    }

    /// As [`Self::flush`], when the program is about to end the queue pair: the last ACK leaves more than
    /// once, see [`ferroce_proto::QueuePair::repeat_ack`].
    pub(crate) fn flush_last(&self, core: &mut Core) {
        self.flush(core);
        if core.transport.repeat_ack(clock::now()) {
            self.drain(core);
        }
    }

    fn drain(&self, core: &mut Core) {
        let Core { transport, memory, attachment, direct, held, .. } = core;
        if let Attachment::Connected(Some(path)) = attachment {
            if let Some(way) = path.socket.direct().filter(|_| !faults::on()) {
                direct.copy(transport, memory, way, self.counters(), &self.entry);
                // Requests that could not be copied are not to wait for an answer.
                transport.prefer_direct(false);
            }
            let harm = Harm { of: &self.name, held };
            transmit::drain(
                transport,
                memory,
                &path.socket,
                clock::now(),
                self.counters(),
                &self.entry,
                harm,
            );
        }
    }

    /// As [`Self::flush`], for the end of the process. The thread that ends it may be inside the queue pair
    /// or a pipe itself, if a signal handler calls `exit`; then it sends nothing. For another thread inside
    /// it waits until `limit`. Returns the time before which the process should not end, for the sake of an
    /// iWARP connection.
    pub(crate) fn flush_at_exit(&self, limit: Duration) -> Instant {
        let mut end_at = Instant::ZERO;
        if !ptr::eq(INSIDE.get(), self)
            && let Some(mut core) = self.core.try_lock_for(limit)
        {
            end_at = Locked::flush_stream_at_exit(&mut core, limit, self.counters());
            let may_send = match core.path() {
                Some(ConnectedPath { socket: TxPath::Socket(_), .. }) => true,
                Some(ConnectedPath { socket: TxPath::Pipe(pipe, ..), .. }) => pipe.is_free(),
                Some(ConnectedPath { socket: TxPath::Xdp(port, _), .. }) => port.is_free(),
                _ => false,
            };
            if may_send {
                core.transport.prefer_direct(false);
                self.flush_last(&mut core);
            }
        }
        end_at
    }
}
