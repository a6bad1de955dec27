//! Time for the state machines.

use core::fmt;
use core::ops::{Add, AddAssign, Div, Mul, Sub};
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

    /// The time; `None` for [`Self::MAX`], which [`Due::or_never`] makes of an absent one.
    pub fn if_ever(self) -> Option<Self> {
        (self != Self::MAX).then_some(self)
    }

    /// Time since `earlier`; zero if `earlier` lies in the future.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        self.span_since(earlier).duration()
    }

    /// As [`Self::saturating_since`].
    pub const fn span_since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// A time at which something is due, perhaps.
pub trait Due {
    /// The time, or [`Instant::MAX`] if it is absent.
    ///
    /// Callers take the minimum of several results. From `flatten().min()` the compiler makes code that
    /// compares the octets of an absent time before it asks whether it is there; valgrind reports that jump.
    fn or_never(self) -> Instant;
}

impl Due for Option<Instant> {
    #[inline]
    fn or_never(self) -> Instant {
        self.unwrap_or(Instant::MAX)
    }
}

/// A span of time in nanoseconds. The state machines reckon with each message: what a [`Duration`] holds, as
/// seconds and the rest, would have to be divided each time. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Span(u64);

impl Span {
    /// A span of this many nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of this many microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// A span of this many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// The difference of two spans.
    #[must_use]
    pub const fn abs_diff(self, other: Self) -> Self {
        Self(self.0.abs_diff(other.0))
    }

    /// As a [`Duration`].
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(nanos(duration))
    }
}

impl Add for Span {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }
}

impl Mul<u32> for Span {
    type Output = Self;

    fn mul(self, times: u32) -> Self {
        Self(self.0.saturating_mul(times.into()))
    }
}

impl Div<u32> for Span {
    type Output = Self;

    fn div(self, parts: u32) -> Self {
        Self(self.0 / u64::from(parts))
    }
}

impl Add<Span> for Instant {
    type Output = Self;

    fn add(self, after: Span) -> Self {
        Self(self.0.saturating_add(after.0))
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
    fn an_absent_deadline_comes_last() {
        let [soon, late] = [7, 9].map(Instant::from_nanos);
        assert_eq!(None.or_never().min(Some(late).or_never()).min(Some(soon).or_never()), soon);
        assert_eq!((None.or_never().if_ever(), soon.if_ever()), (None, Some(soon)));
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
