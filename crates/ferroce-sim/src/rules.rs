//! Rules for a [`Network`](crate::Network) that do not look into packets.

use std::time::Duration;

use crate::{Rng, Verdict};

/// Drops `per_million` of a million packets, each by itself.
pub fn loss<P>(mut rng: Rng, per_million: u32) -> impl FnMut(&P) -> Verdict {
    move |_| if rng.chance(per_million) { Verdict::Drop } else { Verdict::Pass }
}

/// Drops packets in bursts: `per_million` of a million packets begin a burst of 2 to `longest` packets
/// (Gilbert).
pub fn bursts<P>(mut rng: Rng, per_million: u32, longest: u64) -> impl FnMut(&P) -> Verdict {
    let mut left = 0;
    move |_| {
        if left == 0 && rng.chance(per_million) {
            left = 2 + rng.below(longest.saturating_sub(1));
        }
        if left == 0 {
            return Verdict::Pass;
        }
        left -= 1;
        Verdict::Drop
    }
}

/// Delivers `per_million` of a million packets twice, the second time up to `latest` later.
pub fn duplication<P>(mut rng: Rng, per_million: u32, latest: Duration) -> impl FnMut(&P) -> Verdict {
    move |_| {
        if rng.chance(per_million) { Verdict::Duplicate(some_of(&mut rng, latest)) } else { Verdict::Pass }
    }
}

/// Delays `per_million` of a million packets by up to `latest`, so that others overtake them.
pub fn reordering<P>(mut rng: Rng, per_million: u32, latest: Duration) -> impl FnMut(&P) -> Verdict {
    move |_| if rng.chance(per_million) { Verdict::Delay(some_of(&mut rng, latest)) } else { Verdict::Pass }
}

/// Changes a bit in `per_million` of a million packets.
pub fn corruption<P>(mut rng: Rng, per_million: u32) -> impl FnMut(&P) -> Verdict {
    move |_| if rng.chance(per_million) { Verdict::Corrupt(rng.next_u64()) } else { Verdict::Pass }
}

fn some_of(rng: &mut Rng, longest: Duration) -> Duration {
    Duration::from_nanos(rng.below(longest.as_nanos() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_bursts() {
        let mut rule = bursts(Rng::new(3), 10_000, 5);
        let dropped: Vec<bool> = (0..100_000).map(|_| rule(&()) == Verdict::Drop).collect();
        let runs: Vec<usize> =
            dropped.split(|dropped| !dropped).map(<[bool]>::len).filter(|run| *run > 0).collect();
        assert!(runs.len() > 500);
        assert!(runs.iter().all(|run| *run >= 2));
    }
}
