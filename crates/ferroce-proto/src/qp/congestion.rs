//! Congestion control between two ends: the notification point answers congestion marks with CNPs, and the
//! reaction point slows down what it sends (RoCEv2 annex A17.9; the rate rules are DCQCN's, Zhu and others,
//! SIGCOMM 2015).

use core::time::Duration;

use ferroce_wire::Instant;

/// A queue pair sends one CNP in this time at most (DCQCN's N).
const NOTIFY_EVERY: Duration = Duration::from_micros(50);
/// The rate is cut once in this time at most, or in a round trip if that is longer.
const CUT_EVERY: Duration = Duration::from_micros(50);
/// The estimate of congestion fades after this time without a CNP (DCQCN's K), or a round trip if that is
/// longer.
const FADE_EVERY: Duration = Duration::from_micros(55);
/// The rate rises after this time (DCQCN's timer), or a round trip if that is longer. Published experiments
/// shared a link fairly with it, and not with the 55 us of the paper.
const RISE_EVERY: Duration = Duration::from_micros(1200);
/// Octets after which the rate rises as well (DCQCN's byte counter).
const RISE_OCTETS: u64 = 10_000_000;
/// Rises that go half the way back to the rate before the cut (DCQCN's F).
const RECOVERY_ROUNDS: u32 = 5;
/// Octets a second by which the rate rises after that: 5 Mbit/s, and 50 Mbit/s when both counters are that
/// far.
const ADDITIVE: u64 = 5_000_000 / 8;
const HYPER: u64 = 50_000_000 / 8;
/// DCQCN's g is 1 / 256.
const GAIN_BITS: u32 = 8;
/// An estimate of congestion of 1.
const ONE: u32 = 1 << 16;
/// Least and largest rate in octets a second: 1 Mbit/s, as ConnectX has it, and 100 Gbit/s, beyond which
/// nothing is limited.
const LEAST_RATE: u64 = 1_000_000 / 8;
const LARGEST_RATE: u64 = 100_000_000_000 / 8;
/// CNPs leave at least this part of the largest rate at a CNP, for which [`USUAL_FLIGHT`] each round trip, of
/// [`USUAL_ROUND_TRIP`] or longer, is the least. A CNP has no PSN, so anybody who can write the peer's
/// address can forge it: what a queue pair loses by CNPs alone is bounded. Losses still shrink the window
/// below that.
const LEAST_FRACTION: u64 = 64;
const USUAL_FLIGHT: u64 = 32 << 10;
const USUAL_ROUND_TRIP: Duration = Duration::from_micros(100);
/// Octets that may leave at once are those of this time at the rate, at least a packet and at most
/// [`LARGEST_BURST`].
const BURST_TIME: Duration = Duration::from_micros(100);
const LARGEST_BURST: u64 = 64 << 10;
/// A limit is given up after this time without a CNP.
const MEMORY: Duration = Duration::from_secs(1);
/// Most periods that are made up for after a pause.
const MOST_STEPS: u32 = 64;

/// The notification point of a queue pair.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Notifier {
    quiet_until: Option<Instant>,
    due: bool,
}

impl Notifier {
    /// A packet of the peer came marked. The first mark is answered at once; those that follow within
    /// [`NOTIFY_EVERY`] are not.
    pub fn marked(&mut self, now: Instant) {
        if self.quiet_until.is_none_or(|until| until <= now) {
            *self = Self { quiet_until: Some(now + NOTIFY_EVERY), due: true };
        }
    }

    /// Whether a CNP is to be sent.
    pub const fn is_due(&self) -> bool {
        self.due
    }

    /// The CNP has left.
    pub const fn sent(&mut self) {
        self.due = false;
    }
}

/// The reaction point of a queue pair: a rate, and the octets that may leave now. The queue pair gets
/// its `Limiter` with the first CNP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limiter {
    /// Octets a second.
    rate: u64,
    /// The rate before the last cut.
    target: u64,
    /// No cut goes below this rate.
    floor: u64,
    /// DCQCN's alpha, in parts of [`ONE`].
    congestion: u32,
    round_trip: Duration,
    /// Time of the last cut, and of the last CNP.
    cut: Instant,
    notified: Instant,
    fade_at: Instant,
    rise_at: Instant,
    /// Rises by time and by octets since the last cut, and the octets since the last rise.
    timer_rises: u32,
    octet_rises: u32,
    octets: u64,
    tokens: u64,
    filled: Instant,
    /// Time at which the tokens suffice for the packet that waits.
    retry: Option<Instant>,
    turns: Turns,
}

/// A kind of packet that takes tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A packet of a send or write.
    Request,
    /// A packet of the answer to a READ.
    Answer,
}

/// Both kinds take from the same tokens. If one kind took some last and there were not enough for the other,
/// it leaves them to the other: otherwise short packets would keep longer ones waiting, and the kind that is
/// tried first the second one.
#[derive(Clone, Copy, Default, Debug)]
struct Turns {
    last: Option<Kind>,
    /// The kinds that found too few tokens in this round, and in the one before.
    waits: [bool; 2],
    waited: [bool; 2],
}

impl Turns {
    /// A kind that is not tried in a round does not wait any more.
    const fn begin_round(&mut self) {
        (self.waited, self.waits) = (self.waits, [false; 2]);
    }

    fn is_of_other(&self, kind: Kind) -> bool {
        let ([requests, answers], [requests_before, answers_before]) = (self.waits, self.waited);
        self.last == Some(kind)
            && match kind {
                Kind::Request => answers || answers_before,
                Kind::Answer => requests || requests_before,
            }
    }

    const fn wait(&mut self, kind: Kind) {
        let [requests, answers] = &mut self.waits;
        match kind {
            Kind::Request => *requests = true,
            Kind::Answer => *answers = true,
        }
    }
}

impl Limiter {
    /// At the first CNP. The queue pair sent `octets` in its last `round_trip`.
    pub fn new(now: Instant, octets: u64, round_trip: Duration) -> Self {
        let rate = per_second(octets, round_trip).clamp(LEAST_RATE, LARGEST_RATE);
        let mut limiter = Self {
            rate,
            target: rate,
            floor: LEAST_RATE,
            congestion: ONE,
            round_trip,
            cut: now,
            notified: now,
            fade_at: now,
            rise_at: now,
            timer_rises: 0,
            octet_rises: 0,
            octets: 0,
            tokens: 0,
            filled: now,
            retry: None,
            turns: Turns::default(),
        };
        limiter.reduce(now);
        limiter
    }

    /// At a CNP that finds `flight` octets on their way: this cut and later ones leave a part of that rate,
    /// see [`LEAST_FRACTION`].
    pub fn keep(&mut self, flight: u64, round_trip: Duration) {
        // A short round trip says nothing of a slow link that many flows share.
        let usual = per_second(USUAL_FLIGHT, round_trip.max(USUAL_ROUND_TRIP));
        let rate = per_second(flight, round_trip).max(usual).min(LARGEST_RATE);
        self.floor = self.floor.max(rate / LEAST_FRACTION);
    }

    /// A further CNP. Returns whether it cut the rate: several in one round trip speak of one event.
    pub fn notified(&mut self, now: Instant, round_trip: Duration) -> bool {
        self.advance(now);
        self.round_trip = round_trip;
        self.notified = now;
        let cuts = now.saturating_since(self.cut) >= self.period(CUT_EVERY);
        if cuts {
            self.reduce(now);
        }
        cuts
    }

    /// Whether nothing limits the queue pair any more.
    pub fn is_over(&self, now: Instant) -> bool {
        now.saturating_since(self.notified) >= MEMORY || self.rate >= LARGEST_RATE
    }

    /// The packets that can leave now are about to be tried, of each kind.
    pub const fn begin_round(&mut self) {
        self.turns.begin_round();
    }

    /// Takes the tokens for `octets`, of which `in_flight` of the same kind are unanswered. If they are not
    /// there, or the other kind is to take them, the packet is to be tried again at [`Self::timeout`], or
    /// when an answer came.
    pub fn admits(&mut self, now: Instant, kind: Kind, octets: u64, in_flight: u64) -> bool {
        self.advance(now);
        // The time of the packet that waited may have passed without its timer, because an answer came.
        self.handle_timeout(now);
        if in_flight > 0 && in_flight.saturating_add(octets) > self.flight_limit(octets) {
            return false;
        }
        if self.turns.is_of_other(kind) {
            self.turns.wait(kind);
            // The other kind may have nothing to send any more.
            if self.retry.is_none_or(|retry| retry <= now) {
                self.retry = Some(now + self.time_for(octets));
            }
            return false;
        }
        let burst = self.burst(octets);
        let earned = u128::from(self.rate) * now.saturating_since(self.filled).as_nanos() / 1_000_000_000;
        // Less than an octet stays for the next time.
        if earned > 0 {
            self.tokens = self.tokens.saturating_add(earned as u64).min(burst);
            self.filled = now;
        }
        let needed = octets.min(burst);
        if self.tokens < needed {
            self.retry = Some(now + self.time_for(needed - self.tokens));
            self.turns.wait(kind);
            return false;
        }
        self.tokens -= needed;
        self.retry = None;
        self.turns.last = Some(kind);
        self.octets += octets;
        if self.octets >= RISE_OCTETS {
            self.octets = 0;
            self.octet_rises += 1;
            self.rise();
        }
        true
    }

    /// The packet did not leave after all.
    pub const fn give_back(&mut self, octets: u64) {
        self.tokens = self.tokens.saturating_add(octets);
    }

    /// The time in which `octets` tokens come.
    fn time_for(&self, octets: u64) -> Duration {
        let nanos = u128::from(octets) * 1_000_000_000 / u128::from(self.rate);
        Duration::from_nanos(nanos as u64 + 1)
    }

    /// Time at which a packet that waits may leave; `None` if no packet waits.
    pub const fn timeout(&self) -> Option<Instant> {
        self.retry
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.retry.take_if(|retry| *retry <= now);
    }

    const fn burst(&self, least: u64) -> u64 {
        let burst = (self.rate as u128 * BURST_TIME.as_nanos() / 1_000_000_000) as u64;
        let burst = if burst > LARGEST_BURST { LARGEST_BURST } else { burst };
        if burst < least { least } else { burst }
    }

    /// Octets that may be unanswered, of packets that are charged with `octets`: CNPs get lost where data
    /// does, so a rate alone would fill the queues.
    pub fn flight_limit(&self, octets: u64) -> u64 {
        let of_round_trip = u128::from(self.rate) * self.round_trip.as_nanos() / 1_000_000_000;
        (2 * of_round_trip as u64).saturating_add(self.burst(octets))
    }

    /// A period of DCQCN's, which thinks of round trips of a few microseconds.
    fn period(&self, least: Duration) -> Duration {
        least.max(self.round_trip)
    }

    fn reduce(&mut self, now: Instant) {
        self.target = self.rate.max(self.floor);
        let cut = u128::from(self.rate) * u128::from(self.congestion) / u128::from(2 * ONE);
        self.rate = (self.rate - cut as u64).max(self.floor);
        self.congestion = self.congestion - (self.congestion >> GAIN_BITS) + (ONE >> GAIN_BITS);
        self.cut = now;
        (self.timer_rises, self.octet_rises, self.octets) = (0, 0, 0);
        self.fade_at = now + self.period(FADE_EVERY);
        self.rise_at = now + self.period(RISE_EVERY);
    }

    /// Makes up for the periods that ended since the last call: no timer runs for them.
    fn advance(&mut self, now: Instant) {
        let (fade, rise) = (self.period(FADE_EVERY), self.period(RISE_EVERY));
        for _ in 0..MOST_STEPS {
            if self.fade_at > now {
                break;
            }
            self.congestion -= self.congestion >> GAIN_BITS;
            self.fade_at += fade;
        }
        for _ in 0..MOST_STEPS {
            if self.rise_at > now {
                break;
            }
            self.timer_rises += 1;
            self.rise();
            self.rise_at += rise;
        }
        self.fade_at = self.fade_at.max(now);
        self.rise_at = self.rise_at.max(now);
    }

    fn rise(&mut self) {
        let (most, least) = (self.timer_rises.max(self.octet_rises), self.timer_rises.min(self.octet_rises));
        if least > RECOVERY_ROUNDS {
            self.target = self.target.saturating_add(HYPER * u64::from(least - RECOVERY_ROUNDS));
        } else if most > RECOVERY_ROUNDS {
            self.target = self.target.saturating_add(ADDITIVE);
        }
        self.target = self.target.min(LARGEST_RATE);
        self.rate = self.rate.midpoint(self.target).min(LARGEST_RATE);
    }
}

/// The rate at which `octets` leave in each `round_trip`.
fn per_second(octets: u64, round_trip: Duration) -> u64 {
    (u128::from(octets) * 1_000_000_000 / round_trip.as_nanos().max(1)) as u64
}

#[cfg(test)]
mod tests;
