//! Queue pair numbers of one slot and the table that finds a queue pair by them.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwapOption, Guard};
use ferroce_wire::Qpn;
use parking_lot::Mutex;

/// Numbers of one slot: bits `[15:0]` of a QPN.
const NUMBERS: u32 = 1 << 16;
const CHUNK: usize = 256;
/// Queue pairs of one slot: the number 0xFFFFFF (multicast) lies in slot 255, which is never leased.
pub(crate) const MAX_QPS: u32 = NUMBERS - 1;

/// A keyed permutation of 16 bits: four Feistel rounds. It hides how many queue pairs exist and
/// which number comes next; it is no cipher, the transport does not lean on it.
#[derive(Clone, Copy)]
struct Permutation {
    keys: [u32; 4],
}

impl Permutation {
    fn new(key: u64) -> Self {
        Self { keys: [key as u32, (key >> 16) as u32, (key >> 32) as u32, (key >> 48) as u32] }
    }

    fn round(key: u32, half: u8) -> u8 {
        let mut x = key ^ (u32::from(half) << 8 | u32::from(half));
        x = x.wrapping_mul(0x9e37_79b1);
        x ^= x >> 15;
        x = x.wrapping_mul(0x85eb_ca77);
        (x >> 24) as u8
    }

    fn permute(self, value: u16) -> u16 {
        let [mut left, mut right] = value.to_be_bytes();
        for key in self.keys {
            (left, right) = (right, left ^ Self::round(key, right));
        }
        u16::from_be_bytes([left, right])
    }

    fn invert(self, value: u16) -> u16 {
        let [mut left, mut right] = value.to_be_bytes();
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ Self::round(key, left), left);
        }
        u16::from_be_bytes([left, right])
    }
}

/// Which numbers are free: first each once, then the one that was freed longest ago.
#[derive(Default)]
struct Free {
    never_used: u32,
    returned: VecDeque<u16>,
    live: u32,
}

/// Entries of [`CHUNK`] counters in a row, made when the first of them is used.
type Chunk<T> = Box<[ArcSwapOption<T>]>;

/// The queue pairs of one slot. Looking one up is wait-free; creating and destroying take a lock.
///
/// Layout of a number: `[23:16]` slot, `[15:0]` keyed permutation of a counter. A
/// number is given out again only after all others of the slot, so with `n` alive a freed number
/// rests for the next `65,536 - n` creations.
pub(crate) struct QpnTable<T> {
    slot: u8,
    permutation: Permutation,
    free: Mutex<Free>,
    chunks: Box<[OnceLock<Chunk<T>>]>,
}

impl<T> QpnTable<T> {
    /// The slot.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// `slot` is 1 to 254; `key` is the process's secret.
    pub(crate) fn new(slot: u8, key: u64) -> Self {
        Self {
            slot,
            permutation: Permutation::new(key),
            free: Mutex::new(Free::default()),
            chunks: (0..NUMBERS as usize / CHUNK).map(|_| OnceLock::new()).collect(),
        }
    }

    /// An unused number, or `None` if [`MAX_QPS`] exist.
    pub(crate) fn allocate(&self) -> Option<Qpn> {
        let mut free = self.free.lock();
        if free.live == MAX_QPS {
            return None;
        }
        let counter = if free.never_used < NUMBERS {
            free.never_used += 1;
            (free.never_used - 1) as u16
        } else {
            free.returned.pop_front()?
        };
        free.live += 1;
        let number = self.permutation.permute(counter);
        Some(Qpn::new(u32::from(self.slot) << 16 | u32::from(number)))
    }

    /// Whether a number is of this slot.
    pub(crate) const fn owns(&self, qpn: Qpn) -> bool {
        qpn.value() >> 16 == self.slot as u32
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

    fn entry(&self, qpn: Qpn) -> Option<&ArcSwapOption<T>> {
        let counter = usize::from(self.permutation.invert(qpn.value() as u16));
        self.chunks[counter / CHUNK].get().map(|chunk| &chunk[counter % CHUNK])
    }

    /// Makes `value` what [`Self::get`] finds under `qpn`.
    pub(crate) fn insert(&self, qpn: Qpn, value: Arc<T>) {
        let counter = usize::from(self.permutation.invert(qpn.value() as u16));
        let chunk =
            self.chunks[counter / CHUNK].get_or_init(|| (0..CHUNK).map(|_| ArcSwapOption::empty()).collect());
        chunk[counter % CHUNK].store(Some(value));
    }

    pub(crate) fn remove(&self, qpn: Qpn) -> Option<Arc<T>> {
        self.entry(qpn)?.swap(None)
    }

    /// Wait-free. The slot of `qpn` is the caller's to check.
    pub(crate) fn get(&self, qpn: Qpn) -> Option<Guard<Option<Arc<T>>>> {
        self.entry(qpn).map(ArcSwapOption::load)
    }

    /// Every entry at some moment of the call, for slow paths.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Arc<T>> + '_ {
        self.chunks
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|chunk| chunk.iter())
            .filter_map(ArcSwapOption::load_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_is_one() {
        let permutation = Permutation::new(0x0123_4567_89ab_cdef);
        let mut seen = vec![false; NUMBERS as usize];
        for value in 0..=u16::MAX {
            let number = permutation.permute(value);
            assert_eq!(permutation.invert(number), value);
            assert!(!std::mem::replace(&mut seen[usize::from(number)], true));
        }
    }

    #[test]
    fn every_promised_number_can_be_had_and_carries_the_slot() {
        let table = QpnTable::<()>::new(7, 42);
        for _ in 0..MAX_QPS {
            assert_eq!(table.allocate().map(|qpn| qpn.value() >> 16), Some(7));
        }
        assert_eq!(table.allocate(), None);
    }

    #[test]
    fn a_freed_number_rests_until_all_others_were_used() {
        let table = QpnTable::<()>::new(1, 42);
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
    fn finds_what_was_inserted() {
        let table = QpnTable::new(3, 1);
        let qpn = table.allocate().expect("fresh table");
        assert!(table.get(qpn).is_none_or(|entry| entry.is_none()));
        table.insert(qpn, Arc::new(5));
        assert_eq!(table.get(qpn).and_then(|entry| entry.as_deref().copied()), Some(5));
        assert_eq!(table.iter().count(), 1);
        assert!(table.remove(qpn).is_some());
        assert_eq!(table.iter().count(), 0);
    }
}
