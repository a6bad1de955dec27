//! A TCP flow without end, as far as its congestion control is concerned: NewReno (RFC 6582) with ECN (RFC
//! 3168).

use std::collections::BTreeSet;
use std::time::Duration;

use ferroce_wire::Instant;

/// Octets of payload of a segment.
const MSS: u64 = 1448;
/// Ethernet with preamble and gap, IPv4, TCP with timestamps.
const OVERHEAD: usize = 38 + 20 + 32;
/// The initial window in segments (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
const LEAST_TIMEOUT: Duration = Duration::from_millis(200);
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A segment under way. Sequence numbers count segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub stream: usize,
    pub kind: Kind,
    /// The sender understands marks.
    pub capable: bool,
    pub marked: bool,
    pub sent: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Data(u64),
    /// Everything before the number has arrived; the segment that caused it was marked.
    Ack(u64, bool),
}

impl Segment {
    /// In the digest of a run.
    pub const fn mark(&self) -> u64 {
        let number = match self.kind {
            Kind::Data(number) => number << 1,
            Kind::Ack(number, _) => number << 1 | 1,
        };
        number ^ (self.stream as u64) << 40 ^ (self.marked as u64) << 58
    }

    pub const fn wire_len(&self) -> usize {
        match self.kind {
            Kind::Data(_) => OVERHEAD + MSS as usize,
            Kind::Ack(..) => OVERHEAD,
        }
    }
}

/// Both ends of a flow.
#[derive(Debug)]
pub(crate) struct Reno {
    stream: usize,
    ecn: bool,
    window: f64,
    threshold: f64,
    /// The oldest segment that is not acknowledged, and the next one to send.
    oldest: u64,
    next: u64,
    /// Segments sent at least once.
    newest: u64,
    duplicates: u32,
    /// In recovery until this one is acknowledged.
    recover: Option<u64>,
    /// The window was reduced for a mark; not again until this one is acknowledged.
    reduced_until: u64,
    smoothed: Option<Duration>,
    variation: Duration,
    backoff: u32,
    timer: Option<Instant>,
    /// The receiver's next segment, and those beyond it.
    expected: u64,
    early: BTreeSet<u64>,
}

impl Reno {
    pub const fn new(stream: usize, ecn: bool) -> Self {
        Self {
            stream,
            ecn,
            window: INITIAL_WINDOW,
            threshold: f64::MAX,
            oldest: 0,
            next: 0,
            newest: 0,
            duplicates: 0,
            recover: None,
            reduced_until: 0,
            smoothed: None,
            variation: Duration::ZERO,
            backoff: 0,
            timer: None,
            expected: 0,
            early: BTreeSet::new(),
        }
    }

    /// Octets of payload that the receiver has in order.
    pub const fn delivered(&self) -> u64 {
        self.expected * MSS
    }

    pub const fn timeout(&self) -> Option<Instant> {
        self.timer
    }

    const fn segment(&self, now: Instant, kind: Kind) -> Segment {
        let capable = self.ecn && matches!(kind, Kind::Data(_));
        Segment { stream: self.stream, kind, capable, marked: false, sent: now }
    }

    /// A segment reached the receiver; its acknowledgement.
    pub fn receive(&mut self, now: Instant, number: u64, segment: &Segment) -> Segment {
        if number >= self.expected {
            self.early.insert(number);
        }
        while self.early.remove(&self.expected) {
            self.expected += 1;
        }
        Segment { sent: segment.sent, ..self.segment(now, Kind::Ack(self.expected, segment.marked)) }
    }

    /// An acknowledgement reached the sender. Segments to send are added to `out`.
    pub fn acknowledged(
        &mut self,
        now: Instant,
        to: u64,
        marked: bool,
        sent: Instant,
        out: &mut Vec<Segment>,
    ) {
        if marked && self.recover.is_none() && self.oldest >= self.reduced_until {
            self.halve();
            self.window = self.threshold;
            self.reduced_until = self.next;
        }
        if to > self.oldest {
            self.measure(now.saturating_since(sent));
            let count = (to - self.oldest) as f64;
            self.oldest = to;
            self.next = self.next.max(to);
            self.duplicates = 0;
            self.backoff = 0;
            match self.recover {
                Some(recover) if to < recover => {
                    // A partial acknowledgement: the next one is missing too.
                    out.push(self.segment(now, Kind::Data(to)));
                    self.window = (self.window - count + 1.0).max(1.0);
                }
                Some(_) => {
                    self.recover = None;
                    self.window = self.threshold;
                }
                None if self.window < self.threshold => self.window += count.min(2.0),
                None => self.window += count / self.window,
            }
            self.timer = (self.oldest < self.next).then(|| now + self.patience());
        } else if to == self.oldest && self.oldest < self.next {
            self.duplicates += 1;
            if self.recover.is_some() {
                self.window += 1.0;
            } else if self.duplicates == 3 {
                self.halve();
                self.window = self.threshold + 3.0;
                self.recover = Some(self.newest);
                out.push(self.segment(now, Kind::Data(self.oldest)));
                self.timer = Some(now + self.patience());
            }
        }
        self.send(now, out);
    }

    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Segment>) {
        if self.timer.is_none_or(|timer| timer > now) {
            return;
        }
        self.halve();
        self.window = 1.0;
        self.recover = None;
        self.duplicates = 0;
        self.backoff += 1;
        self.next = self.oldest;
        self.timer = None;
        self.send(now, out);
    }

    /// Sends as much as the window has room for.
    pub fn send(&mut self, now: Instant, out: &mut Vec<Segment>) {
        while ((self.next - self.oldest) as f64) < self.window.floor().max(1.0) {
            out.push(self.segment(now, Kind::Data(self.next)));
            self.next += 1;
            self.newest = self.newest.max(self.next);
        }
        if self.timer.is_none() {
            self.timer = Some(now + self.patience());
        }
    }

    fn halve(&mut self) {
        let flight = (self.next - self.oldest) as f64;
        self.threshold = (flight.min(self.window) / 2.0).max(2.0);
    }

    fn measure(&mut self, took: Duration) {
        let Some(smoothed) = self.smoothed else {
            (self.smoothed, self.variation) = (Some(took), took / 2);
            return;
        };
        self.variation = (self.variation * 3 + smoothed.abs_diff(took)) / 4;
        self.smoothed = Some((smoothed * 7 + took) / 8);
    }

    fn patience(&self) -> Duration {
        let measured = self
            .smoothed
            .map_or(FIRST_TIMEOUT, |smoothed| (smoothed + self.variation * 4).max(LEAST_TIMEOUT));
        (measured * (1 << self.backoff.min(8))).min(LONGEST_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A path of 10 ms each way that loses the segments in `lost` once; what the receiver has after `rounds`
    /// of 20 ms.
    fn transfer(lost: &[u64], marked: &[u64], rounds: u32) -> Reno {
        let mut flow = Reno::new(0, true);
        let (mut lost, mut now, mut under_way) = (lost.to_vec(), Instant::ZERO, Vec::new());
        flow.send(now, &mut under_way);
        for _ in 0..rounds {
            let mut next = Vec::new();
            now += MS * 20;
            for mut segment in std::mem::take(&mut under_way) {
                let Kind::Data(number) = segment.kind else { panic!("only data is sent") };
                if let Some(at) = lost.iter().position(|lost| *lost == number) {
                    lost.remove(at);
                    continue;
                }
                segment.marked = marked.contains(&number);
                let Kind::Ack(to, ece) = flow.receive(now, number, &segment).kind else { panic!("an ACK") };
                flow.acknowledged(now, to, ece, segment.sent, &mut next);
            }
            flow.handle_timeout(now, &mut next);
            under_way = next;
        }
        flow
    }

    #[test]
    fn slow_start_doubles_the_window() {
        let flow = transfer(&[], &[], 4);
        assert_eq!(flow.expected, 10 + 20 + 40 + 80);
    }

    #[test]
    fn a_loss_halves_the_window_and_is_repaired() {
        let flow = transfer(&[35], &[], 30);
        assert!(flow.expected > 700 && flow.recover.is_none(), "{flow:?}");
        assert!(flow.window < 80.0 && flow.window > 30.0, "{flow:?}");
    }

    #[test]
    fn a_mark_halves_the_window_and_nothing_is_sent_again() {
        let flow = transfer(&[], &[35, 36, 37], 5);
        assert!((20.0..45.0).contains(&flow.window), "{flow:?}");
        assert_eq!(flow.newest - flow.expected, flow.next - flow.oldest);
    }

    #[test]
    fn the_last_segment_is_repaired_by_the_timer() {
        let flow = transfer(&(0..10).collect::<Vec<_>>(), &[], 80);
        assert!(flow.expected > 100, "{flow:?}");
    }
}
