//! A link of limited rate with a queue in front.

use std::time::Duration;

use ferroce_wire::Instant;

/// The state of such a link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Limit {
    /// Time at which the link will have sent all that waits.
    busy_until: Instant,
}

/// The state of a limit as a packet finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Crossing {
    /// No room.
    Full,
    /// The packet crosses the link: the time until then, and the number of octets that waited before it.
    After(Duration, u64),
}

impl Limit {
    /// Sends `octets` at `bits` a second, if no more than `queue` octets and `queue_time` wait.
    pub(crate) fn cross(
        &mut self,
        now: Instant,
        octets: u32,
        bits: u64,
        queue: u64,
        queue_time: Option<Duration>,
    ) -> Crossing {
        let free = self.busy_until.max(now);
        let waits = free.saturating_since(now);
        let waiting = (waits.as_nanos() * u128::from(bits) / 8_000_000_000) as u64;
        if waiting > queue || queue_time.is_some_and(|limit| waits > limit) {
            return Crossing::Full;
        }
        let transit = u128::from(octets) * 8_000_000_000 / u128::from(bits.max(1));
        self.busy_until = free + Duration::from_nanos(transit.min(u128::from(u64::MAX)) as u64);
        Crossing::After(self.busy_until.saturating_since(now), waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_takes_time_and_fills() {
        let mut limit = Limit::default();
        let mut cross = |at| limit.cross(Instant::from_nanos(at), 1000, 8_000_000_000, 2000, None);
        let us = |n| Duration::from_micros(n);
        assert_eq!(cross(0), Crossing::After(us(1), 0));
        assert_eq!(cross(0), Crossing::After(us(2), 1000));
        assert_eq!(cross(0), Crossing::After(us(3), 2000));
        assert_eq!(cross(0), Crossing::Full);
        assert_eq!(cross(1500), Crossing::After(us(3) + us(1) - Duration::from_nanos(1500), 1500));
        assert_eq!(cross(1_000_000), Crossing::After(us(1), 0));
    }
}
