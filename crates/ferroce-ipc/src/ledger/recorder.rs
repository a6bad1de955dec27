//! The flight recorder: the last [`EVENTS`] events of each queue pair, in the ledger's file.
//!
//! A ring belongs to a place of the table of queue pairs. It outlives its queue pair, until a later one takes
//! the place, and the program. What an event is, the transport knows: here it is two words, the first of
//! which is not 0.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::fstat;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::*;

/// The content of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    pub ends: Ends,
    /// Events before the first of `events`, which are lost.
    pub lost: u64,
    /// The oldest first.
    pub events: Vec<[u64; 2]>,
}

/// The two clocks at one moment: nanoseconds of `CLOCK_MONOTONIC`, and since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    pub monotonic: u64,
    pub real: u64,
}

/// Makes of the last four events, the oldest first, and another one the event that stands for both: in the
/// place of the last one (1), or of that before it (2), or behind them (0). `None` if it stands for itself.
pub type Merge = fn([[u64; 2]; 4], [u64; 2]) -> Option<(u64, [u64; 2])>;

impl Entry {
    /// Records an event of a queue pair. The caller holds the queue pair's lock.
    #[inline]
    pub fn happened(&self, event: [u64; 2]) {
        let Some((count, places)) = self.places() else { return };
        let before = count.load(Ordering::Relaxed);
        put(places, before, event);
        count.store(before + 1, Ordering::Relaxed);
    }

    /// Records an event that may be an earlier one again: one whose second word is that of the last event, or
    /// behind one whose second word is 0. `merged` then looks at the last four events, the oldest first. The
    /// caller holds the queue pair's lock.
    #[inline]
    pub fn happened_again(&self, event: [u64; 2], merged: Merge) {
        let Some((count, places)) = self.places() else { return };
        let before = count.load(Ordering::Relaxed);
        let last = places.get(before.wrapping_sub(1) as usize % EVENTS);
        let last = last.map_or(0, |[_, second]| second.load(Ordering::Relaxed));
        if last == event[1] || last == 0 {
            return merge(count, places, event, merged);
        }
        put(places, before, event);
        count.store(before + 1, Ordering::Relaxed);
    }

    /// The number of events, and their places.
    #[inline(always)]
    fn places(&self) -> Option<(&AtomicU64, &[[AtomicU64; 2]])> {
        let ([count, ..], events) = self.ring()?.split_first_chunk::<AT_EVENTS>()?;
        Some((count, events.as_chunks().0))
    }

    /// Notes the ends of the queue pair's connection.
    pub fn connects(&self, ends: &Ends) {
        if let Some(ring) = self.ring() {
            store(ring.get(AT_ENDS..AT_EVENTS).unwrap_or_default(), ends.as_bytes());
        }
    }

    /// The ends of the queue pair's connection; zeros without one.
    pub fn ends(&self) -> Ends {
        let mut ends = Ends::new_zeroed();
        let words = self.ring().and_then(|ring| ring.get(AT_ENDS..AT_EVENTS)).unwrap_or_default();
        for (to, word) in ends.as_mut_bytes().chunks_mut(WORD).zip(words) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        ends
    }

    /// The events of the ring, the oldest first.
    pub fn events(&self) -> impl Iterator<Item = [u64; 2]> + Clone {
        let words = self.ring().map_or(&[][..], |ring| ring);
        let (events, _) = words.get(AT_EVENTS..).unwrap_or_default().as_chunks::<2>();
        let count = words.first().map_or(0, |count| count.load(Ordering::Relaxed)) as usize;
        let places = count.saturating_sub(EVENTS)..count;
        places.filter_map(|place| {
            let [first, second] = events.get(place % EVENTS)?;
            Some([first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)])
        })
    }
}

#[inline(always)]
fn put(places: &[[AtomicU64; 2]], number: u64, [first, second]: [u64; 2]) {
    if let Some([to, then]) = places.get(number as usize % EVENTS) {
        to.store(first, Ordering::Relaxed);
        then.store(second, Ordering::Relaxed);
    }
}

#[cold]
#[inline(never)]
fn merge(count: &AtomicU64, places: &[[AtomicU64; 2]], event: [u64; 2], merged: Merge) {
    let before = count.load(Ordering::Relaxed);
    let back = |back| {
        let words = places.get(before.wrapping_sub(back) as usize % EVENTS);
        words.map_or([0; 2], |words| words.each_ref().map(|word| word.load(Ordering::Relaxed)))
    };
    match merged([4, 3, 2, 1].map(back), event) {
        Some((places_back @ 1.., event)) => put(places, before.wrapping_sub(places_back), event),
        merged => {
            put(places, before, merged.map_or(event, |(_, event)| event));
            count.store(before + 1, Ordering::Relaxed);
        }
    }
}

impl LedgerReader {
    /// The recordings of its queue pairs that were connected, those that ended lately included.
    ///
    /// # Errors
    /// The errors of `pread(2)`.
    pub fn recordings(&self) -> io::Result<Vec<Recording>> {
        let used = self.word(AT_USED + Table::Qp as usize)?.min(RINGS as u64) as usize;
        let words = self.words(Table::end(), used * RING)?;
        Ok(words.chunks(RING).map(recording).filter(|recording| recording.ends.qpn != 0).collect())
    }

    /// Whether it has anything to tell: a queue pair.
    pub fn has_recordings(&self) -> bool {
        self.word(AT_USED + Table::Qp as usize).is_ok_and(|used| used > 0)
    }

    /// The program's process id, as it knew it, and its name.
    ///
    /// # Errors
    /// The errors of `pread(2)`.
    pub fn program(&self) -> io::Result<(u32, String)> {
        let name = self.words(AT_COMMAND, 2)?;
        let name = String::from_utf8_lossy(name.as_bytes());
        let name = name.trim_end_matches('\0').chars().map(|c| if c.is_control() { '?' } else { c });
        Ok((self.word(AT_PID)? as u32, name.collect()))
    }

    /// Octets of memory that the file takes.
    ///
    /// # Errors
    /// The errors of `fstat(2)`.
    pub fn memory(&self) -> io::Result<u64> {
        Ok(fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Both clocks, when the program began.
    ///
    /// # Errors
    /// The errors of `pread(2)`.
    pub fn clocks(&self) -> io::Result<Clocks> {
        Ok(Clocks { monotonic: self.word(AT_MONOTONIC)?, real: self.word(AT_REAL)? })
    }
}

fn recording(words: &[u64]) -> Recording {
    let count = words.first().copied().unwrap_or(0);
    let ends = words.get(AT_ENDS..AT_EVENTS).unwrap_or_default().as_bytes();
    let events = words.get(AT_EVENTS..).unwrap_or_default().as_chunks::<2>().0;
    let lost = count.saturating_sub(EVENTS as u64);
    let oldest = if lost > 0 { count as usize % EVENTS } else { 0 };
    let order = events.iter().cycle().skip(oldest).take(events.len());
    Recording {
        ends: Ends::read_from_bytes(ends).unwrap_or_else(|_| Ends::new_zeroed()),
        lost,
        events: order.copied().take(count.min(EVENTS as u64) as usize).collect(),
    }
}
