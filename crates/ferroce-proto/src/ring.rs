//! Rings whose places are found without a division.

use alloc::vec::Vec;

/// Places of a ring for `entries`: a power of two, or none.
pub(crate) const fn size(entries: u32) -> usize {
    if entries == 0 { 0 } else { (entries as usize).next_power_of_two() }
}

/// The place of the entry that is number `index` since the beginning. A ring of no places has none that could
/// be found.
pub(crate) const fn place(index: u64, size: usize) -> usize {
    index as usize & size.wrapping_sub(1)
}

/// A queue of a bounded number of entries, allocated at creation. An entry is written where it stays until it
/// is taken. Memory is touched when it is first needed.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    /// Grows to its capacity, and keeps its length then.
    places: Vec<T>,
    /// Places, once all were used.
    size: usize,
    room: u32,
    /// Number of the oldest entry, and of the next, since the beginning.
    head: u64,
    tail: u64,
}

impl<T: Copy> Ring<T> {
    /// A ring with room for `room` entries.
    pub fn new(room: u32) -> Self {
        // With a place more than the room: a message may fail when the last one was given to another.
        let size = size(room + 1);
        Self { places: Vec::with_capacity(size), size, room, head: 0, tail: 0 }
    }

    pub const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether [`Self::push`] adds an entry.
    pub const fn has_room(&self) -> bool {
        self.tail - self.head < self.room as u64
    }

    /// Adds an entry behind the others, if there is a place.
    #[inline(always)]
    pub fn push(&mut self, entry: T) {
        if self.tail - self.head >= self.size as u64 {
            return;
        }
        match self.places.get_mut(place(self.tail, self.size)) {
            Some(slot) => *slot = entry,
            None => self.first(entry),
        }
        self.tail += 1;
    }

    /// Writes to a place for the first time.
    #[cold]
    fn first(&mut self, entry: T) {
        // Within the capacity: nothing is allocated.
        self.places.push(entry);
    }

    /// Takes the oldest entry.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let entry = self.places.get(place(self.head, self.size)).copied();
        self.head += 1;
        entry
    }

    pub const fn clear(&mut self) {
        self.head = self.tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_in_a_row_have_places_of_their_own() {
        for entries in 1..40 {
            let size = size(entries);
            let first = 1_000_003;
            let mut places: Vec<_> = (first..first + u64::from(entries)).map(|i| place(i, size)).collect();
            places.sort_unstable();
            places.dedup();
            assert!(places.len() == entries as usize && places.iter().all(|place| *place < size));
        }
        assert_eq!(size(0), 0);
        assert!(<[u8]>::get(&[], place(7, 0)).is_none());
    }

    #[test]
    fn entries_are_taken_in_order_and_one_more_than_there_is_room_for() {
        let mut ring = Ring::new(3);
        for turn in 0..5 {
            assert!(ring.is_empty() && ring.pop().is_none());
            (1..=3).for_each(|entry| ring.push(10 * turn + entry));
            assert!(!ring.has_room());
            (4..=5).for_each(|entry| ring.push(10 * turn + entry));
            let mut three = || [(); 3].map(|()| ring.pop());
            assert_eq!(three(), [1, 2, 3].map(|entry| Some(10 * turn + entry)));
            assert_eq!(three(), [Some(10 * turn + 4), None, None]);
        }
        ring.push(1);
        ring.clear();
        assert_eq!(ring.pop(), None);
    }
}
