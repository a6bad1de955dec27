//! Two rings of batches between two programs of one host, in one piece of shared memory: one a direction.
//!
//! The broker makes the memory and hands it to both programs; the data does not pass through the broker. An
//! entry is a batch of packets, as one datagram that the kernel's GRO merged: segments of equal length, the
//! last one perhaps shorter, with the addressing of all of them in front. The packets are complete RoCE v2
//! packets from BTH on, but their ICRC is zero: memory does not corrupt them on the way.
//!
//! Each ring has one producer and one consumer. An entry begins at a cache line with a head word that is not
//! zero. The producer first writes the body, then a zero where the next entry will begin, and last the head.
//! So the consumer waits for one word only, and one cache line moves between the processors for a small
//! packet. The consumer tells in a word of its own how far it has read; the producer looks at that word only
//! if the ring seems full.
//!
//! **Hostile peers.** Each side keeps its own position in private memory. The consumer copies the head once,
//! checks its lengths, and copies the body out before it looks at it. The producer believes the other side's
//! position only if it lies between its own and that of the oldest entry. So a peer that scribbles into the
//! memory loses or garbles packets of this one pipe, as a network may.
//!
//! **Sleep.** A side that is about to sleep counts [`Receiver::count_sleep`] up and looks once more. A sender
//! that has published compares the count with the one at which it last rang the doorbell, and rings if they
//! differ. Both have a sequentially consistent fence between their two steps: either the receiver sees the
//! entry, or the sender sees the new count. A sender to a receiver that is awake makes no system call.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use ferroce_wire::{Flow, LinkLayer};

use crate::shared::{Shared, load, pair, store};

/// Octets of the longest batch: as much as one datagram. Less in Miri, which needs a minute to fill a ring of
/// the real size.
pub const MAX_BATCH: usize = if cfg!(miri) { 4096 } else { 65_536 };
/// Words in which each side names the memory that it is copying; see [`Pipe::copying`].
pub const COPYING: usize = 64;

/// Octets of one ring: 512 KiB.
const RING_OCTETS: usize = 8 * MAX_BATCH;
/// Words of one ring.
pub const RING: usize = RING_OCTETS / 8;
/// Batches after which a side that was rung and has read nothing is rung again.
const AGAIN: u64 = 4;
/// Words of a cache line.
const LINE: usize = 8;
/// Words before the rings: for each side its sleep count, the positions that it has read and answered to,
/// whether it is there, and the copies that it makes; each of the first three in a cache line of its own.
const SIDE: usize = 4 * LINE + COPYING;
const WORDS: usize = 2 * SIDE + 2 * RING;
/// Values of the word that says whether a side is there; 0 at first.
const GIVEN_UP: u64 = 2;
const JOINED: u64 = 1;
/// Words of an entry before the packets: head, addressing, and the addresses (one word for two of IPv4, four
/// for two of IPv6).
const fn head(v6: bool) -> usize {
    if v6 { 6 } else { 3 }
}

/// Names the two programs of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The program that asked for the pipe.
    First = 0,
    /// The program that it was asked for.
    Second = 1,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// The other side wrote what cannot be: it is broken or hostile, and the pipe is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shared memory of a pipe makes no sense")]
pub struct Corrupt;

/// Why a batch was not put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The other side has not taken enough out yet.
    #[error("the pipe is full")]
    Full,
    /// Empty, or longer than [`MAX_BATCH`].
    #[error("a batch of {0} octets does not fit a pipe")]
    Length(usize),
    /// See [`Corrupt`].
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// The addressing of a batch as an entry has it: what IP and UDP headers would tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayWords {
    fields: u64,
    addresses: [u64; 4],
    v6: bool,
}

impl From<&Flow> for WayWords {
    fn from(way: &Flow) -> Self {
        let fields =
            u64::from(way.source_port) | u64::from(way.traffic_class) << 16 | u64::from(way.hop_limit) << 24;
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        let halves = |bits: u128| [(bits >> 64) as u64, bits as u64];
        let (addresses, v6) = match (way.source, way.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ([pair(source.to_bits(), destination.to_bits()), 0, 0, 0], false)
            }
            (source, destination) => {
                let ([a, b], [c, d]) = (halves(bits(source)), halves(bits(destination)));
                ([a, b, c, d], true)
            }
        };
        Self { fields, addresses, v6 }
    }
}

impl From<&WayWords> for Flow {
    fn from(&WayWords { fields, addresses: [a, b, c, d], v6 }: &WayWords) -> Self {
        let v4 = |bits: u64| IpAddr::V4(Ipv4Addr::from_bits(bits as u32));
        let long =
            |high: u64, low: u64| IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)));
        let (source, destination) = if v6 { (long(a, b), long(c, d)) } else { (v4(a >> 32), v4(a)) };
        Self {
            source,
            destination,
            source_port: fields as u16,
            traffic_class: (fields >> 16) as u8,
            hop_limit: (fields >> 24) as u8,
            link: LinkLayer::UDP,
        }
    }
}

/// The memory of a pipe, mapped by the program at one of its sides.
#[derive(Clone, Debug)]
pub struct Pipe {
    shared: Arc<Shared>,
    side: Side,
    /// The place of the ring that the other side sends by.
    inbox: usize,
}

impl Pipe {
    /// Makes the memory of a pipe, for the two programs to [join](Pipe::join).
    ///
    /// # Errors
    /// Fails as [`Shared::create`] does.
    pub fn create() -> io::Result<OwnedFd> {
        Ok(Shared::create("ferroce-pipe", WORDS)?.1)
    }

    /// Maps the memory of a pipe. Once for each side only: a second receiver would not know how far the first
    /// one read. The other program uses the pipe from [`Pipe::set_joined`] on.
    ///
    /// # Errors
    /// Fails as [`Shared::map`] does.
    pub fn join(fd: &impl AsFd, side: Side) -> io::Result<(Self, Sender, Receiver)> {
        let shared = Arc::new(Shared::map(fd, WORDS)?);
        let pipe = Self { shared, side, inbox: ring_start(side.other()) };
        let sender = Sender { pipe: pipe.clone(), tail: 0, head: 0, rung_at: 0, read_at: 0, since: 0 };
        let receiver = Receiver { pipe: pipe.clone(), head: 0, way: None };
        Ok((pipe, sender, receiver))
    }

    /// Tells the other program that this one has joined.
    pub fn set_joined(&self) {
        // This side counts as asleep: its threads may have gone to sleep before they could know this pipe.
        self.sleeps(self.side).store(1, Ordering::Relaxed);
        self.word(self.side, 2 * LINE).store(JOINED, Ordering::Release);
    }

    /// Tells the other program that this one found the pipe [corrupt](Corrupt): new queue pairs must not use
    /// it.
    pub fn set_given_up(&self) {
        self.word(self.side, 2 * LINE).store(GIVEN_UP, Ordering::Release);
    }

    /// Whether either program found the pipe corrupt.
    pub fn is_given_up(&self) -> bool {
        [self.side, self.side.other()]
            .into_iter()
            .any(|side| self.word(side, 2 * LINE).load(Ordering::Acquire) == GIVEN_UP)
    }

    /// Whether the other program has joined.
    pub fn is_joined(&self) -> bool {
        self.word(self.side.other(), 2 * LINE).load(Ordering::Acquire) != 0
    }

    /// Whether something waits for a receiver at this [position](Receiver::position).
    #[inline]
    pub fn is_ready_at(&self, position: u64) -> bool {
        self.shared
            .words()
            .get(self.inbox + position as usize % RING)
            .is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Whether the other program has still to read or to answer something of what this one sent up to
    /// `position`, see [`Sender::position`].
    pub fn is_unanswered(&self, position: u64) -> bool {
        position > self.answered_to(self.side.other()).load(Ordering::Acquire)
    }

    /// Tells the other program that everything that it sent up to `position`, see [`Receiver::position`], has
    /// had its effect, and that the answers to it were sent. One thread calls this at a time.
    #[inline]
    pub fn set_answered(&self, position: u64) {
        self.answered_to(self.side).store(position, Ordering::Release);
    }

    /// As [`Self::set_answered`], beside other calls of either, one of which may have told more.
    pub fn raise_answered(&self, position: u64) {
        self.answered_to(self.side).fetch_max(position, Ordering::Release);
    }

    /// The words in which `side` names the memory of the other program that it is copying to or from.
    pub fn copying(&self, side: Side) -> &[AtomicU64] {
        let start = side as usize * SIDE + 4 * LINE;
        self.shared.words().get(start..start + COPYING).unwrap_or_default()
    }

    /// This program's side.
    pub fn side(&self) -> Side {
        self.side
    }

    fn word(&self, side: Side, index: usize) -> &AtomicU64 {
        static NONE: AtomicU64 = AtomicU64::new(0);
        self.shared.words().get(side as usize * SIDE + index).unwrap_or(&NONE)
    }

    fn sleeps(&self, side: Side) -> &AtomicU64 {
        self.word(side, 0)
    }

    fn read_to(&self, side: Side) -> &AtomicU64 {
        self.word(side, LINE)
    }

    /// In the cache line of [`Self::read_to`]: the same thread writes both.
    fn answered_to(&self, side: Side) -> &AtomicU64 {
        self.word(side, LINE + 1)
    }

    /// The ring that `side` sends by.
    fn ring(&self, side: Side) -> &[AtomicU64] {
        let start = ring_start(side);
        self.shared.words().get(start..start + RING).unwrap_or_default()
    }
}

/// The place of the ring that `side` sends by.
const fn ring_start(side: Side) -> usize {
    2 * SIDE + side as usize * RING
}

/// Words from position `at` on, `count` of them, in two pieces where the ring ends in between.
fn pieces(ring: &[AtomicU64], at: u64, count: usize) -> (&[AtomicU64], &[AtomicU64]) {
    let start = at as usize % RING;
    let end = (start + count).min(RING);
    let first = ring.get(start..end).unwrap_or_default();
    (first, ring.get(..count.saturating_sub(first.len())).unwrap_or_default())
}

/// The first words of the entry at `at`. Entries begin at cache lines, which no end of the ring cuts.
#[inline]
fn line(ring: &[AtomicU64], at: u64) -> &[AtomicU64; LINE] {
    static NONE: [AtomicU64; LINE] = [const { AtomicU64::new(0) }; LINE];
    let start = at as usize % RING / LINE * LINE;
    ring.get(start..).and_then(|words| words.first_chunk()).unwrap_or(&NONE)
}

/// Octets of a batch that is in the first cache line of an entry, behind two addresses of IPv4.
pub const SHORT: usize = (LINE - head(false)) * 8;

/// Words that an entry takes.
const fn span(words: usize) -> u64 {
    (words.div_ceil(LINE) * LINE) as u64
}

/// Words that a batch of any length takes, with the reserve.
const BULK: u64 = span(head(true) + MAX_BATCH / 8) + MAX_BATCH as u64 / 8;
/// Octets of a packet without payload, at most.
const SMALL: usize = 128;

/// The sending end.
#[derive(Debug)]
pub struct Sender {
    pipe: Pipe,
    /// Words written since the beginning.
    tail: u64,
    /// Words that the other side has read, as last seen.
    head: u64,
    /// The other side's sleep count when this end last rang its doorbell.
    rung_at: u64,
    /// How far the other side had read then, and the batches since.
    read_at: u64,
    since: u64,
}

impl Sender {
    /// Whether a batch of any length fits now, and the [reserve](Self::has_reserve) stays free.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn has_room(&mut self) -> Result<bool, Corrupt> {
        self.has_room_for(BULK)
    }

    /// Whether a batch of any length fits, and the reserve stays free, without a look at how far the other
    /// side has read by now.
    #[inline]
    pub fn is_roomy(&self) -> bool {
        self.fits(BULK)
    }

    /// Whether a packet without payload fits, as far as the other side was last seen to have read. The last
    /// [`MAX_BATCH`] octets of a ring are for such packets, so that data of one queue pair does not keep the
    /// ACKs of others.
    pub fn has_reserve(&self) -> bool {
        self.fits(span(head(true) + SMALL / 8))
    }

    fn fits(&self, span: u64) -> bool {
        // The sender also zeroes the head of the next entry, which takes another cache line.
        self.tail.wrapping_sub(self.head) + span + LINE as u64 <= RING as u64
    }

    /// Words written since the beginning.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Words that the other side has read since the beginning: it takes something out if this grows.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn taken(&mut self) -> Result<u64, Corrupt> {
        let head = self.pipe.read_to(self.pipe.side.other()).load(Ordering::Acquire);
        if self.tail.wrapping_sub(head) > RING as u64 {
            return Err(Corrupt);
        }
        self.head = head;
        Ok(head)
    }

    fn has_room_for(&mut self, span: u64) -> Result<bool, Corrupt> {
        Ok(self.fits(span) || {
            self.taken()?;
            self.fits(span)
        })
    }

    /// Puts a batch in: packets of `segment_size` octets one behind the other, the last one perhaps shorter.
    /// The other side sees it at once. Returns whether the other side may be asleep: the caller must ring its
    /// doorbell then.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was put in.
    pub fn send(&mut self, way: &Flow, segment_size: usize, octets: &[u8]) -> Result<bool, SendError> {
        self.send_by(&way.into(), segment_size, octets)
    }

    /// As [`Self::send`].
    #[inline]
    pub fn send_by(&mut self, way: &WayWords, segment_size: usize, octets: &[u8]) -> Result<bool, SendError> {
        let len = octets.len();
        if len == 0 || len > MAX_BATCH || segment_size == 0 || segment_size > usize::from(u16::MAX) {
            return Err(SendError::Length(len));
        }
        let v6 = way.v6;
        let front = head(v6);
        let span = span(front + len.div_ceil(8));
        if !self.has_room_for(span)? {
            return Err(SendError::Full);
        }
        let ring = self.pipe.ring(self.pipe.side);
        let [_, second, a, b, c, d, ..] = line(ring, self.tail);
        second.store(way.fields, Ordering::Relaxed);
        let [source, ..] = way.addresses;
        a.store(source, Ordering::Relaxed);
        if v6 {
            for (word, value) in [b, c, d].into_iter().zip(&way.addresses[1..]) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        let (piece, rest) = pieces(ring, self.tail + front as u64, len.div_ceil(8));
        let (before, after) = octets.split_at((piece.len() * 8).min(len));
        store(piece, before);
        store(rest, after);
        let head = (len as u64) << 32 | (segment_size as u64) << 16 | u64::from(v6) << 1 | 1;
        Ok(self.publish(head, span))
    }

    /// As [`Self::send_by`], for one packet of IPv4 that is in the first cache line of its entry, if there is
    /// room without a look at the other side. `None` says nothing, and nothing was put in.
    #[inline(always)]
    pub fn send_short(&mut self, way: &WayWords, packet: &[u8]) -> Option<bool> {
        let (whole, odd) = packet.as_chunks::<8>();
        // Packets have multiples of four octets.
        let half: [u8; 4] = if odd.is_empty() { [0; 4] } else { odd.try_into().ok()? };
        if way.v6 || !(1..=SHORT).contains(&packet.len()) || !self.fits(LINE as u64) {
            return None;
        }
        let [_, fields, addresses, words @ ..] = line(self.pipe.ring(self.pipe.side), self.tail);
        fields.store(way.fields, Ordering::Relaxed);
        addresses.store(way.addresses[0], Ordering::Relaxed);
        let [p, q, r, s] = half;
        let half = [[p, q, r, s, 0, 0, 0, 0]];
        for (word, octets) in words.iter().zip(whole.iter().chain(&half)) {
            word.store(u64::from_ne_bytes(*octets), Ordering::Relaxed);
        }
        let len = packet.len() as u64;
        Some(self.publish(len << 32 | len << 16 | 1, LINE as u64))
    }

    /// Shows an entry, which takes `span` words, to the other side. Returns whether that may be asleep.
    #[inline(always)]
    fn publish(&mut self, head: u64, span: u64) -> bool {
        let ring = self.pipe.ring(self.pipe.side);
        let ([first, ..], [next, ..]) = (line(ring, self.tail), line(ring, self.tail + span));
        next.store(0, Ordering::Relaxed);
        first.store(head, Ordering::Release);
        self.tail += span;
        fence(Ordering::SeqCst);
        let other = self.pipe.side.other();
        let sleeps = self.pipe.sleeps(other).load(Ordering::Relaxed);
        self.since += 1;
        let asleep = sleeps != self.rung_at
            // The reader was rung and has not read since: it is late, or another thread took the doorbell's
            // word.
            || self.since.is_multiple_of(AGAIN) && self.pipe.read_to(other).load(Ordering::Relaxed) == self.read_at;
        if asleep {
            self.rung_at = sleeps;
            self.read_at = self.pipe.read_to(other).load(Ordering::Relaxed);
            self.since = 0;
        }
        asleep
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver {
    pipe: Pipe,
    /// Words read since the beginning.
    head: u64,
    /// The way of the last batch, as the entry had it, and as it is.
    way: Option<(WayWords, Flow)>,
}

/// A batch as it was copied out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Addressing of the batch, as the other side states it.
    pub way: Flow,
    /// Octets of each packet but the last; not 0.
    pub segment_size: usize,
    /// Octets of all packets, at most [`MAX_BATCH`]; not 0.
    pub len: usize,
}

impl Receiver {
    /// Whether something waits.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.pipe.is_ready_at(self.head)
    }

    /// Words read since the beginning.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// Takes out the next batch; `None` if the pipe is empty.
    ///
    /// # Errors
    /// [`Corrupt`]: nothing more can be had.
    pub fn receive(&mut self, out: &mut [u8; MAX_BATCH]) -> Result<Option<Batch>, Corrupt> {
        let ring = self.pipe.ring(self.pipe.side.other());
        let [first, fields, a, b, c, d, ..] = line(ring, self.head);
        let first = first.load(Ordering::Acquire);
        if first == 0 {
            return Ok(None);
        }
        let (len, segment_size, v6) =
            ((first >> 32) as usize, (first >> 16) as usize & 0xffff, first & 2 != 0);
        if len == 0 || len > MAX_BATCH || segment_size == 0 {
            return Err(Corrupt);
        }
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let way = match &self.way {
            Some((known, way))
                if !(v6 | known.v6) && known.fields == get(fields) && known.addresses[0] == get(a) =>
            {
                *way
            }
            _ => {
                let rest = if v6 { [b, c, d].map(get) } else { [0; 3] };
                let addresses = [get(a), rest[0], rest[1], rest[2]];
                read_way(&mut self.way, WayWords { fields: get(fields), addresses, v6 })
            }
        };
        let front = head(v6);
        let (first, second) = pieces(ring, self.head + front as u64, len.div_ceil(8));
        let out = out.get_mut(..len).unwrap_or_default();
        let (before, after) = out.split_at_mut((first.len() * 8).min(len));
        load(first, before);
        load(second, after);
        self.head += span(front + len.div_ceil(8));
        self.pipe.read_to(self.pipe.side).store(self.head, Ordering::Release);
        Ok(Some(Batch { way, segment_size, len }))
    }

    /// As [`Self::receive`], for a batch of one packet, of at most [`SHORT`] octets, that came the way of the
    /// batch before. Returns its octets; `None` says nothing.
    #[inline(always)]
    pub fn receive_short(&mut self, out: &mut [u8; SHORT]) -> Option<(usize, &Flow)> {
        let ring = self.pipe.ring(self.pipe.side.other());
        let [first, fields, addresses, words @ ..] = line(ring, self.head);
        let first = first.load(Ordering::Acquire);
        let (len, segment_size) = ((first >> 32) as usize, (first >> 16) as usize & 0xffff);
        let (known, way) = self.way.as_ref().filter(|(known, _)| first & 3 == 1 && !known.v6)?;
        let fits = (1..=SHORT.min(segment_size)).contains(&len)
            && known.fields == fields.load(Ordering::Relaxed)
            && known.addresses[0] == addresses.load(Ordering::Relaxed);
        if !fits {
            return None;
        }
        for (to, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        self.head += LINE as u64;
        self.pipe.read_to(self.pipe.side).store(self.head, Ordering::Release);
        Some((len, way))
    }

    /// Counts that this side is about to sleep. The caller looks with [`Receiver::is_ready`] once more before
    /// it does.
    pub fn count_sleep(&self) {
        self.pipe.sleeps(self.pipe.side).fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// Reads a way that is not that of the batch before.
#[cold]
fn read_way(known: &mut Option<(WayWords, Flow)>, words: WayWords) -> Flow {
    let way = Flow::from(&words);
    *known = Some((words, way));
    way
}

#[cfg(test)]
mod tests;
