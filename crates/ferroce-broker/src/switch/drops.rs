//! Frames that went no further: how many, where and why.

use std::collections::BTreeMap;

use super::Reason;

/// A number for each of [`Reason::COUNTERS`], in its order. They wrap.
pub type Counts = [u64; Reason::COUNTERS.len()];

/// Frames that were dropped since the last report, by interface.
#[derive(Debug, Default)]
pub struct Drops(BTreeMap<u32, Counts>);

impl Drops {
    /// One more. `ifindex` is an interface that the switch serves or did serve, or 0: so they are few.
    pub fn count(&mut self, ifindex: u32, reason: Reason) {
        self.count_many(ifindex, reason, 1);
    }

    /// So many more.
    pub fn count_many(&mut self, ifindex: u32, reason: Reason, more: usize) {
        if more == 0 {
            return;
        }
        let counts = self.0.entry(ifindex).or_default();
        let mut places = Reason::COUNTERS.iter().zip(counts);
        if let Some((_, count)) = places.find(|((known, _), _)| *known == reason) {
            *count = count.wrapping_add(more as u64);
        }
    }

    /// Takes them.
    pub fn take(&mut self) -> BTreeMap<u32, Counts> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_place_and_a_name() {
        let mut drops = Drops::default();
        for (place, reason) in Reason::COUNTERS.into_iter().map(|(reason, _)| reason).enumerate() {
            for _ in 0..=place {
                drops.count(2, reason);
            }
        }
        drops.count_many(3, Reason::Slot, 1);
        drops.count_many(4, Reason::Slot, 0);
        let taken = drops.take();
        let want: Vec<u64> = (1..=Reason::COUNTERS.len() as u64).collect();
        assert_eq!(taken[&2].to_vec(), want);
        assert_eq!(taken[&3].iter().sum::<u64>(), 1);
        assert_eq!(taken.len(), 2);
        assert!(drops.take().is_empty());
        let names: std::collections::BTreeSet<&str> =
            Reason::COUNTERS.into_iter().map(|(_, name)| name).collect();
        assert_eq!(names.len(), Reason::COUNTERS.len());
        assert!(names.iter().all(|name| name.starts_with("frame_") && name.len() < 40), "{names:?}");
    }
}
