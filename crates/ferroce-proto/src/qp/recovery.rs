//! Loss recovery: finds what got lost on its way, and sends it again.
//!
//! The [`Pipeline`] knows the oldest PSN that is not answered, the next one that was never sent, and the
//! cursor between them where the next packet comes from. To go back (go-back-N) is to put the cursor at the
//! oldest PSN. [`Recovery`] decides when to do that, and what else to send. Its [`Gap`] says what is known of
//! the loss of the oldest packet, and its [`Mode`] says what may leave meanwhile. Progress, which is an
//! answer that moves the oldest PSN, ends both and starts the timers anew.
//!
//! # How a loss is found
//!
//! 1. **The peer names it.** A peer that agreed to selective repeat holds requests behind a gap and reports
//!    them, as SACK does (RFC 6675). The [`Scoreboard`] knows which are held, lost and retransmitted. A
//!    request is lost if it is missing for the time of the reordering window ([`rack`], RFC 8985), or at once
//!    if `DUP_THRESH` later ones are held. It alone is sent again. If the peer cannot hold all that is on its
//!    way, its NAK waits for the reordering window too ([`Gap::Postponed`]); then this end goes back. A peer
//!    without selective repeat has dropped everything behind the gap, so its NAK makes this end go back at
//!    once ([`Gap::WentBack`]). One NAK for each oldest PSN counts; more of them are duplicates.
//! 2. **A later response comes.** It is put in its place, and the missing [`Reads`] are requested again, each
//!    once ([`Gap::Reread`]). A later acknowledgement cannot be kept: this end goes back.
//! 3. **Nothing comes.** After the probe timeout the newest packet is sent again, because its answer tells
//!    what is missing before it ([`Mode::TailLossProbe`], RFC 8985 section 7). If that has no answer, or if a
//!    NAK told already what is missing, this end goes back and sends one packet ([`Mode::Probing`]); after
//!    two of these it gives back its part of the budget and waits longer before each ([`Mode::Parked`]). The
//!    local ACK timeout (IBTA 9.7.6.1.3) is the only one that counts against `retry_cnt`, beside NAKs.
//! 4. **The receiver is not ready.** After an RNR NAK the refused request and those behind it wait.
//!
//! # How a spurious recovery is found
//!
//! An answer that comes sooner than a round trip after a retransmission answers the original. The cut of the
//! windows is undone, and the next loss is believed later: after a NAK by a longer reordering window, after
//! silence by a longer probe timeout.

mod rack;
mod reads;
mod rtt;
mod sack;
mod window;

use core::time::Duration;

use ferroce_wire::{Due, Instant, Psn, RnrTimer, Span};

use self::reads::Reads;
use self::rtt::Rtt;
use self::sack::{REPORTED, Scoreboard};
use self::window::Windows;
use super::common::Common;
use super::pipeline::{Acknowledged, Flight, Piece, Pipeline};
use super::send_queue::Failure;
use crate::{CongestionControl, DropReason, SelectiveRepeat, WcStatus};

/// Resends of the oldest packet between two expiries of the ACK timeout.
const MAX_PROBES: u32 = 4;
/// The longest time between two probes, unless they wait for the ACK timeout.
const MAX_PROBE_TIMEOUT: Span = Span::from_millis(1000);
/// An expiry that this end notices later than this, and than a quarter of the ACK timeout, does not count:
/// this end was starved, and a peer on the same cores as well.
const LATE: Span = Span::from_millis(4);
/// Most expiries without progress that do not count, so that a starved end notices the end of its peer as
/// well.
const MAX_EXCUSED: u32 = 64;
/// The value of `rnr_retry` that retries without end.
const RNR_FOREVER: u8 = 7;

/// All that a requester knows of losses. The timers are the local ACK timeout, the probe timeout, the wait
/// after an RNR NAK, and the waits of the reordering window.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    mode: Mode,
    gap: Gap,
    windows: Windows,
    scoreboard: Scoreboard,
    reads: Reads,
    rtt: Rtt,
    not_ready: Option<NotReady>,
    /// Runs until the local ACK timeout expires.
    ack_deadline: Timer,
    /// Runs until silence has lasted for the probe timeout.
    probe_at: Timer,
    /// Resends of the oldest packet since the timers were armed; `None` before the first probe, `Some(0)`
    /// after the tail loss probe.
    probes: Option<u32>,
    /// Counted retries since the last progress.
    retries: u32,
    /// Expiries since the last progress that do not count: this end noticed them too late, or had no
    /// processor.
    excused: u32,
    /// This process waited for a processor while it waited for the answer: the expiry that is due does not
    /// count.
    starved: bool,
    /// RNR NAKs since the last progress.
    rnr_retries: u32,
    last_progress: Instant,
    /// Probes since the last progress, not answered yet.
    probed: Option<Probed>,
    /// The last probes whose first answer made them seem needed, with the value of the counter `resent_pkts`
    /// when that answer came. A second answer to them shows that they were spurious, unless the counter has
    /// grown: a responder that holds requests also answers needed resends.
    answered: Option<(Probed, u64)>,
}

/// A time at which something is due. By default the timer does not run: the time is later than any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Timer(Instant);

impl Default for Timer {
    fn default() -> Self {
        Self(Instant::MAX)
    }
}

impl Timer {
    /// A timer that runs until that time, or none.
    fn until(at: Option<Instant>) -> Self {
        Self(at.or_never())
    }

    /// Whether it runs.
    fn runs(self) -> bool {
        self.0 != Instant::MAX
    }

    /// Whether it runs, and its time has come.
    fn is_due(self, now: Instant) -> bool {
        self.runs() && self.0 <= now
    }

    /// Changes the time of a timer that runs.
    fn put_off(&mut self, until: Instant) {
        if self.runs() {
            self.0 = until;
        }
    }
}

/// The mode limits what may leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Mode {
    /// Everything that the windows admit.
    #[default]
    Open,
    /// The newest packet is sent once more, and everything that the windows admit.
    TailLossProbe,
    /// The oldest packet left alone after silence: nothing else leaves before an answer.
    Probing,
    /// Probes had no answer: nothing leaves before the next timeout.
    Parked,
}

/// The loss of the oldest packet, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Gap {
    /// Nothing tells of a loss.
    #[default]
    Unknown,
    /// The peer sent a NAK, which acknowledged something if `moved`. The network may only have changed the
    /// order, so this end goes back at the time `until`.
    Postponed { until: Instant, moved: bool },
    /// Missing responses alone were requested again: a NAK that names a lost request is no duplicate.
    Reread,
    /// Everything is sent again since this time.
    WentBack { at: Instant },
}

/// Probes of one packet.
#[derive(Clone, Copy, Debug)]
struct Probed {
    psn: Psn,
    /// Time of the last progress before the probes: the wait for an answer began then.
    since: Instant,
    /// Time of the last probe.
    at: Instant,
    count: u32,
}

/// The receiver was not ready for the request `refused`: that one and those behind it are not sent before
/// `until`.
#[derive(Clone, Copy, Debug)]
struct NotReady {
    refused: Psn,
    until: Instant,
}

/// The fate of an answer that is no progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    Drop(DropReason),
    /// A WQE fails and with it the queue pair.
    Fatal {
        index: u64,
        failure: Failure,
    },
}

impl From<DropReason> for Refusal {
    fn from(reason: DropReason) -> Self {
        Self::Drop(reason)
    }
}

/// The time, and what the requester's half of a queue pair shares.
pub(crate) struct SendSide<'a> {
    pub now: Instant,
    pub common: &'a mut Common,
    pub pipeline: &'a mut Pipeline,
}

impl Recovery {
    /// Begins afresh, with windows for the budget.
    pub fn begin(common: &Common) -> Self {
        let agreed = common.selective_repeat == SelectiveRepeat::Agreed;
        let scoreboard = Scoreboard::new(common.attr.sq_psn, agreed);
        let mut recovery = Self { windows: Windows::begin(common), scoreboard, ..Self::default() };
        if agreed {
            recovery.windows.keep_two_reads(common);
        }
        recovery
    }

    /// The smoothed round trip time, once one was measured.
    pub fn round_trip(&self) -> Option<Duration> {
        self.rtt.smoothed().map(Span::duration)
    }

    /// Octets of sends and writes that may be on their way.
    pub const fn window(&self) -> u64 {
        self.windows.data.size()
    }

    /// The READ response `psn` came marked as having met congestion; `next` was never sent.
    pub fn read_congested(&mut self, psn: Psn, next: Psn) {
        self.windows.read_congested(psn, next);
    }

    /// Whether a packet may be sent at the cursor, or again.
    pub fn may_send(&self, pipeline: &Pipeline) -> bool {
        let admitted = match self.mode {
            Mode::Open | Mode::TailLossProbe => true,
            Mode::Probing => pipeline.is_rewound(),
            Mode::Parked => false,
        };
        admitted
            && self.not_ready.is_none_or(|NotReady { refused, .. }| pipeline.cursor_psn().since(refused) < 0)
    }

    /// Whether the windows admit a request.
    pub fn admits(&self, piece: &Piece, flight: Flight, common: &Common) -> bool {
        if piece.wqe.op.is_answered() {
            return self.windows.reads.admits(flight.reads, piece.charge);
        }
        self.admits_data(piece, flight, common)
    }

    /// Whether the window admits a SEND or WRITE.
    #[inline(always)]
    pub fn admits_data(&self, piece: &Piece, flight: Flight, common: &Common) -> bool {
        // The peer holds a part of what is charged as in flight.
        let held = u64::from(self.scoreboard.held()) * common.full_charge();
        self.windows.data.admits(flight.data.saturating_sub(held), piece.charge)
            && !self.scoreboard.is_beyond(piece.psn)
    }

    /// Whether no wait or retry of anything sent is under way.
    pub const fn is_idle(&self) -> bool {
        self.not_ready.is_none() && !self.is_probing()
    }

    /// Whether nothing tells of a loss, and requests leave in order.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.mode == Mode::Open && self.not_ready.is_none() && !self.repeats()
    }

    /// Whether the next answer tells of nothing that was sent again.
    #[inline]
    pub fn expects_answer(&self) -> bool {
        self.is_calm() && self.gap == Gap::Unknown && self.probed.is_none()
    }

    /// Whether the peer agreed to report what it holds.
    pub const fn is_agreed(&self) -> bool {
        self.scoreboard.is_agreed()
    }

    /// Whether the peer was silent, and is tried with one packet at a time.
    pub const fn is_probing(&self) -> bool {
        matches!(self.mode, Mode::Probing | Mode::Parked)
    }

    /// Packets were sent; `before` was the next PSN until then.
    #[inline(always)]
    pub fn sent(&mut self, before: Psn, side: &SendSide<'_>) {
        let SendSide { now, common, pipeline } = side;
        if pipeline.next() != before {
            // The first of the batch: the one most likely to be answered before something after it is lost.
            self.rtt.sent(before, *now);
        }
        if !self.ack_deadline.runs() && !self.probe_at.runs() {
            self.last_progress = *now;
            self.arm(*now, common);
        }
    }

    /// Whether [`Self::next_again`] may have a request.
    #[inline]
    pub fn repeats(&self) -> bool {
        self.mode == Mode::TailLossProbe || self.reads.is_asking() || self.scoreboard.next_lost().is_some()
    }

    /// A request that is sent once more although those behind it are on their way.
    #[cold]
    pub fn next_again(&mut self, pipeline: &Pipeline) -> Option<Piece> {
        while let Some(psn) = self.scoreboard.next_lost() {
            match pipeline.covering(psn) {
                Some(piece) if piece.psn == psn => return Some(piece),
                _ => self.scoreboard.no_request(psn, pipeline.next()),
            }
        }
        let alone = self.scoreboard.is_agreed();
        let newest = || if self.mode == Mode::TailLossProbe { pipeline.newest(alone) } else { None };
        self.reads.next(alone, pipeline).or_else(newest)
    }

    /// [`Self::next_again`] left.
    #[cold]
    pub fn sent_again(&mut self, piece: &Piece, common: &mut Common, pipeline: &Pipeline) {
        if self.scoreboard.next_lost() == Some(piece.psn) {
            common.counters.selective_resends += 1;
            self.lost_one(false, piece.psn, common, pipeline);
            self.scoreboard.retransmitted(piece.psn, pipeline.next());
        } else if !self.reads.asked(piece) && self.mode == Mode::TailLossProbe {
            self.mode = Mode::Open;
        }
    }

    fn lost_one(&mut self, response: bool, psn: Psn, common: &Common, pipeline: &Pipeline) {
        self.windows.lost_one(response, psn, self.scoreboard.is_agreed(), common, pipeline);
    }

    fn arm(&mut self, now: Instant, common: &Common) {
        let timeout = common.ack_timeout();
        self.ack_deadline = Timer::until(timeout.map(|timeout| now + timeout));
        self.probe_at = Timer::until(common.early_resends.then(|| now + self.rtt.probe_timeout(timeout)));
        self.probes = None;
    }

    /// Stops the timers of answers: nothing is outstanding, or nothing is to be expected.
    fn disarm(&mut self) {
        (self.ack_deadline, self.probe_at) = (Timer::default(), Timer::default());
        (self.probed, self.gap) = (None, Gap::Unknown);
    }

    /// Sends nothing again and waits for no answer any more.
    pub fn stop(&mut self) {
        self.resume();
        self.not_ready = None;
        self.disarm();
    }

    /// Time at which to call [`Self::handle_timeout`] next; [`Instant::MAX`] if no timer runs.
    #[inline]
    pub fn timeout(&self) -> Instant {
        let answers = self.ack_deadline.0.min(self.probe_at.0);
        if self.gap == Gap::Unknown && self.not_ready.is_none() && !self.scoreboard.suspects() {
            return answers;
        }
        answers.min(self.rare_timeout())
    }

    /// Time of the next timer that runs after a loss alone, for [`Self::timeout`].
    #[cold]
    fn rare_timeout(&self) -> Instant {
        let postponed = if let Gap::Postponed { until, .. } = self.gap { until } else { Instant::MAX };
        let not_ready = self.not_ready.map(|not_ready| not_ready.until).or_never();
        self.scoreboard.timeout().or_never().min(postponed).min(not_ready)
    }

    /// Runs the timers that are due; `blocked`: the process's budget is what stops the requester.
    pub fn handle_timeout(&mut self, blocked: bool, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        let now = side.now;
        self.scoreboard.handle_timeout(now);
        self.not_ready.take_if(|not_ready| not_ready.until <= now);
        if self.ack_deadline.is_due(now) {
            return self.expired(blocked, side);
        }
        if let Gap::Postponed { until, moved } = self.gap
            && until <= now
        {
            self.gap = Gap::Unknown;
            let oldest = side.pipeline.oldest();
            let retransmitted = side.pipeline.is_quiet() || self.scoreboard.is_retransmitted(oldest);
            if !retransmitted && let fatal @ Err(Refusal::Fatal { .. }) = self.go_back(moved, side) {
                return fatal;
            }
        }
        if self.probe_at.is_due(now) {
            self.silence(side);
        }
        Ok(())
    }

    /// The local ACK timeout (IBTA 9.7.6.1.3).
    fn expired(&mut self, blocked: bool, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        if blocked && side.pipeline.is_rewound() {
            // Nothing was sent that could have been answered: the process's budget is to blame.
            self.arm(side.now, side.common);
            return Ok(());
        }
        side.common.counters.timeouts += 1;
        let late = LATE.max(side.common.ack_timeout().unwrap_or_default() / 4);
        let starved = core::mem::take(&mut self.starved) || side.now.span_since(self.ack_deadline.0) > late;
        if self.excused < MAX_EXCUSED && starved {
            self.excused += 1;
        } else {
            self.retries += 1;
        }
        self.probed = None;
        self.check_retries(side)?;
        self.arm(side.now, side.common);
        self.probe_oldest(side);
        Ok(())
    }

    /// If the ACK timeout is over, asks whether this process waited for a processor meanwhile; then the peer
    /// may have answered, or had none either, and the expiry does not count.
    pub fn ask_if_starved(
        &mut self,
        now: Instant,
        common: &Common,
        was_starved: impl FnOnce(Duration) -> bool,
    ) {
        if self.ack_deadline.is_due(now) {
            self.starved = common.ack_timeout().is_some_and(|timeout| was_starved(timeout.duration()));
        }
    }

    /// The newest packet cannot have got lost and still waits to be received. Silence proves nothing: the
    /// wait begins anew.
    pub fn excuse_peer(&mut self, now: Instant, common: &Common) {
        let timeout = common.ack_timeout();
        self.ack_deadline.put_off(timeout.map(|timeout| now + timeout).or_never());
        // The peer may have to be asked anew, but seldom: a stopped one would keep this end busy.
        let wait = timeout.map_or(MAX_PROBE_TIMEOUT, |timeout| (timeout / 2).min(MAX_PROBE_TIMEOUT));
        self.probe_at.put_off(now + wait);
    }

    /// No answer came for the probe timeout: probes, at once or, when that was tried, later.
    fn silence(&mut self, side: &mut SendSide<'_>) {
        let probes = self.probes.unwrap_or_default();
        match side.common.ack_timeout() {
            // The first two find single losses, the others outlast an outage.
            Some(timeout) if probes >= MAX_PROBES / 2 && self.mode != Mode::Parked => {
                let at = (probes < MAX_PROBES).then(|| side.now + timeout * probes / 16);
                self.probe_at = Timer::until(at);
                // The part of the budget that was promised to the answer is free for others.
                self.rewind(Mode::Parked, side);
            }
            Some(_) | None => self.probe(side),
        }
    }

    /// The free resend. At first the newest packet, if all others are on their way: its answer covers
    /// everything, or names what is missing. Then the oldest, which costs one packet, asks for an answer, and
    /// finds both a lost request and a lost answer.
    fn probe(&mut self, side: &mut SendSide<'_>) {
        // Behind a NAK it is known what is missing, and a standard responder says so only once.
        let is_told = match self.gap {
            Gap::Unknown | Gap::Postponed { .. } => false,
            Gap::Reread => !self.scoreboard.is_agreed(),
            Gap::WentBack { .. } => true,
        };
        let quiet = side.pipeline.is_quiet();
        if self.probes.is_none() && !is_told && !quiet && self.is_idle() && side.pipeline.is_at_end() {
            self.probes = Some(0);
            self.count_probe(side.pipeline.next().add(u32::MAX), side);
            self.rtt.forget_sample();
            // If the newest packet was answered, or the last report tells what is lost, that is sent instead.
            if !self.ask_for_all(side) && !self.scoreboard.retry() {
                self.mode = Mode::TailLossProbe;
            }
            return;
        }
        self.probes = Some(self.probes.unwrap_or_default() + 1);
        self.count_probe(side.pipeline.oldest(), side);
        if !quiet {
            self.probe_oldest(side);
        }
    }

    /// Notes a probe of the packet `psn`. Each probe of the oldest packet doubles the wait for the next.
    fn count_probe(&mut self, psn: Psn, SendSide { now, common, pipeline }: &mut SendSide<'_>) {
        let doublings = self.probes.unwrap_or_default().min(16);
        let wait = self.rtt.timeout(common.ack_timeout()) * (1 << doublings);
        self.probe_at = Timer(*now + wait.min(MAX_PROBE_TIMEOUT));
        if !pipeline.is_quiet() {
            common.counters.early_resends += 1;
            let count = self.probed.map_or(0, |probed| probed.count) + 1;
            self.probed = Some(Probed { psn, since: self.last_progress, at: *now, count });
        }
    }

    fn probe_oldest(&mut self, side: &mut SendSide<'_>) {
        self.rtt.forget_sample();
        self.rewind(Mode::Probing, side);
    }

    /// Everything counts as lost: the next packet is the oldest.
    fn rewind(&mut self, mode: Mode, side: &mut SendSide<'_>) {
        side.pipeline.rewind(&side.common.budget);
        self.resume();
        self.mode = mode;
        if let Gap::Postponed { .. } = self.gap {
            self.gap = Gap::Unknown;
        }
    }

    /// Everything is sent in order from the cursor on.
    fn resume(&mut self) {
        self.mode = Mode::Open;
        self.scoreboard.clear();
        self.reads.forget();
    }

    /// `retry_cnt` is used up when it is, but never before its time: (1 + retry_cnt) ACK timeouts after the
    /// last progress.
    fn check_retries(&mut self, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        let allowed = u32::from(side.common.attr.retry_cnt);
        let least = side.common.ack_timeout().unwrap_or_default() * (1 + allowed);
        if self.retries <= allowed || side.now.span_since(self.last_progress) < least {
            return Ok(());
        }
        side.common.counters.retry_exceeded_err += 1;
        Err(fatal(side, WcStatus::RetryExcErr))
    }

    /// The oldest PSN moved on: counters are reloaded, timers start anew.
    #[inline(always)]
    pub fn progress(&mut self, acknowledged: &Acknowledged, side: &mut SendSide<'_>) {
        // An answer tells more than the time that it took only if something was lost or sent again.
        let is_plain = self.mode == Mode::Open && self.gap == Gap::Unknown && self.probed.is_none();
        if !is_plain {
            self.before_progress(acknowledged, side);
        }
        let SendSide { now, common, pipeline } = side;
        let (now, oldest) = (*now, pipeline.oldest());
        self.rtt.answered(oldest, now);
        if !is_plain {
            self.judge_gap(now, common);
        }
        let queueing = common.congestion != CongestionControl::Off && self.rtt.is_queueing();
        self.windows.answered(oldest, acknowledged.data, acknowledged.reads, queueing);
        if self.not_ready.is_some() {
            // An answer to what the receiver was not ready for: a duplicate of it got through.
            self.not_ready.take_if(|not_ready| oldest.since(not_ready.refused) > 0);
        }
        (self.retries, self.excused, self.rnr_retries) = (0, 0, 0);
        self.last_progress = now;
        let is_refused = self.not_ready.is_some_and(|not_ready| oldest == not_ready.refused);
        if is_refused || pipeline.is_quiet() { self.disarm() } else { self.arm(now, common) }
    }

    /// The part of [`Self::progress`] that precedes the measurement of the round trip, behind losses.
    #[cold]
    fn before_progress(&mut self, acknowledged: &Acknowledged, side: &mut SendSide<'_>) {
        let SendSide { now, common, pipeline } = side;
        if self.is_probing() && acknowledged.packets <= 1 && !pipeline.is_quiet() {
            // No more than what was sent again: the others were lost too.
            self.windows.lost(acknowledged.reads > 0, pipeline.oldest(), pipeline.next());
        }
        self.judge_probes(*now, common);
    }

    /// The part of [`Self::progress`] that follows the measurement of the round trip, behind losses: finds
    /// out whether this end went back for nothing, and ends that.
    #[cold]
    fn judge_gap(&mut self, now: Instant, common: &mut Common) {
        if let Gap::WentBack { at } = self.gap
            && self.rtt.is_sooner(now.span_since(at))
        {
            common.counters.spurious_go_backs += 1;
            self.windows.undo_cut();
            self.scoreboard.was_spurious();
        }
        (self.mode, self.gap) = (Mode::Open, Gap::Unknown);
    }

    /// An answer came after probes. An answer to a probe comes a round trip later. If it comes sooner or much
    /// later, it answers the original: the peer was late, for example without a free core, and nothing was
    /// lost.
    fn judge_probes(&mut self, now: Instant, common: &mut Common) {
        let Some(probed) = self.probed.take() else { return };
        self.answered = None;
        match self.rtt.is_round_trip(now.span_since(probed.at)) {
            Some(true) => {
                self.rtt.was_lost();
                self.answered = Some((Probed { at: now, ..probed }, common.counters.resent_pkts));
            }
            Some(false) => self.was_late(now, probed, common),
            None => {}
        }
    }

    /// An answer to what is answered: if it tells of a packet that was just sent again, both copies arrived.
    pub fn answered_twice(&mut self, now: Instant, psn: Psn, common: &mut Common) {
        if let Some((probed, count)) = self.answered.take()
            && count == common.counters.resent_pkts
            && now.span_since(probed.at) <= MAX_PROBE_TIMEOUT
            && psn.since(probed.psn) >= 0
        {
            self.was_late(probed.at, probed, common);
        }
    }

    /// The probes were spurious; the answer came at `answered`.
    fn was_late(&mut self, answered: Instant, probed: Probed, common: &mut Common) {
        common.counters.spurious_resends += u64::from(probed.count);
        self.rtt.was_late(answered, answered.span_since(probed.since));
    }

    /// The peer reports what it holds from now on.
    pub fn agree_to_reports(&mut self, common: &Common) {
        if !self.scoreboard.is_agreed() {
            self.scoreboard.agree();
            self.windows.keep_two_reads(common);
        }
    }

    /// The peer executed everything before `base`.
    #[inline(always)]
    pub fn reached(&mut self, now: Instant, base: Psn) {
        self.scoreboard.reached(now, base);
        self.undo_spurious_cut();
    }

    /// The peer executed everything before it, as far as is known.
    pub const fn base(&self) -> Psn {
        self.scoreboard.base()
    }

    fn undo_spurious_cut(&mut self) {
        if self.scoreboard.take_spurious() {
            self.windows.undo_cut_for_one();
        }
    }

    /// The peer waits for `psn` and holds those of `held` behind it, see [`Scoreboard::report`].
    pub fn reported(&mut self, psn: Psn, held: u128, side: &SendSide<'_>) -> Result<(), Refusal> {
        let SendSide { now, common, pipeline } = side;
        // While everything is sent again, the next acknowledgement tells how far to skip.
        if !self.is_idle() || !pipeline.is_at_end() {
            return Ok(());
        }
        let is_new = self.scoreboard.report(*now, psn, held, pipeline.next(), self.rtt.reordering());
        self.undo_spurious_cut();
        if !is_new {
            return Err(DropReason::StaleResponse.into());
        }
        self.rtt.forget_sample();
        let wait = self.rtt.recovery_timeout(common.ack_timeout());
        self.probe_at.put_off(*now + wait);
        Ok(())
    }

    /// A NAK: the peer waits for `psn`, the oldest one, and dropped or holds something behind it; `moved` if
    /// the NAK acknowledged something.
    pub fn missing(&mut self, psn: Psn, moved: bool, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        let (now, pipeline) = (side.now, &side.pipeline);
        let agreed = self.scoreboard.is_agreed();
        // Whether the peer holds or will report everything that is on its way behind it.
        let fits = pipeline.is_at_end() && pipeline.next().since(psn) < REPORTED as i32;
        if agreed && self.is_idle() && fits {
            self.scoreboard.missing(now, psn, self.rtt.reordering());
            self.undo_spurious_cut();
        } else if agreed && self.not_ready.is_none() && self.gap == Gap::Unknown {
            // More is on its way than the peer can hold. To send everything again would double that, so this
            // waits until the packet counts as lost (RFC 8985 section 6.2).
            let until = now + self.scoreboard.reordering_window(now, self.rtt.reordering());
            self.gap = Gap::Postponed { until, moved };
        } else if let Gap::Postponed { .. } = self.gap {
            return Err(DropReason::DuplicateNak.into());
        } else {
            // A peer that holds nothing has dropped all that followed, and gains nothing by a wait.
            self.go_back(moved, side)?;
        }
        side.common.counters.rcvd_seq_err += 1;
        Ok(())
    }

    /// Sends again from the oldest PSN, at once; `moved` if the same packet was progress (IBTA 9.7.5.2.4).
    fn go_back(&mut self, moved: bool, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        if matches!(self.gap, Gap::Reread | Gap::WentBack { .. }) || self.not_ready.is_some() {
            return Err(DropReason::DuplicateNak.into());
        }
        self.gap = Gap::WentBack { at: side.now };
        self.recover(moved, side)?;
        let SendSide { pipeline, .. } = side;
        let read = pipeline.queue.oldest().is_some_and(|wqe| wqe.op.is_answered());
        self.windows.lost(read, pipeline.oldest(), pipeline.next());
        self.rewind(Mode::Open, side);
        Ok(())
    }

    /// Something is sent again because of a NAK, said or implied, which counts as a retry unless it `moved`
    /// the oldest PSN. The wait for an answer begins.
    fn recover(&mut self, moved: bool, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        self.probed = None;
        if !moved {
            self.retries += 1;
            self.check_retries(side)?;
        }
        self.rtt.forget_sample();
        if side.common.early_resends {
            self.probe_at = Timer(side.now + self.rtt.recovery_timeout(side.common.ack_timeout()));
        }
        Ok(())
    }

    /// RNR NAK (IBTA 9.7.5.2.8).
    pub fn receiver_not_ready(&mut self, timer: RnrTimer, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        if self.not_ready.is_some() {
            return Err(DropReason::DuplicateNak.into());
        }
        side.common.counters.rcvd_rnr_err += 1;
        let allowed = side.common.attr.rnr_retry;
        if allowed != RNR_FOREVER {
            self.rnr_retries += 1;
            if self.rnr_retries > u32::from(allowed) {
                side.common.counters.retry_rnr_exceeded_err += 1;
                return Err(fatal(side, WcStatus::RnrRetryExcErr));
            }
        }
        let until = side.now + timer.delay();
        side.pipeline.rewind(&side.common.budget);
        self.wait_for_receiver(until, side.pipeline.oldest());
        self.rtt.forget_sample();
        // The peer is alive: what silence may cost is counted from when we send again.
        self.last_progress = until;
        self.disarm();
        Ok(())
    }

    /// The receiver was not ready for the request `refused`: waits, and sends in order from the cursor on.
    pub fn wait_for_receiver(&mut self, until: Instant, refused: Psn) {
        self.not_ready = Some(NotReady { refused, until });
        self.resume();
    }
}

fn fatal(side: &SendSide<'_>, status: WcStatus) -> Refusal {
    Refusal::Fatal { index: side.pipeline.queue.done(), failure: status.into() }
}
