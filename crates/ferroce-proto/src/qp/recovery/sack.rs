//! Selective repeat: the requests that the peer holds, and those that are to be sent again.
//!
//! To hold a request is a promise that may be broken. So everything stays in the send queue until it is
//! acknowledged, and a silent peer is asked as any other: by going back.

use core::time::Duration;

use ferroce_wire::{Instant, Psn};

use super::rack::{DUP_THRESH, Rack, RoundTrips};

/// Requests that one report tells of.
pub(super) const REPORTED: u32 = u128::BITS;
/// A PSN further behind another one is no mark of a request.
const MOST_BEHIND: u16 = 1 << 13;

/// The peer's newest report, and the answer to it (RFC 6675). Bit `i` of each set stands for the PSN
/// `base + i`.
///
/// A request is lost if it is not held, later ones are, and that has been so for the reordering window. A
/// request that was sent again is lost once more if one is held that left after it.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    agreed: bool,
    /// The PSN before which the peer executed everything.
    base: Psn,
    held: u128,
    /// Requests that the peer does not hold, suspected to be lost since `suspected_at`.
    suspects: u128,
    suspected_at: Instant,
    /// How long a request is suspected before it counts as lost.
    rack: Rack,
    /// The requests that became lost when a suspicion expired last.
    newest: u128,
    /// A retransmission proved spurious since the last [`Self::take_spurious`].
    spurious: bool,
    /// Requests that count as lost and wait to be sent again.
    lost: u128,
    /// Requests that were sent again and that the peer does not hold yet.
    retransmitted: u128,
    /// For each request in `retransmitted`, indexed by the low seven bits of its PSN: the low 16 bits of the
    /// PSN that was next when the request was sent again.
    marks: Marks,
}

#[derive(Debug)]
struct Marks([u16; REPORTED as usize]);

impl Default for Marks {
    fn default() -> Self {
        Self([0; REPORTED as usize])
    }
}

impl Scoreboard {
    /// Begins with the first PSN; `agreed` if the peer reports what it holds.
    pub fn new(first: Psn, agreed: bool) -> Self {
        Self { agreed, base: first, ..Self::default() }
    }

    /// The peer announced that it reports what it holds.
    pub const fn agree(&mut self) {
        self.agreed = true;
    }

    pub const fn is_agreed(&self) -> bool {
        self.agreed
    }

    /// The peer executed everything before it, as far as is known.
    pub const fn base(&self) -> Psn {
        self.base
    }

    /// Whether it was sent again alone, and the peer is not known to hold it.
    pub fn is_retransmitted(&self, psn: Psn) -> bool {
        let bit = psn.since(self.base);
        (0..REPORTED as i32).contains(&bit) && self.retransmitted >> bit & 1 != 0
    }

    /// Whether it is known of no request that the peer holds it, or that it is lost.
    pub const fn is_empty(&self) -> bool {
        self.held | self.suspects | self.lost | self.retransmitted == 0
    }

    /// Requests that the peer holds.
    pub const fn held(&self) -> u32 {
        if self.held == 0 { 0 } else { self.held.count_ones() }
    }

    /// Whether the peer has no room for this PSN while the gap is open.
    pub const fn is_beyond(&self, psn: Psn) -> bool {
        self.held != 0 && psn.since(self.base) >= REPORTED as i32 - 1
    }

    /// The peer executed everything before `base`.
    #[inline]
    pub fn reached(&mut self, now: Instant, base: Psn) {
        if !self.is_empty() {
            self.pass(now, base, base);
        } else if base.since(self.base) > 0 {
            self.base = base;
        }
    }

    /// The peer executed everything before `base`, and has something before `known`.
    fn pass(&mut self, now: Instant, base: Psn, known: Psn) {
        let passed = base.since(self.base);
        if passed <= 0 {
            return;
        }
        self.base = base;
        if self.is_empty() {
            return;
        }
        let first = base.add((passed as u32).wrapping_neg());
        let received = if self.held == 0 { known } else { later(known, behind(self.held, first)) };
        let arrived = mask(passed as u32);
        let late = self.has_late(now, first, arrived, received);
        // A late packet tells nothing of those that left before the packet that was sent again.
        let dropped = if self.held == 0 && !late {
            self.left_before(first, self.retransmitted & arrived, base)
        } else {
            0
        };
        let Self { held, suspects, newest, lost, retransmitted, .. } = self;
        for set in [held, suspects, newest, lost, retransmitted] {
            *set = set.checked_shr(passed as u32).unwrap_or(0);
        }
        // An outdated report: the base itself is what the peer waits for.
        self.held &= !1;
        if dropped != 0 {
            self.suspect_dropped(now, dropped);
        }
    }

    /// Whether one of these requests, which arrived, was sent again for nothing; bit 0 stands for `first`. A
    /// packet that was sent again arrives behind those that left before it. So the original has arrived if
    /// several of those have not: nothing from `received` on has. Requests that an older suspicion made lost
    /// are not judged, because the time of that is not known any more.
    fn has_late(&mut self, now: Instant, first: Psn, arrived: u128, received: Psn) -> bool {
        let again = self.retransmitted & self.newest & arrived;
        let late =
            again != 0 && self.left_before(first, again, received) > DUP_THRESH && self.rack.arrived(now);
        self.spurious |= late;
        late
    }

    /// Whether a packet was sent again for nothing since the last call.
    pub const fn take_spurious(&mut self) -> bool {
        core::mem::replace(&mut self.spurious, false)
    }

    /// How many requests, from `received` on, left before one of these was sent again; bit 0 stands for
    /// `first`.
    #[cold]
    fn left_before(&self, first: Psn, mut again: u128, received: Psn) -> u32 {
        let received = received.value() as u16;
        let mut count = 0;
        while again != 0 {
            let psn = first.add(again.trailing_zeros());
            again &= again - 1;
            let mark = self.marks.0.get(position(psn)).copied().unwrap_or(received);
            // Responses to READs have marks that are further away.
            let behind = mark.wrapping_sub(received);
            count = count.max(if behind < MOST_BEHIND { u32::from(behind) } else { 0 });
        }
        count.min(REPORTED)
    }

    /// The gap is closed, the peer reported nothing held, and yet it does not acknowledge `count` requests
    /// that left before the one that closed the gap. It has dropped them, as a standard peer does, because it
    /// has no memory to hold them; or it is about to acknowledge them.
    #[cold]
    fn suspect_dropped(&mut self, now: Instant, count: u32) {
        if self.suspects == 0 {
            self.suspected_at = now;
        }
        self.suspects |= mask(count) & !(self.lost | self.retransmitted);
    }

    /// The peer waits for `base`, and of the requests behind it holds those of `ahead`: bit `i` is the PSN
    /// `base + 1 + i`. `next` was never sent. `false` if the report is older than what is known.
    pub fn report(
        &mut self,
        now: Instant,
        base: Psn,
        ahead: u128,
        next: Psn,
        round_trips: RoundTrips,
    ) -> bool {
        if base.since(self.base) < 0 {
            return false;
        }
        // Not what was never sent.
        let held = (ahead << 1) & mask(next.since(base) as u32);
        let received = behind(held, base);
        self.pass(now, base, received);
        self.held = held;
        let holes = self.holes();
        self.has_late(now, base, held, received);
        self.lost &= holes;
        self.retransmitted &= holes;
        self.suspects &= holes;
        self.rack.measure(round_trips);
        self.find_lost_again();
        self.suspect(now);
        true
    }

    /// The peer waits for `base` and dropped or holds something behind it.
    pub fn missing(&mut self, now: Instant, base: Psn, round_trips: RoundTrips) {
        self.reached(now, base);
        self.rack.measure(round_trips);
        // The window may be shorter than when the suspicion began.
        self.expire(now);
        if (self.lost | self.retransmitted | self.suspects) & 1 == 0 {
            if self.suspects == 0 {
                self.suspected_at = now;
            }
            self.suspects |= 1;
            self.expire(now);
        }
    }

    /// How long a packet may be missing before it counts as lost.
    pub fn reordering_window(&mut self, now: Instant, round_trips: RoundTrips) -> Duration {
        self.rack.measure(round_trips);
        self.expire(now);
        self.rack.length(0)
    }

    /// Everything was sent again for nothing.
    pub fn was_spurious(&mut self) {
        self.rack.grow();
    }

    /// Requests that are not held although later ones are.
    const fn holes(&self) -> u128 {
        !self.held & mask(u128::BITS - self.held.leading_zeros())
    }

    /// A held request left after one that was sent again: that one was lost again.
    fn find_lost_again(&mut self) {
        if self.retransmitted == 0 || self.held == 0 {
            return;
        }
        let newest = self.base.add(u128::BITS - 1 - self.held.leading_zeros()).value() as u16;
        let mut left = self.retransmitted;
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            let mark = self.marks.0.get(position(self.base.add(bit))).copied().unwrap_or_default();
            if newest.wrapping_sub(mark) < 1 << 15 {
                self.retransmitted &= !(1 << bit);
                self.lost |= 1 << bit;
            }
        }
    }

    /// Lets suspicions expire, and begins new ones. Without a wait a new one expires at once.
    fn suspect(&mut self, now: Instant) {
        if self.wait().is_zero() {
            self.suspects = self.open();
        }
        self.expire(now);
        if self.suspects == 0 {
            (self.suspects, self.suspected_at) = (self.open(), now);
            // The recovery that began may have been the last for which there was a wait.
            self.expire(now);
        }
    }

    /// Requests that are not held, and for which nothing is done yet.
    const fn open(&self) -> u128 {
        self.holes() & !(self.lost | self.retransmitted)
    }

    /// Whether a request is suspected to be lost.
    pub const fn suspects(&self) -> bool {
        self.suspects != 0
    }

    fn wait(&self) -> Duration {
        self.rack.length(self.held())
    }

    fn expire(&mut self, now: Instant) {
        if self.suspects != 0 && now >= self.suspected_at + self.wait() {
            self.rack.lost(now);
            self.newest = self.suspects;
            self.lost |= self.suspects;
            self.suspects = 0;
        }
    }

    /// Time at which the suspected requests count as lost; `None` if no request is suspected.
    pub fn timeout(&self) -> Option<Instant> {
        (self.suspects != 0).then(|| self.suspected_at + self.wait())
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.suspect(now);
    }

    /// Nothing was heard for long: what was sent again, and what is suspected, counts as lost. `false` if
    /// there is nothing.
    pub fn retry(&mut self) -> bool {
        self.lost |= self.retransmitted | self.suspects;
        (self.retransmitted, self.suspects) = (0, 0);
        self.lost != 0
    }

    /// The oldest PSN to be sent again.
    pub fn next_lost(&self) -> Option<Psn> {
        (self.lost != 0).then(|| self.base.add(self.lost.trailing_zeros()))
    }

    /// [`Self::next_lost`] was sent again; `next` was never sent.
    pub fn retransmitted(&mut self, psn: Psn, next: Psn) {
        self.mark(psn, next.value() as u16);
    }

    /// No request begins with [`Self::next_lost`]: it is one of the responses to a READ.
    pub fn no_request(&mut self, psn: Psn, next: Psn) {
        self.newest &= !(1_u128.checked_shl(psn.since(self.base) as u32).unwrap_or(0));
        // As if it had been sent again long after everything that is.
        self.mark(psn, (next.value() as u16).wrapping_add(1 << 14));
    }

    fn mark(&mut self, psn: Psn, mark: u16) {
        let bit = psn.since(self.base);
        if !(0..REPORTED as i32).contains(&bit) {
            return;
        }
        self.lost &= !(1 << bit);
        self.retransmitted |= 1 << bit;
        if let Some(place) = self.marks.0.get_mut(position(psn)) {
            *place = mark;
        }
    }

    /// Everything is sent again, in order.
    pub const fn clear(&mut self) {
        (self.held, self.suspects, self.lost, self.retransmitted) = (0, 0, 0, 0);
    }
}

/// The PSN behind the newest of a set; bit 0 stands for `first`.
const fn behind(set: u128, first: Psn) -> Psn {
    first.add(u128::BITS - set.leading_zeros())
}

const fn later(one: Psn, other: Psn) -> Psn {
    if one.since(other) < 0 { other } else { one }
}

const fn position(psn: Psn) -> usize {
    (psn.value() & (REPORTED - 1)) as usize
}

/// The lowest `count` bits.
const fn mask(count: u32) -> u128 {
    if count < u128::BITS { (1 << count) - 1 } else { u128::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: RoundTrips = RoundTrips {
        quarter: Duration::from_micros(10),
        half: Duration::from_micros(20),
        smoothed: Duration::from_micros(40),
    };

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(us)
    }

    fn psn(n: u32) -> Psn {
        Psn::new(0xff_fff0).add(n)
    }

    fn lost(board: &mut Scoreboard, next: Psn) -> Vec<u32> {
        let mut lost = Vec::new();
        while let Some(first) = board.next_lost() {
            lost.push(first.since(psn(0)) as u32);
            board.retransmitted(first, next);
        }
        lost
    }

    #[test]
    fn a_hole_is_lost_after_the_wait() {
        let mut board = Scoreboard::new(psn(0), true);
        assert!(board.report(at(0), psn(2), 0b101, psn(40), WAIT));
        assert_eq!(board.held(), 2);
        assert_eq!(board.next_lost(), None);
        assert_eq!(board.timeout(), Some(at(10)));
        board.handle_timeout(at(9));
        assert_eq!(board.next_lost(), None);
        board.handle_timeout(at(10));
        assert_eq!(lost(&mut board, psn(40)), [2, 4]);
        assert_eq!(board.timeout(), None);
        // Both are on their way; the second arrives. Packets sent before them tell nothing of the first.
        assert!(board.report(at(20), psn(2), 0b1111_1111, psn(41), WAIT));
        assert_eq!(lost(&mut board, psn(41)), [0; 0]);
        // A request that left after it is held.
        assert!(board.report(at(30), psn(2), u128::MAX >> 91, psn(42), WAIT));
        assert_eq!(board.held(), 37);
        assert_eq!(lost(&mut board, psn(42)), [0; 0]);
        assert!(board.report(at(40), psn(2), u128::MAX >> 90, psn(42), WAIT));
        assert_eq!(lost(&mut board, psn(42)), [2]);
        board.reached(at(0), psn(42));
        assert_eq!(board.held(), 0);
    }

    /// Three held requests are no accident of the order, until a recovery proves spurious (RFC 8985 section
    /// 6.2).
    #[test]
    fn a_hole_in_front_of_three_is_lost_at_once_unless_the_network_changes_the_order() {
        let mut board = Scoreboard::new(psn(0), true);
        assert!(board.report(at(0), psn(0), 0b11, psn(40), WAIT));
        assert_eq!((board.next_lost(), board.timeout()), (None, Some(at(10))));
        assert!(board.report(at(1), psn(0), 0b10111, psn(40), WAIT));
        assert_eq!(lost(&mut board, psn(40)), [0, 4], "and a gap behind it");
        assert_eq!(board.timeout(), None);
        // The packet itself arrives, and not the one that was sent again: thirty that left before that one
        // are still on their way.
        assert!(board.report(at(12), psn(4), 0b1_1111, psn(45), WAIT));
        assert!(board.report(at(30), psn(4), 0b101_1111, psn(45), WAIT));
        assert_eq!(
            (board.next_lost(), board.timeout()),
            (None, Some(at(50))),
            "two quarters, although six are held"
        );
    }

    /// A queue pair that sends in large batches measures long round trips alone; a single packet is answered
    /// sooner.
    #[test]
    fn an_answer_behind_all_that_left_before_the_resend_is_no_late_packet() {
        const BATCHES: RoundTrips = RoundTrips {
            quarter: Duration::from_micros(50),
            half: Duration::from_micros(100),
            smoothed: Duration::from_micros(250),
        };
        for (received, waits) in [(39, false), (37, false), (36, true)] {
            let mut board = Scoreboard::new(psn(0), true);
            assert!(board.report(at(0), psn(0), 0b111, psn(40), BATCHES));
            assert_eq!(lost(&mut board, psn(40)), [0]);
            // Half of the least round trip would be 100.
            board.reached(at(20), psn(received));
            assert!(board.report(at(30), psn(50), 0b111, psn(60), BATCHES));
            assert_eq!(board.timeout().is_some(), waits, "{received} received");
            assert_eq!(board.next_lost().is_some(), !waits, "{received} received");
        }
    }

    #[test]
    fn reordering_within_the_wait_is_no_loss() {
        let mut board = Scoreboard::new(psn(0), true);
        assert!(board.report(at(0), psn(0), 0b11, psn(9), WAIT));
        board.reached(at(0), psn(3));
        board.handle_timeout(at(50));
        assert_eq!((board.next_lost(), board.timeout()), (None, None));
        assert!(!board.report(at(60), psn(2), 1, psn(9), WAIT), "older than what is known");
    }

    /// Timers that are due after they ran would keep the caller from its sleep.
    #[test]
    fn a_window_that_becomes_shorter_leaves_no_timer_that_is_due() {
        let shorter =
            RoundTrips { quarter: WAIT.quarter / 2, half: WAIT.half / 2, smoothed: WAIT.smoothed / 2 };
        let begin = || {
            let mut board = Scoreboard::new(psn(0), true);
            board.missing(at(0), psn(0), WAIT);
            assert_eq!(board.timeout(), Some(at(10)));
            board
        };
        let mut board = begin();
        board.missing(at(6), psn(0), shorter);
        assert_eq!((board.timeout(), board.next_lost()), (None, Some(psn(0))));
        let mut board = begin();
        assert_eq!(board.reordering_window(at(6), shorter), shorter.quarter);
        assert_eq!((board.timeout(), board.next_lost()), (None, Some(psn(0))));
    }

    /// The packet that was suspected comes late, and not the one that was sent again for it. The peer may
    /// hold what left between the two.
    #[test]
    fn a_gap_that_a_late_packet_closes_makes_no_other_packet_lost() {
        let mut board = Scoreboard::new(psn(0), true);
        board.missing(at(0), psn(0), WAIT);
        board.handle_timeout(at(10));
        assert_eq!(lost(&mut board, psn(40)), [0]);
        board.reached(at(29), psn(2));
        assert_eq!(board.timeout(), None);
        // The next suspicion lasts longer.
        board.missing(at(100), psn(2), WAIT);
        board.handle_timeout(at(119));
        assert_eq!(lost(&mut board, psn(40)), [0; 0]);
        board.handle_timeout(at(120));
        assert_eq!(lost(&mut board, psn(40)), [2]);
        // The packet that was sent again was reached: the peer dropped those behind it, as it holds nothing.
        board.reached(at(140), psn(3));
        board.handle_timeout(at(160));
        assert_eq!(lost(&mut board, psn(5)).len(), 37);
    }

    #[test]
    fn a_forged_report_names_nothing_that_was_not_sent() {
        let mut board = Scoreboard::new(psn(0), true);
        assert!(board.report(at(0), psn(0), u128::MAX, psn(3), WAIT));
        assert_eq!(board.held(), 2);
        assert!(board.report(at(0), psn(3), u128::MAX, psn(3), WAIT));
        assert_eq!(board.held(), 0);
    }

    #[test]
    fn a_promise_may_be_broken() {
        let mut board = Scoreboard::new(psn(0), true);
        assert!(board.report(at(0), psn(0), 0b111, psn(9), WAIT));
        board.handle_timeout(at(10));
        assert_eq!(lost(&mut board, psn(9)), [0]);
        assert!(board.report(at(50), psn(1), 0b100, psn(9), WAIT));
        board.handle_timeout(at(60));
        assert_eq!(lost(&mut board, psn(9)), [1, 2, 3]);
        assert!(board.retry());
        assert_eq!(lost(&mut board, psn(9)), [1, 2, 3]);
        board.clear();
        assert!(!board.retry());
    }
}
