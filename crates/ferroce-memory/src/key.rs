//! Keys of memory regions.

/// A key that is lkey and rkey of one region.
///
/// | bits | content |
/// |---|---|
/// | 31..8 | slot (18) and generation (6) of the table's entry, under a permutation that is the process's secret |
/// | 7..0 | differs for 256 uses of one slot and generation, in an order that the secret gives |
///
/// So a key is not guessed from another one, and one of an entry used 16,384 times since is the first to come
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key(u32);

impl Key {
    /// The number that work requests and packets carry.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The window's part of its keys: all but the octet that the consumer chooses.
    pub(crate) const fn place(self) -> u32 {
        self.0 >> 8
    }

    /// The key of the same place with the consumer's octet of `other`.
    pub const fn with_octet_of(self, other: u32) -> Self {
        Self(self.0 & !0xff | other & 0xff)
    }
}

/// Regions that can exist at once.
pub const MAX_REGIONS: u32 = 1 << (SLOT_BITS - 1);
/// Windows that can exist at once; with the regions as many as there are slots, of which the first stays
/// unused.
pub const MAX_WINDOWS: u32 = MAX_REGIONS - 1;

pub(crate) const SLOT_BITS: u32 = 18;
const GENERATION_BITS: u32 = 6;
/// How often a slot may be used until its first key comes again.
pub(crate) const USES: u16 = 1 << (GENERATION_BITS + 8);

/// The process's secret permutation: four Feistel rounds over 24 bits, four over the low 8.
pub(crate) struct Secret {
    rounds: [u64; 4],
}

impl Secret {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        let (words, _) = seed.as_chunks::<8>();
        Self::from_words(std::array::from_fn(|i| u64::from_ne_bytes(words[i])))
    }

    /// The secret of another process.
    pub(crate) const fn from_words(rounds: [u64; 4]) -> Self {
        Self { rounds }
    }

    pub(crate) const fn words(&self) -> [u64; 4] {
        self.rounds
    }

    /// The key for the `use_count`-th use of a slot; counts from [`USES`] on repeat.
    pub(crate) fn key(&self, slot: u32, use_count: u16) -> Key {
        let generation = u32::from(use_count) & ((1 << GENERATION_BITS) - 1);
        let place = slot << GENERATION_BITS | generation;
        let lap = (use_count >> GENERATION_BITS) as u8;
        Key(self.permute(place) << 8 | u32::from(self.permute_lap(place, lap)))
    }

    /// The slot that a key names, if it names one.
    pub(crate) fn slot(&self, key: u32) -> u32 {
        let (mut left, mut right) = split(key >> 8);
        for &round in self.rounds.iter().rev() {
            (left, right) = (right ^ mix(round, u64::from(left)) as u16 & 0xfff, left);
        }
        (u32::from(left) << 12 | u32::from(right)) >> GENERATION_BITS
    }

    fn permute(&self, place: u32) -> u32 {
        let (mut left, mut right) = split(place);
        for &round in &self.rounds {
            (left, right) = (right, left ^ mix(round, u64::from(right)) as u16 & 0xfff);
        }
        u32::from(left) << 12 | u32::from(right)
    }

    fn permute_lap(&self, place: u32, lap: u8) -> u8 {
        let (mut left, mut right) = (lap >> 4, lap & 0xf);
        for &round in &self.rounds {
            let tweak = u64::from(place) << 8 | u64::from(right) | 1 << 63;
            (left, right) = (right, left ^ mix(round, tweak) as u8 & 0xf);
        }
        left << 4 | right
    }
}

fn split(place: u32) -> (u16, u16) {
    ((place >> 12) as u16, (place & 0xfff) as u16)
}

/// A round function: two multiplications, so that each bit of the result hangs on each of the key and the
/// input.
fn mix(key: u64, input: u64) -> u64 {
    let x = (key ^ input).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 32 ^ key.rotate_left(29)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x >> 40
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "2^24 keys take hours in Miri")]
    fn each_place_has_a_key_and_each_key_a_place() {
        let secret = Secret::new([7; 32]);
        let mut seen = vec![false; 1 << 24];
        for slot in 0..1 << SLOT_BITS {
            for generation in 0..1 << GENERATION_BITS {
                let key = secret.key(slot, generation).value();
                assert_eq!(secret.slot(key), slot);
                assert!(!std::mem::replace(&mut seen[(key >> 8) as usize], true));
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "16,384 keys take minutes in Miri")]
    fn a_slot_has_16384_keys() {
        let secret = Secret::new([9; 32]);
        let keys: HashSet<_> = (0..USES).map(|n| secret.key(5, n).value()).collect();
        assert_eq!(keys.len(), usize::from(USES));
        assert_eq!(secret.key(5, USES), secret.key(5, 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "8,192 keys take minutes in Miri")]
    fn neighbours_do_not_look_alike() {
        let secret = Secret::new(std::array::from_fn(|i| i as u8));
        // If 24 bits differ at random between the keys of neighbours, 12 differ in the mean.
        let differing = |slot: u32| {
            (secret.key(slot, 0).value() >> 8 ^ secret.key(slot + 1, 0).value() >> 8).count_ones()
        };
        let total: u32 = (0..4096).map(differing).sum();
        assert!((total as f64 / 4096.0 - 12.0).abs() < 0.3, "{total}");
    }

    /// 8,000 regions of one process, and the first region of 8,000 processes: each bit of their keys is set
    /// in about half of them, within five standard deviations, and first keys coincide no more often than
    /// chance has it.
    #[test]
    #[cfg_attr(miri, ignore = "16,000 keys take minutes in Miri")]
    fn keys_are_even() {
        const DRAWS: u32 = 8000;
        let even = |keys: &[u32]| {
            for bit in 0..32 {
                let set = keys.iter().filter(|key| *key >> bit & 1 == 1).count() as f64;
                assert!((set - f64::from(DRAWS) / 2.0).abs() < 224.0, "bit {bit}: {set}");
            }
        };
        let secret = Secret::new(std::array::from_fn(|i| (i * 37) as u8 ^ 0x5a));
        let keys: Vec<u32> = (0..DRAWS).map(|slot| secret.key(slot, 0).value()).collect();
        even(&keys);
        let first = |process: u32| {
            let mut seed = [0; 32];
            getrandom::fill(&mut seed).unwrap();
            seed[0] ^= process as u8;
            Secret::new(seed).key(1, 0).value()
        };
        let firsts: Vec<u32> = (0..DRAWS).map(first).collect();
        even(&firsts);
        // 0.007 of 32 bits coincide in the mean.
        let different = firsts.iter().collect::<HashSet<_>>().len();
        assert!(different + 3 > firsts.len(), "{different}");
    }
}
