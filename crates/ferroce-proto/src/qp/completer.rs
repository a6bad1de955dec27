//! The completer: turns answers into progress, and silence into retries.

mod kept;
mod needless;
mod postponed;
mod rtt;

use core::time::Duration;

use ferroce_wire::{Aeth, Instant, NakCode, Psn, Response, RnrTimer, Syndrome};

use self::postponed::Postponed;
use self::rtt::Rtt;
use super::common::Common;
use super::pipeline::{Acknowledged, Pipeline};
use super::requester::{REPORTED, Requester};
use super::send_queue::Failure;
use crate::{CongestionControl, DropReason, Memory, SendOp, WcStatus};

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

/// Waits for answers. The timers are the local ACK timeout and the early resend.
#[derive(Debug)]
pub(crate) struct Completer {
    rtt: Rtt,
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
    /// PSN before which all missing responses were requested again; `None` if no response is missing.
    reread: Option<Psn>,
    /// With selective repeat, the PSN of the last response that came because it was requested again. The
    /// responder answers in order, so responses that are missing before it were lost once more; they have
    /// been requested again since.
    answered_again: Psn,
    /// Since the oldest PSN moved, only lost responses were asked for again: a NAK that names a lost request
    /// is no duplicate.
    only_reread: bool,
    /// Time at which missing responses were last requested again.
    reread_at: Instant,
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

/// The requester's side of a queue pair, as the completer needs it.
pub(crate) struct SendSide<'a> {
    pub common: &'a mut Common,
    pub pipeline: &'a mut Pipeline,
    pub requester: &'a mut Requester,
}

impl Completer {
    pub fn new() -> Self {
        Self {
            rtt: Rtt::default(),
            ack_deadline: None,
            early: None,
            early_used: 0,
            newest_probed: false,
            retries: 0,
            excused: 0,
            rnr_retries: 0,
            last_progress: Instant::ZERO,
            gone_back_to: None,
            reread: None,
            answered_again: Psn::new(0),
            only_reread: false,
            reread_at: Instant::ZERO,
            probed: Psn::new(0),
            resent: None,
            answered: None,
            went_back: None,
            postponed: None,
        }
    }

    /// The smoothed round trip time, once one was measured.
    pub fn round_trip(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    /// Packets were sent; `before` was the next PSN until then.
    pub fn sent(&mut self, now: Instant, before: Psn, side: &SendSide<'_>) {
        if side.pipeline.next() != before {
            // The first of the batch: the one most likely to be answered before something after it is lost.
            self.rtt.sent(before, now);
        }
        if self.ack_deadline.is_none() && self.early.is_none() {
            self.last_progress = now;
            self.arm(now, side.common);
        }
    }

    fn arm(&mut self, now: Instant, common: &Common) {
        let timeout = common.ack_timeout();
        self.ack_deadline = timeout.map(|timeout| now + timeout);
        self.early = common.early_resends.then(|| (now + self.rtt.probe_timeout(timeout), Early::GiveUp));
        (self.early_used, self.newest_probed) = (0, false);
    }

    /// No timers: nothing is outstanding, or nothing is to be expected.
    pub fn stop(&mut self) {
        (self.ack_deadline, self.early, self.resent, self.postponed) = (None, None, None, None);
    }

    pub fn timeout(&self) -> Option<Instant> {
        let postponed = self.postponed.map(|postponed| postponed.at);
        Instant::first_of([self.ack_deadline, self.early.map(|(at, _)| at), postponed])
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Instant, mut side: SendSide<'_>) -> Result<(), Refusal> {
        if self.ack_deadline.is_some_and(|deadline| deadline <= now) {
            self.expired(now, &mut side)
        } else {
            self.go_back_at_last(now, &mut side)?;
            match self.early {
                Some((at, Early::GiveUp)) if at <= now => self.give_up(now, &mut side),
                Some((at, Early::Resend)) if at <= now => self.resend_early(now, &mut side),
                Some(_) | None => {}
            }
            Ok(())
        }
    }

    /// The local ACK timeout (IBTA 9.7.6.1.3).
    fn expired(&mut self, now: Instant, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        if side.requester.is_blocked() && side.pipeline.is_rewound() {
            // Nothing was sent that could have been answered: the process's budget is to blame.
            self.arm(now, side.common);
            return Ok(());
        }
        side.common.counters.timeouts += 1;
        match self.is_late(now, side.common) {
            true => self.excused += 1,
            false => self.retries += 1,
        }
        self.resent = None;
        self.check_retries(now, side)?;
        self.arm(now, side.common);
        self.go_back_probing(side);
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
    fn give_up(&mut self, now: Instant, side: &mut SendSide<'_>) {
        let used = self.early_used;
        match side.common.ack_timeout() {
            Some(_) if used >= EARLY_RESENDS => self.early = None,
            // The first two find single losses, the others outlast an outage.
            Some(timeout) if used >= EARLY_RESENDS / 2 => {
                self.early = Some((now + timeout * used / 16, Early::Resend));
            }
            Some(_) | None => return self.resend_early(now, side),
        }
        self.postponed = None;
        side.pipeline.rewind(&side.common.budget);
        side.requester.repair.clear();
        side.requester.park();
    }

    /// The free resend. At first the newest packet, if all others are on their way: its answer covers
    /// everything, or names what is missing. Then the oldest.
    fn resend_early(&mut self, now: Instant, side: &mut SendSide<'_>) {
        // Behind a NAK it is known what is missing, and a standard responder says so only once.
        let asked = self.gone_back_to == Some(side.pipeline.oldest());
        let asked_alone = self.only_reread && side.requester.repair.is_agreed();
        let probes_newest = !self.newest_probed
            && (!asked || asked_alone)
            && side.requester.is_idle()
            && side.pipeline.is_at_end()
            && !side.pipeline.is_quiet();
        if !probes_newest {
            return self.resend_oldest(now, side);
        }
        self.newest_probed = true;
        self.count_early(now, 0, side);
        self.probed = side.pipeline.next().add(u32::MAX);
        self.rtt.forget_sample();
        if !self.ask_for_all(now, side) {
            side.requester.probe_newest();
        }
    }

    /// Costs one packet, asks for an answer, and finds both a lost request and a lost answer.
    fn resend_oldest(&mut self, now: Instant, side: &mut SendSide<'_>) {
        self.early_used += 1;
        self.count_early(now, self.early_used, side);
        if !side.pipeline.is_quiet() {
            self.go_back_probing(side);
        }
    }

    fn count_early(&mut self, now: Instant, doublings: u32, side: &mut SendSide<'_>) {
        let wait = self.rtt.timeout(side.common.ack_timeout()).saturating_mul(1 << doublings.min(16));
        self.early = Some((now + wait.min(MAX_EARLY), Early::GiveUp));
        if !side.pipeline.is_quiet() {
            side.common.counters.early_resends += 1;
            let count = self.resent.map_or(0, |resent| resent.count) + 1;
            self.resent = Some(Resent { since: self.last_progress, at: now, count });
        }
    }

    fn go_back_probing(&mut self, side: &mut SendSide<'_>) {
        (self.probed, self.postponed) = (side.pipeline.oldest(), None);
        self.rtt.forget_sample();
        side.pipeline.rewind(&side.common.budget);
        side.requester.repair.clear();
        side.requester.probe();
    }

    /// `retry_cnt` is used up when it is, but never before its time: (1 + retry_cnt) ACK timeouts after the
    /// last progress.
    fn check_retries(&mut self, now: Instant, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        let allowed = u32::from(side.common.attr.retry_cnt);
        let least = side.common.ack_timeout().unwrap_or_default() * (1 + allowed);
        if self.retries <= allowed || now.saturating_since(self.last_progress) < least {
            return Ok(());
        }
        side.common.counters.retry_exceeded_err += 1;
        Err(self.fatal(side, WcStatus::RetryExcErr.into()))
    }

    fn fatal(&self, side: &SendSide<'_>, failure: Failure) -> Refusal {
        Refusal::Fatal { index: side.pipeline.queue.done(), failure }
    }

    /// An answer from the peer.
    pub fn handle_response(
        &mut self,
        now: Instant,
        psn: Psn,
        response: &Response<'_>,
        mem: &mut impl Memory,
        mut side: SendSide<'_>,
    ) -> Result<(), Refusal> {
        let pipeline = &side.pipeline;
        let ahead = psn.since(pipeline.oldest());
        // An acknowledgement that comes for the credits alone has the PSN of the last one.
        if (-1..pipeline.outstanding() as i32).contains(&ahead)
            && let Some(Aeth { syndrome: Syndrome::Ack { credits }, msn }) = response.aeth()
        {
            side.requester.grant(msn, credits);
        }
        if ahead < 0 || ahead as u32 >= pipeline.outstanding() {
            if ahead < 0 {
                self.answered_twice(now, psn, side.common);
            }
            return Err(DropReason::StaleResponse.into());
        }
        match response {
            Response::Acknowledge { aeth } => self.handle_ack(now, psn, *aeth, &mut side),
            Response::ReadFirst { payload, .. } | Response::ReadMiddle { payload } => {
                self.handle_data(now, psn, Data::Read { payload, ends: false }, mem, &mut side)
            }
            Response::ReadLast { payload, .. } | Response::ReadOnly { payload, .. } => {
                self.handle_data(now, psn, Data::Read { payload, ends: true }, mem, &mut side)
            }
            Response::AtomicAcknowledge { original, .. } => {
                self.handle_data(now, psn, Data::Atomic { original: *original }, mem, &mut side)
            }
        }
    }

    fn handle_ack(
        &mut self,
        now: Instant,
        psn: Psn,
        aeth: Aeth,
        side: &mut SendSide<'_>,
    ) -> Result<(), Refusal> {
        let Syndrome::Ack { .. } = aeth.syndrome else { return self.handle_nak(now, psn, aeth, side) };
        side.requester.reached(now, psn.next());
        let acknowledged = self.acknowledge(now, psn, side);
        if acknowledged.read_missing {
            return self.implied_nak(now, acknowledged.packets > 0, side);
        }
        Ok(())
    }

    /// Everything up to `through` was received.
    fn acknowledge(&mut self, now: Instant, through: Psn, side: &mut SendSide<'_>) -> Acknowledged {
        let acknowledged = side.pipeline.acknowledge(through, &side.common.budget);
        if acknowledged.packets > 0 {
            self.progress(now, acknowledged.data, acknowledged.reads, side);
        }
        acknowledged
    }

    /// The oldest PSN moved on: counters are reloaded, timers start anew.
    fn progress(&mut self, now: Instant, data: u64, reads: u64, side: &mut SendSide<'_>) {
        let oldest = side.pipeline.oldest();
        if side.requester.is_probing() && oldest.since(self.probed) <= 1 && !side.pipeline.is_quiet() {
            // No more than what was sent again: the others were lost too.
            side.requester.lost(reads > 0, oldest, side.pipeline.next());
        }
        self.judge_resends(now, side.common);
        self.rtt.answered(oldest, now);
        if let Some(at) = self.went_back.take()
            && self.rtt.is_sooner(now.saturating_since(at))
        {
            side.common.counters.spurious_go_backs += 1;
            side.requester.undo_cut();
            side.requester.repair.was_needless();
        }
        let queueing = side.common.congestion != CongestionControl::Off && self.rtt.is_queueing();
        side.requester.answered(oldest, data, reads, queueing, side.common);
        (self.retries, self.excused, self.rnr_retries) = (0, 0, 0);
        self.last_progress = now;
        (self.gone_back_to, self.postponed) = (None, None);
        let nothing_awaited = side.pipeline.is_quiet() || side.requester.is_refused(oldest);
        if nothing_awaited { self.stop() } else { self.arm(now, side.common) }
    }

    fn handle_nak(
        &mut self,
        now: Instant,
        psn: Psn,
        aeth: Aeth,
        side: &mut SendSide<'_>,
    ) -> Result<(), Refusal> {
        if let Syndrome::Reserved(_) = aeth.syndrome {
            return Err(DropReason::ReservedSyndrome.into());
        }
        // Any NAK acknowledges what is before it (IBTA 9.7.5.1.1).
        let acknowledged = self.acknowledge(now, psn.add(u32::MAX), side);
        let moved = acknowledged.packets > 0;
        let status = match aeth.syndrome {
            Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::PsnSequenceError) if acknowledged.read_missing => {
                self.request_missing_too(now, moved, side)?;
                if let Syndrome::RnrNak(timer) = aeth.syndrome {
                    // The requests before the refused one are sent again at once. The NAK does not count
                    // against rnr_retry while a response is missing.
                    side.common.counters.rcvd_rnr_err += 1;
                    side.requester.wait_for_receiver(now + timer.delay(), psn);
                }
                return Ok(());
            }
            Syndrome::RnrNak(timer) => return self.receiver_not_ready(now, timer, side),
            Syndrome::Nak(NakCode::PsnSequenceError) if self.repairs(psn, side) => {
                side.common.counters.rcvd_seq_err += 1;
                side.requester.missing(now, psn, self.rtt.reordering());
                return Ok(());
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                self.postpone_or_go_back(now, moved, side)?;
                side.common.counters.rcvd_seq_err += 1;
                return Ok(());
            }
            Syndrome::Nak(NakCode::InvalidRequest) => WcStatus::RemInvReqErr,
            Syndrome::Nak(NakCode::RemoteAccessError) => WcStatus::RemAccessErr,
            Syndrome::Nak(NakCode::RemoteOperationalError) => WcStatus::RemOpErr,
            Syndrome::Nak(NakCode::InvalidRdRequest | NakCode::Reserved(_))
            | Syndrome::Ack { .. }
            | Syndrome::Reserved(_) => WcStatus::BadRespErr,
        };
        // The refused request fails; an older read whose answer is missing is flushed, it can no longer be
        // answered.
        let index = side.pipeline.owner(psn).unwrap_or(side.pipeline.queue.done());
        let failure = Failure { status, vendor_err: u32::from(aeth.syndrome.to_byte()) };
        Err(Refusal::Fatal { index, failure })
    }

    /// Whether the peer, which waits for `psn`, holds or will report everything that is on its way behind it.
    fn repairs(&self, psn: Psn, side: &SendSide<'_>) -> bool {
        side.requester.repair.is_agreed()
            && side.requester.is_idle()
            && side.pipeline.is_at_end()
            && side.pipeline.next().since(psn) < REPORTED as i32
    }

    /// A report of what the peer holds: it waits for `psn`.
    pub fn handle_sack(
        &mut self,
        now: Instant,
        psn: Psn,
        aeth: Aeth,
        held: u128,
        mut side: SendSide<'_>,
    ) -> Result<(), Refusal> {
        let ahead = psn.since(side.pipeline.oldest());
        if ahead < 0 || ahead as u32 >= side.pipeline.outstanding() {
            return Err(DropReason::StaleResponse.into());
        }
        let Syndrome::Ack { credits } = aeth.syndrome else {
            return Err(DropReason::ReservedSyndrome.into());
        };
        side.common.counters.rcvd_sacks += 1;
        side.requester.agree_to_reports(side.common);
        side.requester.grant(aeth.msn, credits);
        let acknowledged = self.acknowledge(now, psn.add(u32::MAX), &mut side);
        if acknowledged.read_missing {
            return self.request_missing_too(now, acknowledged.packets > 0, &mut side);
        }
        // While everything is sent again, the next acknowledgement tells how far to skip.
        if !side.requester.is_idle() || !side.pipeline.is_at_end() {
            return Ok(());
        }
        let next = side.pipeline.next();
        if !side.requester.reported(now, psn, held, next, self.rtt.reordering()) {
            return Err(DropReason::StaleResponse.into());
        }
        self.rtt.forget_sample();
        if let Some((early, Early::GiveUp)) = &mut self.early {
            *early = now + self.rtt.recovery_timeout(side.common.ack_timeout());
        }
        Ok(())
    }

    /// Sends again from the oldest PSN, at once; `moved` if the same packet was progress (IBTA 9.7.5.2.4).
    fn go_back(&mut self, now: Instant, moved: bool, side: &mut SendSide<'_>) -> Result<(), Refusal> {
        let oldest = side.pipeline.oldest();
        if self.gone_back_to == Some(oldest) || side.requester.waits_for_receiver() {
            return Err(DropReason::DuplicateNak.into());
        }
        (self.gone_back_to, self.only_reread) = (Some(oldest), false);
        (self.resent, self.postponed) = (None, None);
        if !moved {
            self.retries += 1;
            self.check_retries(now, side)?;
        }
        let read = side.pipeline.queue.oldest().is_some_and(|wqe| wqe.op.is_answered());
        side.requester.lost(read, oldest, side.pipeline.next());
        self.went_back = Some(now);
        side.requester.repair.clear();
        side.requester.resume();
        side.pipeline.rewind(&side.common.budget);
        self.rtt.forget_sample();
        if side.common.early_resends {
            let wait = self.rtt.recovery_timeout(side.common.ack_timeout());
            self.early = Some((now + wait, Early::GiveUp));
        }
        Ok(())
    }

    /// RNR NAK (IBTA 9.7.5.2.8).
    fn receiver_not_ready(
        &mut self,
        now: Instant,
        timer: RnrTimer,
        side: &mut SendSide<'_>,
    ) -> Result<(), Refusal> {
        if side.requester.waits_for_receiver() {
            return Err(DropReason::DuplicateNak.into());
        }
        side.common.counters.rcvd_rnr_err += 1;
        let allowed = side.common.attr.rnr_retry;
        if allowed != RNR_FOREVER {
            self.rnr_retries += 1;
            if self.rnr_retries > u32::from(allowed) {
                side.common.counters.retry_rnr_exceeded_err += 1;
                return Err(self.fatal(side, WcStatus::RnrRetryExcErr.into()));
            }
        }
        let until = now + timer.delay();
        side.requester.repair.clear();
        side.pipeline.rewind(&side.common.budget);
        side.requester.wait_for_receiver(until, side.pipeline.oldest());
        self.rtt.forget_sample();
        // The peer is alive: what silence may cost is counted from when we send again.
        self.last_progress = until;
        self.gone_back_to = None;
        self.stop();
        Ok(())
    }

    /// A read response or an atomic's result.
    fn handle_data(
        &mut self,
        now: Instant,
        psn: Psn,
        data: Data<'_>,
        mem: &mut impl Memory,
        side: &mut SendSide<'_>,
    ) -> Result<(), Refusal> {
        let bad = |side: &SendSide<'_>, index: Option<u64>| Refusal::Fatal {
            index: index.unwrap_or(side.pipeline.queue.done()),
            failure: WcStatus::BadRespErr.into(),
        };
        let owner = side.pipeline.owner(psn);
        let fits =
            owner.and_then(|index| side.pipeline.queue.get(index)).is_some_and(|wqe| data.answers(&wqe.op));
        if !fits {
            return Err(bad(side, owner));
        }
        // The response acknowledges all sends and writes before it.
        side.requester.reached(now, psn.next());
        let acknowledged = self.acknowledge(now, psn.add(u32::MAX), side);
        if side.pipeline.oldest() != psn {
            return self.keep(now, psn, owner, &data, acknowledged.packets > 0, mem, side);
        }
        let Some((expected, ends_request)) = side.pipeline.expected_response() else {
            return Err(bad(side, owner));
        };
        // Atomic writes and flushes are answered by a READ response of nothing.
        let length = if expected.wqe.op.writes_local() { expected.len as usize } else { 0 };
        let original;
        let octets = match data {
            // At the point of a retry, First may stand for Middle and Only for Last, and the reverse: rxe
            // continues, others begin anew.
            Data::Read { payload, ends } if ends == ends_request && payload.len() == length => payload,
            Data::Read { .. } => return Err(bad(side, owner)),
            Data::Atomic { original: value } => {
                original = value.to_ne_bytes();
                &original
            }
        };
        if side.pipeline.queue.scatter(expected.index, u64::from(expected.offset), octets, mem).is_err() {
            return Err(Refusal::Fatal { index: expected.index, failure: WcStatus::LocProtErr.into() });
        }
        side.pipeline.answered(&side.common.budget);
        self.progress(now, 0, octets.len() as u64, side);
        if side.pipeline.has_placed() {
            self.answered_again = psn;
            // This closed a gap, perhaps: then what came behind it is answered as well.
            self.acknowledge(now, side.requester.repair.base().add(u32::MAX), side);
        } else {
            self.reread = None;
        }
        Ok(())
    }
}

/// An answer that carries data.
enum Data<'a> {
    Read { payload: &'a [u8], ends: bool },
    Atomic { original: u64 },
}

impl Data<'_> {
    fn answers(&self, op: &SendOp) -> bool {
        match self {
            Self::Read { .. } => {
                matches!(op, SendOp::Read { .. } | SendOp::AtomicWrite { .. } | SendOp::Flush { .. })
            }
            Self::Atomic { .. } => op.is_atomic(),
        }
    }
}
