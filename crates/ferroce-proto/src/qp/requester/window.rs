//! How much may be on its way.

/// A congestion window in octets: grows as answers arrive, shrinks when something was lost.
///
/// The transport goes back to what was lost and sends everything after it again, so a large window makes each
/// loss dearer; but a network that loses at random must not shrink it to nothing. Hence the mild cut and the
/// floor. While round trips show a queue, the window follows TCP's rule instead (RFC 5681 section 3.1): a
/// packet more each round trip, and half of it after a loss. Flows that share a queue, TCP's among them, come
/// to similar shares that way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    size: u64,
    /// Below it the window grows by half each round trip: full queues are felt a round trip late.
    threshold: u64,
    /// Octets of a full packet.
    packet: u64,
    floor: u64,
    /// Losses while no round trip shows a queue never shrink it below this, see [`Window::keep`].
    steady: u64,
    cap: u64,
}

/// Losses never shrink a window below this many full packets.
const FLOOR_PACKETS: u64 = 4;

impl Window {
    /// `start`, `packet` (a full one) and `cap` in octets as charged; never below one packet, see
    /// [`Window::admits`].
    pub fn new(start: u64, packet: u64, cap: u64) -> Self {
        let cap = cap.max(1);
        let size = start.min(cap);
        let floor = (FLOOR_PACKETS * packet).min(size);
        Self { size, threshold: cap, packet, floor, steady: floor, cap }
    }

    pub const fn size(&self) -> u64 {
        self.size
    }

    /// From now on losses while no round trip shows a queue leave `octets`, and no window is smaller.
    pub fn keep(&mut self, octets: u64) {
        self.steady = octets.clamp(self.floor, self.cap);
        self.size = self.size.max(self.steady);
    }

    /// Whether `amount` more may leave. The first packet always may.
    pub const fn admits(&self, in_flight: u64, amount: u64) -> bool {
        in_flight == 0 || in_flight.saturating_add(amount) <= self.size
    }

    /// `amount` was answered. `queueing`: what is sent only waits longer on its way.
    pub fn grow(&mut self, amount: u64, queueing: bool) {
        if queueing {
            self.threshold = self.threshold.min(self.size);
        }
        let step = if self.size < self.threshold {
            amount / 2
        } else {
            let a_round_trip = if queueing { self.packet } else { 4096 };
            amount.saturating_mul(a_round_trip) / self.size.max(1)
        };
        self.size = self.size.saturating_add(step).min(self.cap);
    }

    /// A single packet was lost while nothing waited in queues: most likely by chance. The repeat costs no
    /// more with a larger window where only that is sent again: up to `held` octets, which is all that the
    /// peer keeps behind a gap.
    pub fn ease(&mut self, held: u64) {
        if self.size > held {
            return self.shrink(false);
        }
        self.size = (self.size - self.size / 16).max(self.steady.min(self.size));
        self.threshold = self.threshold.min(held);
    }

    /// The cut since `before` was needless. What was answered in the meantime may have made the window larger
    /// than before.
    pub const fn restore(&mut self, before: Self) {
        if self.size < before.size {
            *self = before;
        }
    }

    /// Something was lost, or a congestion notification came.
    pub fn shrink(&mut self, queueing: bool) {
        let (tenths, least) = if queueing { (5, self.floor) } else { (7, self.steady.min(self.size)) };
        self.size = (self.size / 10 * tenths).max(least);
        self.threshold = self.size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_shrinks_within_its_bounds() {
        let mut window = Window::new(64 << 10, 4 << 10, 1 << 20);
        assert!(window.admits(0, 1 << 30), "one packet always");
        assert!(!window.admits(64 << 10, 1));
        window.grow(64 << 10, false);
        assert_eq!(window.size(), 96 << 10);
        for _ in 0..100 {
            window.grow(1 << 20, false);
        }
        assert_eq!(window.size(), 1 << 20);
        window.shrink(false);
        let cut = window.size();
        assert!(cut < (1 << 20) && cut > (1 << 19));
        window.grow(cut, false);
        assert!(window.size() - cut <= 4096, "a packet a round trip after a loss");
        let size = window.size();
        window.grow(size, true);
        assert_eq!(window.size(), size + (4 << 10), "a packet a round trip while there is a queue");
        let size = window.size();
        window.ease(1 << 20);
        assert!(window.size() < size && window.size() > size / 10 * 9);
        let size = window.size();
        window.ease(size - 1);
        assert!(window.size() < size / 10 * 8);
        for _ in 0..100 {
            window.ease(1 << 20);
        }
        assert_eq!(window.size(), 16 << 10);
        for _ in 0..100 {
            window.shrink(false);
        }
        assert_eq!(window.size(), 16 << 10);
    }

    /// Two windows over a link that holds 150 packets in its queue and on the way, and drops for both what is
    /// beyond (Chiu and Jain, 1989).
    #[test]
    #[cfg_attr(miri, ignore = "150,000 packets take minutes in Miri")]
    fn windows_in_one_queue_come_to_equal_shares() {
        const PACKET: u64 = 1024;
        let [mut larger, mut smaller] =
            [130, 20].map(|packets| Window::new(packets * PACKET, PACKET, 1 << 20));
        for _ in 0..1000 {
            if larger.size() + smaller.size() > 150 * PACKET {
                larger.shrink(true);
                smaller.shrink(true);
            }
            for window in [&mut larger, &mut smaller] {
                (0..window.size() / PACKET).for_each(|_| window.grow(PACKET, true));
            }
        }
        let [larger, smaller] = [larger, smaller].map(|window| window.size() / PACKET);
        assert!(larger.abs_diff(smaller) <= 2, "{larger} and {smaller} packets");
    }
}
