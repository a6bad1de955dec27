//! Randomness that can be had again.

use std::env;

use ferroce_wire::{MIX_STEP, mix};

/// A small generator (SplitMix64): the same numbers for the same seed, on every platform and in every
/// release.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Begins a sequence.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(MIX_STEP);
        number
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// `true` in this many of a million cases.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }

    /// Another sequence, independent of what is drawn from this one later.
    pub fn fork(&mut self) -> Self {
        Self(self.next_u64())
    }
}

/// The seed of a test: `FERROCE_SEED` if set, otherwise the test's own. If the test panics, it says how to
/// repeat it.
#[derive(Debug)]
pub struct Seed {
    /// The number.
    pub value: u64,
    test: &'static str,
}

impl Seed {
    /// For the test of this name.
    ///
    /// # Panics
    ///
    /// If `FERROCE_SEED` is set and is no number.
    pub fn for_test(test: &'static str, default: u64) -> Self {
        let value = match env::var("FERROCE_SEED") {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("FERROCE_SEED={text} is no number")),
            Err(_) => default,
        };
        Self { value, test }
    }

    /// A generator that begins with it.
    pub const fn rng(&self) -> Rng {
        Rng::new(self.value)
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with: FERROCE_SEED={} cargo test {}", self.value, self.test);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |seed| (0..4).scan(Rng::new(seed), |rng, _| Some(rng.next_u64())).collect::<Vec<_>>();
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        // As published for SplitMix64: replays must survive releases.
        assert_eq!(Rng::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn below_stays_below_and_chance_is_fair() {
        let mut rng = Rng::new(1);
        assert!((0..10_000).all(|_| rng.below(7) < 7));
        assert_eq!(rng.below(0), 0);
        let hits = (0..100_000).filter(|_| rng.chance(50_000)).count();
        assert!((4_500..5_500).contains(&hits), "{hits}");
    }
}
