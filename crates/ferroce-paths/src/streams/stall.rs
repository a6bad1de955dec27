//! Messages that wait for a receive of the program's.
//!
//! iWARP has no RNR NAK: a message without a receive ends the stream (RFC 5041 section 7.2). A program that
//! was written for InfiniBand posts its receives a little late and trusts that the peer repeats. So the
//! connection is not read for a time, and TCP slows the peer down.

use std::time::Duration;

use ferroce_wire::Instant;

/// The time for which a message waits before the stream ends.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause before the first look whether there is a receive now. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
/// The longest pause.
const LAST_PAUSE: Duration = Duration::from_millis(1);

/// The wait of a connection.
pub(super) struct Stall {
    /// The octets that arrived and that the queue pair did not take.
    octets: Vec<u8>,
    /// The first octets of them that were taken since.
    taken: usize,
    since: Instant,
    pause: Duration,
    /// The time of the next look.
    at: Instant,
}

impl Stall {
    pub(super) fn new(octets: &[u8], now: Instant) -> Self {
        Self { octets: octets.to_vec(), taken: 0, since: now, pause: FIRST_PAUSE, at: now + FIRST_PAUSE }
    }

    /// The octets that the queue pair has not taken yet.
    pub(super) fn octets(&self) -> &[u8] {
        self.octets.get(self.taken..).unwrap_or_default()
    }

    /// Adds octets that arrived behind the others.
    pub(super) fn append(&mut self, octets: &[u8]) {
        self.octets.extend_from_slice(octets);
    }

    pub(super) const fn at(&self) -> Instant {
        self.at
    }

    /// So many octets were taken at `now`. Whether a message still waits, and has waited too long.
    pub(super) fn look(&mut self, taken: usize, starves: bool, now: Instant) -> bool {
        self.taken += taken;
        if taken > 0 {
            (self.since, self.pause) = (now, FIRST_PAUSE);
        }
        // Without a message that waits, completions have no room, and are about to be published.
        self.at = if starves { now + self.pause } else { now };
        self.pause = (self.pause * 2).min(LAST_PAUSE);
        starves && now.saturating_since(self.since) >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(us)
    }

    #[test]
    fn looks_become_rare_and_end_after_a_second() {
        let mut stall = Stall::new(&[1, 2, 3], at(0));
        assert_eq!((stall.octets(), stall.at()), (&[1, 2, 3][..], at(20)));
        assert!(!stall.look(0, true, at(20)));
        assert_eq!(stall.at(), at(40));
        assert!(!stall.look(0, true, at(40)));
        assert_eq!(stall.at(), at(80));
        for now in 1..1000 {
            assert!(!stall.look(0, true, at(now * 1000)));
        }
        assert_eq!(stall.at(), at(1_000_000));
        stall.append(&[4]);
        assert!(!stall.look(2, true, at(1_000_000)), "a message found a receive");
        assert_eq!((stall.octets(), stall.at()), (&[3, 4][..], at(1_000_020)));
        assert!(!stall.look(0, false, at(1_000_020)));
        assert_eq!(stall.at(), at(1_000_020));
        assert!(stall.look(0, true, at(2_000_000)));
    }
}
