//! How long a request may be missing before it counts as lost.

use core::time::Duration;

use ferroce_wire::Instant;

/// The longest window, in quarters of the least round trip.
const MOST_QUARTERS: u32 = 64;
/// Recoveries in a row without a spurious resend, after which the network counts again as one that keeps the
/// order.
const REMEMBERED: u8 = 16;
/// Number of held requests behind a missing one that make it lost at once, as long as the network keeps the
/// order (RFC 8985 section 6.2, `DupThresh`).
pub(super) const DUP_THRESH: u32 = 3;

/// The reordering window (RFC 8985 section 6.2): nothing while the network keeps the order and
/// [`DUP_THRESH`] requests are held, otherwise a quarter of the least round trip. It grows by a quarter with
/// each recovery that proved spurious, up to the smoothed round trip.
///
/// RFC 8985 learns from the receiver's DSACK that a resend was spurious. RoCE has none: a recovery was
/// spurious if the peer acknowledges or holds what was sent again before an answer to the second packet can
/// be here. The round trips alone do not tell: a queue pair that always sends in large batches never measures
/// how soon the answer to a single packet comes. So the order has to tell as well, see
/// [`super::sack::Scoreboard`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rack {
    /// The length in quarters of the least round trip; 0 while no recent recovery proved spurious.
    quarters: u32,
    /// Recoveries left before `quarters` is forgotten.
    remembered: u8,
    length: Duration,
    /// Half of the least round trip.
    half: Duration,
    /// Time at which requests last counted as lost; `None` once their resend proved spurious.
    lost_at: Option<Instant>,
}

/// The round trips that bound the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrips {
    /// A quarter of the least, within bounds.
    pub quarter: Duration,
    /// Half of the least: no answer comes sooner.
    pub half: Duration,
    /// The smoothed one.
    pub smoothed: Duration,
}

impl Rack {
    /// The round trips as they are measured now.
    pub fn measure(&mut self, round_trips: RoundTrips) {
        let RoundTrips { quarter, half, smoothed } = round_trips;
        self.length = (quarter * self.quarters.max(1)).min(smoothed.max(quarter));
        self.half = half;
    }

    /// How long a request may be missing while the peer holds `held` requests behind it.
    pub const fn length(&self, held: u32) -> Duration {
        if self.quarters == 0 && held >= DUP_THRESH { Duration::ZERO } else { self.length }
    }

    /// Requests count as lost from now on, and are sent again.
    pub const fn lost(&mut self, now: Instant) {
        self.lost_at = Some(now);
        self.remembered = self.remembered.saturating_sub(1);
        if self.remembered == 0 {
            self.quarters = 0;
        }
    }

    /// A request that counted as lost has arrived. Whether this is too soon to be the packet that was sent
    /// again.
    pub fn arrived(&mut self, now: Instant) -> bool {
        let Some(at) = self.lost_at else { return false };
        // An answer to the second packet takes a round trip. Even the least may have become shorter.
        let late = now.saturating_since(at) < self.half;
        if late {
            self.lost_at = None;
            self.grow();
        }
        late
    }

    /// A recovery proved spurious.
    pub fn grow(&mut self) {
        self.quarters = (self.quarters.max(1) + 1).min(MOST_QUARTERS);
        self.remembered = REMEMBERED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIPS: RoundTrips = RoundTrips {
        quarter: Duration::from_micros(10),
        half: Duration::from_micros(20),
        smoothed: Duration::from_micros(48),
    };

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(us)
    }

    fn length(window: &mut Rack) -> u64 {
        window.measure(ROUND_TRIPS);
        window.length(0).as_micros() as u64
    }

    #[test]
    fn the_window_grows_while_resends_prove_spurious() {
        let mut window = Rack::default();
        assert_eq!(length(&mut window), 10);
        assert!(!window.arrived(at(0)), "nothing counted as lost");
        window.lost(at(0));
        assert!(!window.arrived(at(20)), "half of the least round trip is long enough");
        assert!(window.arrived(at(19)));
        assert!(!window.arrived(at(19)), "a recovery counts once");
        assert_eq!(length(&mut window), 20);
        for _ in 0..9 {
            window.lost(at(100));
            assert!(window.arrived(at(101)));
        }
        assert_eq!(length(&mut window), 48, "the smoothed round trip is the most");
    }

    #[test]
    fn sixteen_recoveries_that_were_needed_shorten_it() {
        let mut window = Rack::default();
        window.measure(ROUND_TRIPS);
        window.lost(at(0));
        assert!(window.arrived(at(1)));
        for _ in 0..REMEMBERED - 1 {
            window.lost(at(100));
        }
        assert_eq!(length(&mut window), 20);
        window.lost(at(100));
        assert_eq!(length(&mut window), 10);
    }
}
