//! The end of a connection that a queue pair sends by.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferroce_host::{event, tcp};
use ferroce_ipc::ledger::DeviceCounters;
use ferroce_memory::{View, vectors};
use ferroce_proto::iwarp::{Expected, Payloads};
use ferroce_proto::{QueuePair, StreamState};
use ferroce_wire::{Due, Instant};
use rustix::io::Errno;

use super::harm::{Step, StreamHarm};
use super::stall::Stall;
use super::unsent::{Lost, Unsent};
use super::{Found, StreamSocket, Streams, Watched};
use crate::clock;

/// Octets that a queue pair builds before they are sent.
const PIECE: usize = 80 << 10;
/// Pieces of one queue pair before others have their turn.
const PIECES: usize = 16;
/// Time between two looks whether the peer's TCP acknowledged the reply of the set-up.
const LOOK: Duration = Duration::from_millis(1);

/// The least of [`patience`].
const LEAST_PATIENCE: Duration = Duration::from_millis(20);
/// The most of [`patience`].
pub const MOST_PATIENCE: Duration = Duration::from_millis(250);
/// [`patience`] in round trips.
const ROUND_TRIPS: u32 = 8;

/// The time that a peer with another stack than ours gets to finish what it began before the next step of
/// this end: eight round trips as TCP measured them, 20 ms at least and 250 ms at most. Linux's siw needs it
/// at three places. All were seen in an emulated machine, where a round trip takes up to 10 ms under load,
/// and 20 ms were too short for it.
///
/// - After the peer's TCP acknowledged a responder's reply: siw ends a connection whose reply it reads
///   together with the first FPDU.
/// - After the responder's reply, before an initiator's first FPDU: siw does not see an FPDU that arrives
///   while it accepts until the next one does, and its rping waits for ever for a message that is in its
///   socket.
/// - Between the peer's last octets and FIN: siw flushes on FIN the requests that it has sent and not
///   completed yet, although their data arrived here. A program that closes when it has its answer would take
///   the completion of that answer away from its peer.
pub fn patience(socket: impl AsFd) -> Duration {
    let round_trip = tcp::round_trip(socket).unwrap_or_default();
    (round_trip * ROUND_TRIPS).clamp(LEAST_PATIENCE, MOST_PATIENCE)
}

thread_local! {
    /// Memory in which a thread builds what it sends.
    static BUILT: RefCell<Built> = RefCell::new(Built::new());
}

/// A buffer of [`PIECE`] octets, and the payload that leaves between them.
struct Built {
    buffer: Box<[u8]>,
    payloads: Payloads,
}

impl Built {
    fn new() -> Self {
        Self { buffer: vec![0; PIECE].into_boxed_slice(), payloads: Payloads::new() }
    }
}

/// Lends the thread's buffer. While the thread ends it may be gone already, and a signal handler that posts
/// may interrupt its user.
fn with_buffer<R>(mut act: impl FnMut(&mut Built) -> R) -> R {
    let lent = BUILT.try_with(|built| built.try_borrow_mut().map(|mut built| act(&mut built)).ok());
    match lent {
        Ok(Some(result)) => result,
        Ok(None) | Err(_) => act(&mut Built::new()),
    }
}

/// A connection that ended for its queue pair.
pub struct Remains {
    pub socket: Arc<StreamSocket>,
    /// The octets that TCP did not take yet: they are the last.
    pub unsent: Vec<u8>,
    /// FIN does not leave before.
    pub fin_at: Instant,
}

/// The end of a connection that a queue pair sends by. It begins and ends with the endpoint's stream.
pub struct StreamPort {
    socket: Arc<StreamSocket>,
    streams: Arc<Streams>,
    unsent: Unsent,
    /// The events that the epoll set watches for.
    watched: Watched,
    /// A message waits for a receive.
    stall: Option<Stall>,
    /// The epoll set said that there is room.
    has_room: bool,
    /// The wait before this end's first FPDU.
    hold: Option<Hold>,
    /// The peer's first FPDU did not come yet, and the program is told when it comes.
    announces: bool,
    /// The peer has another stack than ours.
    foreign: bool,
    /// Time at which octets arrived last.
    received: Instant,
    harm: StreamHarm,
}

/// An end whose queue pair sends nothing at first, and the time at which this began.
pub enum Held {
    /// This end accepted the peer's request.
    Responder(Instant),
    /// This end sent the request, and its peer has another stack.
    Initiator(Instant),
}

/// The wait of an end before its first FPDU. The responder of a connection without peer-to-peer mode waits
/// for the initiator's first FPDU (RFC 5044 7.1.2), but not for ever: there are programs whose responder
/// sends first, and siw allows that. An initiator whose peer has another stack waits for [`patience`].
struct Hold {
    /// The time of the next look.
    at: Instant,
    /// The peer's TCP has acknowledged the octets of the set-up, and the wait ends at `at`.
    acknowledged: bool,
}

impl StreamPort {
    /// `held`: the queue pair sends nothing before [`QueuePair::release_stream`]. A responder first waits
    /// until the peer's TCP acknowledged its reply.
    pub fn new(
        socket: Arc<StreamSocket>,
        streams: Arc<Streams>,
        held: Option<Held>,
        announces: bool,
        foreign: bool,
        harm: StreamHarm,
    ) -> Self {
        let hold = held.map(|held| match held {
            Held::Responder(now) => Hold { at: now + LOOK, acknowledged: false },
            Held::Initiator(now) => Hold { at: now + patience(&*socket), acknowledged: true },
        });
        Self {
            socket,
            streams,
            unsent: Unsent::new(PIECE),
            watched: Watched::USUAL,
            stall: None,
            has_room: false,
            hold,
            announces,
            foreign,
            received: Instant::ZERO,
            harm,
        }
    }

    /// Whether `socket` is its own.
    pub fn is_of(&self, socket: &StreamSocket) -> bool {
        self.socket.id == socket.id
    }

    /// Octets arrived.
    pub fn has_received(&mut self, now: Instant) {
        self.received = now;
    }

    /// Receives what has arrived, as the queue pair expects it: into registered memory, and what follows into
    /// `buffer`.
    pub fn receive(&self, transport: &mut QueuePair, memory: &mut View, buffer: &mut [u8]) -> Found {
        let Expected { memory: span, most } = transport.stream_expected();
        let most = most.unwrap_or(usize::MAX).min(buffer.len());
        let buffer = buffer.get_mut(..most).unwrap_or_default();
        if let Some(span) = span {
            match vectors::receive(self.socket.as_fd(), memory, &span, buffer) {
                // The copy shows why.
                Err(Errno::FAULT) => {}
                received => {
                    let placed = received.map_or(0, |total| total.min(span.len()));
                    if placed > 0 {
                        transport.stream_placed(placed);
                    }
                    return self.socket.found(received, placed);
                }
            }
        }
        self.socket.found(self.socket.receive(buffer), 0)
    }

    /// Notes what the queue pair expects next. Returns whether that belongs into registered memory.
    pub fn expect(&self, expected: &Expected) -> bool {
        self.socket.expect(expected);
        expected.memory.is_some()
    }

    /// The epoll set says that TCP has room again.
    pub fn has_room(&mut self) {
        self.has_room = true;
    }

    /// Sends up to a fixed number of pieces of what the queue pair has queued, or as much as TCP takes.
    /// Returns the time at which to call again if more is queued. If TCP is full, the lane's descriptor
    /// becomes ready when TCP has room.
    pub fn drain(
        &mut self,
        transport: &mut QueuePair,
        memory: &mut View,
        now: Instant,
        counters: &DeviceCounters,
    ) -> Option<Instant> {
        // A full TCP is not asked again before the epoll set says that there is room.
        if self.watched.room && !std::mem::take(&mut self.has_room) || !self.send_unsent(transport, counters)
        {
            return None;
        }
        with_buffer(|Built { buffer, payloads }| {
            for _ in 0..PIECES {
                if let Err(more) = self.send_judged(transport, memory, now, counters) {
                    return more;
                }
                let judges = self.harm.judges();
                payloads.clear();
                // Rules act on whole FPDUs.
                let len = match judges {
                    true => transport.poll_stream(memory, buffer),
                    false => transport.poll_stream_around(memory, buffer, payloads),
                };
                let octets = buffer.get(..len).unwrap_or_default();
                if octets.is_empty() {
                    return None;
                }
                if judges {
                    self.harm.judge(octets, &self.socket);
                } else if !self.send(transport, memory, (octets, payloads), counters) {
                    return None;
                }
            }
            Some(now)
        })
    }

    /// Sends what a plan of faults judged before.
    ///
    /// # Errors
    /// Returns the time to go on, as [`Self::drain`] does, if something is left.
    fn send_judged(
        &mut self,
        transport: &mut QueuePair,
        memory: &View,
        now: Instant,
        counters: &DeviceCounters,
    ) -> Result<(), Option<Instant>> {
        while let Some(step) = self.harm.next(now) {
            match step {
                Step::Send(octets) => {
                    if !self.send(transport, memory, (&octets, &Payloads::new()), counters) {
                        return Err(None);
                    }
                }
                Step::Wait(until) => return Err(Some(until)),
                Step::Cut => {
                    self.broken(transport, Errno::CONNRESET);
                    return Err(None);
                }
            }
        }
        Ok(())
    }

    /// Sends the octets that TCP did not take before. Returns whether more may follow.
    fn send_unsent(&mut self, transport: &mut QueuePair, counters: &DeviceCounters) -> bool {
        while !self.unsent.octets().is_empty() {
            match self.socket.send(self.unsent.octets()) {
                Ok(sent) => {
                    self.unsent.took(sent);
                    taken(transport, sent, counters);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.watch_room(true);
                    return false;
                }
                Err(errno) => {
                    self.broken(transport, errno);
                    return false;
                }
            }
        }
        self.watch_room(false);
        true
    }

    /// Sends octets and the payload between them, and keeps a copy of what TCP does not take. Returns whether
    /// more may follow.
    fn send(
        &mut self,
        transport: &mut QueuePair,
        memory: &View,
        (octets, payloads): (&[u8], &Payloads),
        counters: &DeviceCounters,
    ) -> bool {
        DeviceCounters::count(&counters.tx_calls);
        let sent = match payloads.as_slice() {
            [] => self.socket.send(octets),
            payloads => vectors::send(self.socket.as_fd(), memory, octets, payloads),
        };
        let sent = match sent {
            Ok(sent) => sent,
            Err(Errno::INTR | Errno::AGAIN) => 0,
            // The copy shows which memory is gone.
            Err(Errno::FAULT) if payloads.octets() > 0 => 0,
            Err(errno) => {
                self.broken(transport, errno);
                return false;
            }
        };
        taken(transport, sent, counters);
        if sent == octets.len() + payloads.octets() {
            return true;
        }
        if let Err(Lost { payload, error, within }) = self.unsent.keep(memory, octets, payloads, sent) {
            transport.stream_payload_lost(&payload, error);
            if within {
                self.broken(transport, Errno::FAULT);
                return false;
            }
        }
        self.send_unsent(transport, counters)
    }

    /// The connection is broken: nothing can be sent any more.
    fn broken(&mut self, transport: &mut QueuePair, errno: Errno) {
        tracing::debug!(qpn = self.socket.qpn.value(), %errno, "a connection broke");
        self.unsent.clear();
        self.harm.clear();
        self.end_stall();
        self.watch_room(false);
        transport.stream_ended();
    }

    fn watch_room(&mut self, room: bool) {
        self.watch(Watched { room, ..self.watched });
    }

    fn watch(&mut self, now: Watched) {
        let before = std::mem::replace(&mut self.watched, now);
        if before != now {
            self.streams.watch(&self.socket, before, now);
        }
    }

    /// Whether nothing is received, because a message waits for a receive.
    pub const fn is_stalled(&self) -> bool {
        self.stall.is_some()
    }

    /// Keeps octets that cannot be taken, because a message waits for a receive.
    pub fn stall(&mut self, octets: &[u8], now: Instant) {
        match &mut self.stall {
            Some(stall) => stall.append(octets),
            None => {
                self.stall = Some(Stall::new(octets, now));
                self.socket.stalled.store(true, Ordering::Relaxed);
                self.watch(Watched { arrivals: false, ..self.watched });
            }
        }
    }

    fn end_stall(&mut self) {
        if self.stall.take().is_some() {
            self.socket.stalled.store(false, Ordering::Relaxed);
            self.watch(Watched { arrivals: true, ..self.watched });
        }
    }

    /// Looks whether there is a receive now. `take` gives octets to the queue pair, and returns how many it
    /// took.
    fn look_for_receive(
        &mut self,
        transport: &mut QueuePair,
        now: Instant,
        take: impl FnOnce(&mut QueuePair, &[u8]) -> usize,
    ) {
        let Some(stall) = self.stall.as_mut().filter(|stall| stall.at() <= now) else { return };
        let taken = take(transport, stall.octets());
        let starves = transport.stream_starves();
        if stall.look(taken, starves, now) {
            transport.stream_waited_in_vain();
            self.end_stall();
        } else if !starves && stall.octets().is_empty() {
            self.end_stall();
        }
    }

    /// Follows the state of the queue pair: the first FPDU ends the wait for it. Returns whether the program
    /// is to be told that it came.
    #[must_use]
    pub fn follow(&mut self, state: StreamState) -> bool {
        if state != (StreamState::Open { has_received: true }) {
            return false;
        }
        self.hold = None;
        std::mem::take(&mut self.announces)
    }

    /// The time of its next timer.
    pub fn deadline(&self) -> Option<Instant> {
        let of_stall = self.stall.as_ref().map(Stall::at).or_never();
        self.hold.as_ref().map(|hold| hold.at).or_never().min(of_stall).if_ever()
    }

    /// Runs the timers that are due. `take` gives octets to the queue pair, and returns how many it took.
    pub fn expire(
        &mut self,
        transport: &mut QueuePair,
        now: Instant,
        take: impl FnOnce(&mut QueuePair, &[u8]) -> usize,
    ) {
        self.look_for_receive(transport, now, take);
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.at <= now) else { return };
        if hold.acknowledged {
            self.hold = None;
            transport.release_stream();
        } else if tcp::unacknowledged(&*self.socket).unwrap_or(0) == 0 {
            (hold.acknowledged, hold.at) = (true, now + patience(&*self.socket));
        } else {
            hold.at = now + LOOK;
        }
    }

    /// Sends what TCP takes until `limit` is over, because the process ends. The end of the process sends
    /// FIN: returns the time before which it should not.
    pub fn flush_at_exit(
        &mut self,
        transport: &mut QueuePair,
        memory: &mut View,
        limit: Duration,
        counters: &DeviceCounters,
    ) -> Instant {
        let until = clock::now() + limit;
        self.harm.hurry();
        loop {
            let now = clock::now();
            self.has_room = true;
            self.drain(transport, memory, now, counters);
            let left = until.saturating_since(now);
            if self.unsent.octets().is_empty() || left.is_zero() {
                return self.fin_at();
            }
            let socket = self.socket.as_fd().as_raw_fd();
            let mut room = [libc::pollfd { fd: socket, events: libc::POLLOUT, revents: 0 }];
            // The next attempt to send reports an error, so the result is not looked at.
            let _ = event::poll(&mut room, left.as_millis().clamp(1, 1000) as libc::c_int);
        }
    }

    /// The time before which FIN should not leave: see [`patience`].
    fn fin_at(&self) -> Instant {
        if self.foreign { self.received + patience(&*self.socket) } else { Instant::ZERO }
    }

    /// Gives the connection up, and returns its rest to the caller, which ends it. A Terminate that the queue
    /// pair still writes follows the octets that TCP did not take.
    #[must_use]
    pub fn end(mut self, transport: &mut QueuePair, memory: &mut View) -> Remains {
        self.end_stall();
        self.watch_room(false);
        self.streams.forget(&self.socket);
        let mut unsent = self.unsent.octets().to_vec();
        unsent.append(&mut self.harm.rest());
        if transport.stream_state() == StreamState::Closing {
            with_buffer(|Built { buffer, .. }| {
                let len = transport.poll_stream(memory, buffer);
                unsent.extend_from_slice(buffer.get(..len).unwrap_or_default());
            });
        }
        let fin_at = self.fin_at();
        Remains { socket: self.socket, unsent, fin_at }
    }
}

/// TCP took octets of the queue pair.
fn taken(transport: &mut QueuePair, octets: usize, counters: &DeviceCounters) {
    transport.stream_taken(octets);
    DeviceCounters::add(&counters.sent_octets, octets as u64);
}
