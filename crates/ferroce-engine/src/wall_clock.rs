//! Times of the wall clock for completions, which are stamped by the monotonic one.

use std::time::{SystemTime, UNIX_EPOCH};

use ferroce_paths::clock;
use ferroce_wire::Instant;

/// Two readings of the difference of the clocks that are no further apart, in nanoseconds, are the same
/// difference: the clocks are read one after the other.
const TOLERANCE: u64 = 1000;
/// Readings of the clocks, of which the quickest counts: the thread may lose its CPU between two of them.
const READINGS: u32 = 3;

/// The wall clock for one completion queue. Its times never go backwards from one completion to the next,
/// even if the administrator sets the clock back: then they stay constant until it has caught up.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock {
    /// Nanoseconds from the monotonic clock's zero to that of the wall clock (1970), negative if it was
    /// later.
    difference: Option<i64>,
    /// The difference was read since the polling began.
    is_fresh: bool,
    /// The newest time that was told.
    newest: u64,
}

impl WallClock {
    /// A polling begins: the difference of the clocks is read anew when it is asked for.
    pub const fn begin(&mut self) {
        self.is_fresh = false;
    }

    /// The wall clock's time at `at` of the monotonic one, in nanoseconds since 1970; twice the same for the
    /// newest completion, and never less than for one before.
    pub fn time(&mut self, at: Instant) -> u64 {
        self.time_by(at, read_difference)
    }

    fn time_by(&mut self, at: Instant, read: impl FnOnce() -> i64) -> u64 {
        let difference = match self.difference {
            Some(known) if self.is_fresh => known,
            known => {
                let read = read();
                known.filter(|known| known.abs_diff(read) <= TOLERANCE).unwrap_or(read)
            }
        };
        (self.difference, self.is_fresh) = (Some(difference), true);
        self.newest = self.newest.max(at.as_nanos().saturating_add_signed(difference));
        self.newest
    }
}

fn read_difference() -> i64 {
    let reading = |_| {
        let before = clock::now().as_nanos();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let after = clock::now().as_nanos();
        let took = after.saturating_sub(before);
        let wall = i64::try_from(wall).unwrap_or(i64::MAX);
        (took, wall.saturating_sub_unsigned(before + took / 2))
    };
    (0..READINGS).map(reading).min().map_or(0, |(_, difference)| difference)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant::from_nanos(5000);

    #[test]
    fn completions_of_one_moment_have_one_time() {
        let mut clock = WallClock::default();
        assert_eq!(clock.time_by(AT, || 1_000_000), 1_005_000);
        assert_eq!(clock.time_by(AT, || unreachable!("read once a polling")), 1_005_000);
        clock.begin();
        assert_eq!(clock.time_by(AT, || 1_000_000 - 20), 1_005_000, "not by what reading the clocks takes");
        clock.begin();
        assert_eq!(clock.time_by(AT, || 1_000_000 + 20), 1_005_000);
        assert_eq!(clock.time_by(Instant::from_nanos(5001), || unreachable!()), 1_005_001);
    }

    #[test]
    fn a_clock_that_is_set_is_followed_and_never_goes_backwards() {
        let mut clock = WallClock::default();
        clock.time_by(AT, || 1_000_000);
        clock.begin();
        assert_eq!(clock.time_by(AT, || 2_000_000), 2_005_000, "forwards");
        clock.begin();
        assert_eq!(clock.time_by(Instant::from_nanos(6000), || 1_500_000), 2_005_000, "it stands still");
        clock.begin();
        assert_eq!(clock.time_by(Instant::from_nanos(600_000), || 1_500_000), 2_100_000);
        assert_eq!(
            clock.time_by(AT, || unreachable!()),
            2_100_000,
            "stamps of two threads may be out of order"
        );
    }

    #[test]
    fn the_time_is_that_of_the_wall_clock() {
        let seconds = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let before = seconds();
        let told = WallClock::default().time(clock::now()) / 1_000_000_000;
        assert!((before.saturating_sub(1)..=seconds() + 1).contains(&told), "{told}");
    }
}
