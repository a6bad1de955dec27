//! Lanes: the thread that receives packets, and the time when it does.
//!
//! A *lane* is one leased socket: the packets of one local address for this process's slots.
//! Receiving from it and dispatching what came is done by one thread at a time, which holds the
//! lane's lock; every other thread only *tries* that lock and, if it is taken, looks at its own
//! completion queue instead. So packets are dispatched in the order of arrival, whichever thread
//! receives them: two threads without the lock would swap packets, and each swap costs a NAK.
//!
//! The holder receives a batch, hands each datagram to its endpoint, which is the half of a queue pair that
//! packets need, sends the batch's acknowledgements, publishes its completions and runs the timers that are
//! due. It reads the clock once a batch and allocates nothing.
//!
//! One acknowledgement may wait: that of a single message which a thread of the program received
//! inside a verb. That thread sees the completion next and most likely answers, and then the
//! acknowledgement shares the answer's system call, which halves the cost of a ping-pong. It waits
//! until the lane is served again, its queue pair posts, is modified or destroyed, a thread goes to
//! sleep or calls connection management, the process exits, or a millisecond has passed. If the peer goes on
//! without, it may stay behind its answer too, and speak for a few messages: [`ferroce_paths::delayed_ack`]
//! decides that.
//!
//! # Who holds the lane in which state
//!
//! | the program … | receiving thread | what the background thread does |
//! |---|---|---|
//! | is inside `poll_cq`, queue empty | that thread, one receive call per poll, two if it let others run in between; asleep for 6 ms at most where others compute on the core | keeps off the socket, looks again a millisecond after the last poll; keeps off during such a sleep and for 8 ms more |
//! | polls from several threads | the thread that gets the lock; the others look at their queues | the same |
//! | is about to sleep in `get_cq_event` | that thread, for some 10 µs; not on a core that another thread needs | the same |
//! | sleeps in `get_cq_event` | the first thread that sleeps (it *watches* the lane); further ones sleep on their channel alone and are woken by the receiving thread | keeps off; runs timers that no poller runs |
//! | returns from `get_cq_event` | nobody for up to a millisecond, in which the program usually polls or sleeps again | is asked to look a millisecond later |
//! | waits by its own epoll on a channel's non-blocking descriptor | after 16 events that one thread took promptly: that thread, which packets wake (`follow.rs`), inside `get_cq_event`; before that, the background thread | leaves a packet to the program for a millisecond |
//! | is inside `post_send` | the same thread as before: the caller only transmits | is asked to look when the new deadline is due, if it would sleep longer; after a millisecond, if messages wait to fill a batch |
//! | is inside no call | the background thread | sleeps in epoll on the socket until a packet or the earliest deadline |
//!
//! Changing hands costs no system call on the way in: when the background thread is woken by a
//! packet of a lane that the program serves by itself, it takes the socket out of its epoll set.
//! On the way out it finds, at its next look, that nobody has served the lane for a millisecond,
//! and puts the socket back; epoll is level-triggered, so whatever waits is reported at once.
//! A program that spins on its memory instead (`ib_write_lat`) polls only now and then. When the
//! background thread finds that packets waited out the millisecond, it becomes *eager* on that
//! lane and serves every packet that no poller takes within microseconds, until it has found 32
//! times in a row that one does. Where others compute on the cores, a packet may have waited for a
//! poller that had lost its core: then the thread becomes eager only if the program ran meanwhile.
//! Packets that wake a poller from its short sleep are left to that poller.
//!
//! On a device whose datapath is AF_XDP each queue pair is on two lanes, that of the port and that of its
//! address's socket. A thread that polls looks at the first one each time and at the other one now and then
//! (`Seldom`), as long as the port is up.
//!
//! `handover.rs` has the atomics and the reason why no wake-up is lost; `tests/handover.rs`
//! runs them under loom.
//!
//! Lock order: lane, queue pair, completion queue, channel. The list of queue pairs on a lane is
//! a leaf, and so is the list of those whose messages wait to fill a batch. No lock is shared by queue pairs
//! on the packet path but the lane's and that of the latter list, each once a batch.

mod catch_up;
mod deliver;
mod endpoint;
mod follow;
mod frames;
mod gathering;
mod group;
mod hub;
mod lanes;
mod pipes;
mod rings;
mod set;
mod settings;
mod streams;
mod turns;
mod udp;
mod xdp;

pub(crate) use endpoint::{
    Agreed, Attachment, BeginError, ConnectedPath, Core, Datagrams, Endpoint, Frames, Locked, Outputs,
    Published, StreamEvents, Visit,
};
pub(crate) use hub::Hub;
pub(crate) use lanes::{Lanes, PortLane};
pub(crate) use set::{LaneSet, WATCHED, Watch, cores_are_shared, watch, yield_core};

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use ferroce_datapath::packet::FrameBuffer;
use ferroce_datapath::udp::{RxBuffer, RxSocket};
use ferroce_host::fork::Guarded;
use ferroce_host::idle::{LOOKS_PER_CLOCK, MEMORY};
use ferroce_host::latest::Reader;
use ferroce_ipc::pipe::MAX_BATCH;
use ferroce_ipc::ring::MAX_PACKET;
use ferroce_memory::guard;
use ferroce_paths::clock;
use ferroce_paths::faults::Held;
use ferroce_paths::frames::FramePort;
use ferroce_paths::pipes::Pipes;
use ferroce_paths::rings::RingPort;
use ferroce_paths::streams::{Arrivals, Streams};
use ferroce_paths::tx::TxSockets;
use ferroce_paths::xdp::XdpPort;
use ferroce_proto::Service;
use ferroce_wire::Instant;
use ferroce_wire::icrc::IcrcChecker;
use parking_lot::Mutex;

use crate::handover::{LaneState, NEVER};
use ferroce_ipc::ledger::DeviceCounters;
use follow::Follow;

/// Initial capacity of the list of endpoints of one batch; a larger batch makes the list grow, once.
const TOUCHED: usize = 64;

/// Octets received before a due timer may run: the answer that it waits for may be among them. The buffer of
/// a socket may hold about as many. The limit keeps a socket that is never empty from stopping the timers.
const OCTETS_BEFORE_TIMERS: usize = 4 << 20;
/// Least number of octets that a batch counts for towards [`OCTETS_BEFORE_TIMERS`]: a small batch takes time,
/// too.
const LEAST_BATCH: usize = 4096;

/// Least time between two looks at the timers of all endpoints, in nanoseconds for each endpoint: a look
/// takes time for each of them.
const SCAN_REST: u64 = 500;

/// A receive call costs as much as this number of looks at shared memory.
const SYSTEM_CALL: u32 = 32;

/// Polls for each look at a lane that is looked at now and then.
const POLLS_PER_LOOK: u32 = 64;
/// Polls that all look at a lane of that kind after packets came to it.
const POLLS_AFTER_PACKETS: u32 = 64;

/// Longest wait for a lock at the end of the process. A holder works for some microseconds.
const AT_EXIT: Duration = Duration::from_millis(20);

/// The outcome of an attempt to serve a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// Another thread holds the lane.
    Busy,
    /// No datagram was waiting.
    Nothing,
    /// Datagrams were processed.
    Some,
}

/// The buffers and lists that the holder of the lane works with.
struct Receiver {
    buffer: RxBuffer,
    /// Made at the first frame.
    frames: Option<FrameBuffer>,
    /// Made at the first packet out of a ring.
    packet: Option<Box<[u8; MAX_PACKET]>>,
    /// Made at the first look at pipes.
    batch: Option<Box<[u8; MAX_BATCH]>>,
    /// Octets of the last batch, at most. Only a batch out of a pipe may be as small as one packet.
    octets: usize,
    /// Made at the first look at connections.
    streams: Option<Arrivals>,
    due: Vec<Arc<Endpoint>>,
    delivery: Delivery,
}

/// The state of the delivery of batches to endpoints.
struct Delivery {
    icrc: IcrcChecker,
    /// Endpoints whose answers and completions wait for the end of the batch.
    touched: Vec<Arc<Endpoint>>,
    delayed_ack: Option<DelayedBy>,
    /// Packets that a plan of faults delays.
    held: Held,
    /// Time of the next check that the fault guard is installed above the program's signal handlers.
    guard_due: Instant,
}

/// The properties that all packets of a batch share.
struct Round<'a> {
    lane: &'a Lane,
    /// The counters of the device that the packets arrived for.
    counters: &'a DeviceCounters,
    now: Instant,
    /// A thread of the program received the packets, inside a verb.
    program: bool,
}

/// The endpoints with waiting messages. Its lock is a leaf, taken once a batch.
struct Gatherers {
    list: Vec<Arc<Endpoint>>,
    /// Memory for the list while another thread goes through it.
    spare: Vec<Arc<Endpoint>>,
}

impl Gatherers {
    fn new() -> Self {
        Self { list: Vec::with_capacity(TOUCHED), spare: Vec::with_capacity(TOUCHED) }
    }
}

/// An endpoint whose acknowledgement waits for something to leave with.
struct DelayedBy {
    endpoint: Arc<Endpoint>,
    /// Time until which the acknowledgement waits, even if the program comes back without an answer.
    until: Instant,
}

/// How long a signal handler that the program installs above ours may stay there while packets come.
const GUARD_INTERVAL: Duration = Duration::from_millis(100);

impl Delivery {
    /// Programs install their own SIGSEGV handlers at any time: a third of a microsecond, ten times a second.
    fn look_at_guard(&mut self, now: Instant) {
        if now >= self.guard_due {
            self.guard_due = now + GUARD_INTERVAL;
            if let Err(error) = guard::install() {
                tracing::error!(%error, "the fault guard cannot be put on top");
            }
        }
    }
}

/// Counts of a lane that a polling thread looks at now and then. Threads count together; a lost count means
/// nothing.
///
/// A device whose datapath is AF_XDP has UDP sockets beside its port, and perhaps the rings to the broker.
/// While the port is up, few packets come there: those of this host, and those of the moments in which the
/// broker changes. A look at a socket costs a system call, and a look at the port costs none. So a thread
/// that polls looks at the other lanes with every 64th poll, and with each of the 64 polls after packets came
/// there. A thread that sleeps waits for the descriptors of all of them, and the background thread has them
/// as ever.
#[derive(Default)]
struct Seldom {
    /// Number of polls since the last look.
    passed: AtomicU32,
    /// Number of the next polls that all look.
    busy: AtomicU32,
}

impl Seldom {
    /// Packets came.
    fn found(&self) {
        self.busy.store(POLLS_AFTER_PACKETS, Ordering::Relaxed);
    }

    /// Counts a poll. Returns whether it looks.
    fn is_due(&self) -> bool {
        let busy = self.busy.load(Ordering::Relaxed);
        if busy > 0 {
            self.busy.store(busy - 1, Ordering::Relaxed);
            return true;
        }
        let passed = self.passed.load(Ordering::Relaxed) + 1;
        let due = passed >= POLLS_PER_LOOK;
        self.passed.store(if due { 0 } else { passed }, Ordering::Relaxed);
        due
    }
}

/// The endpoints that are attached to one multicast group.
pub(crate) type Members = Arc<ArcSwap<Vec<Arc<Endpoint>>>>;

/// The source of a lane's packets, with the state that only lanes of that kind have. An enum, because lanes
/// of all kinds are in one list.
///
/// [`Traits`] and the methods of this type alone tell in what the kinds differ for the users of a lane; each
/// kind receives in a file of its own.
pub(crate) enum Source {
    /// Datagrams to an address.
    Udp(Guarded<RxSocket>),
    /// Datagrams to a multicast group.
    Group {
        socket: Guarded<RxSocket>,
        /// The endpoints that are attached.
        members: Members,
    },
    /// Ethernet frames of one endpoint.
    Frames { port: Arc<FramePort>, endpoint: Weak<Endpoint> },
    /// Packets that the broker received.
    Rings {
        port: Arc<RingPort>,
        /// Interfaces where the ICRC does not count.
        unchecked: ArcSwap<Vec<u32>>,
    },
    /// Packets of an interface that came by AF_XDP.
    Xdp(Arc<XdpPort>),
    /// Batches that programs of this host sent by shared memory.
    Pipes(Arc<Pipes>),
    /// Octets of the TCP connections of iWARP.
    Streams(Arc<Streams>),
}

/// The properties of a kind of source.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    /// A program may wait for its descriptor, which tells of packets to the program's own address.
    pub(crate) wakes_programs: bool,
    /// The background thread may look at it again and again. A look at an empty pipe prepares to sleep, so
    /// that thread looks at pipes once.
    pub(crate) can_stay: bool,
    /// A look at it is no system call.
    pub(crate) is_in_memory: bool,
    /// The packets come through the broker.
    pub(crate) is_by_broker: bool,
    /// Few packets come here while a port of AF_XDP of the same device is up.
    is_beside_port: bool,
    /// The packets have an ICRC.
    has_icrc: bool,
    /// Each packet is copied to many endpoints: a flood must not delay threads that wait for other lanes.
    copies: bool,
}

impl Source {
    /// The properties of this kind.
    const fn traits(&self) -> Traits {
        const NONE: Traits = Traits {
            wakes_programs: false,
            can_stay: false,
            is_in_memory: false,
            is_by_broker: false,
            is_beside_port: false,
            has_icrc: true,
            copies: false,
        };
        match self {
            Self::Udp(_) => Traits { wakes_programs: true, can_stay: true, is_beside_port: true, ..NONE },
            Self::Group { .. } => Traits { copies: true, ..NONE },
            Self::Frames { .. } => NONE,
            Self::Rings { .. } => Traits { is_by_broker: true, is_beside_port: true, ..NONE },
            Self::Xdp(_) => Traits { wakes_programs: true, can_stay: true, is_in_memory: true, ..NONE },
            Self::Pipes(_) => Traits { wakes_programs: true, is_in_memory: true, has_icrc: false, ..NONE },
            Self::Streams(_) => Traits { wakes_programs: true, can_stay: true, ..NONE },
        }
    }

    /// The descriptor that is readable while something waits.
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Udp(socket) | Self::Group { socket, .. } => socket.as_fd(),
            Self::Frames { port, .. } => port.as_fd(),
            Self::Rings { port, .. } => port.fd(),
            Self::Xdp(port) => port.fd(),
            Self::Pipes(pipes) => pipes.fd(),
            Self::Streams(streams) => streams.fd(),
        }
    }

    /// The socket whose datagrams it receives.
    const fn socket(&self) -> Option<&Guarded<RxSocket>> {
        match self {
            Self::Udp(socket) | Self::Group { socket, .. } => Some(socket),
            _ => None,
        }
    }

    /// The pipes.
    const fn pipes(&self) -> Option<&Arc<Pipes>> {
        match self {
            Self::Pipes(pipes) => Some(pipes),
            _ => None,
        }
    }

    /// Whether its packets come by AF_XDP, and its port is up.
    fn is_port_up(&self) -> bool {
        matches!(self, Self::Xdp(port) if port.is_up())
    }

    /// Whether packets for the endpoint may come here that no connection of its own brought.
    fn may_bring(&self, endpoint: &Endpoint) -> bool {
        match self {
            Self::Streams(_) => false,
            Self::Frames { endpoint: of, .. } => ptr::eq(Weak::as_ptr(of), endpoint),
            Self::Group { .. } => endpoint.service == Service::Ud,
            Self::Udp(_) | Self::Rings { .. } | Self::Xdp(_) | Self::Pipes(_) => {
                !matches!(endpoint.service, Service::Iwarp | Service::RawPacket)
            }
        }
    }
}

/// A source of packets, such as a socket, with the endpoints that its packets are for.
pub(crate) struct Lane {
    id: u64,
    local: IpAddr,
    scope_id: u32,
    /// The properties of `source`.
    traits: Traits,
    source: Source,
    tx_sockets: Arc<TxSockets>,
    state: LaneState,
    follow: Follow,
    seldom: Seldom,
    /// Whether the ICRC of what comes counts.
    checks: AtomicBool,
    receiver: Mutex<Box<Receiver>>,
    /// Endpoints whose path starts here, each knowing its place in the list.
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
    gatherers: Mutex<Gatherers>,
    /// Endpoints that wait for the process's budget, see `turns.rs`.
    waiting: Mutex<VecDeque<Arc<Endpoint>>>,
    /// False only while that list is empty.
    any_waits: AtomicBool,
    /// The acknowledgement that is delayed waits until a time. The holder of the lane writes this.
    ack_is_held: AtomicBool,
    /// The earliest time of the next look at all timers.
    next_scan: AtomicU64,
    /// Looks of polling threads, which count together; a lost count means nothing.
    looks: AtomicU32,
    hub: Arc<Hub>,
    /// Index of the device's block of the ledger.
    block: AtomicUsize,
}

impl Lane {
    /// A lane that serves all addresses, and so is never looked up by one.
    fn without_address(id: u64, source: Source, hub: Arc<Hub>) -> Self {
        Self::from_source(id, IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0, source, hub)
    }

    fn from_source(id: u64, local: IpAddr, scope_id: u32, source: Source, hub: Arc<Hub>) -> Self {
        Self {
            id,
            local,
            scope_id,
            tx_sockets: TxSockets::new(local, scope_id, hub.secret),
            traits: source.traits(),
            source,
            state: LaneState::new(),
            follow: Follow::new(),
            seldom: Seldom::default(),
            checks: AtomicBool::new(true),
            receiver: Mutex::new(Box::new(Receiver {
                buffer: RxBuffer::new(),
                frames: None,
                packet: None,
                batch: None,
                octets: 0,
                streams: None,
                due: Vec::with_capacity(TOUCHED),
                delivery: Delivery {
                    icrc: IcrcChecker::new(),
                    touched: Vec::with_capacity(TOUCHED),
                    delayed_ack: None,
                    held: Held::default(),
                    guard_due: Instant::from_nanos(0),
                },
            })),
            endpoints: Mutex::new(Vec::new()),
            gatherers: Mutex::new(Gatherers::new()),
            waiting: Mutex::default(),
            any_waits: AtomicBool::new(false),
            ack_is_held: AtomicBool::new(false),
            next_scan: AtomicU64::new(0),
            looks: AtomicU32::new(0),
            hub,
            block: AtomicUsize::new(0),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn counters(&self) -> &DeviceCounters {
        self.hub.ledger.device(self.block.load(Ordering::Relaxed))
    }

    pub(crate) fn local(&self) -> IpAddr {
        self.local
    }

    pub(crate) fn scope_id(&self) -> u32 {
        self.scope_id
    }

    /// The sockets that queue pairs of this lane send from.
    pub(crate) fn tx_sockets(&self) -> &Arc<TxSockets> {
        &self.tx_sockets
    }

    pub(crate) fn state(&self) -> &LaneState {
        &self.state
    }

    pub(crate) fn follow(&self) -> &Follow {
        &self.follow
    }

    /// The properties of its source.
    pub(crate) fn traits(&self) -> Traits {
        self.traits
    }

    /// The cost of a look at it in vain, in looks at shared memory.
    #[inline]
    fn cost(&self) -> u32 {
        if self.traits.is_in_memory { MEMORY } else { SYSTEM_CALL }
    }

    /// Returns when no thread holds the lane that held it before. The caller has no lock.
    pub(crate) fn wait_for_holder(&self) {
        drop(self.receiver.lock());
    }

    /// The descriptor that is readable while something waits.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.source.fd()
    }

    /// Receives and processes once, on a thread of the program.
    pub(crate) fn serve_inline(&self, reader: &Reader) -> Served {
        self.serve(1, Some(reader))
    }

    /// Receives and processes until nothing waits or `rounds` batches were done.
    pub(crate) fn serve_in_background(&self, rounds: u32) -> Served {
        self.serve(rounds, None)
    }

    /// With a `reader`, the thread is the program's.
    fn serve(&self, rounds: u32, reader: Option<&Reader>) -> Served {
        let program = reader.is_some();
        let Some(mut receiver) = self.receiver.try_lock() else {
            return Served::Busy;
        };
        let delayed = receiver.delivery.delayed_ack.take();
        let mut batch_time = match (&self.source, reader) {
            (Source::Pipes(pipes), Some(reader)) => self.receive_straight(&mut receiver, pipes, reader),
            _ => None,
        };
        if batch_time.is_none() {
            let rounds = if self.traits.copies { 1 } else { rounds };
            for _ in 0..rounds {
                let Some(now) = self.receive(&mut receiver, program) else { break };
                batch_time = Some(now);
            }
        }
        self.finish_serving(&mut receiver, delayed, batch_time, program)
    }

    /// Receives and processes one batch; when that was, or `None` if nothing waits.
    fn receive(&self, receiver: &mut Receiver, program: bool) -> Option<Instant> {
        receiver.octets = MAX_BATCH;
        match &self.source {
            Source::Udp(socket) => self.receive_udp(receiver, socket, program),
            Source::Group { socket, members } => self.receive_group(receiver, socket, members),
            Source::Frames { port, endpoint } => self.receive_frames(receiver, port, endpoint),
            Source::Rings { port, unchecked } => self.receive_rings(receiver, port, unchecked, program),
            Source::Xdp(port) => self.receive_xdp(receiver, port, program),
            Source::Pipes(pipes) => self.receive_pipes(receiver, pipes, program),
            Source::Streams(streams) => self.receive_streams(receiver, streams),
        }
    }

    /// Counts a look at memory in vain; whether it is followed by one at the clock, which costs more.
    #[inline]
    fn looks_at_clock(&self) -> bool {
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        looks.is_multiple_of(LOOKS_PER_CLOCK)
    }

    /// Does what is due behind the batches, the last of which came at `batch_time`, if any did. `delayed`
    /// waited before them.
    // An empty poll is mostly this: a call of its own would cost it a twentieth.
    #[inline(always)]
    fn finish_serving(
        &self,
        receiver: &mut Receiver,
        delayed: Option<DelayedBy>,
        batch_time: Option<Instant>,
        program: bool,
    ) -> Served {
        let idle = batch_time.is_none()
            && delayed.is_none()
            && self.state.gathers_until() == NEVER
            && !self.any_waits.load(Ordering::Relaxed);
        // With pipes, `is_quiet` spared most polls all of this.
        let spares_clock = program && idle && self.traits.is_in_memory && self.source.pipes().is_none();
        if spares_clock && !self.looks_at_clock() {
            return Served::Nothing;
        }
        let now = batch_time.unwrap_or_else(clock::now);
        if program {
            self.state.served(now.as_nanos());
        }
        if let Some(delayed) = delayed {
            self.keep_or_flush(receiver, delayed, now, program);
            if receiver.delivery.delayed_ack.is_none() {
                self.settle();
            }
        }
        if program && batch_time.is_none() {
            self.visit_gatherers(Visit::PolledInVain, || now);
        }
        let late = self.state.earliest() <= now.as_nanos() && self.run_timers(receiver, now);
        self.give_turns(now);
        if late || batch_time.is_some() { Served::Some } else { Served::Nothing }
    }

    /// The lane was served since an acknowledgement was delayed.
    fn keep_or_flush(&self, receiver: &mut Receiver, delayed: DelayedBy, now: Instant, program: bool) {
        match &receiver.delivery.delayed_ack {
            // The new one speaks for it too.
            Some(newer) if Arc::ptr_eq(&newer.endpoint, &delayed.endpoint) => {}
            None if program && now < delayed.until => receiver.delivery.delayed_ack = Some(delayed),
            _ => self.flush(receiver, &delayed.endpoint, now),
        }
    }

    /// Sends the delayed acknowledgement, if it did not leave with something else.
    fn flush(&self, receiver: &mut Receiver, endpoint: &Endpoint, now: Instant) {
        if receiver.delivery.delayed_ack.is_none() {
            self.state.ack_flushed();
        }
        let mut locked = endpoint.lock();
        if locked.delayed_ack_pending() {
            locked.ack_waited_in_vain(now);
            locked.finish_batch(now);
        }
    }

    /// Sends a delayed acknowledgement and messages that wait to fill a batch, before this thread sleeps.
    pub(crate) fn flush_all(&self) {
        self.visit_gatherers(Visit::Final, clock::now);
        if self.state.delayed_ack_pending()
            && let Some(mut receiver) = self.receiver.try_lock()
            && let Some(DelayedBy { endpoint, .. }) = receiver.delivery.delayed_ack.take()
        {
            self.flush(&mut receiver, &endpoint, clock::now());
            self.settle();
        }
    }

    /// Time at which a timer is due; zero if a queue pair waits for its turn.
    pub(crate) fn next_due(&self) -> u64 {
        if self.any_waits.load(Ordering::Relaxed) { 0 } else { self.state.earliest() }
    }

    /// As [`Self::flush_all`] before the process ends. Another thread may be about to do so, which the end of
    /// the process stops: so it looks at all endpoints, and waits a moment for their locks, but see
    /// [`Endpoint::flush_at_exit`]. Returns the time before which the process should not end.
    pub(crate) fn flush_all_at_exit(&self) -> Instant {
        let Some(endpoints) = self.endpoints.try_lock_for(AT_EXIT) else { return Instant::ZERO };
        endpoints.iter().map(|endpoint| endpoint.flush_at_exit(AT_EXIT)).max().unwrap_or(Instant::ZERO)
    }

    /// Runs the timers that are due and notes the earliest of the others. Whether it received something.
    ///
    /// A timer says that an answer did not arrive, and only an empty socket proves that: this thread may have
    /// been stopped for longer than the timer's time, with the answer (or, from a queue pair of this process,
    /// the request) waiting here. So what waits is processed first, an acknowledgement that this process
    /// delays is sent, and a timer runs if it is due all the same.
    fn run_timers(&self, receiver: &mut Receiver, mut now: Instant) -> bool {
        self.state.start_scan();
        let mut earliest = self.release_held(&mut receiver.delivery, now);
        {
            let endpoints = self.endpoints.lock();
            let rest = SCAN_REST * endpoints.len() as u64;
            self.next_scan.store(now.as_nanos() + rest, Ordering::Relaxed);
            for endpoint in endpoints.iter() {
                let deadline = endpoint.deadline.load(Ordering::SeqCst);
                if deadline <= now.as_nanos() {
                    receiver.due.push(Arc::clone(endpoint));
                } else {
                    earliest = earliest.min(deadline);
                }
            }
        }
        self.note_deadline(earliest);
        if receiver.due.is_empty() {
            return false;
        }
        let mut octets = 0;
        while octets < OCTETS_BEFORE_TIMERS {
            if let Some(later) = self.receive(receiver, false) {
                now = later;
                octets += receiver.octets.max(LEAST_BATCH);
            } else if let Some(DelayedBy { endpoint, .. }) = receiver.delivery.delayed_ack.take() {
                self.flush(receiver, &endpoint, now);
            } else {
                break;
            }
        }
        for endpoint in receiver.due.drain(..) {
            let mut locked = endpoint.lock();
            let deadline = endpoint.deadline.load(Ordering::SeqCst);
            if deadline <= now.as_nanos() {
                locked.expire(now);
                locked.finish_batch(now);
            } else {
                // A packet that was received moved it, perhaps without a note.
                self.note_deadline(deadline);
            }
        }
        octets > 0
    }

    /// An endpoint of the lane needs its timers run at `deadline`. With many endpoints that is a little
    /// later, see [`SCAN_REST`].
    pub(crate) fn note_deadline(&self, deadline: u64) {
        if deadline != NEVER {
            let deadline = deadline.max(self.next_scan.load(Ordering::Relaxed));
            self.state.deadline(deadline, &self.hub.attention, || self.hub.wake());
        }
    }

    pub(crate) fn attach(&self, endpoint: &Arc<Endpoint>) {
        let mut endpoints = self.endpoints.lock();
        endpoint.place.store(endpoints.len(), Ordering::Relaxed);
        endpoints.push(Arc::clone(endpoint));
    }

    pub(crate) fn detach(&self, endpoint: &Endpoint) {
        let mut endpoints = self.endpoints.lock();
        let place = endpoint.place.load(Ordering::Relaxed);
        if endpoints.get(place).is_some_and(|found| ptr::eq(Arc::as_ptr(found), endpoint)) {
            endpoints.swap_remove(place);
            if let Some(moved) = endpoints.get(place) {
                moved.place.store(place, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
