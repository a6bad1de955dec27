//! Pipes: shared memory to other programs of this host, in place of the wire.
//!
//! The broker makes the memory of a pipe and stays out of the data. A queue pair whose peer is a program of
//! the same broker sends by a pipe unless `FERROCE_DATAPATH=udp`; it decides that when it becomes ready to
//! receive, once for its life, so that its packets never overtake each other on two ways. All pipes of a
//! process are one lane.

use std::cell::Cell;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use ferroce_datapath::udp::{LossReason, Sent};
use ferroce_host::fork::Guarded;
use ferroce_host::latest::{Latest, Reader};
use ferroce_ipc::doorbell;
use ferroce_ipc::pipe::{
    Batch, Corrupt, MAX_BATCH, Pipe, RING, Receiver, SHORT, SendError, Sender, Side, WayWords,
};
use ferroce_memory::direct::{Direct, Peer};
use ferroce_memory::publisher::Publisher;
use ferroce_wire::{BatchLimits, Flow, Instant, TxBatch};
use parking_lot::{Mutex, MutexGuard};

use ferroce_client::{BrokerClient, PipeOffer};

/// Packets of a batch.
const SEGMENTS: usize = 256;
/// A full pipe is tried again after this time, or after an eighth of the time for which the other program has
/// read nothing, and after [`SELDOM`] at the latest: a program that is stopped must not keep the others busy.
const SOON: Duration = Duration::from_micros(50);
/// See [`SOON`].
const SELDOM: Duration = Duration::from_millis(50);
/// The kernel is asked whether a program that reads nothing still has its end, but not more often than this.
const STUCK: Duration = Duration::from_millis(100);
/// How long a thread waits for another one that sends. That one may be in a signal handler that posts, and so
/// waits for the queue pair of this thread. Before its packets are built, a thread rather tries again later;
/// packets that are built would be lost.
const BEFORE_BATCH: Duration = Duration::from_millis(1);
/// See `BEFORE_BATCH`.
const WITH_BATCH: Duration = Duration::from_millis(100);
/// Time from the begin of a pipe for which a program waits until the other one has it too. That takes
/// microseconds where the broker and the background thread there have processors, and seconds beside hundreds
/// of programs that poll. The wait spares the queue pairs the sockets, where silence counts against the peer.
const JOIN: Duration = Duration::from_secs(10);
/// Longest interval of that wait between two looks.
const JOIN_LOOK: Duration = Duration::from_millis(5);
/// Attempts to put a batch into a pipe that others filled meanwhile.
const ATTEMPTS: u32 = 64;

pub type List = Vec<Arc<PeerPipe>>;

/// The pipes of this process.
pub struct Pipes {
    /// Readable when another program sent something while this one slept.
    doorbell: Guarded<OwnedFd>,
    /// The other end of it, for the other programs. This one rings it too.
    far: Guarded<OwnedFd>,
    list: Latest<List>,
    /// Held while the list changes.
    changing: Mutex<()>,
    /// The pipe whose turn it is to be received from.
    turn: AtomicUsize,
    /// Publisher of this process's memory; `None` if others may not copy it.
    publisher: Option<Arc<Publisher>>,
}

impl Pipes {
    pub fn new(publisher: Option<Arc<Publisher>>) -> io::Result<Self> {
        let (doorbell, far) = ferroce_ipc::packet::pair()?;
        let (doorbell, far) = (Guarded::new(doorbell), Guarded::new(far));
        let (list, changing, turn) = (Latest::new(List::new()), Mutex::new(()), AtomicUsize::new(0));
        Ok(Self { doorbell, far, list, changing, turn, publisher })
    }

    /// Readable when a program has sent something while this one slept.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// The end of the doorbell that other programs ring.
    pub fn bell(&self) -> io::Result<OwnedFd> {
        self.far.as_fd().try_clone_to_owned()
    }

    /// The pipe to the program that holds `slot`, which is opened now if it does not exist. `own`: the slots
    /// of this program. `None` where that program takes none, does not answer, or shares only pipes that make
    /// no sense: it would do the same to a new one, and the sockets are left.
    pub fn to(&self, slot: u16, own: &[u16], broker: &BrokerClient) -> Option<Arc<PeerPipe>> {
        if let Some(known) = self.find(slot) {
            return (known.is_sound() && known.wait_for_peer(JOIN)).then_some(known);
        }
        let added = if own.contains(&slot) {
            self.add_loop(own)
        } else {
            let offer = broker.open_pipe(slot);
            let offer = offer.inspect_err(|error| tracing::debug!(slot, %error, "no pipe")).ok()?;
            self.add(offer)
        };
        let added = added.inspect_err(|error| tracing::warn!(slot, %error, "a pipe cannot be used")).ok()?;
        added.wait_for_peer(JOIN).then_some(added)
    }

    /// A pipe of which the broker told.
    pub fn add(&self, offer: PipeOffer) -> io::Result<Arc<PeerPipe>> {
        let _changing = self.changing.lock();
        // Both ends may have asked at the same time; then there are two pipes, and each serves the queue
        // pairs of one.
        let side = if offer.first { Side::First } else { Side::Second };
        let mut pipe = PeerPipe::join(&offer.memory, side, offer.slots, offer.bell)?;
        pipe.peer = Some(Peer::new(self.publisher.as_ref(), offer.pidfd, offer.published, &pipe.pipe));
        pipe.pipe.set_joined();
        Ok(self.insert([pipe]))
    }

    /// A pipe to this process itself: both ends are here.
    fn add_loop(&self, own: &[u16]) -> io::Result<Arc<PeerPipe>> {
        let _changing = self.changing.lock();
        if let Some(known) = self.find(own.first().copied().unwrap_or_default()) {
            return Ok(known);
        }
        let memory = Pipe::create()?;
        let end = |side, slots| {
            let pipe = PeerPipe::join(&memory, side, slots, self.bell()?)?;
            pipe.pipe.set_joined();
            io::Result::Ok(pipe)
        };
        Ok(self.insert([end(Side::First, own.to_vec())?, end(Side::Second, Vec::new())?]))
    }

    fn insert<const N: usize>(&self, pipes: [PeerPipe; N]) -> Arc<PeerPipe> {
        let pipes = pipes.map(Arc::new);
        let first = Arc::clone(&pipes[0]);
        let known = self.all();
        let alive = known.iter().filter(|known| !known.is_dead()).cloned();
        self.list.store(Some(Arc::new(alive.chain(pipes).collect())));
        first
    }

    /// A pipe to the program that holds `slot`; one that makes no sense only if there is no other.
    fn find(&self, slot: u16) -> Option<Arc<PeerPipe>> {
        let list = self.list.load()?;
        let of_slot = || list.iter().filter(|pipe| pipe.slots.contains(&slot) && !pipe.is_dead());
        of_slot().find(|pipe| pipe.is_sound()).or_else(|| of_slot().next()).cloned()
    }

    /// The pipes, while the thread reads.
    #[inline(always)]
    pub fn list<'a>(&'a self, reader: &'a Reader) -> &'a [Arc<PeerPipe>] {
        self.list.read(reader).map_or(&[], Vec::as_slice)
    }

    /// Whether something waits.
    #[inline(always)]
    pub fn seem_ready(&self, reader: &Reader) -> bool {
        // `any` would be a call.
        for pipe in self.list(reader) {
            if pipe.seems_ready() {
                return true;
            }
        }
        false
    }

    /// Takes the next batch out of the next pipe of the list that has one. The caller holds the lane, and
    /// calls [`PeerPipe::settle`] when it is done.
    #[inline]
    pub fn receive<'a>(
        &self,
        list: &'a [Arc<PeerPipe>],
        out: &mut [u8; MAX_BATCH],
    ) -> Option<(&'a PeerPipe, Batch)> {
        let turn = self.turn.load(Ordering::Relaxed);
        let mut place = if turn < list.len() { turn } else { 0 };
        for _ in 0..list.len() {
            let pipe = list.get(place)?;
            place = if place + 1 < list.len() { place + 1 } else { 0 };
            if pipe.seems_ready()
                && let Some(batch) = pipe.receive(out)
            {
                self.turn.store(place, Ordering::Relaxed);
                return Some((pipe, batch));
            }
        }
        None
    }

    /// As [`Self::receive`], for a batch of one short packet, see
    /// [`receive_short`](ferroce_ipc::pipe::Receiver::receive_short). `None` says nothing, and nothing was
    /// taken.
    #[inline(always)]
    pub fn receive_short<'a>(
        &self,
        list: &'a [Arc<PeerPipe>],
        octets: &mut [u8; SHORT],
    ) -> Option<(&'a PeerPipe, Flow, usize)> {
        let turn = self.turn.load(Ordering::Relaxed);
        let turn = if turn < list.len() { turn } else { 0 };
        let (before, after) = list.split_at_checked(turn).unwrap_or((&[], list));
        let (place, pipe) =
            (turn..).zip(after).chain((0..).zip(before)).find(|(_, pipe)| pipe.seems_ready())?;
        let (flow, len) = pipe.receive_short(octets)?;
        self.turn.store(place + 1, Ordering::Relaxed);
        Some((pipe, flow, len))
    }

    /// As [`PeerPipe::settle`], for all.
    pub fn settle(&self) {
        self.list(&Reader::enter()).iter().for_each(|pipe| pipe.settle());
    }

    /// As [`Self::list`], to keep.
    pub fn all(&self) -> Arc<List> {
        self.list.load().unwrap_or_default()
    }

    /// The descriptor is not readable any more, until somebody sends after [`Self::prepare_to_sleep`].
    pub fn silence(&self) {
        // The other end of the doorbell is open as long as this process lives.
        let _ = doorbell::silence(&*self.doorbell);
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        doorbell::ring(&*self.far);
    }

    /// The caller is about to sleep until the doorbell rings. Returns whether something waits, so that it
    /// must not.
    pub fn prepare_to_sleep(&self) -> bool {
        self.silence();
        let list = self.all();
        list.iter().for_each(|pipe| pipe.count_sleep());
        list.iter().any(|pipe| pipe.is_ready())
    }
}

/// A pipe to one other program.
pub struct PeerPipe {
    slots: Vec<u16>,
    pipe: Pipe,
    /// All queue pairs that send to this program share this lock. A sender holds it while it copies a batch.
    tx: Mutex<Tx>,
    /// The holder of the lane's; `None` after the other side broke it.
    rx: Mutex<Option<Receiver>>,
    /// The receiver's position, for a look without the lock.
    position: AtomicU64,
    /// How far what was received is done with, but for what those that are [owing](Self::owing) have to send.
    done: AtomicU64,
    /// Queue pairs that have more to send than they could, perhaps answers.
    owing: AtomicUsize,
    /// A batch of any length may not fit.
    tight: AtomicBool,
    /// This side found that its memory makes no sense. The other side may overwrite the word in the memory
    /// that says so.
    given_up: AtomicBool,
    /// Wakes the other program.
    bell: Guarded<OwnedFd>,
    /// Time at which this end was made.
    begun: std::time::Instant,
    /// The other program; `None` for this process itself.
    peer: Option<Peer>,
}

fn lost(packets: usize, reason: LossReason) -> Sent {
    Sent { sent: 0, lost: packets, reason: Some(reason) }
}

thread_local! {
    /// This thread holds the sending end of a pipe, or waits for it. A signal handler asks.
    static SENDING: Cell<bool> = const { Cell::new(false) };
}

/// The sending end, held by this thread.
struct Sending<'a> {
    /// The destructor unlocks this before it clears `SENDING`. A handler that runs in between does not wait
    /// for the lock.
    tx: Option<MutexGuard<'a, Tx>>,
}

impl Sending<'_> {
    fn tx(&mut self) -> &mut Tx {
        self.tx.as_deref_mut().expect("only the destructor empties it")
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        drop(self.tx.take());
        SENDING.set(false);
    }
}

/// Packets that a path takes now. The times say when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Batches of any length.
    ForAll,
    /// Packets without payload.
    ForAcks(Instant),
    /// Nothing.
    None(Instant),
}

/// The sending end, and how long nothing could be sent.
struct Tx {
    sender: Sender,
    full: Option<Full>,
    broken: bool,
}

/// A pipe that was found full.
struct Full {
    /// Time at which the pipe was first found full.
    since: Instant,
    /// How far the other side had read then.
    taken: u64,
    /// Time at which the kernel was last asked whether the other side is there.
    asked: Instant,
}

impl PeerPipe {
    fn join(memory: &OwnedFd, side: Side, slots: Vec<u16>, bell: OwnedFd) -> io::Result<Self> {
        let (pipe, sender, receiver) = Pipe::join(memory, side)?;
        let tx = Mutex::new(Tx { sender, full: None, broken: false });
        let (position, rx) = (AtomicU64::new(receiver.position()), Mutex::new(Some(receiver)));
        let (done, owing) = (AtomicU64::new(0), AtomicUsize::new(0));
        let (tight, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let bell = Guarded::new(bell);
        let begun = std::time::Instant::now();
        Ok(Self { slots, pipe, tx, rx, position, done, owing, tight, given_up, bell, begun, peer: None })
    }

    /// The limits of a batch.
    pub const fn limits() -> BatchLimits {
        BatchLimits { max_segments: SEGMENTS, gso: true }
    }

    /// Whether the other program has ended.
    fn is_dead(&self) -> bool {
        self.peer.as_ref().is_some_and(Peer::has_ended)
    }

    /// Whether neither program found that its memory makes no sense.
    fn is_sound(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed) && !self.pipe.is_given_up()
    }

    /// The memory of the pipe makes no sense: queue pairs that have it lose their packets, and no new one
    /// gets it, here or at the other side.
    fn give_up(&self, error: Corrupt) {
        tracing::error!(slots = ?self.slots, %error, "a pipe cannot be used");
        self.given_up.store(true, Ordering::Relaxed);
        self.pipe.set_given_up();
    }

    /// The memory of the other program, if it can be copied to and from.
    #[inline]
    pub fn direct(&self) -> Option<&Direct> {
        self.peer.as_ref()?.direct()
    }

    /// Waits until the other program has the pipe too; `false` if it has ended, or does not take it within
    /// `limit` from the begin of the pipe. So all queue pairs to a program that is stopped wait together.
    fn wait_for_peer(&self, limit: Duration) -> bool {
        let mut pause = Duration::from_micros(50);
        while !self.pipe.is_joined() {
            if self.begun.elapsed() >= limit || !self.is_read_by_somebody() {
                tracing::warn!(slots = ?self.slots, "the other program does not take its end of a pipe");
                return false;
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(JOIN_LOOK);
        }
        true
    }

    /// Whether no thread is sending at the moment.
    pub fn is_free(&self) -> bool {
        self.tx.try_lock().is_some()
    }

    /// The packets that can be sent now. A pipe that is broken, or whose other program is gone, takes all and
    /// loses it.
    #[inline]
    fn room(&self, now: Instant) -> Room {
        if self.tight.load(Ordering::Relaxed) { self.room_if_tight(now) } else { Room::ForAll }
    }

    fn room_if_tight(&self, now: Instant) -> Room {
        let Some(mut tx) = self.lock_to_send(BEFORE_BATCH) else { return Room::None(now + SOON) };
        let Tx { sender, full, broken } = tx.tx();
        let room = match sender.has_room() {
            Ok(room) => room,
            Err(error) => {
                *broken = true;
                self.give_up(error);
                return Room::ForAll;
            }
        };
        if room {
            *full = None;
            self.tight.store(false, Ordering::Relaxed);
            return Room::ForAll;
        }
        let taken = sender.taken().unwrap_or_default();
        if full.as_ref().is_none_or(|full| full.taken != taken) {
            *full = None;
        }
        let full = full.get_or_insert(Full { since: now, taken, asked: now });
        if now >= full.asked + STUCK {
            if !self.is_read_by_somebody() {
                return Room::ForAll;
            }
            full.asked = now;
        }
        let later = now + (now.saturating_since(full.since) / 8).clamp(SOON, SELDOM);
        if sender.has_reserve() { Room::ForAcks(later) } else { Room::None(later) }
    }

    /// As [`Self::send`], for a single packet.
    #[inline(always)]
    fn send_one(&self, way: &WayWords, packet: &[u8], newest: &Cell<u64>) -> Sent {
        let Some(mut locked) = self.lock_to_send(WITH_BATCH) else { return lost(1, LossReason::Congested) };
        let tx = locked.tx();
        let asleep = if tx.broken { None } else { tx.sender.send_short(way, packet) };
        match asleep {
            Some(asleep) => self.sent(locked, 1, asleep, newest),
            None => self.send_locked(locked, way, (1, packet.len()), packet, newest),
        }
    }

    /// Unlocks behind an entry of `packets` packets, and wakes the other program if it may be `asleep`.
    #[inline(always)]
    fn sent(&self, mut locked: Sending<'_>, packets: usize, asleep: bool, newest: &Cell<u64>) -> Sent {
        let tx = locked.tx();
        newest.set(tx.sender.position());
        if !tx.sender.is_roomy() {
            self.tight.store(true, Ordering::Relaxed);
        }
        drop(locked);
        if asleep {
            doorbell::ring(&*self.bell);
        }
        Sent { sent: packets, lost: 0, reason: None }
    }

    /// Sends a batch of `packets` packets of `segment_size` octets. Sets `newest` to the place in the pipe up
    /// to which the other program has to read before it knows the batch, or before there may be room for it.
    fn send(
        &self,
        way: &WayWords,
        (packets, segment_size): (usize, usize),
        octets: &[u8],
        newest: &Cell<u64>,
    ) -> Sent {
        match self.lock_to_send(WITH_BATCH) {
            Some(locked) => self.send_locked(locked, way, (packets, segment_size), octets, newest),
            None => lost(packets, LossReason::Congested),
        }
    }

    #[inline(never)]
    fn send_locked(
        &self,
        mut locked: Sending<'_>,
        way: &WayWords,
        (packets, segment_size): (usize, usize),
        octets: &[u8],
        newest: &Cell<u64>,
    ) -> Sent {
        let tx = locked.tx();
        if tx.broken {
            return lost(packets, LossReason::Unreachable);
        }
        for attempt in 0..ATTEMPTS {
            match tx.sender.send_by(way, segment_size, octets) {
                Ok(asleep) => return self.sent(locked, packets, asleep, newest),
                // Full for long: see `room`.
                Err(SendError::Full) if tx.full.is_none() && attempt + 1 < ATTEMPTS => {
                    std::thread::yield_now()
                }
                Err(SendError::Full) => {
                    newest.set(tx.sender.position());
                    break;
                }
                Err(SendError::Length(_)) => return lost(packets, LossReason::TooLong),
                Err(SendError::Corrupt(error)) => {
                    tx.broken = true;
                    self.give_up(error);
                    return lost(packets, LossReason::Unreachable);
                }
            }
        }
        lost(packets, LossReason::Congested)
    }

    /// Whether the other program lives and has its end. A program that executes another one lives, but its
    /// end of the doorbell is closed.
    fn is_read_by_somebody(&self) -> bool {
        self.is_sound() && !self.is_dead() && doorbell::has_listener(&*self.bell)
    }

    /// Waits for the threads that send, at most for `limit`, and not at all in a signal handler that
    /// interrupted one of them.
    #[inline]
    fn lock_to_send(&self, limit: Duration) -> Option<Sending<'_>> {
        if SENDING.replace(true) {
            return None;
        }
        let tx = self.tx.try_lock_for(limit);
        if tx.is_none() {
            SENDING.set(false);
        }
        Some(Sending { tx: Some(tx?) })
    }

    /// Whether something waits, or waited until a thread took it in this moment.
    #[inline(always)]
    pub fn seems_ready(&self) -> bool {
        self.pipe.is_ready_at(self.position.load(Ordering::Relaxed))
    }

    #[inline]
    fn receive(&self, out: &mut [u8; MAX_BATCH]) -> Option<Batch> {
        // A delayed acknowledgement speaks for the last batch alone.
        self.settle();
        let mut rx = self.rx.lock();
        let receiver = rx.as_mut()?;
        match receiver.receive(out) {
            Ok(batch) => {
                self.position.store(receiver.position(), Ordering::Relaxed);
                batch
            }
            Err(error) => {
                *rx = None;
                self.give_up(error);
                None
            }
        }
    }

    #[inline(always)]
    fn receive_short(&self, octets: &mut [u8; SHORT]) -> Option<(Flow, usize)> {
        let mut rx = self.rx.lock();
        let receiver = rx.as_mut()?;
        let (len, flow) = receiver.receive_short(octets)?;
        let flow = *flow;
        // A delayed acknowledgement speaks for the last batch alone.
        self.settle();
        self.position.store(receiver.position(), Ordering::Relaxed);
        Some((flow, len))
    }

    /// Everything that was received has had its effect, and the answers to it were sent, but for those of
    /// queue pairs that are [owing](Self::owing). The caller holds the lane.
    #[inline]
    pub fn settle(&self) {
        let done = self.position.load(Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
        if self.owing.load(Ordering::Acquire) > 0 {
            // Either this thread sees that the last one owes nothing any more, or that one's thread sees
            // `done`.
            fence(Ordering::SeqCst);
            if self.owing.load(Ordering::Acquire) > 0 {
                return;
            }
        }
        self.pipe.set_answered(done);
    }

    /// The batches that the pipe holds now. The caller holds the lane.
    pub fn contents(&self) -> Contents<'_> {
        // The other side can have put in no more than the pipe has room for.
        Contents { pipe: self, end: self.position.load(Ordering::Relaxed) + RING as u64 }
    }

    fn is_ready(&self) -> bool {
        self.rx.lock().as_ref().is_some_and(Receiver::is_ready)
    }

    fn count_sleep(&self) {
        self.rx.lock().as_ref().inspect(|rx| rx.count_sleep());
    }
}

/// The batches that a pipe held at one time, and what came behind that as long as it is not empty.
pub struct Contents<'a> {
    pipe: &'a PeerPipe,
    end: u64,
}

impl Contents<'_> {
    /// Takes the next batch out of the pipe.
    pub fn receive(&mut self, out: &mut [u8; MAX_BATCH]) -> Option<Batch> {
        let waits = self.pipe.position.load(Ordering::Relaxed) < self.end && self.pipe.seems_ready();
        waits.then(|| self.pipe.receive(out)).flatten()
    }
}

/// A queue pair's end of a pipe.
pub struct PipeEnd {
    pipe: Arc<PeerPipe>,
    /// The addressing of what the queue pair sends.
    way: WayWords,
    /// The place behind its newest packet.
    newest: Cell<u64>,
    /// The queue pair has more to send than it could.
    owing: Cell<bool>,
}

impl PipeEnd {
    /// The end of a queue pair that sends with this addressing.
    pub fn new(pipe: Arc<PeerPipe>, flow: &Flow) -> Self {
        Self { pipe, way: flow.into(), newest: Cell::new(0), owing: Cell::new(false) }
    }

    /// Whether packets of any length can be sent now, and nothing of the queue pair waits for room.
    #[inline]
    pub fn is_open(&self) -> bool {
        !self.owing.get() && !self.pipe.tight.load(Ordering::Relaxed)
    }

    /// Sends a single packet.
    #[inline]
    pub fn send_one(&self, packet: &[u8]) -> Sent {
        self.pipe.send_one(&self.way, packet, &self.newest)
    }

    /// The packets that can be sent now.
    #[inline]
    pub fn room(&self, now: Instant) -> Room {
        let room = self.pipe.room(now);
        self.set_owing(room != Room::ForAll);
        room
    }

    pub fn send(&self, batch: &TxBatch<'_>) -> Sent {
        let Some(flow) = batch.flow() else { return Sent { sent: 0, lost: 0, reason: None } };
        self.pipe.send(&flow.into(), (batch.len(), batch.segment_size()), batch.bytes(), &self.newest)
    }

    /// Notes whether there is more to send than could be sent. That may be answers, for which the other
    /// program waits.
    #[inline]
    pub fn set_owing(&self, owing: bool) {
        if self.owing.replace(owing) != owing {
            self.count_owing(owing);
        }
    }

    #[cold]
    fn count_owing(&self, owing: bool) {
        let pipe = &*self.pipe;
        if owing {
            pipe.owing.fetch_add(1, Ordering::SeqCst);
        } else if pipe.owing.fetch_sub(1, Ordering::SeqCst) == 1 {
            pipe.pipe.raise_answered(pipe.done.load(Ordering::SeqCst));
        }
    }

    /// Whether the other program lives and has not answered the newest packet, or not made room for it: it is
    /// stopped, or has no processor. Nothing got lost, so that it is silent proves nothing. An answer that
    /// waits here may have come in this moment.
    pub fn keeps_waiting(&self) -> bool {
        let Self { pipe, newest, owing, .. } = self;
        let waits = owing.get() || pipe.pipe.is_unanswered(newest.get()) || pipe.seems_ready();
        waits && pipe.is_read_by_somebody()
    }
}

impl Deref for PipeEnd {
    type Target = PeerPipe;

    fn deref(&self) -> &PeerPipe {
        &self.pipe
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        self.set_owing(false);
    }
}

/// Pipes whose both ends are in the hands of a test.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use std::net::{IpAddr, Ipv4Addr};

    use ferroce_wire::LinkLayer;

    use super::*;

    /// The slot that each pipe reaches.
    pub(super) const SLOT: u16 = 7;

    /// Two processes' pipes, with one between them, and its memory.
    pub fn connected() -> ([(Pipes, Arc<PeerPipe>); 2], OwnedFd) {
        let ends = [Pipes::new(None).unwrap(), Pipes::new(None).unwrap()];
        let memory = Pipe::create().unwrap();
        let bells = [ends[1].bell().unwrap(), ends[0].bell().unwrap()];
        let mut sides = [Side::First, Side::Second].into_iter().zip(bells);
        let joined = ends.map(|end| {
            let (side, bell) = sides.next().unwrap();
            let pipe = PeerPipe::join(&memory, side, vec![SLOT], bell).unwrap();
            pipe.pipe.set_joined();
            let pipe = end.insert([pipe]);
            (end, pipe)
        });
        (joined, memory)
    }

    const WAY: Flow = Flow {
        source: IpAddr::V4(Ipv4Addr::LOCALHOST),
        destination: IpAddr::V4(Ipv4Addr::LOCALHOST),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        link: LinkLayer::UDP,
    };

    /// Puts a batch in. Returns the place behind it.
    pub fn send(pipe: &PeerPipe) -> u64 {
        let mut tx = pipe.tx.lock();
        tx.sender.send(&WAY, 64, &[0; 64]).unwrap();
        tx.sender.position()
    }

    /// As [`send`], for a packet that fits in one cache line.
    pub fn send_short(pipe: &PeerPipe) -> u64 {
        let mut tx = pipe.tx.lock();
        tx.sender.send(&WAY, 16, &[0; 16]).unwrap();
        tx.sender.position()
    }

    pub fn is_unanswered(pipe: &PeerPipe, place: u64) -> bool {
        pipe.pipe.is_unanswered(place)
    }

    /// Puts batches in until there is no room.
    pub fn fill(pipe: &PeerPipe) {
        let mut sent = 0;
        while pipe.tx.lock().sender.send(&WAY, 1024, &[0; 60_000]).is_ok() {
            sent += 1;
        }
        assert!(sent > 1);
        pipe.tight.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
