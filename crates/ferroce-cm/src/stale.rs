//! A limit on connections that end because a new request names their peer's queue pair.
//!
//! A request from the queue pair of a connected peer says that the peer has started anew, so the old
//! connection ends (IBTA 12.9.8.3.1). Such a request needs no communication id. A sender that can forge the
//! peer's address, and knows its node GUID, has only the queue pair's number to guess: without a limit it
//! could try all of them and end every connection within seconds. A peer that did start anew repeats its
//! requests for a minute, so it can wait.

use ferroce_wire::Instant;

/// Connections that may end at once: enough for all connections of a peer that starts anew.
const AT_ONCE: u32 = 256;
/// Interval in nanoseconds until another one may end: about 60 a second.
const EACH: u64 = 16_000_000;

/// A token bucket that fills with time.
#[derive(Debug)]
pub(super) struct Allowance {
    left: u32,
    /// Time up to which tokens have been added.
    at: Instant,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left: AT_ONCE, at: Instant::ZERO }
    }
}

impl Allowance {
    /// Takes a token, if one is left.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_since(self.at).as_nanos() as u64;
        let gained = u32::try_from(passed / EACH).unwrap_or(u32::MAX);
        match self.left.saturating_add(gained) {
            left if left >= AT_ONCE => (self.left, self.at) = (AT_ONCE, now),
            left => {
                self.left = left;
                self.at = Instant::from_nanos(self.at.as_nanos() + u64::from(gained) * EACH);
            }
        }
        let has = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_come_back_with_time() {
        let mut allowance = Allowance::default();
        let mut now = Instant::from_nanos(1);
        let mut all = |now| {
            let mut count = 0;
            while allowance.take(now) {
                count += 1;
            }
            count
        };
        assert_eq!(all(now), AT_ONCE);
        for (nanos, want) in [(EACH - 1, 0), (1, 1), (5 * EACH / 2, 2), (EACH / 2, 1), (1 << 50, AT_ONCE)] {
            now = Instant::from_nanos(now.as_nanos() + nanos);
            assert_eq!(all(now), want, "after {nanos} ns");
        }
    }
}
