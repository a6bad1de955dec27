//! The flight recorder: the last [`EVENTS`] events of each queue pair, in the ledger's file.
//!
//! A ring belongs to a place of the table of queue pairs. It outlives its queue pair, until a later one takes
//! the place, and the program. What an event is, the transport knows: here it is two words, the first of
//! which is not 0.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ferroce_host::environment;
use nix::time::{ClockId, clock_gettime};
use rustix::fs::fstat;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::records::Block;
use super::*;

/// Queue pairs of a program that have a ring.
pub const RINGS: usize = 8192;

/// Events that a ring holds.
pub const EVENTS: usize = 64;

/// Words of a ring: the number of events so far, then [`Ends`], then the events.
pub(super) const RING: usize = AT_EVENTS + 2 * EVENTS;
const AT_ENDS: usize = 1;
const AT_EVENTS: usize = AT_ENDS + size_of::<Ends>() / WORD;

/// Words of the ledger with the rings, which follow the tables.
pub(super) const END: usize = Table::end() + RINGS * RING;

/// The ends of a connection, as the program set them. All zero before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Ends {
    /// Block of its device.
    pub block: Block,
    /// The number of the queue pair; 0 for none.
    pub qpn: u32,
    pub remote_qpn: u32,
    /// Service, of `enum ibv_qp_type`.
    pub service: u8,
    /// Path MTU, of `enum ibv_mtu`.
    pub path_mtu: u8,
    pub sgid_index: u8,
    /// The code of the ACK timeout: 4.096 µs times two to its power; 0 for none.
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub spare: [u8; 6],
    /// GIDs.
    pub local: [u8; 16],
    pub remote: [u8; 16],
}

const _: () = assert!(size_of::<Ends>().is_multiple_of(WORD));

/// What a ring tells.
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

/// First word of the ring of a place; none is so large without one.
pub(super) const fn ring_of(table: Table, place: usize) -> usize {
    if matches!(table, Table::Qp) && place < RINGS { Table::end() + place * RING } else { usize::MAX }
}

/// Programs record, unless `FERROCE_RECORDER` is `off`.
pub(super) fn is_on() -> bool {
    environment::text("FERROCE_RECORDER").as_deref() != Some("off")
}

impl Ledger {
    pub(super) fn note_program(&self) {
        self.set(AT_PID, std::process::id().into());
        let name = nix::sys::prctl::get_name().unwrap_or_default();
        store(self.map.words().get(AT_COMMAND..).unwrap_or_default(), name.as_bytes());
        for (at, clock) in [(AT_MONOTONIC, ClockId::CLOCK_MONOTONIC), (AT_REAL, ClockId::CLOCK_REALTIME)] {
            let time = clock_gettime(clock).map(Duration::from).unwrap_or_default();
            self.set(at, time.as_nanos() as u64);
        }
    }
}

impl Entry {
    #[inline]
    fn ring(&self) -> Option<&[AtomicU64; RING]> {
        self.ring.words(&self.ledger)
    }

    /// Empties the ring of a new queue pair.
    pub(super) fn begin_ring(&self) {
        let words = self.ring().into_iter().flat_map(|ring| ring.iter().take(AT_EVENTS));
        words.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Records an event of a queue pair. The caller holds the queue pair's lock.
    #[inline]
    pub fn happened(&self, [first, second]: [u64; 2]) {
        let ring = self.ring().and_then(|ring| ring.split_first_chunk::<AT_EVENTS>());
        let Some(([count, ..], events)) = ring else { return };
        let before = count.load(Ordering::Relaxed);
        if let Some([to, then]) = events.as_chunks().0.get(before as usize % EVENTS) {
            to.store(first, Ordering::Relaxed);
            then.store(second, Ordering::Relaxed);
        }
        count.store(before + 1, Ordering::Relaxed);
    }

    /// Notes the ends of the queue pair's connection.
    pub fn connects(&self, ends: &Ends) {
        if let Some(ring) = self.ring() {
            store(ring.get(AT_ENDS..AT_EVENTS).unwrap_or_default(), ends.as_bytes());
        }
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

impl LedgerReader {
    /// What the program recorded of its queue pairs that were connected, those that ended lately included.
    ///
    /// # Errors
    /// The errors of `pread(2)`.
    pub fn recordings(&self) -> io::Result<Vec<Recording>> {
        let used = self.word(AT_USED + Table::Qp as usize)?.min(RINGS as u64) as usize;
        let words = self.words(Table::end(), used * RING)?;
        Ok(words.chunks(RING).map(recording).filter(|recording| recording.ends.qpn != 0).collect())
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
