//! Random numbers by counting: each is a hash of what it is for, so no draw shifts another.

use ferroce_wire::{MIX_STEP, mix};

use crate::units::Probability;

/// A hash under construction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Adds a number to what is hashed.
    pub(crate) fn with(self, number: u64) -> Self {
        Self(mix(self.0 ^ number.wrapping_mul(MIX_STEP)).rotate_left(17))
    }

    /// Adds a name to what is hashed.
    pub(crate) fn with_name(self, name: &str) -> Self {
        name.bytes().fold(self.with(name.len() as u64), |draw, byte| draw.with(u64::from(byte) + 1))
    }

    /// 64 random bits.
    pub(crate) fn bits(self) -> u64 {
        mix(self.0 ^ 0xd1b5_4a32_d192_ed03)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(crate) fn below(self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Whether something of this probability happens.
    pub(crate) fn happens(self, probability: Probability) -> bool {
        self.below(u64::from(Probability::ONE.0)) < u64::from(probability.0)
    }

    /// A number from 0 to 1, without 1.
    pub(crate) fn fraction(self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "a share needs 300,000 draws, which take minutes in Miri")]
    fn draws_are_fair_and_independent() {
        let hits = |salt: u64| {
            (0..100_000).filter(move |n| Draw::new(1).with(salt).with(*n).happens(Probability(50_000_000)))
        };
        assert!((4_700..5_300).contains(&hits(0).count()));
        let both = hits(0).filter(|n| Draw::new(1).with(1).with(*n).happens(Probability(50_000_000))).count();
        assert!((180..330).contains(&both), "independent: {both}");
        assert!((0..1000).all(|n| Draw::new(n).below(7) < 7));
        assert!(!(0..1000).any(|n| Draw::new(n).happens(Probability::ZERO)));
        assert!((0..1000).all(|n| Draw::new(n).happens(Probability::ONE)));
    }

    /// A replay must survive releases: these numbers never change.
    #[test]
    fn draws_stay_as_they_are() {
        let draw = Draw::new(7).with_name("tail").with(4);
        assert_eq!(draw.bits(), Draw::new(7).with_name("tail").with(4).bits());
        assert_ne!(draw.bits(), Draw::new(8).with_name("tail").with(4).bits());
    }
}
