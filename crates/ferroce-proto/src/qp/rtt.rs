//! Round trip time (RFC 6298 section 2).

use core::time::Duration;

use ferroce_wire::{Instant, Psn};

/// Never resend earlier than this: schedulers of the peer's host take about so long.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
/// Before anything was measured, and no ACK timeout is set.
const FIRST_TIMEOUT: Duration = Duration::from_millis(100);

/// Estimates the round trip time from one packet at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    estimate: Option<Estimate>,
    sample: Option<(Psn, Instant)>,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed: Duration,
    variation: Duration,
}

impl Rtt {
    /// `psn` left for the first time, and will be answered.
    pub fn sent(&mut self, psn: Psn, now: Instant) {
        self.sample.get_or_insert((psn, now));
    }

    /// Everything before `oldest` is answered.
    pub fn answered(&mut self, oldest: Psn, now: Instant) {
        let Some((_, sent)) = self.sample.take_if(|(psn, _)| oldest.since(*psn) > 0) else { return };
        let rtt = now.saturating_since(sent);
        self.estimate = Some(match self.estimate {
            None => Estimate { smoothed: rtt, variation: rtt / 2 },
            Some(Estimate { smoothed, variation }) => Estimate {
                variation: (variation * 3 + smoothed.abs_diff(rtt)) / 4,
                smoothed: (smoothed * 7 + rtt) / 8,
            },
        });
    }

    /// Something is sent again: an answer would not tell to which of the two (Karn).
    pub fn forget_sample(&mut self) {
        self.sample = None;
    }

    /// When to resend, given the ACK timeout if there is one.
    pub fn timeout(&self, ack_timeout: Option<Duration>) -> Duration {
        match (self.estimate, ack_timeout) {
            (Some(estimate), _) => (estimate.smoothed + estimate.variation * 4).max(MIN_TIMEOUT),
            (None, Some(ack_timeout)) => (ack_timeout / 4).clamp(MIN_TIMEOUT, FIRST_TIMEOUT),
            (None, None) => FIRST_TIMEOUT,
        }
    }
}
