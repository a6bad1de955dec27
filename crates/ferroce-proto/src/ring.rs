//! Rings whose places are found without a division.

/// Places of a ring for `entries`: a power of two, or none.
pub(crate) const fn size(entries: u32) -> usize {
    if entries == 0 { 0 } else { (entries as usize).next_power_of_two() }
}

/// The place of the entry that is number `index` since the beginning. A ring of no places has none that could
/// be found.
pub(crate) const fn place(index: u64, size: usize) -> usize {
    index as usize & size.wrapping_sub(1)
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
}
