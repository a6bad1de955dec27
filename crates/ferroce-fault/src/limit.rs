//! A link of limited rate with a queue in front.

use std::time::Duration;

use ferroce_wire::Instant;

/// The state of such a link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Limit {
    /// Time at which the link will have sent all that waits.
    busy_until: Instant,
}

/// The state of a limit as a packet finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossing {
    /// The time until the link has sent what waits before the packet.
    pub waits: Duration,
    /// Number of octets that wait before the packet.
    pub waiting: u64,
    /// The time at which the packet has crossed the link; `None` if there is no room for it.
    pub crossed: Option<Instant>,
}

impl Limit {
    /// Sends `octets` at `bits` a second, if no more than `queue` octets and `queue_time` wait.
    pub fn cross(
        &mut self,
        now: Instant,
        octets: u64,
        bits: u64,
        queue: u64,
        queue_time: Option<Duration>,
    ) -> Crossing {
        let bits = u128::from(bits.max(1));
        let free = self.busy_until.max(now);
        let waits = free.saturating_since(now);
        let waiting = (waits.as_nanos() * bits / 8_000_000_000) as u64;
        let full = waiting > queue || queue_time.is_some_and(|limit| waits > limit);
        let crossed = (!full).then(|| {
            let transit = u128::from(octets) * 8_000_000_000 / bits;
            self.busy_until = free + Duration::from_nanos(transit.min(u128::from(u64::MAX)) as u64);
            self.busy_until
        });
        Crossing { waits, waiting, crossed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_takes_time_and_fills() {
        let mut limit = Limit::default();
        let mut cross = |at| {
            let crossing = limit.cross(Instant::from_nanos(at), 1000, 8_000_000_000, 2000, None);
            (crossing.crossed.map(Instant::as_nanos), crossing.waiting)
        };
        assert_eq!(cross(0), (Some(1000), 0));
        assert_eq!(cross(0), (Some(2000), 1000));
        assert_eq!(cross(0), (Some(3000), 2000));
        assert_eq!(cross(0), (None, 3000));
        assert_eq!(cross(1500), (Some(4000), 1500));
        assert_eq!(cross(1_000_000), (Some(1_001_000), 0));
    }
}
