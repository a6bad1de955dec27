//! Queue pair numbers of this process and the table that finds a queue pair by them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use ferroce_host::latest::{Latest, Reader};
use ferroce_ipc::QpnOrder;
use ferroce_wire::Qpn;
use parking_lot::Mutex;

/// Slots of a process, at most: no two with the same low bits.
const SLOTS: usize = 16;
/// Numbers of one slot: bits `[11:0]` of a QPN.
const SLOT_NUMBERS: u32 = 1 << 12;
/// Numbers of a process with all its slots: bits `[15:0]` of a QPN, which no two of its numbers share.
const NUMBERS: u32 = 1 << 16;
const CHUNK: usize = 256;
/// Queue pairs of a process.
pub(crate) const MAX_QPS: u32 = NUMBERS - 1;

/// A keyed permutation of the numbers of a slot: four Feistel rounds on 12 bits. It hides how many queue
/// pairs exist and which number comes next; it is no cipher, the transport does not lean on it.
#[derive(Clone, Copy)]
struct Permutation {
    keys: [u32; 4],
}

impl Permutation {
    fn new(key: u64) -> Self {
        Self { keys: [key as u32, (key >> 16) as u32, (key >> 32) as u32, (key >> 48) as u32] }
    }

    /// Of the bits above a slot's numbers, which stay, and six bits of the number.
    fn round(key: u32, upper: u16, half: u16) -> u16 {
        let mut x = key ^ (u32::from(half) << 8 | u32::from(half)) ^ u32::from(upper) << 16;
        x = x.wrapping_mul(0x9e37_79b1);
        x ^= x >> 15;
        x = x.wrapping_mul(0x85eb_ca77);
        (x >> 26) as u16
    }

    fn permute(self, value: u16) -> u16 {
        let (upper, mut left, mut right) = Self::split(value);
        for key in self.keys {
            (left, right) = (right, left ^ Self::round(key, upper, right));
        }
        upper << 12 | left << 6 | right
    }

    fn invert(self, value: u16) -> u16 {
        let (upper, mut left, mut right) = Self::split(value);
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ Self::round(key, upper, left), left);
        }
        upper << 12 | left << 6 | right
    }

    const fn split(value: u16) -> (u16, u16, u16) {
        (value >> 12, value >> 6 & 0x3f, value & 0x3f)
    }
}

/// The slots of this process, by their low four bits; 0 where it has none. Slots are added, and never
/// removed.
#[derive(Debug, Default)]
pub(crate) struct ProcessSlots {
    by_low_bits: [AtomicU16; SLOTS],
    /// The slot that names the process: its first.
    first: AtomicU16,
}

impl ProcessSlots {
    pub(crate) fn new(slots: &[u16]) -> Arc<Self> {
        let new = Self::default();
        new.add(slots);
        Arc::new(new)
    }

    /// Further slots, none with the low bits of one that the process has.
    pub(crate) fn add(&self, slots: &[u16]) {
        for slot in slots {
            let _ = self.first.compare_exchange(0, *slot, Ordering::Release, Ordering::Relaxed);
            self.by_low_bits[usize::from(*slot) % SLOTS].store(*slot, Ordering::Release);
        }
    }

    pub(crate) fn first(&self) -> u16 {
        self.first.load(Ordering::Acquire)
    }

    /// The slot with these low bits, or 0.
    fn with(&self, low_bits: usize) -> u16 {
        self.by_low_bits[low_bits % SLOTS].load(Ordering::Acquire)
    }

    /// Whether a number is of one of them.
    pub(crate) fn own(&self, qpn: Qpn) -> bool {
        let slot = qpn.slot();
        slot != 0 && self.with(usize::from(slot)) == slot
    }

    pub(crate) fn all(&self) -> Vec<u16> {
        (0..SLOTS).map(|low_bits| self.with(low_bits)).filter(|slot| *slot != 0).collect()
    }
}

/// Which numbers are free: first each once, then the one that was freed longest ago.
#[derive(Default)]
struct Free {
    /// How many of each slot were used, by the slots' low bits.
    used: [u32; SLOTS],
    /// The slot whose turn it is.
    turn: usize,
    returned: VecDeque<u16>,
    live: u32,
}

/// Entries of [`CHUNK`] numbers in a row, made when the first of them is used.
type Chunk<T> = Box<Latest<T, CHUNK>>;

/// The queue pairs of this process. Looking one up is wait-free; creating and destroying take a lock.
///
/// Layout of a number: `[23:12]` slot, `[11:0]` keyed permutation of a counter, which begins where the broker
/// says ([`QpnOrder`]). A number is given out again only after all others of the process's slots, so with `n`
/// alive a freed number of a process with all 65,536 rests for the next `65,536 - n` creations.
pub(crate) struct QpnTable<T> {
    slots: Arc<ProcessSlots>,
    permutation: Permutation,
    /// The position in each slot of the number that is used first.
    start: u16,
    free: Mutex<Free>,
    chunks: Box<[OnceLock<Chunk<T>>]>,
}

impl<T: Send + Sync + 'static> QpnTable<T> {
    /// The slots.
    pub(crate) fn slots(&self) -> &Arc<ProcessSlots> {
        &self.slots
    }

    /// The numbers are taken in the order `order`.
    pub(crate) fn new(slots: Arc<ProcessSlots>, order: QpnOrder) -> Self {
        let QpnOrder { key, start } = order;
        Self {
            slots,
            permutation: Permutation::new(key),
            start: start / SLOTS as u16,
            free: Mutex::new(Free { turn: usize::from(start) % SLOTS, ..Free::default() }),
            chunks: (0..NUMBERS as usize / CHUNK).map(|_| OnceLock::new()).collect(),
        }
    }

    /// An unused number, or `None` if [`MAX_QPS`] exist, or all numbers of the slots are in use: a further
    /// slot helps then.
    pub(crate) fn allocate(&self) -> Option<Qpn> {
        let mut free = self.free.lock();
        if free.live == MAX_QPS {
            return None;
        }
        let turn = free.turn;
        let fresh = (0..SLOTS).map(|step| (turn + step) % SLOTS).find(|low_bits| {
            self.slots.with(*low_bits) != 0
                && free.used.get(*low_bits).is_some_and(|used| *used < SLOT_NUMBERS)
        });
        let counter = match fresh {
            Some(low_bits) => {
                free.turn = low_bits + 1;
                let number = (u32::from(self.start) + free.used[low_bits]) % SLOT_NUMBERS;
                free.used[low_bits] += 1;
                (low_bits as u32 * SLOT_NUMBERS + number) as u16
            }
            None => free.returned.pop_front()?,
        };
        free.live += 1;
        let number = self.permutation.permute(counter);
        let slot = self.slots.with(usize::from(number >> 12));
        Some(Qpn::new(u32::from(slot) << 12 | u32::from(number & 0x0fff)))
    }

    /// Whether [`Self::allocate`] could succeed with a further slot.
    pub(crate) fn wants_slot(&self) -> bool {
        let live = self.free.lock().live;
        live < MAX_QPS && self.slots.all().len() < SLOTS
    }

    /// Whether a number is of this process.
    pub(crate) fn owns(&self, qpn: Qpn) -> bool {
        self.slots.own(qpn)
    }
    /// Numbers given out.
    pub(crate) fn live(&self) -> u32 {
        self.free.lock().live
    }

    /// Gives a number back, to be used again after all others.
    pub(crate) fn release(&self, qpn: Qpn) {
        let counter = self.permutation.invert(qpn.value() as u16);
        let mut free = self.free.lock();
        free.live -= 1;
        free.returned.push_back(counter);
    }

    /// The chunk of a number, and its place there.
    #[inline]
    fn place(&self, qpn: Qpn) -> (&OnceLock<Chunk<T>>, usize) {
        let number = usize::from(qpn.value() as u16);
        (&self.chunks[number / CHUNK], number % CHUNK)
    }

    /// Makes `value` what [`Self::get`] finds under `qpn`.
    pub(crate) fn insert(&self, qpn: Qpn, value: Arc<T>) {
        let (chunk, place) = self.place(qpn);
        chunk.get_or_init(|| Box::new(Latest::empty())).store_at(place, Some(value));
    }

    /// Makes [`Self::get`] find nothing under `qpn`. A thread that found something may still have it.
    pub(crate) fn remove(&self, qpn: Qpn) {
        let (chunk, place) = self.place(qpn);
        chunk.get().inspect(|chunk| chunk.store_at(place, None));
    }

    /// Wait-free. Whether `qpn` is of this process is the caller's to check.
    pub(crate) fn get(&self, qpn: Qpn) -> Option<Arc<T>> {
        let (chunk, place) = self.place(qpn);
        chunk.get()?.load_at(place)
    }

    /// As [`Self::get`], while the thread reads.
    #[inline]
    pub(crate) fn read<'a>(&'a self, qpn: Qpn, reader: &'a Reader) -> Option<&'a T> {
        let (chunk, place) = self.place(qpn);
        chunk.get()?.read_at(place, reader)
    }

    /// Every entry at some moment of the call, for slow paths.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Arc<T>> + '_ {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        chunks.flat_map(|chunk| (0..CHUNK).filter_map(|place| chunk.load_at(place)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn table<T: Send + Sync + 'static>(slots: &[u16], key: u64) -> QpnTable<T> {
        QpnTable::new(ProcessSlots::new(slots), QpnOrder { key, start: 40_000 })
    }

    /// A member's slots.
    fn whole() -> Vec<u16> {
        (7 << 4..8 << 4).collect()
    }

    #[test]
    fn permutation_is_one_within_each_slot() {
        let permutation = Permutation::new(0x0123_4567_89ab_cdef);
        let mut seen = vec![false; NUMBERS as usize];
        for value in 0..=u16::MAX {
            let number = permutation.permute(value);
            assert_eq!(permutation.invert(number), value);
            assert_eq!(number >> 12, value >> 12);
            assert!(!std::mem::replace(&mut seen[usize::from(number)], true));
        }
    }

    #[test]
    fn every_promised_number_can_be_had_and_carries_the_member() {
        let table = table::<()>(&whole(), 42);
        for _ in 0..MAX_QPS {
            assert_eq!(table.allocate().map(Qpn::member), Some(7));
        }
        assert_eq!((table.allocate(), table.wants_slot()), (None, false));
    }

    #[test]
    fn a_further_slot_brings_further_numbers() {
        let table = table::<()>(&[0x105], 42);
        for _ in 0..SLOT_NUMBERS {
            assert_eq!(table.allocate().map(Qpn::slot), Some(0x105));
        }
        assert_eq!((table.allocate(), table.wants_slot()), (None, true));
        table.slots().add(&[0x216]);
        let other = table.allocate().expect("a fresh slot");
        assert_eq!(other.slot(), 0x216);
        assert!(table.owns(other) && !table.owns(Qpn::new(0x115_000)) && !table.owns(Qpn::new(1)));
        assert_eq!((table.slots().first(), table.slots().all()), (0x105, vec![0x105, 0x216]));
    }

    #[test]
    fn a_freed_number_rests_until_all_others_were_used() {
        let table = table::<()>(&whole(), 42);
        let first = table.allocate().expect("fresh table");
        table.release(first);
        for _ in 1..NUMBERS {
            let other = table.allocate().expect("never more than one alive");
            assert_ne!(other, first);
            table.release(other);
        }
        assert_eq!(table.allocate(), Some(first));
    }

    #[test]
    fn programs_with_one_key_and_other_starts_share_no_number() {
        let numbers = |start: u16| -> HashSet<Qpn> {
            let table = QpnTable::<()>::new(ProcessSlots::new(&whole()), QpnOrder { key: 42, start });
            (0..1000).filter_map(|_| table.allocate()).collect()
        };
        let (first, second) = (numbers(65_000), numbers(65_000_u16.wrapping_add(1031)));
        assert_eq!((first.len(), second.len()), (1000, 1000));
        assert!(first.is_disjoint(&second));
    }

    #[test]
    fn finds_what_was_inserted() {
        let table = table(&[0x30], 1);
        let qpn = table.allocate().expect("fresh table");
        assert!(table.get(qpn).is_none());
        table.insert(qpn, Arc::new(5));
        assert_eq!(table.get(qpn).as_deref(), Some(&5));
        assert_eq!(table.iter().count(), 1);
        table.remove(qpn);
        assert!(table.get(qpn).is_none());
        assert_eq!(table.iter().count(), 0);
    }

    /// 8,000 queue pairs of one process, and the first one of 8,000 processes: each of the twelve bits below
    /// the slot is set in about half of them, within five standard deviations, and no step from one number to
    /// the next is preferred.
    #[test]
    fn numbers_are_even() {
        const DRAWS: usize = 8000;
        let even = |numbers: &[u32]| {
            for bit in 0..12 {
                let set = numbers.iter().filter(|number| *number >> bit & 1 == 1).count() as f64;
                assert!((set - DRAWS as f64 / 2.0).abs() < 224.0, "bit {bit}: {set}");
            }
        };
        let table = table::<()>(&whole(), 0x0f1e_2d3c_4b5a_6978);
        let numbers: Vec<u32> = (0..DRAWS).map(|_| table.allocate().unwrap().value()).collect();
        even(&numbers);
        let mut steps = std::collections::HashMap::new();
        for pair in numbers.windows(2) {
            *steps.entry(pair[1].wrapping_sub(pair[0]) & 0xfff).or_insert(0) += 1;
        }
        // 2 in the mean.
        assert!(steps.values().all(|count| *count < 16), "{:?}", steps.values().max());
        let first = |_| {
            let order = QpnOrder { key: getrandom::u64().unwrap() | 1, start: 0 };
            QpnTable::<()>::new(ProcessSlots::new(&[0x105]), order).allocate().unwrap().value()
        };
        even(&(0..DRAWS).map(first).collect::<Vec<_>>());
    }
}
