//! The monotonic clock, read from the processor's counter where the kernel does the same.
//!
//! A look at the kernel's clock waits for all loads before it, which costs a message some 40 ns each time.
//! The counter alone costs a quarter of that. So one look at the kernel's clock is an anchor for the next
//! 2^20 ticks of the counter, some 400 µs: a time in that is the anchor's, and the ticks since at the rate
//! that was measured since the start. The rate is taken a 1024th too low, because the network's time may
//! steer the kernel's clock by a 2000th: so the time does not run ahead of that clock. It is late by less
//! than a microsecond, and may run back by as much from one anchor to the next.
#![allow(unsafe_code)]

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use nix::time::{ClockId, clock_gettime};

/// Ticks for which an anchor counts.
const AGE: u64 = 1 << 20;
/// Ticks from the first anchor to the first one with a rate, some 4 ms: the longer, the more exact it is.
const SPAN: u64 = 1 << 23;
/// Ticks that a look at the kernel's clock takes at most, unless the thread was stopped in it.
const BETWEEN: u64 = 1 << 10;
/// The clock by which the kernel keeps the time; it trusts the counter only if that runs alike on all
/// processors and never stops.
const KEPT_BY: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// A look at both clocks.
struct Anchor {
    /// Whether the counter may stand for the kernel's clock.
    allowed: AtomicBool,
    /// Changes with the others, and is odd while they change.
    version: AtomicU64,
    ticks: AtomicU64,
    nanos: AtomicU64,
    /// Nanoseconds a tick, in units of 2^-32; 0 while unknown.
    rate: AtomicU64,
    /// The first look: ticks, and nanoseconds.
    first: [AtomicU64; 2],
}

static ANCHOR: Anchor = Anchor {
    allowed: AtomicBool::new(false),
    version: AtomicU64::new(0),
    ticks: AtomicU64::new(0),
    nanos: AtomicU64::new(0),
    rate: AtomicU64::new(0),
    first: [const { AtomicU64::new(0) }; 2],
};

/// Lets [`nanos`] read the counter, if the kernel keeps the time by it.
pub fn prepare() {
    let kept_by_counter = fs::read_to_string(KEPT_BY).is_ok_and(|name| name.trim() == "tsc");
    ANCHOR.allowed.store(kept_by_counter && counter().is_some(), Ordering::Relaxed);
}

/// Nanoseconds of the monotonic clock, which Linux always has.
#[inline]
pub fn nanos() -> u64 {
    ANCHOR.nanos().unwrap_or_else(|| ANCHOR.look())
}

impl Anchor {
    /// The time by the counter; `None` if the anchor is too old, is missing, or changes right now.
    #[inline]
    fn nanos(&self) -> Option<u64> {
        let version = self.version.load(Ordering::Acquire);
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let [ticks, nanos, rate] = [&self.ticks, &self.nanos, &self.rate].map(load);
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        if rate == 0 || !is_whole {
            return None;
        }
        // A counter that was set back, or that of a processor that is behind, makes the anchor too old.
        let age = counter()?.wrapping_sub(ticks);
        (age < AGE).then(|| nanos + ((age * rate) >> 32))
    }

    /// The time by the kernel's clock, which becomes the anchor unless another thread is at that.
    #[cold]
    fn look(&self) -> u64 {
        let Some(before) = counter().filter(|_| self.allowed.load(Ordering::Relaxed)) else {
            return kernel();
        };
        let nanos = kernel();
        // Behind the look, so that a time by this anchor is late rather than early.
        let ticks = counter().unwrap_or(before);
        if ticks.wrapping_sub(before) > BETWEEN {
            return nanos;
        }
        let version = self.version.load(Ordering::Relaxed);
        let begin =
            |from| self.version.compare_exchange(from, from + 1, Ordering::Acquire, Ordering::Relaxed);
        if version.is_multiple_of(2) && begin(version).is_ok() {
            let [first_ticks, first_nanos] = &self.first;
            if version == 0 {
                first_ticks.store(ticks, Ordering::Relaxed);
                first_nanos.store(nanos, Ordering::Relaxed);
            }
            let passed = ticks.wrapping_sub(first_ticks.load(Ordering::Relaxed));
            let time = nanos.wrapping_sub(first_nanos.load(Ordering::Relaxed));
            self.rate.store(rate(passed, time), Ordering::Relaxed);
            self.ticks.store(ticks, Ordering::Relaxed);
            self.nanos.store(nanos, Ordering::Relaxed);
            self.version.store(version + 2, Ordering::Release);
        }
        nanos
    }
}

/// See [`Anchor::rate`], of ticks that passed in this time.
fn rate(ticks: u64, nanos: u64) -> u64 {
    if ticks < SPAN {
        return 0;
    }
    let rate = (u128::from(nanos) << 32) / u128::from(ticks);
    let rate = u64::try_from(rate).unwrap_or(0);
    // A counter of less than 1 GHz, or one that was set back: no product of it may be too large.
    if rate >> 32 > 0 { 0 } else { rate - rate / 1024 }
}

/// The processor's counter.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[expect(clippy::unnecessary_wraps, reason = "other processors have no such counter")]
fn counter() -> Option<u64> {
    // SAFETY: every processor of this kind has the instruction, and the kernel's clock is read by it as well.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
const fn counter() -> Option<u64> {
    None
}

fn kernel() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
        seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds that a time by the counter may be late: those of a look, and a 1024th of the anchor's age.
    const LATE: u64 = 2000;

    #[test]
    fn the_counter_tells_the_kernels_time() {
        prepare();
        let by_counter = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| {
                scope.spawn(|| {
                    let (mut last, mut by_counter) = (0, 0);
                    for _ in 0..if cfg!(miri) { 100 } else { 300_000 } {
                        let before = kernel();
                        let counted = ANCHOR.nanos();
                        let now = counted.unwrap_or_else(|| ANCHOR.look());
                        let after = kernel();
                        assert!(before - LATE <= now && now <= after, "{before} {now} {after}");
                        assert!(last <= now + LATE, "it runs back from {last} to {now}");
                        last = now;
                        by_counter += u32::from(counted.is_some());
                    }
                    by_counter
                })
            });
            threads.map(|thread| thread.join().unwrap()).iter().sum::<u32>()
        });
        // The counter is read only if the kernel keeps the time by it.
        assert_eq!(by_counter > 0, ANCHOR.allowed.load(Ordering::Relaxed));
    }

    #[test]
    fn no_rate_is_believed_that_could_overflow() {
        assert_eq!(rate(SPAN - 1, SPAN), 0);
        let two_gigahertz = rate(2 * SPAN, SPAN);
        assert_eq!(two_gigahertz, (1 << 31) - (1 << 21));
        assert_eq!([rate(SPAN, 2 * SPAN), rate(SPAN, u64::MAX)], [0, 0]);
    }
}
