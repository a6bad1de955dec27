//! A hash of numbers, for seeds and secrets of which no proof is asked.

/// The step of SplitMix64: numbers that are multiples of it apart are hashed to a random sequence.
pub const MIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A step and the finalizer of SplitMix64: every bit of the number changes half of the result's. Runs are
/// repeated by their seed, so the results stay the same in every release.
pub const fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(MIX_STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
