//! How much may be on its way.

/// A congestion window in octets: grows as answers arrive, shrinks when something was lost.
///
/// The transport goes back to what was lost and sends everything after it again, so a large window makes each loss dearer;
/// but a network that loses at random must not shrink it to nothing. Hence the mild cut and the floor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    size: u64,
    /// Below it the window grows by half each round trip: full queues are felt a round trip late.
    threshold: u64,
    floor: u64,
    cap: u64,
}

impl Window {
    /// `start`, `floor` and `cap` in octets as charged; never below one packet, see [`Window::admits`].
    pub fn new(start: u64, floor: u64, cap: u64) -> Self {
        let cap = cap.max(1);
        let size = start.min(cap);
        Self { size, threshold: cap, floor: floor.min(size), cap }
    }

    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whether `amount` more may leave. The first packet always may.
    pub const fn admits(&self, in_flight: u64, amount: u64) -> bool {
        in_flight == 0 || in_flight.saturating_add(amount) <= self.size
    }

    /// `amount` was answered. Does not grow while `queueing`: while what is sent only waits longer on its way.
    pub fn grow(&mut self, amount: u64, queueing: bool) {
        if queueing {
            self.threshold = self.threshold.min(self.size);
            return;
        }
        let step = if self.size < self.threshold {
            amount / 2
        } else {
            // About one packet of 4096 a round trip.
            amount.saturating_mul(4096) / self.size.max(1)
        };
        self.size = self.size.saturating_add(step).min(self.cap);
    }

    /// A single packet was lost while nothing waited in queues: most likely by chance. The repeat costs no more with a larger
    /// window where only that is sent again: up to `held` octets, which is all that the peer keeps behind a gap.
    pub fn ease(&mut self, held: u64) {
        if self.size > held {
            return self.shrink();
        }
        self.size = (self.size - self.size / 16).max(self.floor);
        self.threshold = self.threshold.min(held);
    }

    /// Something was lost, or a congestion notification came.
    pub fn shrink(&mut self) {
        self.size = (self.size / 10 * 7).max(self.floor);
        self.threshold = self.size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_shrinks_within_its_bounds() {
        let mut window = Window::new(64 << 10, 16 << 10, 1 << 20);
        assert!(window.admits(0, 1 << 30), "one packet always");
        assert!(!window.admits(64 << 10, 1));
        window.grow(64 << 10, false);
        assert_eq!(window.size(), 96 << 10);
        for _ in 0..100 {
            window.grow(1 << 20, false);
        }
        assert_eq!(window.size(), 1 << 20);
        window.shrink();
        let cut = window.size();
        assert!(cut < (1 << 20) && cut > (1 << 19));
        window.grow(cut, false);
        assert!(window.size() - cut <= 4096, "a packet a round trip after a loss");
        let size = window.size();
        window.grow(cut, true);
        assert_eq!(window.size(), size);
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
            window.shrink();
        }
        assert_eq!(window.size(), 16 << 10);
    }
}
