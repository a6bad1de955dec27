//! The judge: a plan with the state of its rules.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::Duration;

use ferroce_wire::{Instant, MIX_STEP, mix};

pub use crate::effect::Victim;
use crate::effect::{Actions, Answer, Effect, Hit, Release};
use crate::facts::{Class, CompletionFacts, Dir, Facts, VerbFacts};
use crate::flow::{FlowState, Identity, RuleInFlow};
use crate::plan::{Act, By, Delay, Key, Kind, Plan, Rule, Spread, Target, Value};
use crate::queue::LONGEST_REORDER;
use crate::units::{LONGEST, Probability};
use crate::words::{Moment, Verb, WcError};

/// The most flows of a judge. Packets of further flows pass.
pub const MAX_FLOWS: usize = 4096;
/// The most hits that wait to be taken by [`Judge::take_hits`]. Further ones are counted and forgotten.
pub const MAX_HITS: usize = 65_536;

/// A plan with the state of its rules. It says what becomes of packets, calls and completions.
#[derive(Debug)]
pub struct Judge {
    plan: Plan,
    /// The time of the first packet.
    start: Option<Instant>,
    /// The time of the first call or moment.
    first_call: Option<Instant>,
    flows: BTreeMap<(u32, std::net::IpAddr), Box<FlowState>>,
    rules: Vec<RuleState>,
    /// Calls and moments so far, by their place in the list of words.
    verbs: [u64; Verb::WORDS.len()],
    moments: [u64; Moment::WORDS.len()],
    hits: Hits,
}

/// The state of a rule over all flows.
#[derive(Clone, Copy, Default, Debug)]
struct RuleState {
    /// Packets and calls that matched the terms.
    seen: u64,
    hits: u64,
    limit: Limit,
    /// The state of a rule that does not act on packets.
    single: RuleInFlow,
}

/// The counts of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleCounts {
    /// The name of the rule, or its text without a name.
    pub title: String,
    /// The text of the rule without the name.
    pub text: String,
    /// Packets, calls or moments that matched its terms.
    pub seen: u64,
    /// Events that it acted on.
    pub hits: u64,
}

/// The judgement on a call.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VerbFault {
    /// Time that the call takes longer.
    pub stall: Duration,
    /// The errno with which the call fails; `None` if it does not fail.
    pub errno: Option<i32>,
}

impl Judge {
    /// A judge for this plan. For rules on packets the plan's time begins with the first packet, for others
    /// with the first call or moment.
    pub fn new(plan: Plan) -> Self {
        let rules = vec![RuleState::default(); plan.rules.len()];
        Self {
            plan,
            start: None,
            first_call: None,
            flows: BTreeMap::new(),
            rules,
            verbs: [0; Verb::WORDS.len()],
            moments: [0; Moment::WORDS.len()],
            hits: Hits::default(),
        }
    }

    /// Has the plan's time begin now, in place of the first packet.
    pub const fn begin(&mut self, now: Instant) {
        self.start = Some(now);
    }

    /// The plan.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Keeps hits from now on, for [`Self::take_hits`].
    pub const fn record_hits(&mut self) {
        self.hits.most = Some(MAX_HITS);
    }

    /// Takes the hits since the last call in their order.
    pub fn take_hits(&mut self) -> Vec<Hit> {
        mem::take(&mut self.hits.waiting).into()
    }

    /// Hits that were forgotten, because more than [`MAX_HITS`] waited.
    pub const fn forgotten(&self) -> u64 {
        self.hits.forgotten
    }

    /// The name of a hit's rule, or its text.
    pub fn title(&self, hit: &Hit) -> &str {
        self.plan.rules.get(hit.rule).map_or("", Rule::title)
    }

    /// The counts of each rule, in the order of the plan.
    pub fn counts(&self) -> Vec<RuleCounts> {
        let rules = self.plan.rules.iter().zip(&self.rules);
        rules
            .map(|(rule, state)| RuleCounts {
                title: rule.title().to_owned(),
                text: rule.text.clone(),
                seen: state.seen,
                hits: state.hits,
            })
            .collect()
    }

    /// The queue pair begins anew, with other PSNs.
    pub fn forget(&mut self, qp: u32) {
        self.flows.retain(|(owner, _), _| *owner != qp);
    }

    /// Says what becomes of a packet. The caller calls this once for each packet in order of sending or
    /// arrival.
    pub fn decide(&mut self, now: Instant, facts: &Facts<'_>) -> Actions {
        let start = *self.start.get_or_insert(now);
        let Some(flow) = flow_of(&mut self.flows, facts, self.rules.len()) else { return Actions::default() };
        let identity = flow.identify(facts);
        let mut case = Case::new(now, start, facts, flow.peer, identity, None);
        case.actions.drop = flow.is_refused(&case);
        for (index, (rule, state)) in self.plan.rules.iter().zip(&mut self.rules).enumerate() {
            let in_flow = flow.rules.get_mut(index).and_then(|dirs| dirs.get_mut(facts.dir as usize));
            let acts = rule.kind() == Kind::Packet && (rule.captures() || !case.is_over());
            let Some(in_flow) = in_flow.filter(|_| acts && case.matches(rule)) else {
                continue;
            };
            if !reach(rule, in_flow) {
                continue;
            }
            state.seen += 1;
            let draw = draw_of(self.plan.seed, index, rule);
            let draw = draw.with(flow.qp.into()).with(flow.peer.into()).with(facts.dir as u64);
            let effects = case.apply(rule, draw, &mut state.limit, in_flow);
            state.hits += u64::from(!effects.is_empty());
            let Facts { dir, op, .. } = *facts;
            let (psn, iter) = (case.identity.psn(), case.identity.iter);
            let victim = Victim::Packet { dir, qp: flow.qp, peer: flow.peer, op, psn, iter };
            for effect in effects.into_iter().filter(|effect| *effect != Effect::Capture) {
                self.hits.note(Hit { rule: index, victim, effect });
            }
            if case.actions.answer.is_some() {
                flow.refused = Some(case.identity.place);
            }
        }
        case.finish()
    }

    /// Says what becomes of a call.
    pub fn verb(&mut self, now: Instant, facts: &VerbFacts<'_>) -> VerbFault {
        let mut fault = VerbFault::default();
        let Some(nth) = count(&mut self.verbs, facts.verb as usize) else { return fault };
        let words = [(Key::Verb, Some(facts.verb as u64)), (Key::Qp, facts.qp.map(u64::from))];
        let event = Event { kind: Kind::Verb, words: &words, dev: facts.dev };
        self.single(now, &event, Victim::Verb { verb: facts.verb, nth }, |act, draw| match act {
            Act::Stall { probability, by } => {
                let draw = draw.with(facts.verb as u64).with(nth);
                let time = length(by, draw).min(LONGEST);
                draw.happens(*probability).then(|| {
                    fault.stall += time;
                    Effect::Stall(time)
                })
            }
            Act::Fail(errno) => {
                fault.errno = fault.errno.or(Some(*errno));
                Some(Effect::Fail(*errno))
            }
            _ => None,
        });
        fault
    }

    /// Says with which error a work request of a queue pair of this device completes, if a rule makes it.
    pub fn completion(&mut self, now: Instant, dev: Option<&str>, qp: u32, msg: u64) -> Option<WcError> {
        let mut status = None;
        let words = [(Key::Qp, Some(u64::from(qp))), (Key::Msg, Some(msg))];
        let event = Event { kind: Kind::Completion, words: &words, dev };
        self.single(now, &event, Victim::Completion { qp, msg }, |act, _| match act {
            Act::Wc(error) => {
                status = status.or(Some(*error));
                Some(Effect::Wc(*error))
            }
            _ => None,
        });
        status
    }

    /// Says which process is killed at this moment, if one is.
    pub fn moment(&mut self, now: Instant, facts: &CompletionFacts<'_>) -> Option<Target> {
        let mut target = None;
        let nth = count(&mut self.moments, facts.at as usize)?;
        let words =
            [(Key::At, Some(facts.at as u64)), (Key::Qp, facts.qp.map(u64::from)), (Key::Msg, facts.msg)];
        let event = Event { kind: Kind::Moment, words: &words, dev: facts.dev };
        self.single(now, &event, Victim::Moment { at: facts.at, nth }, |act, _| match act {
            Act::Kill(whom) => {
                target = target.or(Some(*whom));
                Some(Effect::Kill(*whom))
            }
            _ => None,
        });
        target
    }

    /// Applies the rules of a kind without flows.
    fn single(
        &mut self,
        now: Instant,
        event: &Event<'_>,
        victim: Victim,
        mut apply: impl FnMut(&Act, Draw) -> Option<Effect>,
    ) {
        let start = *self.first_call.get_or_insert(now);
        let elapsed = now.saturating_since(start).as_nanos() as u64;
        for (index, (rule, state)) in self.plan.rules.iter().zip(&mut self.rules).enumerate() {
            let holds = rule.kind() == event.kind
                && rule.terms.iter().all(|term| match term.key {
                    Key::Nth | Key::Count => true,
                    Key::Time => term.holds(elapsed),
                    Key::Dev => event.dev.is_some_and(|dev| term.holds_for_name(dev)),
                    key => event.words.iter().any(|(k, v)| *k == key && v.is_some_and(|v| term.holds(v))),
                });
            if !holds || !reach(rule, &mut state.single) {
                continue;
            }
            state.seen += 1;
            let draw = draw_of(self.plan.seed, index, rule);
            let mut acted = false;
            for effect in rule.acts.iter().filter_map(|act| apply(act, draw)) {
                acted = true;
                self.hits.note(Hit { rule: index, victim, effect });
            }
            state.hits += u64::from(acted);
            state.single.acted += u64::from(acted);
        }
    }
}

/// A call, completion or moment, as its rules see it.
struct Event<'a> {
    kind: Kind,
    /// The event's keys that have numeric values, each with its value; `None` if the value is not known.
    words: &'a [(Key, Option<u64>)],
    dev: Option<&'a str>,
}

fn count(counters: &mut [u64], place: usize) -> Option<u64> {
    let counter = counters.get_mut(place)?;
    *counter += 1;
    Some(*counter)
}

/// Hits that wait to be taken.
#[derive(Default, Debug)]
pub(crate) struct Hits {
    /// The most that wait; further ones are counted and forgotten. `None`: none is kept or counted.
    pub(crate) most: Option<usize>,
    pub(crate) waiting: VecDeque<Hit>,
    pub(crate) forgotten: u64,
}

impl Hits {
    pub(crate) fn note(&mut self, hit: Hit) {
        match self.most {
            Some(most) if self.waiting.len() < most => self.waiting.push_back(hit),
            Some(_) => self.forgotten += 1,
            None => {}
        }
    }
}

/// The state of a link of limited rate with a queue in front.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Limit {
    /// Time at which the link will have sent all that waits.
    busy_until: Instant,
}

/// The state of a limit as a packet finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossing {
    /// The time until the link has sent what waits before the packet.
    pub waits: Duration,
    /// Number of octets that wait before the packet.
    pub waiting: u64,
    /// The time at which the packet has crossed the link; `None` if there is no room for it.
    pub crossed: Option<Instant>,
}

impl Limit {
    /// Sends `octets` at `bits` a second, if no more than `queue` octets and `queue_time` wait.
    pub fn cross(
        &mut self,
        now: Instant,
        octets: u64,
        bits: u64,
        queue: u64,
        queue_time: Option<Duration>,
    ) -> Crossing {
        let bits = u128::from(bits.max(1));
        let free = self.busy_until.max(now);
        let waits = free.saturating_since(now);
        let waiting = (waits.as_nanos() * bits / 8_000_000_000) as u64;
        let full = waiting > queue || queue_time.is_some_and(|limit| waits > limit);
        let crossed = (!full).then(|| {
            let transit = u128::from(octets) * 8_000_000_000 / bits;
            self.busy_until = free + Duration::from_nanos(transit.min(u128::from(u64::MAX)) as u64);
            self.busy_until
        });
        Crossing { waits, waiting, crossed }
    }
}

/// A hash under construction.
///
/// Random numbers come by counting: each is a hash of what it is for, so no draw shifts another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Adds a number to what is hashed.
    pub(crate) fn with(self, number: u64) -> Self {
        Self(mix(self.0 ^ number.wrapping_mul(MIX_STEP)).rotate_left(17))
    }

    /// Adds a name to what is hashed.
    fn with_name(self, name: &str) -> Self {
        name.bytes().fold(self.with(name.len() as u64), |draw, byte| draw.with(u64::from(byte) + 1))
    }

    /// 64 random bits.
    fn bits(self) -> u64 {
        mix(self.0 ^ 0xd1b5_4a32_d192_ed03)
    }

    /// A number below `bound`; 0 if that is 0.
    fn below(self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Whether something of this probability happens.
    fn happens(self, probability: Probability) -> bool {
        self.below(u64::from(Probability::ONE.0)) < u64::from(probability.0)
    }

    /// A number from 0 to 1, without 1.
    fn fraction(self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The random numbers of a rule.
pub(crate) fn draw_of(seed: u64, index: usize, rule: &Rule) -> Draw {
    match &rule.name {
        Some(name) => Draw::new(seed).with_name(name),
        None => Draw::new(seed).with(index as u64),
    }
}

/// Counts a packet or call that matches the other terms; whether `nth` and `count` hold too.
pub(crate) fn reach(rule: &Rule, state: &mut RuleInFlow) -> bool {
    state.reached += 1;
    let nth = rule.term(Key::Nth).is_none_or(|term| term.holds(state.reached));
    let limit = rule.term(Key::Count).and_then(|term| match term.values.first() {
        Some(Value::Range(count, _)) => Some(*count),
        _ => None,
    });
    nth && limit.is_none_or(|limit| state.acted < limit)
}

fn flow_of<'f>(
    flows: &'f mut BTreeMap<(u32, std::net::IpAddr), Box<FlowState>>,
    facts: &Facts<'_>,
    rules: usize,
) -> Option<&'f mut FlowState> {
    let key = (facts.qp, facts.peer);
    if !flows.contains_key(&key) {
        if flows.len() == MAX_FLOWS {
            return None;
        }
        let peers = flows.values().filter(|flow| flow.qp == facts.qp).count();
        flows.insert(key, boxed(facts.qp, peers as u32, rules));
    }
    flows.get_mut(&key).map(|flow| &mut **flow)
}

/// Makes a flow, which has 1 KiB, outside of the frame in which packets are judged: threads may have a stack
/// of 16 KiB.
#[inline(never)]
fn boxed(qp: u32, peer: u32, rules: usize) -> Box<FlowState> {
    Box::new(FlowState::new(qp, peer, rules))
}

/// A packet or management datagram that is being judged.
pub(crate) struct Case<'a> {
    now: Instant,
    start: Instant,
    facts: &'a Facts<'a>,
    /// The number of the peer, by order of appearance.
    peer: u32,
    identity: Identity,
    /// The connection of a management datagram.
    conn: Option<u64>,
    pub(crate) actions: Actions,
    delay: Duration,
    /// The end of a `hold`.
    hold: Option<Instant>,
    behind: u32,
}

impl FlowState {
    /// Whether the responder ignores the packet, because it refused an earlier one.
    fn is_refused(&mut self, case: &Case<'_>) -> bool {
        let Some(place) = self.refused else { return false };
        if case.facts.dir != Dir::Rx || case.facts.op.class() != Class::Request {
            return false;
        }
        if case.identity.place <= place {
            self.refused = None;
            return false;
        }
        true
    }
}

impl<'a> Case<'a> {
    pub(crate) fn new(
        now: Instant,
        start: Instant,
        facts: &'a Facts<'a>,
        peer: u32,
        identity: Identity,
        conn: Option<u64>,
    ) -> Self {
        let (actions, delay) = Default::default();
        Self { now, start, facts, peer, identity, conn, actions, delay, hold: None, behind: 0 }
    }

    pub(crate) fn matches(&self, rule: &Rule) -> bool {
        let Facts { dir, dev, peer, qp, op, pos, msn, len, ack, .. } = *self.facts;
        let elapsed = self.now.saturating_since(self.start).as_nanos() as u64;
        rule.terms.iter().all(|term| match term.key {
            Key::Dir => term.holds(dir as u64),
            Key::Dev => dev.is_some_and(|dev| term.holds_for_name(dev)),
            Key::Peer => term.holds_for_peer(peer, self.peer),
            Key::Qp => term.holds(qp.into()),
            Key::Conn => self.conn.is_some_and(|conn| term.holds(conn)),
            Key::Op => term.holds(op as u64),
            Key::Pos => term.holds(pos as u64),
            Key::Psn => term.holds(self.identity.psn().into()),
            Key::Msn => op.class() != Class::Request && term.holds(msn.into()),
            Key::Msg => self.identity.msg.is_some_and(|msg| term.holds(msg)),
            Key::Iter => term.holds(self.identity.iter.into()),
            Key::Len => term.holds(len.into()),
            Key::Ack => term.holds(ack.into()),
            Key::Time => term.holds(elapsed),
            Key::Nth | Key::Count => true,
            Key::Verb | Key::At => false,
        })
    }

    /// Applies the acts of a rule whose terms hold; the effects in their order. `draw` is that of the rule
    /// and the flow.
    pub(crate) fn apply(
        &mut self,
        rule: &Rule,
        draw: Draw,
        limit: &mut Limit,
        in_flow: &mut RuleInFlow,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (number, act) in rule.acts.iter().enumerate() {
            effects.extend(self.one(act, draw.with(number as u64), rule, limit, in_flow));
            if self.actions.drop && !rule.captures() {
                break;
            }
        }
        in_flow.acted += u64::from(!effects.is_empty());
        effects
    }

    /// Whether the packet is lost or answered, so that only captures act on it.
    const fn is_over(&self) -> bool {
        self.actions.drop || self.actions.answer.is_some()
    }

    /// The draw for this very packet.
    fn own(&self, draw: Draw) -> Draw {
        let Identity { place, iter, .. } = self.identity;
        draw.with(self.facts.op.class() as u64).with(place as u64).with(iter.into())
    }

    fn one(
        &mut self,
        act: &Act,
        draw: Draw,
        rule: &Rule,
        limit: &mut Limit,
        in_flow: &mut RuleInFlow,
    ) -> Option<Effect> {
        let own = self.own(draw);
        let stream = self.facts.stream;
        if stream && !act.acts_on_streams() {
            return None;
        }
        match *act {
            Act::Drop(probability) => own.happens(probability).then(|| self.lose()),
            Act::Cut => {
                let lost = self.lose();
                Some(if stream { Effect::Cut } else { lost })
            }
            Act::Burst { enter, leave, bad, good } => {
                let draw = draw.with(in_flow.reached);
                let turns = draw.with(1).happens(if in_flow.bad { leave } else { enter });
                in_flow.bad ^= turns;
                let lost = draw.with(2).happens(if in_flow.bad { bad } else { good });
                lost.then(|| self.lose())
            }
            Act::Dup(probability) => own.happens(probability).then(|| {
                self.actions.duplicate = true;
                Effect::Dup
            }),
            Act::Ce(probability) => own.happens(probability).then(|| self.mark())?,
            Act::Reorder { probability, by } => own.happens(probability).then(|| match by {
                Some(By::Time(time)) => self.later(time),
                Some(By::Packets(packets)) => self.behind(packets),
                None => self.behind(1 + own.with(1).below(8) as u32),
            }),
            Act::Corrupt { probability, icrc_ok, at } => own.happens(probability).then(|| {
                let (len, noise) = (self.facts.wire_len, own.with(1).bits());
                let corruption =
                    if stream { at.choose_in_stream(len, noise) } else { at.choose(len, icrc_ok, noise) };
                self.actions.corrupt = Some(corruption);
                // The receiver of a management datagram with a wrong ICRC does not see it.
                self.actions.drop |= self.conn.is_some() && !icrc_ok;
                Effect::Corrupt(corruption)
            }),
            Act::Delay(delay) => {
                let time = length(&delay, own);
                (time > Duration::ZERO).then(|| self.later(time))
            }
            Act::Rate { bits, queue, queue_time, mark } => {
                let octets = self.facts.wire_len.into();
                let crossing = limit.cross(self.now, octets, bits, queue, queue_time);
                let Some(crossed) = crossing.crossed else { return Some(self.lose()) };
                let effect = self.later(crossed.saturating_since(self.now));
                let marked = mark.is_some_and(|mark| crossing.waiting > mark);
                marked.then(|| self.mark()).flatten().or(Some(effect))
            }
            Act::Hold => {
                let end = rule.term(Key::Time).and_then(crate::plan::Term::last);
                let end = end.map_or(Instant::MAX, |nanos| self.start + Duration::from_nanos(nanos));
                self.hold = Some(self.hold.map_or(end, |other| other.max(end)));
                Some(Effect::Hold)
            }
            Act::Capture => {
                self.actions.capture = true;
                Some(Effect::Capture)
            }
            Act::Rnr(time) => self.answer(Answer::Rnr(time)),
            Act::Nak(code) => self.answer(Answer::Nak(code)),
            Act::Fail(_) | Act::Stall { .. } | Act::Wc(_) | Act::Kill(_) => None,
        }
    }

    fn lose(&mut self) -> Effect {
        self.actions.drop = true;
        Effect::Drop
    }

    /// Only packets of a capable sender can be marked (RFC 3168 section 5).
    fn mark(&mut self) -> Option<Effect> {
        let capable = matches!(self.facts.ecn, 1 | 2);
        self.actions.mark_ce |= capable;
        capable.then_some(Effect::Ce)
    }

    fn later(&mut self, time: Duration) -> Effect {
        // The record of a hit must be a time that a plan can have.
        let time = time.min(LONGEST);
        self.delay += time;
        Effect::Delay(time)
    }

    fn behind(&mut self, packets: u32) -> Effect {
        self.behind = self.behind.max(packets);
        Effect::Behind(packets)
    }

    /// Only a responder answers, and only requests that it receives.
    fn answer(&mut self, answer: Answer) -> Option<Effect> {
        let received = self.facts.dir == Dir::Rx && self.facts.op.class() == Class::Request;
        received.then(|| {
            self.actions.answer = Some(answer);
            Effect::Answer(answer)
        })
    }

    pub(crate) fn finish(mut self) -> Actions {
        let Actions { answer, capture, .. } = self.actions;
        if self.actions.drop {
            return Actions { drop: true, capture, ..Actions::default() };
        }
        if answer.is_some() {
            return Actions { answer, capture, ..Actions::default() };
        }
        let waits = self.behind > 0 || self.delay > Duration::ZERO || self.hold.is_some();
        if waits {
            let grace = if self.behind > 0 { LONGEST_REORDER } else { Duration::ZERO };
            let at = self.now + self.delay + grace;
            let at = self.hold.map_or(at, |hold| hold.max(at));
            let behind = if self.hold.is_some() || self.delay > Duration::ZERO { 0 } else { self.behind };
            self.actions.release = Some(Release { at, behind });
        }
        self.actions
    }
}

/// A delay with its spread.
fn length(delay: &Delay, draw: Draw) -> Duration {
    let Delay { base, jitter, spread } = *delay;
    let (base, jitter) = (base.as_nanos() as f64, jitter.as_nanos() as f64);
    let first = draw.with(1).fraction();
    let offset = match spread {
        Spread::Uniform => 2.0 * first - 1.0,
        // Box and Muller.
        Spread::Normal => {
            let second = draw.with(2).fraction();
            (-2.0 * (1.0 - first).ln()).sqrt() * (std::f64::consts::TAU * second).cos()
        }
        Spread::Pareto => ((1.0 - first).powf(-1.0 / 3.0) - 1.0).min(100.0),
    };
    Duration::from_nanos((base + jitter * offset).max(0.0) as u64)
}

#[cfg(test)]
mod tests;
