//! Round trip time (RFC 6298 section 2).

use ferroce_wire::{Instant, Psn, Span};

use super::rack::RoundTrips;

/// Never resend earlier than this on mere silence: the peer may just not have had the CPU.
const MIN_TIMEOUT: Span = Span::from_micros(250);
/// Behind a NAK the peer is known to be awake.
const MIN_RECOVERY: Span = Span::from_micros(100);
/// Before anything was measured: at most this.
const FIRST_TIMEOUT: Span = Span::from_millis(20);
/// The resend timeout of a late peer is its lateness times this, in quarters.
const PATIENCE_QUARTERS: u32 = 5;
/// The longer timeout is halved after this time if the peer was not late again.
const PATIENCE_FADES: Span = Span::from_millis(1000);
/// How long the least round trip time is remembered, at most twice.
const MEMORY: Span = Span::from_millis(10_000);
/// A round trip may take so much longer than twice the least before it means that queues fill: what a few
/// batches of 64 KiB take in the CPUs of both ends is no queue.
const SLACK: Span = Span::from_micros(200);

/// The peer may delay the answer to the newest packet by so much, beside the round trip.
const PROBE_SLACK: Span = Span::from_micros(20);
/// How long packets may be out of order, before any round trip was measured, and in bounds.
const UNKNOWN_REORDERING: Span = Span::from_micros(100);
const MIN_REORDERING: Span = Span::from_micros(5);
const MAX_REORDERING: Span = Span::from_millis(1);

/// Estimates the round trip time from one packet at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rtt {
    estimate: Option<Estimate>,
    sample: Option<(Psn, Instant)>,
    /// At least this long nothing is resent on mere silence, within bounds: grows when resends prove
    /// spurious, and shrinks when they were needed. RACK's reordering window is adapted in the same way (RFC
    /// 8985 section 6.2).
    patience: Span,
    patience_since: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    latest: Span,
    smoothed: Span,
    variation: Span,
    /// The least since `since`, and in the time before that.
    least: [Span; 2],
    since: Instant,
}

impl Rtt {
    /// `psn` left for the first time, and will be answered.
    pub fn sent(&mut self, psn: Psn, now: Instant) {
        self.sample.get_or_insert((psn, now));
    }

    /// Everything before `oldest` is answered.
    #[inline(always)]
    pub fn answered(&mut self, oldest: Psn, now: Instant) {
        let Some((_, sent)) = self.sample.take_if(|(psn, _)| oldest.since(*psn) > 0) else { return };
        let rtt = now.span_since(sent);
        if now.span_since(self.patience_since) > PATIENCE_FADES {
            (self.patience, self.patience_since) = (self.patience / 2, now);
        }
        let Some(estimate) = &mut self.estimate else {
            self.estimate = Some(Estimate {
                latest: rtt,
                smoothed: rtt,
                variation: rtt / 2,
                least: [rtt, rtt],
                since: now,
            });
            return;
        };
        let Estimate { smoothed, variation, least: [newer, older], .. } = *estimate;
        let outdated = now.span_since(estimate.since) > MEMORY;
        *estimate = Estimate {
            latest: rtt,
            variation: (variation * 3 + smoothed.abs_diff(rtt)) / 4,
            smoothed: (smoothed * 7 + rtt) / 8,
            least: if outdated { [rtt, newer] } else { [newer.min(rtt), older] },
            since: if outdated { now } else { estimate.since },
        };
    }

    /// Something is sent again: an answer would not tell to which of the two (Karn).
    pub fn forget_sample(&mut self) {
        self.sample = None;
    }

    /// The smoothed round trip time, once one was measured.
    pub fn smoothed(&self) -> Option<Span> {
        self.estimate.map(|estimate| estimate.smoothed)
    }

    /// The last round trip was long enough to show that packets wait in a queue: more packets in flight would
    /// wait longer, until the queue overflows.
    pub fn is_queueing(&self) -> bool {
        self.estimate.is_some_and(|estimate| estimate.latest > estimate.least() * 2 + SLACK)
    }

    /// Silence after which to resend, given the ACK timeout if the queue pair has one.
    pub fn timeout(&self, ack_timeout: Option<Span>) -> Span {
        self.at_least(ack_timeout, Estimate::timeout)
    }

    /// Silence after which to send the newest packet again, given the ACK timeout if the queue pair has one
    /// (RFC 8985 section 7.2).
    pub fn probe_timeout(&self, ack_timeout: Option<Span>) -> Span {
        self.at_least(ack_timeout, |estimate| estimate.smoothed * 2 + PROBE_SLACK)
    }

    /// The timeout `of` what was measured, but not before the patience with a late peer ends.
    #[inline]
    fn at_least(&self, ack_timeout: Option<Span>, of: fn(&Estimate) -> Span) -> Span {
        // The lower bound of the patience does not depend on the ACK timeout.
        if let Some(estimate) = &self.estimate
            && self.patience <= MIN_TIMEOUT
        {
            return of(estimate).max(MIN_TIMEOUT);
        }
        let longest =
            ack_timeout.map_or(FIRST_TIMEOUT, |timeout| (timeout / 4).clamp(MIN_TIMEOUT, FIRST_TIMEOUT));
        let estimate = self.estimate.as_ref();
        estimate.map_or(longest, |estimate| of(estimate).max(self.patience.clamp(MIN_TIMEOUT, longest)))
    }

    /// The bounds of the time for which packets may be out of order before one counts as lost.
    pub fn reordering(&self) -> RoundTrips {
        let least = self.least().unwrap_or(UNKNOWN_REORDERING * 4);
        let quarter = (least / 4).clamp(MIN_REORDERING, MAX_REORDERING);
        let smoothed = self.smoothed().unwrap_or_default();
        RoundTrips {
            quarter: quarter.duration(),
            half: (least / 2).duration(),
            smoothed: smoothed.duration(),
        }
    }

    /// Whether an answer this long after a resend is too soon to be one to it.
    pub fn is_sooner(&self, took: Span) -> bool {
        self.least().is_some_and(|least| took < least / 2)
    }

    fn least(&self) -> Option<Span> {
        self.estimate.as_ref().map(Estimate::least)
    }

    /// Whether an answer after this time may answer that packet. `None`: nothing was measured.
    pub fn is_round_trip(&self, took: Span) -> Option<bool> {
        let estimate = self.estimate?;
        // A single packet may be quicker than the batches that were measured.
        Some((estimate.least() / 2..=estimate.timeout().max(MIN_TIMEOUT)).contains(&took))
    }

    /// A resend was spurious: the answer came `took` after the original.
    pub fn was_late(&mut self, now: Instant, took: Span) {
        let longer = (took / 4) * PATIENCE_QUARTERS;
        self.patience = (self.patience * 2).max(longer).min(FIRST_TIMEOUT);
        self.patience_since = now;
    }

    pub fn was_lost(&mut self) {
        self.patience = self.patience / 2;
    }

    /// Silence after which to resend once more what a NAK asked for, given the ACK timeout if the queue pair
    /// has one.
    pub fn recovery_timeout(&self, ack_timeout: Option<Span>) -> Span {
        match self.estimate {
            Some(estimate) => estimate.timeout().max(MIN_RECOVERY),
            None => self.timeout(ack_timeout),
        }
    }
}

impl Estimate {
    fn timeout(&self) -> Span {
        self.smoothed + self.variation * 4
    }

    fn least(&self) -> Span {
        let [newer, older] = self.least;
        newer.min(older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Span = Span::from_micros(1);

    fn measure(rtt: &mut Rtt, at: Instant, took: Span) {
        rtt.sent(Psn::new(1), at);
        rtt.answered(Psn::new(1), at + took);
        assert!(rtt.sample.is_some(), "not by what came before it");
        rtt.answered(Psn::new(2), at + took);
        assert!(rtt.sample.is_none());
    }

    #[test]
    fn the_timeout_follows_what_is_measured() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(None), FIRST_TIMEOUT);
        assert_eq!(rtt.timeout(Some(US * 40_000)), US * 10_000);
        measure(&mut rtt, Instant::ZERO, US * 1000);
        assert_eq!(rtt.timeout(None), US * 3000);
        for _ in 0..100 {
            measure(&mut rtt, Instant::ZERO, US * 20);
        }
        assert_eq!(rtt.timeout(None), MIN_TIMEOUT);
        assert_eq!(rtt.recovery_timeout(None), MIN_RECOVERY);
    }

    #[test]
    fn patience_grows_with_late_answers_and_fades() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.is_round_trip(US * 20), None);
        for _ in 0..100 {
            measure(&mut rtt, Instant::ZERO, US * 20);
        }
        for (took, fits) in [(9, false), (10, true), (250, true), (251, false)] {
            assert_eq!(rtt.is_round_trip(US * took), Some(fits), "{took}");
        }
        rtt.was_late(Instant::ZERO, US * 4000);
        assert_eq!(rtt.timeout(None), US * 5000);
        assert_eq!(rtt.timeout(Some(US * 8000)), US * 2000, "the ACK timeout comes behind four of them");
        assert_eq!(rtt.recovery_timeout(None), MIN_RECOVERY, "behind a NAK the peer is awake");
        rtt.was_late(Instant::ZERO, US * 400);
        assert_eq!(rtt.timeout(None), US * 10_000);
        rtt.was_late(Instant::ZERO, US * 90_000);
        assert_eq!(rtt.timeout(None), FIRST_TIMEOUT);
        rtt.was_lost();
        assert_eq!(rtt.timeout(None), FIRST_TIMEOUT / 2);
        measure(&mut rtt, Instant::ZERO + PATIENCE_FADES + US, US * 20);
        assert_eq!(rtt.timeout(None), FIRST_TIMEOUT / 4);
        (0..20).for_each(|_| rtt.was_lost());
        assert_eq!(rtt.timeout(None), MIN_TIMEOUT);
    }

    #[test]
    fn queues_show_in_the_round_trip_time() {
        let mut rtt = Rtt::default();
        let mut now = Instant::ZERO;
        measure(&mut rtt, now, US * 20);
        assert!(!rtt.is_queueing());
        measure(&mut rtt, now, US * 241);
        assert!(rtt.is_queueing());
        measure(&mut rtt, now, US * 239);
        assert!(!rtt.is_queueing());
        // A longer path counts as a queue only for a limited time.
        for _ in 0..3 {
            now = now + (MEMORY + US * 500);
            measure(&mut rtt, now, US * 600);
        }
        assert!(!rtt.is_queueing());
    }
}
