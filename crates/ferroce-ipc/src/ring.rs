//! Two rings of packets between a program and its broker, in one piece of shared memory: one a direction.
//!
//! Each ring has one producer and one consumer. The producer writes entries and then its index, the tail; the
//! consumer reads entries and then writes its own, the head. Both count on and on; an entry's place is its
//! number modulo [`ENTRIES`]. Each side keeps what it wrote in memory of its own and only reads the other's
//! index, which it believes only if it says that between none and [`ENTRIES`] entries are there. Entries are
//! copied out before they are looked at. So whatever the other process writes where, it loses or garbles
//! packets, as a network may.
//!
//! The side that publishes into an empty ring rings the other side's doorbell. No wakeup is lost: the
//! producer writes the tail and then reads the head, the consumer writes the head and then reads the tail,
//! each with a sequentially consistent fence between. So either the consumer sees the entry, or the producer
//! sees that the consumer took all entries before it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use ferroce_wire::{LinkLayer, RoceVersion};

use crate::shared::{Shared, load, store};

/// Entries of a ring; a power of two.
pub const ENTRIES: u32 = 256;
/// Octets of the longest packet: 4096 of payload with all headers over IPv6.
pub const MAX_PACKET: usize = 4336;

/// Words of an entry: two of head, then the packet.
const ENTRY: usize = 2 + MAX_PACKET / 8;
/// Words before the entries: the four indices, each in a cache line of its own.
const INDICES: usize = 32;
const LINE: usize = 8;
const WORDS: usize = INDICES + 2 * ENTRIES as usize * ENTRY;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToBroker,
    ToProgram,
}

/// The other side wrote an index that cannot be: it is broken or hostile, and the ring of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index of a ring makes no sense")]
pub struct Corrupt;

/// Why a packet was not put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The other side does not take packets out fast enough.
    #[error("the ring is full")]
    Full,
    /// Longer than [`MAX_PACKET`].
    #[error("a packet of {0} octets does not fit an entry")]
    TooLong(usize),
    /// See [`Corrupt`].
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// A side of the pair, which sends by one ring and receives by the other.
#[derive(Debug)]
pub struct Rings {
    /// To the other side.
    pub tx: Producer,
    /// From it.
    pub rx: Consumer,
}

impl Rings {
    /// The broker's side of a new pair, and the descriptor for the program.
    ///
    /// # Errors
    /// Fails as [`Shared::create`] does.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let (shared, fd) = Shared::create("ferroce-rings", WORDS)?;
        Ok((Self::sides(shared, Direction::ToProgram, Direction::ToBroker), fd))
    }

    /// The program's side of what the broker made. Once only: a second one would not know what the first did.
    ///
    /// # Errors
    /// Fails as [`Shared::map`] does.
    pub fn join(fd: &impl AsFd) -> io::Result<Self> {
        Ok(Self::sides(Shared::map(fd, WORDS)?, Direction::ToBroker, Direction::ToProgram))
    }

    fn sides(shared: Shared, tx: Direction, rx: Direction) -> Self {
        let shared = Arc::new(shared);
        let tx = Producer {
            end: End { shared: Arc::clone(&shared), direction: tx },
            tail: 0,
            published: 0,
            head: 0,
        };
        Self { tx, rx: Consumer { end: End { shared, direction: rx }, head: 0, tail: 0 } }
    }
}

#[derive(Debug)]
struct End {
    shared: Arc<Shared>,
    direction: Direction,
}

impl End {
    fn word(&self, index: usize) -> &AtomicU64 {
        static NONE: AtomicU64 = AtomicU64::new(0);
        self.shared.words().get(index).unwrap_or(&NONE)
    }

    fn tail(&self) -> &AtomicU64 {
        self.word(LINE * 2 * self.direction as usize)
    }

    fn head(&self) -> &AtomicU64 {
        self.word(LINE * (2 * self.direction as usize + 1))
    }

    /// The words of the entry with this number.
    fn entry(&self, number: u32) -> &[AtomicU64] {
        let place = self.direction as usize * ENTRIES as usize + (number % ENTRIES) as usize;
        let start = INDICES + place * ENTRY;
        self.shared.words().get(start..start + ENTRY).unwrap_or_default()
    }
}

/// The side that puts packets in.
#[derive(Debug)]
pub struct Producer {
    end: End,
    /// Number of the next entry.
    tail: u32,
    /// The tail that the consumer can see.
    published: u32,
    /// The consumer's, as last read.
    head: u32,
}

impl Producer {
    /// Puts in a packet that is in two pieces, IP header or GRH and the rest say. The consumer sees it after
    /// [`Producer::publish`].
    ///
    /// # Errors
    /// See [`PushError`]; the ring is as it was.
    pub fn push(&mut self, link: LinkLayer, front: &[u8], back: &[u8]) -> Result<(), PushError> {
        let len = front.len() + back.len();
        if len > MAX_PACKET {
            return Err(PushError::TooLong(len));
        }
        if self.tail.wrapping_sub(self.head) >= ENTRIES {
            self.head = self.look()?;
            if self.tail.wrapping_sub(self.head) >= ENTRIES {
                return Err(PushError::Full);
            }
        }
        let entry = self.end.entry(self.tail);
        let head = u64::from(link.ifindex) << 32
            | u64::from(link.sl) << 24
            | (link.version as u64) << 16
            | len as u64;
        let (first, words) = entry.split_at_checked(2).unwrap_or_default();
        for (word, value) in first.iter().zip([head, 0]) {
            word.store(value, Ordering::Relaxed);
        }
        store_both(words, front, back);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Publishes the pushed packets. Returns whether the consumer may be asleep, so that the caller must ring
    /// its doorbell.
    ///
    /// # Errors
    /// [`Corrupt`]; what was pushed is shown all the same.
    pub fn publish(&mut self) -> Result<bool, Corrupt> {
        if self.tail == self.published {
            return Ok(false);
        }
        let before = std::mem::replace(&mut self.published, self.tail);
        self.end.tail().store(self.tail.into(), Ordering::Release);
        fence(Ordering::SeqCst);
        self.head = self.look()?;
        Ok(self.head == before)
    }

    /// Number of the newest entry that the consumer can see, plus one.
    pub const fn published(&self) -> u32 {
        self.published
    }

    /// Whether the entry before this number waits for the consumer. False for an entry of another ring, as
    /// far as the numbers tell, and for a ring of no use.
    pub fn keeps(&self, published: u32) -> bool {
        let waits =
            |head: u32| published.wrapping_sub(head).wrapping_sub(1) < self.published.wrapping_sub(head);
        self.look().is_ok_and(waits)
    }

    /// The consumer's index.
    fn look(&self) -> Result<u32, Corrupt> {
        let head = u32::try_from(self.end.head().load(Ordering::Acquire)).map_err(|_| Corrupt)?;
        if self.tail.wrapping_sub(head) > ENTRIES { Err(Corrupt) } else { Ok(head) }
    }
}

/// The side that takes packets out.
#[derive(Debug)]
pub struct Consumer {
    end: End,
    /// Number of the next entry.
    head: u32,
    /// The producer's, as last read.
    tail: u32,
}

/// A packet as it was copied out of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Popped {
    /// The link layer that the other side stated.
    pub link: LinkLayer,
    /// Octets that were copied.
    pub len: usize,
}

impl Consumer {
    /// Takes out the next packet; `None` if the ring is empty. The packet begins with the IP header or the
    /// GRH. An invalid entry, for example one with an impossible length, has length 0.
    ///
    /// # Errors
    /// [`Corrupt`]: nothing more can be had.
    pub fn pop(&mut self, out: &mut [u8; MAX_PACKET]) -> Result<Option<Popped>, Corrupt> {
        if self.head == self.tail {
            fence(Ordering::SeqCst);
            let tail = u32::try_from(self.end.tail().load(Ordering::Acquire)).map_err(|_| Corrupt)?;
            if tail.wrapping_sub(self.head) > ENTRIES {
                return Err(Corrupt);
            }
            self.tail = tail;
            if self.head == tail {
                return Ok(None);
            }
        }
        let entry = self.end.entry(self.head);
        let (first, words) = entry.split_at_checked(2).unwrap_or_default();
        let head = first.first().map_or(0, |word| word.load(Ordering::Relaxed));
        let len = Some((head & 0xffff) as usize).filter(|len| *len <= MAX_PACKET);
        let version = match (head >> 16) as u8 {
            1 => Some(RoceVersion::V1),
            2 => Some(RoceVersion::V2),
            _ => None,
        };
        let popped = match (version, len) {
            (Some(version), Some(len)) => {
                let sl = (head >> 24) as u8;
                Popped { link: LinkLayer { version, sl, ifindex: (head >> 32) as u32 }, len }
            }
            _ => Popped { link: LinkLayer::UDP, len: 0 },
        };
        load(words, out.get_mut(..popped.len).unwrap_or_default());
        self.head = self.head.wrapping_add(1);
        self.end.head().store(self.head.into(), Ordering::Release);
        Ok(Some(popped))
    }
}

/// Writes two slices, one behind the other.
fn store_both(words: &[AtomicU64], front: &[u8], back: &[u8]) {
    let (whole, odd) = front.as_chunks::<8>();
    let (before, after) = words.split_at_checked(whole.len()).unwrap_or_default();
    for (word, octets) in before.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*octets), Ordering::Relaxed);
    }
    // The word in which one ends and the other begins.
    let missing = if odd.is_empty() { 0 } else { (8 - odd.len()).min(back.len()) };
    let (seam, rest) = back.split_at(missing);
    let after = match odd.is_empty() {
        true => after,
        false => {
            let mut octets = [0; 8];
            octets.iter_mut().zip(odd.iter().chain(seam)).for_each(|(to, from)| *to = *from);
            let (word, after) =
                after.split_first().map_or((None, after), |(word, after)| (Some(word), after));
            if let Some(word) = word {
                word.store(u64::from_ne_bytes(octets), Ordering::Relaxed);
            }
            after
        }
    };
    store(after, rest);
}

#[cfg(test)]
mod tests;
