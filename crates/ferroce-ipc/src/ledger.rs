//! The ledger: a program's counters and its list of objects, in memory that it shares with the broker.
//!
//! The program makes a memfd, maps it, and hands the descriptor to the broker once
//! ([`crate::Message::Ledger`]). From then on the program only stores numbers, relaxed, at the points where
//! it counts. The broker reads the file on request, and so does `ferroce`, which receives the descriptor from
//! the broker. So a reader sees a stopped program as it was when it stopped, and a killed program leaves its
//! last numbers behind. The reader trusts nothing: it reads at most the size of the layout, and only shows
//! the numbers and names that it finds.
//!
//! Layout, in words of 64 bits in native order: a head of 512 words, [`DEVICES`] blocks of 256 words, one for
//! each device in use, then a table for each [`Table`], then the rings of the flight recorder ([`recorder`]).
//! The file is sparse: only used pages have memory. A counter never changes its place, and a new counter is
//! added at the end; another layout has another version.

mod map;
mod names;
mod reader;
pub mod recorder;
pub mod records;

use std::collections::VecDeque;
use std::io;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferroce_host::environment;
use nix::time::{ClockId, clock_gettime};

use crate::shared::{Shared, store};
use map::Parts;
pub use names::{DEVICE_COUNTERS, DeviceCounters, RXE_COUNTERS, TRANSPORT_COUNTERS, Totals, port_counters};
pub use reader::{DeviceBlock, LedgerReader, Record};
use records::{Ends, Fields, QpProgress, QpPsns};

const MAGIC: u64 = u64::from_le_bytes(*b"FeLedger");
const VERSION: u64 = 5;

const WORD: usize = size_of::<u64>();
const HEAD: usize = 512;
/// Words of the head: the magic, the layout, counts of retirements begun and ended, the slot, two clocks, the
/// process id, the used length of each table, and the name of the program.
const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 1;
const AT_RETIRED: usize = 2;
const AT_SLOT: usize = 3;
const AT_MONOTONIC: usize = 4;
const AT_REAL: usize = 5;
const AT_PID: usize = 6;
const AT_USED: usize = 8;
const AT_COMMAND: usize = 16;

/// Number of devices that one program's ledger distinguishes. The last block counts for all further devices.
pub const DEVICES: usize = 32;
const DEVICE: usize = 256;
/// Words of a device's block: its id plus 1, its name, the engine's counters, the counters of ended queue
/// pairs.
const AT_ID: usize = 0;
const AT_NAME: usize = 1;
const NAME: usize = 64 / WORD;
const AT_COUNTERS: usize = 16;
const AT_TRANSPORT: usize = 128;

/// The tables of objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(usize)]
pub enum Table {
    Context = 0,
    Pd = 1,
    Cq = 2,
    Srq = 3,
    Mr = 4,
    /// Queue pairs, with their counters.
    Qp = 5,
}

impl Table {
    pub const ALL: [Self; 6] = [Self::Context, Self::Pd, Self::Cq, Self::Srq, Self::Mr, Self::Qp];

    /// Returns the table's capacity in records, the words of a record, and the table's first word. The ledger
    /// does not list objects beyond the capacity.
    const fn shape(self) -> (usize, usize, usize) {
        const MANY: usize = 65_536;
        const CONTEXT: usize = HEAD + DEVICES * DEVICE;
        const PD: usize = CONTEXT + 4096 * 4;
        const CQ: usize = PD + MANY * 4;
        const SRQ: usize = CQ + MANY * 4;
        const MR: usize = SRQ + MANY * 4;
        const QP: usize = MR + MANY * 8;
        match self {
            Self::Context => (4096, 4, CONTEXT),
            Self::Pd => (MANY, 4, PD),
            Self::Cq => (MANY, 4, CQ),
            Self::Srq => (MANY, 4, SRQ),
            Self::Mr => (MANY, 8, MR),
            Self::Qp => (MANY, QP_RECORD, QP),
        }
    }

    /// Places of ended objects that no other takes at first: their rings tell why they ended.
    const fn rests(self) -> usize {
        if matches!(self, Self::Qp) { 64 } else { 0 }
    }

    /// Words in front of the rings.
    const fn end() -> usize {
        let (count, stride, start) = Self::Qp.shape();
        start + count * stride
    }
}

/// Words of a queue pair's record: the head and its fields, then its counters.
const QP_RECORD: usize = 48;
/// Word of a queue pair's record at which its counters begin.
const QP_COUNTERS: usize = 7;
const _: () = assert!(QP_COUNTERS + TRANSPORT_COUNTERS.len() <= QP_RECORD);
const _: () = assert!(AT_COUNTERS + DEVICE_COUNTERS.len() <= AT_TRANSPORT);
const _: () = assert!(AT_TRANSPORT + TRANSPORT_COUNTERS.len() <= DEVICE);

/// Queue pairs of a program that have a ring.
pub const RINGS: usize = 8192;

/// Events that a ring holds.
pub const EVENTS: usize = 64;

/// Words of a ring: the number of events so far, then [`Ends`], then the events.
const RING: usize = AT_EVENTS + 2 * EVENTS;
const AT_ENDS: usize = 1;
const AT_EVENTS: usize = AT_ENDS + size_of::<Ends>() / WORD;

/// Words of the ledger with the rings, which follow the tables.
const END: usize = Table::end() + RINGS * RING;

/// The program's side. Storing never waits, except in [`Ledger::record`] and at the end of an [`Entry`],
/// which are not on the packet path.
pub struct Ledger {
    map: Shared,
    free: [Mutex<Free>; Table::ALL.len()],
    devices: Mutex<()>,
    /// Queue pairs have rings.
    records: bool,
}

/// Free places of a table.
#[derive(Default)]
struct Free {
    used: usize,
    returned: VecDeque<u32>,
}

impl Ledger {
    /// Creates a ledger for the program that holds `slot`, and the descriptor to hand to the broker. The
    /// descriptor is `None` if the system has no memory files; then no other process sees the ledger.
    ///
    /// # Errors
    /// The errors of `mmap(2)`.
    pub fn create(slot: u16) -> io::Result<(Self, Option<OwnedFd>)> {
        let (map, file) = match Shared::publish("ferroce-ledger", END) {
            Ok((map, file)) => (map, Some(file)),
            Err(_) => (Shared::private(END)?, None),
        };
        let ledger =
            Self { map, free: Default::default(), devices: Mutex::default(), records: is_recording() };
        ledger.set(AT_SLOT, slot.into());
        ledger.note_program();
        ledger.set(AT_VERSION, VERSION);
        ledger.set(AT_MAGIC, MAGIC);
        Ok((ledger, file))
    }

    fn note_program(&self) {
        self.set(AT_PID, std::process::id().into());
        let name = nix::sys::prctl::get_name().unwrap_or_default();
        store(self.map.words().get(AT_COMMAND..).unwrap_or_default(), name.as_bytes());
        for (at, clock) in [(AT_MONOTONIC, ClockId::CLOCK_MONOTONIC), (AT_REAL, ClockId::CLOCK_REALTIME)] {
            let time = clock_gettime(clock).map(Duration::from).unwrap_or_default();
            self.set(at, time.as_nanos() as u64);
        }
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.map.words().get(at)
    }

    fn set(&self, at: usize, value: u64) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn get(&self, at: usize) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Returns the number of the block that counts for a device, always below [`DEVICES`].
    pub fn block_of(&self, id: u32, name: &str) -> usize {
        let _one = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = u64::from(id) + 1;
        let known = |block: &usize| [0, wanted].contains(&self.get(HEAD + block * DEVICE + AT_ID));
        let block = (0..DEVICES).find(known).unwrap_or(DEVICES - 1);
        let at = HEAD + block * DEVICE;
        if self.get(at + AT_ID) == 0 {
            for (word, chunk) in name.as_bytes().chunks(WORD).take(NAME).enumerate() {
                let mut bytes = [0; WORD];
                bytes.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
                self.set(at + AT_NAME + word, u64::from_ne_bytes(bytes));
            }
            self.set(at + AT_ID, wanted);
        }
        block
    }

    /// Returns the engine's counters of a device.
    pub fn device(&self, block: usize) -> &DeviceCounters {
        map::device(self.map.words(), HEAD + block.min(DEVICES - 1) * DEVICE + AT_COUNTERS)
    }

    /// Adds the counters of a queue pair to those that ended queue pairs left to its device, and ends its
    /// record, so that a reader counts it once.
    pub fn retire(&self, block: usize, counted: &[u64], entry: &Entry) {
        let at = HEAD + block.min(DEVICES - 1) * DEVICE + AT_TRANSPORT;
        let _one = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(turns) = self.word(AT_RETIRED) else { return };
        turns.fetch_add(1, Ordering::AcqRel);
        for (word, count) in counted.iter().enumerate().take(TRANSPORT_COUNTERS.len()) {
            if let Some(sum) = self.word(at + word) {
                sum.fetch_add(*count, Ordering::Relaxed);
            }
        }
        entry.end();
        turns.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the sum of the counters of a device's ended queue pairs.
    pub fn retired(&self, block: usize) -> Vec<u64> {
        let at = HEAD + block.min(DEVICES - 1) * DEVICE + AT_TRANSPORT;
        (0..TRANSPORT_COUNTERS.len()).map(|word| self.get(at + word)).collect()
    }

    /// Makes a record for an object. The record discards every store if the table is full.
    pub fn record(self: &Arc<Self>, table: Table) -> Entry {
        let (count, stride, start) = table.shape();
        let mut place = None;
        if let Some(free) = self.free.get(table as usize) {
            let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
            if free.returned.len() <= table.rests() && free.used < count {
                place = Some(free.used);
                free.used += 1;
                self.set(AT_USED + table as usize, free.used as u64);
            } else {
                place = free.returned.pop_front().map(|place| place as usize);
            }
        }
        let at = place.map_or(usize::MAX, |place| start + place * stride);
        let ring = place.filter(|_| self.records).map_or(usize::MAX, |place| ring_of(table, place));
        let entry = Entry {
            parts: Parts::of(self, if table == Table::Qp { at } else { usize::MAX }, ring),
            table,
            place,
            at,
            stride,
            ended: AtomicU64::new(0),
        };
        entry.begin_ring();
        entry
    }

    fn give_back(&self, table: Table, place: usize) {
        if let Some(free) = self.free.get(table as usize) {
            free.lock().unwrap_or_else(PoisonError::into_inner).returned.push_back(place as u32);
        }
    }
}

/// First word of the ring of a place; none is so large without one.
const fn ring_of(table: Table, place: usize) -> usize {
    if matches!(table, Table::Qp) && place < RINGS { Table::end() + place * RING } else { usize::MAX }
}

/// Programs record, unless `FERROCE_RECORDER` is `off`.
fn is_recording() -> bool {
    environment::text("FERROCE_RECORDER").as_deref() != Some("off")
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("slot", &self.get(AT_SLOT)).finish_non_exhaustive()
    }
}

/// An object's record. [`Entry::end`] or dropping the entry ends it.
#[derive(Debug)]
pub struct Entry {
    parts: Parts,
    table: Table,
    place: Option<usize>,
    at: usize,
    stride: usize,
    ended: AtomicU64,
}

impl Entry {
    /// Returns a number that identifies the object among all of its kind in the network namespace, as long as
    /// every program reports its own slot: the slot in the upper bits, the place in the table, from 1 on, in
    /// the lower bits. The number is 0 if the table was full.
    pub fn number(&self) -> u32 {
        let slot = self.parts.ledger().get(AT_SLOT) as u32;
        self.place.map_or(0, |place| (slot << 20) + place as u32 + 1)
    }

    /// Stores an object's record, or a part of it, with relaxed ordering.
    #[inline]
    pub fn put<F: Fields>(&self, fields: &F) {
        debug_assert_eq!(F::TABLE, self.table);
        self.store(F::AT, fields.as_bytes());
    }

    /// Stores the changing part of a queue pair's record with relaxed ordering. `count` stores the counters,
    /// in the order of [`TRANSPORT_COUNTERS`]. Each message causes several calls, which only store to memory
    /// that other processors seldom read.
    #[inline]
    pub fn put_queue_pair(
        &self,
        progress: QpProgress,
        count: impl FnOnce(&[AtomicU64; TRANSPORT_COUNTERS.len()]),
    ) {
        let Some(record) = self.queue_pair() else { return };
        let progress: [u64; size_of::<QpProgress>() / WORD] = zerocopy::transmute!(progress);
        record.iter().zip(progress).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        record.get(QP_COUNTERS..).and_then(|words| words.first_chunk()).map(count);
    }

    /// As [`Self::put_queue_pair`], where of the progress only the PSNs may have changed.
    #[inline]
    pub fn put_psns(&self, psns: QpPsns, count: impl FnOnce(&[AtomicU64; TRANSPORT_COUNTERS.len()])) {
        let Some(record) = self.queue_pair() else { return };
        let word = record.get(offset_of!(QpProgress, psns) / WORD);
        word.inspect(|word| word.store(zerocopy::transmute!(psns), Ordering::Relaxed));
        record.get(QP_COUNTERS..).and_then(|words| words.first_chunk()).map(count);
    }

    #[inline]
    fn ring(&self) -> Option<&[AtomicU64; RING]> {
        self.parts.ring()
    }

    /// Empties the ring of a new queue pair.
    fn begin_ring(&self) {
        let words = self.ring().into_iter().flat_map(|ring| ring.iter().take(AT_EVENTS));
        words.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    #[inline]
    fn queue_pair(&self) -> Option<&[AtomicU64; QP_RECORD]> {
        debug_assert_eq!(Table::Qp, self.table);
        self.parts.record()
    }

    /// Stores octets from word `from` on with relaxed ordering. The first word of a record must not be 0.
    fn store(&self, from: usize, octets: &[u8]) {
        let record = self.parts.ledger().map.words().get(self.at..self.at.saturating_add(self.stride));
        if let Some(to) = record.and_then(|record| record.get(from..)) {
            store(to, octets);
        }
    }

    /// Ends the record. A second call does nothing.
    pub fn end(&self) {
        let Some(place) = self.place else { return };
        if self.ended.swap(1, Ordering::AcqRel) == 0 {
            self.store(0, &[0; QP_RECORD * WORD]);
            self.parts.ledger().give_back(self.table, place);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests;
