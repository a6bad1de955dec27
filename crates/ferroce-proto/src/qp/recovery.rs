//! Loss recovery: what was sent and got lost is found and sent again.

mod rack;
mod reads;
mod rtt;
mod sack;
mod window;

use core::time::Duration;

use ferroce_wire::{Instant, Psn, RnrTimer};

use self::reads::Reads;
use self::rtt::Rtt;
use self::sack::{REPORTED, Repair};
use self::window::Windows;
use super::common::Common;
use super::pipeline::{Flight, Piece, Pipeline};
use super::send_queue::Failure;
use crate::{CongestionControl, DropReason, SelectiveRepeat, WcStatus};

/// Resends between two expiries of the ACK timeout that are not counted.
const EARLY_RESENDS: u32 = 4;
/// The longest time between two early resends, unless they wait for the ACK timeout.
const MAX_EARLY: Duration = Duration::from_secs(1);
/// An expiry that this end notices later than this, and than a quarter of the ACK timeout, does not count:
/// this end was starved, and a peer on the same cores as well.
const LATE: Duration = Duration::from_millis(4);
/// Most expiries without progress that do not count, so that a starved end notices the end of its peer as
/// well.
const MAX_EXCUSED: u32 = 64;
/// The value of `rnr_retry` that retries without end.
const RNR_FOREVER: u8 = 7;

/// All that a requester knows of losses. The timers are the local ACK timeout, the early resend, the wait
/// after an RNR NAK, and the waits of the reordering window.
#[derive(Debug)]
pub(crate) struct Recovery {
    windows: Windows,
    /// The requests that the peer reports to hold, and those that are sent again for it.
    repair: Repair,
    reads: Reads,
    rtt: Rtt,
    /// The newest packet is sent once more, to learn what is missing before it.
    probe_newest: bool,
    /// After a timeout: one packet, then wait for an answer.
    probing: bool,
    /// The answer to a probe did not come: nothing is sent until the next timeout.
    parked: bool,
    rnr_until: Option<Instant>,
    /// The request that the receiver was not ready for.
    refused: Psn,
    ack_deadline: Option<Instant>,
    early: Option<(Instant, Early)>,
    early_used: u32,
    /// The newest packet was sent once more since the last progress.
    newest_probed: bool,
    /// Counted retries since the last progress.
    retries: u32,
    /// Expiries since the last progress that this end noticed too late to count them.
    excused: u32,
    /// RNR NAKs since the last progress.
    rnr_retries: u32,
    last_progress: Instant,
    /// A NAK, said or implied, made us go back to this oldest PSN; more of them change nothing.
    gone_back_to: Option<Psn>,
    /// Since the oldest PSN moved, only lost responses were asked for again: a NAK that names a lost request
    /// is no duplicate.
    only_reread: bool,
    /// The oldest PSN when a timeout made us probe.
    probed: Psn,
    /// Early resends since the last progress, not answered yet.
    resent: Option<Resent>,
    /// The last early resends that seemed to be needed, with the probed PSN and the value of the counter
    /// `resent_pkts` at that time. A second answer shows that they were needless, unless the counter has
    /// grown: a responder that holds requests also answers needed resends.
    answered: Option<(Psn, Resent, u64)>,
    /// Time at which the last NAK made this end go back; `None` after the first answer behind it.
    went_back: Option<Instant>,
    /// A NAK whose packet may only be late.
    postponed: Option<Postponed>,
}

/// Early resends of one packet.
#[derive(Clone, Copy, Debug)]
struct Resent {
    /// Time of the last progress before the resends: the wait for an answer began then.
    since: Instant,
    /// Time of the last resend.
    at: Instant,
    count: u32,
}

/// The early timer's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Early {
    /// The answer will not come any more: what it was promised of the budget is free for others.
    GiveUp,
    Resend,
}

/// A NAK that is not answered yet: the network may only have changed the order, and then the gap closes by
/// itself.
#[derive(Clone, Copy, Debug)]
struct Postponed {
    /// The PSN that the peer waits for.
    psn: Psn,
    /// Time at which the packet counts as lost.
    at: Instant,
    /// The NAK acknowledged something.
    moved: bool,
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

impl Recovery {
    pub fn new() -> Self {
        Self {
            windows: Windows::new(),
            repair: Repair::new(Psn::new(0), false),
            reads: Reads::default(),
            rtt: Rtt::default(),
            probe_newest: false,
            probing: false,
            parked: false,
            rnr_until: None,
            refused: Psn::new(0),
            ack_deadline: None,
            early: None,
            early_used: 0,
            newest_probed: false,
            retries: 0,
            excused: 0,
            rnr_retries: 0,
            last_progress: Instant::ZERO,
            gone_back_to: None,
            only_reread: false,
            probed: Psn::new(0),
            resent: None,
            answered: None,
            went_back: None,
            postponed: None,
        }
    }

    /// Begins afresh, with windows for the budget.
    pub fn begin(common: &Common) -> Self {
        let agreed = common.selective_repeat == SelectiveRepeat::Agreed;
        let repair = Repair::new(common.attr.sq_psn, agreed);
        let mut recovery = Self { windows: Windows::begin(common), repair, ..Self::new() };
        if agreed {
            recovery.windows.keep_two_reads(common);
        }
        recovery
    }

    /// The smoothed round trip time, once one was measured.
    pub fn round_trip(&self) -> Option<Duration> {
        self.rtt.smoothed()
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
        let is_refused = self.rnr_until.is_some() && self.is_refused(pipeline.cursor_psn());
        !(is_refused || self.parked || (self.probing && !pipeline.is_rewound()))
    }

    /// Whether the windows admit a request.
    pub fn admits(&self, piece: &Piece, flight: Flight, common: &Common) -> bool {
        if piece.wqe.op.is_answered() {
            return self.windows.reads.admits(flight.reads, piece.charge);
        }
        // The peer holds a part of what is charged as in flight.
        let held = u64::from(self.repair.held()) * common.full_charge();
        self.windows.data.admits(flight.data.saturating_sub(held), piece.charge)
            && !self.repair.is_beyond(piece.psn)
    }

    /// Whether no wait or retry of anything sent is under way.
    pub const fn is_idle(&self) -> bool {
        self.rnr_until.is_none() && !self.parked && !self.probing
    }

    pub const fn is_probing(&self) -> bool {
        self.probing
    }

    /// Whether a request must wait for the receiver.
    const fn is_refused(&self, psn: Psn) -> bool {
        self.rnr_until.is_some() && psn.since(self.refused) >= 0
    }

    /// Packets were sent; `before` was the next PSN until then.
    pub fn sent(&mut self, now: Instant, before: Psn, common: &Common, pipeline: &Pipeline) {
        if pipeline.next() != before {
            // The first of the batch: the one most likely to be answered before something after it is lost.
            self.rtt.sent(before, now);
        }
        if self.ack_deadline.is_none() && self.early.is_none() {
            self.last_progress = now;
            self.arm(now, common);
        }
    }

    /// Whether [`Self::next_again`] may have a request.
    pub fn repeats(&self) -> bool {
        self.probe_newest || self.reads.is_asking() || self.repair.next_lost().is_some()
    }

    /// A request that is sent once more although those behind it are on their way.
    #[cold]
    pub fn next_again(&mut self, pipeline: &Pipeline) -> Option<Piece> {
        while let Some(psn) = self.repair.next_lost() {
            match pipeline.covering(psn) {
                Some(piece) if piece.psn == psn => return Some(piece),
                _ => self.repair.no_request(psn, pipeline.next()),
            }
        }
        let alone = self.repair.is_agreed();
        let newest = || if self.probe_newest { pipeline.newest(alone) } else { None };
        self.reads.next(alone, pipeline).or_else(newest)
    }

    /// [`Self::next_again`] left.
    #[cold]
    pub fn sent_again(&mut self, piece: &Piece, common: &mut Common, pipeline: &Pipeline) {
        if self.repair.next_lost() == Some(piece.psn) {
            common.counters.selective_resends += 1;
            self.lost_one(false, piece.psn, common, pipeline);
            self.repair.resent(piece.psn, pipeline.next());
        } else if !self.reads.asked(piece) {
            self.probe_newest = false;
        }
    }

    fn lost_one(&mut self, response: bool, psn: Psn, common: &Common, pipeline: &Pipeline) {
        self.windows.lost_one(response, psn, self.repair.is_agreed(), common, pipeline);
    }

    fn arm(&mut self, now: Instant, common: &Common) {
        let timeout = common.ack_timeout();
        self.ack_deadline = timeout.map(|timeout| now + timeout);
        self.early = common.early_resends.then(|| (now + self.rtt.probe_timeout(timeout), Early::GiveUp));
        (self.early_used, self.newest_probed) = (0, false);
    }

    /// No timers of answers: nothing is outstanding, or nothing is to be expected.
    fn disarm(&mut self) {
        (self.ack_deadline, self.early, self.resent, self.postponed) = (None, None, None, None);
    }

    /// Sends nothing again and waits for no answer any more.
    pub fn stop(&mut self) {
        self.repair.clear();
        self.rnr_until = None;
        self.resume();
        self.disarm();
    }

    /// Time at which to call [`Self::handle_timeout`] next; `None` if no timer runs.
    pub fn timeout(&self) -> Option<Instant> {
        let postponed = self.postponed.map(|postponed| postponed.at);
        let early = self.early.map(|(at, _)| at);
        Instant::first_of([self.rnr_until, self.repair.timeout(), self.ack_deadline, early, postponed])
    }

    /// Runs the timers that are due; `blocked`: the process's budget is what stops the requester.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        blocked: bool,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        self.repair.handle_timeout(now);
        self.rnr_until.take_if(|until| *until <= now);
        if self.ack_deadline.is_some_and(|deadline| deadline <= now) {
            return self.expired(now, blocked, common, pipeline);
        }
        self.go_back_at_last(now, common, pipeline)?;
        match self.early {
            Some((at, Early::GiveUp)) if at <= now => self.give_up(now, common, pipeline),
            Some((at, Early::Resend)) if at <= now => self.resend_early(now, common, pipeline),
            Some(_) | None => {}
        }
        Ok(())
    }

    /// The local ACK timeout (IBTA 9.7.6.1.3).
    fn expired(
        &mut self,
        now: Instant,
        blocked: bool,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        if blocked && pipeline.is_rewound() {
            // Nothing was sent that could have been answered: the process's budget is to blame.
            self.arm(now, common);
            return Ok(());
        }
        common.counters.timeouts += 1;
        match self.is_late(now, common) {
            true => self.excused += 1,
            false => self.retries += 1,
        }
        self.resent = None;
        self.check_retries(now, common, pipeline)?;
        self.arm(now, common);
        self.go_back_probing(common, pipeline);
        Ok(())
    }

    fn is_late(&self, now: Instant, common: &Common) -> bool {
        let lateness = self.ack_deadline.map_or(Duration::ZERO, |deadline| now.saturating_since(deadline));
        let bound = LATE.max(common.ack_timeout().unwrap_or_default() / 4);
        self.excused < MAX_EXCUSED && lateness > bound
    }

    /// The newest packet cannot have got lost and still waits to be received. Silence proves nothing: the
    /// wait begins anew.
    pub fn excuse_peer(&mut self, now: Instant, common: &Common) {
        let timeout = common.ack_timeout();
        self.ack_deadline = self.ack_deadline.and(timeout).map(|timeout| now + timeout);
        // The peer may have to be asked anew, but seldom: a stopped one would keep this end busy.
        let wait = timeout.map_or(MAX_EARLY, |timeout| (timeout / 2).min(MAX_EARLY));
        self.early = self.early.map(|_| (now + wait, Early::GiveUp));
    }

    /// No answer in time: sends again, at once or, when that was tried, later.
    fn give_up(&mut self, now: Instant, common: &mut Common, pipeline: &mut Pipeline) {
        let used = self.early_used;
        match common.ack_timeout() {
            Some(_) if used >= EARLY_RESENDS => self.early = None,
            // The first two find single losses, the others outlast an outage.
            Some(timeout) if used >= EARLY_RESENDS / 2 => {
                self.early = Some((now + timeout * used / 16, Early::Resend));
            }
            Some(_) | None => return self.resend_early(now, common, pipeline),
        }
        self.postponed = None;
        pipeline.rewind(&common.budget);
        self.repair.clear();
        // Nothing more until the next timeout.
        self.parked = true;
    }

    /// The free resend. At first the newest packet, if all others are on their way: its answer covers
    /// everything, or names what is missing. Then the oldest.
    fn resend_early(&mut self, now: Instant, common: &mut Common, pipeline: &mut Pipeline) {
        // Behind a NAK it is known what is missing, and a standard responder says so only once.
        let asked = self.gone_back_to == Some(pipeline.oldest());
        let asked_alone = self.only_reread && self.repair.is_agreed();
        let probes_newest = !self.newest_probed
            && (!asked || asked_alone)
            && self.is_idle()
            && pipeline.is_at_end()
            && !pipeline.is_quiet();
        if !probes_newest {
            return self.resend_oldest(now, common, pipeline);
        }
        self.newest_probed = true;
        self.count_early(now, 0, common, pipeline);
        self.probed = pipeline.next().add(u32::MAX);
        self.rtt.forget_sample();
        if !self.ask_for_all(now, pipeline) {
            // Or what the peer's last report says is lost.
            self.probe_newest = !self.repair.retry();
        }
    }

    /// Costs one packet, asks for an answer, and finds both a lost request and a lost answer.
    fn resend_oldest(&mut self, now: Instant, common: &mut Common, pipeline: &mut Pipeline) {
        self.early_used += 1;
        self.count_early(now, self.early_used, common, pipeline);
        if !pipeline.is_quiet() {
            self.go_back_probing(common, pipeline);
        }
    }

    fn count_early(&mut self, now: Instant, doublings: u32, common: &mut Common, pipeline: &Pipeline) {
        let wait = self.rtt.timeout(common.ack_timeout()).saturating_mul(1 << doublings.min(16));
        self.early = Some((now + wait.min(MAX_EARLY), Early::GiveUp));
        if !pipeline.is_quiet() {
            common.counters.early_resends += 1;
            let count = self.resent.map_or(0, |resent| resent.count) + 1;
            self.resent = Some(Resent { since: self.last_progress, at: now, count });
        }
    }

    /// A timeout: from now on one packet until there is an answer.
    fn go_back_probing(&mut self, common: &Common, pipeline: &mut Pipeline) {
        (self.probed, self.postponed) = (pipeline.oldest(), None);
        self.rtt.forget_sample();
        pipeline.rewind(&common.budget);
        self.repair.clear();
        self.forget_again();
        (self.probing, self.parked) = (true, false);
    }

    /// Everything is sent again, in order.
    fn forget_again(&mut self) {
        self.probe_newest = false;
        self.reads.forget();
    }

    /// A NAK asks for everything from the oldest: no more probing.
    fn resume(&mut self) {
        self.forget_again();
        (self.probing, self.parked) = (false, false);
    }

    /// `retry_cnt` is used up when it is, but never before its time: (1 + retry_cnt) ACK timeouts after the
    /// last progress.
    fn check_retries(
        &mut self,
        now: Instant,
        common: &mut Common,
        pipeline: &Pipeline,
    ) -> Result<(), Refusal> {
        let allowed = u32::from(common.attr.retry_cnt);
        let least = common.ack_timeout().unwrap_or_default() * (1 + allowed);
        if self.retries <= allowed || now.saturating_since(self.last_progress) < least {
            return Ok(());
        }
        common.counters.retry_exceeded_err += 1;
        Err(fatal(pipeline, WcStatus::RetryExcErr))
    }

    /// The oldest PSN moved on: counters are reloaded, timers start anew.
    pub fn progress(
        &mut self,
        now: Instant,
        data: u64,
        reads: u64,
        common: &mut Common,
        pipeline: &Pipeline,
    ) {
        let oldest = pipeline.oldest();
        if self.probing && oldest.since(self.probed) <= 1 && !pipeline.is_quiet() {
            // No more than what was sent again: the others were lost too.
            self.windows.lost(reads > 0, oldest, pipeline.next());
        }
        self.judge_resends(now, common);
        self.rtt.answered(oldest, now);
        if let Some(at) = self.went_back.take()
            && self.rtt.is_sooner(now.saturating_since(at))
        {
            common.counters.spurious_go_backs += 1;
            self.windows.undo_cut();
            self.repair.was_needless();
        }
        let queueing = common.congestion != CongestionControl::Off && self.rtt.is_queueing();
        self.windows.answered(oldest, data, reads, queueing);
        (self.probing, self.parked, self.probe_newest) = (false, false, false);
        if oldest.since(self.refused) > 0 {
            // An answer to what the receiver was not ready for: a duplicate of it got through.
            self.rnr_until = None;
        }
        (self.retries, self.excused, self.rnr_retries) = (0, 0, 0);
        self.last_progress = now;
        (self.gone_back_to, self.postponed) = (None, None);
        let nothing_awaited = pipeline.is_quiet() || self.is_refused(oldest);
        if nothing_awaited { self.disarm() } else { self.arm(now, common) }
    }

    /// An answer came after early resends. An answer to a resend comes a round trip later. If it comes sooner
    /// or much later, it answers the original: the peer was late, for example without a free core, and
    /// nothing was lost.
    fn judge_resends(&mut self, now: Instant, common: &mut Common) {
        let Some(resent) = self.resent.take() else { return };
        self.answered = None;
        match self.rtt.is_round_trip(now.saturating_since(resent.at)) {
            Some(true) => {
                self.rtt.was_lost();
                let count = common.counters.resent_pkts;
                self.answered = Some((self.probed, Resent { at: now, ..resent }, count));
            }
            Some(false) => self.was_late(now, resent, common),
            None => {}
        }
    }

    /// An answer to what is answered: if it tells of a packet that was just sent again, both copies arrived.
    pub fn answered_twice(&mut self, now: Instant, psn: Psn, common: &mut Common) {
        if let Some((probed, resent, count)) = self.answered.take()
            && count == common.counters.resent_pkts
            && now.saturating_since(resent.at) <= MAX_EARLY
            && psn.since(probed) >= 0
        {
            self.was_late(resent.at, resent, common);
        }
    }

    /// The early resends were needless; the answer came at `answered`.
    fn was_late(&mut self, answered: Instant, resent: Resent, common: &mut Common) {
        common.counters.spurious_resends += u64::from(resent.count);
        self.rtt.was_late(answered, answered.saturating_since(resent.since));
    }

    /// The peer reports what it holds from now on.
    pub fn agree_to_reports(&mut self, common: &Common) {
        if !self.repair.is_agreed() {
            self.repair.agree();
            self.windows.keep_two_reads(common);
        }
    }

    /// The peer executed everything before `base`.
    pub fn reached(&mut self, now: Instant, base: Psn) {
        self.repair.reached(now, base);
        self.undo_needless_cut();
    }

    /// The peer executed everything before it, as far as is known.
    pub const fn base(&self) -> Psn {
        self.repair.base()
    }

    fn undo_needless_cut(&mut self) {
        if self.repair.take_needless() {
            self.windows.undo_cut_for_one();
        }
    }

    /// The peer waits for `psn` and holds those of `held` behind it, see [`Repair::report`].
    pub fn reported(
        &mut self,
        now: Instant,
        psn: Psn,
        held: u128,
        common: &Common,
        pipeline: &Pipeline,
    ) -> Result<(), Refusal> {
        // While everything is sent again, the next acknowledgement tells how far to skip.
        if !self.is_idle() || !pipeline.is_at_end() {
            return Ok(());
        }
        let is_new = self.repair.report(now, psn, held, pipeline.next(), self.rtt.reordering());
        self.undo_needless_cut();
        if !is_new {
            return Err(DropReason::StaleResponse.into());
        }
        self.rtt.forget_sample();
        if let Some((early, Early::GiveUp)) = &mut self.early {
            *early = now + self.rtt.recovery_timeout(common.ack_timeout());
        }
        Ok(())
    }

    /// The peer waits for `psn`, the oldest one, and dropped or holds something behind it; `moved` if its NAK
    /// acknowledged something.
    pub fn missing(
        &mut self,
        now: Instant,
        psn: Psn,
        moved: bool,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        // Whether the peer holds or will report everything that is on its way behind it.
        let repairs = self.repair.is_agreed()
            && self.is_idle()
            && pipeline.is_at_end()
            && pipeline.next().since(psn) < REPORTED as i32;
        if repairs {
            self.repair.missing(now, psn, self.rtt.reordering());
            self.undo_needless_cut();
        } else {
            self.postpone_or_go_back(now, moved, common, pipeline)?;
        }
        common.counters.rcvd_seq_err += 1;
        Ok(())
    }

    /// The peer waits for the oldest PSN, and more is on its way than it can hold. To send everything again
    /// would double what is on its way, so this waits until the packet counts as lost (RFC 8985 section 6.2).
    /// A peer that holds nothing has dropped all that followed, and gains nothing by a wait. A NAK of a
    /// packet for which everything is on its way again is dropped, as [`Self::go_back`] does.
    fn postpone_or_go_back(
        &mut self,
        now: Instant,
        moved: bool,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        let oldest = pipeline.oldest();
        let known = self.gone_back_to == Some(oldest) || self.rnr_until.is_some();
        if known || !self.repair.is_agreed() {
            return self.go_back(now, moved, common, pipeline);
        }
        if self.postponed.is_some_and(|Postponed { psn, .. }| psn == oldest) {
            return Err(DropReason::DuplicateNak.into());
        }
        let wait = self.repair.window(now, self.rtt.reordering());
        self.postponed = Some(Postponed { psn: oldest, at: now + wait, moved });
        Ok(())
    }

    /// Goes back if the packet of a postponed NAK counts as lost by now, and was not sent again alone.
    fn go_back_at_last(
        &mut self,
        now: Instant,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        let due = self.postponed.take_if(|postponed| postponed.at <= now);
        let Some(Postponed { psn, moved, .. }) = due else { return Ok(()) };
        if psn != pipeline.oldest() || pipeline.is_quiet() || self.repair.is_resent(psn) {
            return Ok(());
        }
        match self.go_back(now, moved, common, pipeline) {
            Ok(()) | Err(Refusal::Drop(_)) => Ok(()),
            fatal @ Err(Refusal::Fatal { .. }) => fatal,
        }
    }

    /// Sends again from the oldest PSN, at once; `moved` if the same packet was progress (IBTA 9.7.5.2.4).
    fn go_back(
        &mut self,
        now: Instant,
        moved: bool,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        let oldest = pipeline.oldest();
        if self.gone_back_to == Some(oldest) || self.rnr_until.is_some() {
            return Err(DropReason::DuplicateNak.into());
        }
        (self.gone_back_to, self.only_reread) = (Some(oldest), false);
        (self.resent, self.postponed) = (None, None);
        if !moved {
            self.retries += 1;
            self.check_retries(now, common, pipeline)?;
        }
        let read = pipeline.queue.oldest().is_some_and(|wqe| wqe.op.is_answered());
        self.windows.lost(read, oldest, pipeline.next());
        self.went_back = Some(now);
        self.repair.clear();
        self.resume();
        pipeline.rewind(&common.budget);
        self.recover(now, common);
        Ok(())
    }

    /// Something is sent again because of a NAK, said or implied: how long to wait for the answer to it.
    fn recover(&mut self, now: Instant, common: &Common) {
        self.rtt.forget_sample();
        if common.early_resends {
            let wait = self.rtt.recovery_timeout(common.ack_timeout());
            self.early = Some((now + wait, Early::GiveUp));
        }
    }

    /// RNR NAK (IBTA 9.7.5.2.8).
    pub fn receiver_not_ready(
        &mut self,
        now: Instant,
        timer: RnrTimer,
        common: &mut Common,
        pipeline: &mut Pipeline,
    ) -> Result<(), Refusal> {
        if self.rnr_until.is_some() {
            return Err(DropReason::DuplicateNak.into());
        }
        common.counters.rcvd_rnr_err += 1;
        let allowed = common.attr.rnr_retry;
        if allowed != RNR_FOREVER {
            self.rnr_retries += 1;
            if self.rnr_retries > u32::from(allowed) {
                common.counters.retry_rnr_exceeded_err += 1;
                return Err(fatal(pipeline, WcStatus::RnrRetryExcErr));
            }
        }
        let until = now + timer.delay();
        self.repair.clear();
        pipeline.rewind(&common.budget);
        self.wait_for_receiver(until, pipeline.oldest());
        self.rtt.forget_sample();
        // The peer is alive: what silence may cost is counted from when we send again.
        self.last_progress = until;
        self.gone_back_to = None;
        self.disarm();
        Ok(())
    }

    /// The receiver was not ready for the request `refused`: that one and those behind it are not sent before
    /// `until`.
    pub fn wait_for_receiver(&mut self, until: Instant, refused: Psn) {
        (self.rnr_until, self.refused) = (Some(until), refused);
        self.resume();
    }
}

fn fatal(pipeline: &Pipeline, status: WcStatus) -> Refusal {
    Refusal::Fatal { index: pipeline.queue.done(), failure: status.into() }
}
