//! Unguessable numbers.

/// SipHash-2-4 of a counter: an observer of some of the numbers cannot predict the others without the key.
#[derive(Clone, Debug)]
pub(super) struct Random {
    key: [u64; 2],
    counter: u64,
}

impl Random {
    pub(super) const fn new(key: [u64; 2]) -> Self {
        Self { key, counter: 0 }
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        siphash(self.key, self.counter)
    }

    pub(super) fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }
}

/// Hashes eight octets, least significant first.
fn siphash([k0, k1]: [u64; 2], message: u64) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    for (block, rounds) in [(message, 2), (8 << 56, 2)] {
        v = absorb(v, block, rounds);
    }
    let [a, b, c, d] = v;
    v = [a, b, c ^ 0xff, d];
    for _ in 0..4 {
        v = round(v);
    }
    let [a, b, c, d] = v;
    a ^ b ^ c ^ d
}

fn absorb([a, b, c, d]: [u64; 4], block: u64, rounds: u32) -> [u64; 4] {
    let mut v = [a, b, c, d ^ block];
    for _ in 0..rounds {
        v = round(v);
    }
    let [a, b, c, d] = v;
    [a ^ block, b, c, d]
}

const fn round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the authors' reference vectors: key 00 01 .. 0f, message 00 01 .. 07.
    #[test]
    fn siphash_as_published() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(siphash(key, 0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn numbers_differ_by_counter_and_key() {
        const DRAWS: usize = if cfg!(miri) { 50 } else { 1000 };
        let mut a = Random::new([1, 2]);
        let mut b = Random::new([1, 3]);
        let drawn: std::collections::BTreeSet<_> =
            (0..DRAWS).flat_map(|_| [a.next_u64(), b.next_u64()]).collect();
        assert_eq!(drawn.len(), 2 * DRAWS);
    }
}
