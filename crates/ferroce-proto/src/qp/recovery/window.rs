//! How much may be on its way.

use ferroce_wire::Psn;

use super::sack::REPORTED;
use crate::qp::common::Common;
use crate::qp::pipeline::Pipeline;

/// Largest first window in octets; at most an eighth of the receive buffer.
const START_WINDOW: u64 = 64 << 10;
/// Responses that a requester keeps behind a gap, with a margin.
const KEPT_RESPONSES: u32 = 1000;
/// Octets that a responder holds.
const HELD_OCTETS: u32 = 256 << 10;

/// The windows of a queue pair, their cuts after losses, and the undoing of spurious cuts.
#[derive(Debug, Default)]
pub(super) struct Windows {
    pub data: Window,
    pub reads: Window,
    /// The windows of data and of reads before the last cut, restored if the cut proves spurious.
    before: (Window, Window),
    /// The last cut was for one packet, which was sent again alone.
    cut_for_one: bool,
    /// A loss before this PSN belongs to the last cut of the windows: one cut a round trip.
    recovery: Psn,
    /// Packets lost since the last cut, with selective repeat.
    losses: u32,
    /// The newest answer came late: packets wait in queues.
    queueing: bool,
}

impl Windows {
    /// Windows for the budget, before the first packet.
    pub fn begin(common: &Common) -> Self {
        let packet = u64::from(common.mtu());
        let start = |most: u64, cap| Window::new(START_WINDOW.min(most), packet, cap);
        let (granted, reads) = (common.budget.granted(), common.budget.read_limit());
        Self {
            data: start(granted / 8, common.budget.destination_limit()),
            reads: start(reads, reads),
            recovery: common.attr.sq_psn,
            ..Self::default()
        }
    }

    /// With selective repeat a lost response costs no more than itself. So losses by chance leave two READ
    /// requests on their way: with one, nothing would be while the next is asked for.
    pub fn keep_two_reads(&mut self, common: &Common) {
        self.reads.keep(2 * u64::from(common.read_chunk()) * common.full_charge());
    }

    /// Answers came for `data` octets of sends and writes and `reads` octets of reads, and everything before
    /// `oldest` is answered; `queueing` if they came late.
    #[inline(always)]
    pub fn answered(&mut self, oldest: Psn, data: u64, reads: u64, queueing: bool) {
        if oldest.since(self.recovery) > 0 {
            self.recovery = oldest;
        }
        self.queueing = queueing;
        self.data.grow(data, queueing);
        self.reads.grow(reads, queueing);
    }

    /// A packet is lost, and it alone is sent again: `response` is one of a READ. The window shrinks a little
    /// if that is all of a round trip, and as behind a NAK if packets wait in queues, or if more than a
    /// sixteenth of what is on its way is lost, at least four. `agreed` to selective repeat.
    pub fn lost_one(&mut self, response: bool, psn: Psn, agreed: bool, common: &Common, pipeline: &Pipeline) {
        let many = (pipeline.outstanding() / 16).max(3) + 1;
        if psn.since(self.recovery) >= 0 {
            // Without selective repeat a lost request has everything behind it sent again, and more the
            // larger the window is.
            if self.queueing || !agreed {
                self.losses = many;
                return self.lost(response, psn, pipeline.next());
            }
            self.recovery = pipeline.next();
            self.losses = 0;
            let packets =
                if response { KEPT_RESPONSES } else { (HELD_OCTETS / common.mtu()).min(REPORTED) - 4 };
            let kept = u64::from(packets) * common.full_charge();
            self.before = (self.data, self.reads);
            if response { self.reads.ease(kept) } else { self.data.ease(kept) }
        }
        self.losses = self.losses.saturating_add(1);
        self.cut_for_one = self.losses == 1;
        if self.losses == many {
            self.shrink(response);
        }
    }

    /// The packet `psn` was lost: a read or atomic, or not; `next` was never sent. The windows shrink once
    /// for all that is on its way.
    pub fn lost(&mut self, read: bool, psn: Psn, next: Psn) {
        let cuts = psn.since(self.recovery) >= 0;
        // Without a new cut, the earlier cut for a single packet may still prove spurious, and needs its
        // windows.
        if cuts || !self.cut_for_one {
            self.before = (self.data, self.reads);
        }
        self.cut_for_one = false;
        if cuts {
            self.recovery = next;
            self.shrink(read);
        }
    }

    fn shrink(&mut self, reads: bool) {
        let window = if reads { &mut self.reads } else { &mut self.data };
        window.shrink(self.queueing);
    }

    /// Undoes the last cut if it was made for a single packet, whose original has arrived after all (as RFC
    /// 4015 does for TCP).
    pub const fn undo_cut_for_one(&mut self) {
        if self.cut_for_one {
            self.undo_cut();
        }
    }

    /// Undoes the last cut, which was spurious: the windows are at least as large as before it.
    pub const fn undo_cut(&mut self) {
        self.cut_for_one = false;
        self.data.restore(self.before.0);
        self.reads.restore(self.before.1);
    }

    /// The READ response `psn` came marked; `next` was never sent. The window shrinks once for all that is on
    /// its way.
    pub fn read_congested(&mut self, psn: Psn, next: Psn) {
        if psn.since(self.recovery) >= 0 {
            self.recovery = next;
            self.cut_for_one = false;
            self.shrink(true);
        }
    }
}

/// A congestion window in octets: grows as answers arrive, shrinks when something was lost.
///
/// The transport goes back to what was lost and sends everything after it again, so a large window makes each
/// loss dearer; but a network that loses at random must not shrink it to nothing. Hence the mild cut and the
/// floor. While round trips show a queue, the window follows TCP's rule instead (RFC 5681 section 3.1): a
/// packet more each round trip, and half of it after a loss. Flows that share a queue, TCP's among them, come
/// to similar shares that way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
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
    #[inline]
    pub fn grow(&mut self, amount: u64, queueing: bool) {
        if queueing {
            self.threshold = self.threshold.min(self.size);
        }
        if self.size == self.cap || amount == 0 {
            return;
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

    /// The cut since `before` was spurious. What was answered in the meantime may have made the window larger
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
