//! Responses that came behind a gap and are in their place already.

use ferroce_wire::Psn;

/// PSNs behind the oldest unanswered one of which it is known.
const PSNS: u32 = 1024;
const WORDS: usize = (PSNS / u64::BITS) as usize;

/// A bit for each PSN, by its low ten bits.
#[derive(Debug)]
pub(super) struct Placed {
    words: [u64; WORDS],
    count: u32,
}

impl Placed {
    pub const fn new() -> Self {
        Self { words: [0; WORDS], count: 0 }
    }

    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Notes a PSN, `distance` behind the oldest unanswered one. `false` if the PSN is too far ahead, or was
    /// noted before.
    pub fn put(&mut self, psn: Psn, distance: u32) -> bool {
        let (word, bit) = place(psn);
        match self.words.get_mut(word) {
            Some(word) if distance < PSNS && *word & bit == 0 => {
                *word |= bit;
                self.count += 1;
                true
            }
            _ => false,
        }
    }

    /// Whether a PSN, `distance` behind the oldest unanswered one, was noted. A PSN that is too far ahead was
    /// not: its bit belongs to another PSN.
    pub fn contains(&self, psn: Psn, distance: u32) -> bool {
        let (word, bit) = place(psn);
        self.count > 0 && distance < PSNS && self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// The oldest unanswered PSN is answered.
    pub fn remove(&mut self, oldest: Psn) {
        if self.contains(oldest, 0) {
            let (word, bit) = place(oldest);
            if let Some(word) = self.words.get_mut(word) {
                *word &= !bit;
                self.count -= 1;
            }
        }
    }

    pub fn clear(&mut self) {
        if self.count > 0 {
            *self = Self::new();
        }
    }
}

const fn place(psn: Psn) -> (usize, u64) {
    let at = psn.value() & (PSNS - 1);
    ((at / u64::BITS) as usize, 1 << (at % u64::BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_for_each_psn() {
        let psn = |n: u32| Psn::new(0xff_ff80).add(n);
        let mut placed = Placed::new();
        assert!(placed.put(psn(1), 1));
        assert!(!placed.put(psn(1), 1), "twice");
        assert!(placed.put(psn(1023), 1023));
        assert!(!placed.put(psn(1024), 1024), "too far ahead");
        assert!(placed.contains(psn(1023), 1023) && !placed.contains(psn(2), 2));
        assert!(!placed.contains(psn(1025), 1025), "has the bit of another");
        placed.remove(psn(1));
        placed.remove(psn(2));
        assert!(!placed.contains(psn(1), 0) && !placed.is_empty());
        placed.clear();
        assert!(placed.is_empty() && !placed.contains(psn(1023), 1021));
    }
}
