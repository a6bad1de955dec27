//! Time for the state machines.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since an origin that the caller of the state machines chooses.
///
/// A type of our own instead of `std::time::Instant`, so that tests can write time as numbers and replay a
/// run. Arithmetic saturates: 2^64 ns are 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// A point later than any timer.
    pub const MAX: Self = Self(u64::MAX);

    /// The point `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The earliest of `deadlines`, if one of them is set. [`Self::MAX`] counts as not set.
    ///
    /// An absent deadline takes part as [`Self::MAX`]: of `flatten().min()` the compiler makes code that
    /// compares the octets of an absent deadline before it asks whether it is there, and valgrind reports
    /// that jump.
    pub fn first_of<const N: usize>(deadlines: [Option<Self>; N]) -> Option<Self> {
        let first = deadlines.into_iter().fold(Self::MAX, |first, at| first.min(at.unwrap_or(Self::MAX)));
        (first != Self::MAX).then_some(first)
    }

    /// Time since `earlier`; zero if `earlier` lies in the future.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates at 584 years.
const fn nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(nanos(after)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(before)))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from_nanos(self.0), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_deadlines_is_the_earliest_that_is_set() {
        let [soon, late] = [7, 9].map(Instant::from_nanos);
        assert_eq!(Instant::first_of([None, Some(late), Some(soon)]), Some(soon));
        assert_eq!(Instant::first_of([Some(Instant::ZERO), Some(late)]), Some(Instant::ZERO));
        assert_eq!(Instant::first_of([None, None]), None);
        assert_eq!(Instant::first_of([]), None);
    }

    #[test]
    fn arithmetic_saturates() {
        let t = Instant::from_nanos(1_000);
        assert_eq!((t + Duration::from_micros(1)).as_nanos(), 2_000);
        assert_eq!((t - Duration::from_micros(2)), Instant::ZERO);
        assert_eq!(t + Duration::MAX, Instant::MAX);
        assert_eq!(Instant::ZERO.saturating_since(t), Duration::ZERO);
        assert_eq!((t + Duration::from_secs(1)).saturating_since(t), Duration::from_secs(1));
    }
}
