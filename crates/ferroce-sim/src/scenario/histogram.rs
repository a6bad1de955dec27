//! Times, counted so that quantiles can be told.

use std::time::Duration;

/// Counts by power of two, each divided by this.
const PARTS: u64 = 64;

/// Counts of times. A quantile is at most 1.6 % too large, and never too small.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    longest: u64,
}

impl Histogram {
    /// Counts a time.
    pub fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(PARTS.trailing_zeros() + 1);
        let place = (u64::from(shift) * PARTS + (nanos >> shift)) as usize;
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
        self.total += 1;
        self.longest = self.longest.max(nanos);
    }

    /// Adds the counts of another one.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.total += other.total;
        self.longest = self.longest.max(other.longest);
    }

    /// Times counted.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The time that `percent` percent of the values do not exceed; `None` without values.
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        if self.total == 0 {
            return None;
        }
        let wanted = ((self.total as f64 * percent / 100.0).ceil() as u64).clamp(1, self.total);
        let mut seen = 0;
        let place = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })? as u64;
        let shift = (place / PARTS).saturating_sub(1);
        let most = ((u128::from(place - shift * PARTS) + 1) << shift) - 1;
        Some(Duration::from_nanos((most as u64).min(self.longest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_near() {
        let mut all = Histogram::default();
        assert_eq!(all.percentile(50.0), None);
        let mut halves = [Histogram::default(), Histogram::default()];
        for nanos in 1..=100_000u64 {
            all.add(Duration::from_nanos(nanos));
            halves[(nanos % 2) as usize].add(Duration::from_nanos(nanos));
        }
        let [mut one, other] = halves;
        one.merge(&other);
        assert_eq!(one, all);
        for percent in [0.001, 1.0, 50.0, 99.0, 99.9] {
            let (exact, told) = (percent * 1000.0, all.percentile(percent).unwrap().as_nanos() as f64);
            assert!(told >= exact && told <= exact * 1.016 + 1.0, "{percent}: {told} for {exact}");
        }
        assert_eq!(all.percentile(100.0), Some(Duration::from_nanos(100_000)));
        all.add(Duration::MAX);
        assert_eq!(all.percentile(100.0), Some(Duration::from_nanos(u64::MAX)));
    }
}
