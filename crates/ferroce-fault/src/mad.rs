//! The judge of management datagrams.
//!
//! Connection management is the broker's, so the broker holds such a judge for each program that has rules
//! for management datagrams. A connection begins with its first datagram at the program, and has the number
//! of its place among the program's connections. A random decision depends on the seed, the rule, the
//! connection, the direction, the attribute, and how often this attribute has passed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use ferroce_wire::cm::{CommId, Message};
use ferroce_wire::mad::MAD_LEN;
use ferroce_wire::{Instant, Psn};

use crate::effect::{Actions, Hit, Victim};
use crate::facts::{Dir, Facts, Op, Pos};
use crate::flow::{Identity, RuleInFlow};
use crate::judge::{Case, Hits, Limit, draw_of, reach};
use crate::plan::{Key, Kind, Plan};

/// The most connections that a judge remembers. The oldest is forgotten for a new one.
pub const MOST_MAD_CONNECTIONS: usize = 1024;
/// The most hits that wait to be taken by [`MadJudge::take_hits`]. Further ones are counted and forgotten.
pub const MOST_MAD_HITS: usize = 4096;

/// The most counts of rules with `nth` or `count`, over all connections. The oldest connection is forgotten
/// for more.
const MOST_STATES: usize = 65_536;

/// A management datagram, as rules see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadFacts {
    /// The direction of the MAD, as the program sees it.
    pub dir: Dir,
    /// The attribute of the MAD.
    pub op: Op,
    /// The address of the other end.
    pub peer: IpAddr,
    /// The communication id of the program's end, if the datagram has one.
    pub ours: CommId,
    /// The communication id of the other end, if the datagram has one.
    pub theirs: CommId,
}

impl MadFacts {
    /// The facts of a message to or from `peer`.
    pub fn of(message: &Message, dir: Dir, peer: IpAddr) -> Self {
        let (op, sender) = match message {
            Message::Req(req) => (Op::Req, req.local_id),
            Message::Mra(mra) => (Op::Mra, mra.local_id),
            Message::Rej(rej) => (Op::Rej, rej.local_id),
            Message::Rep(rep) => (Op::Rep, rep.local_id),
            Message::Rtu(rtu) => (Op::Rtu, rtu.local_id),
            Message::Dreq(dreq) => (Op::Dreq, dreq.local_id),
            Message::Drep(drep) => (Op::Drep, drep.local_id),
            Message::SidrReq(req) => (Op::SidrReq, req.request_id),
            Message::SidrRep(_) => (Op::SidrRep, CommId::NONE),
            Message::Lap(lap) => (Op::Lap, lap.local_id),
            Message::Apr(apr) => (Op::Apr, apr.local_id),
        };
        let receiver = message.receiver_id().unwrap_or(CommId::NONE);
        let (ours, theirs) = match dir {
            Dir::Tx => (sender, receiver),
            Dir::Rx => (receiver, sender),
        };
        Self { dir, op, peer, ours, theirs }
    }
}

/// The rules of a program for management datagrams, with their state.
#[derive(Debug)]
pub struct MadJudge {
    plan: Plan,
    /// The time of the first datagram.
    start: Option<Instant>,
    /// The connections, by number.
    connections: BTreeMap<u64, Connection>,
    next: u64,
    by_ours: BTreeMap<CommId, u64>,
    by_theirs: BTreeMap<(IpAddr, CommId), u64>,
    /// Entries of [`Connection::rules`] of all connections.
    states: usize,
    /// Datagrams that matched each rule, and those that it acted on.
    counts: Vec<(u64, u64)>,
    hits: Hits,
}

#[derive(Default, Debug)]
struct Connection {
    ours: Option<CommId>,
    theirs: Option<(IpAddr, CommId)>,
    /// How often each attribute has passed, by direction.
    passes: BTreeMap<(u64, u64), u32>,
    /// The state of rules that count, by rule and direction.
    rules: BTreeMap<(usize, u64), RuleInFlow>,
}

impl MadJudge {
    /// A judge for the rules of this plan that are for management datagrams.
    pub fn new(plan: Plan) -> Self {
        let counts = vec![(0, 0); plan.rules.len()];
        Self {
            plan,
            start: None,
            connections: BTreeMap::new(),
            next: 0,
            by_ours: BTreeMap::new(),
            by_theirs: BTreeMap::new(),
            states: 0,
            counts,
            hits: Hits { most: Some(MOST_MAD_HITS), ..Hits::default() },
        }
    }

    /// For each rule in the order of the plan: datagrams that matched its terms, and those that it acted on.
    pub fn counts(&self) -> &[(u64, u64)] {
        &self.counts
    }

    /// Takes up to `most` of the hits since the last call, in their order.
    pub fn take_hits(&mut self, most: usize) -> Vec<Hit> {
        self.hits.waiting.drain(..most.min(self.hits.waiting.len())).collect()
    }

    /// Whether hits wait.
    pub fn has_hits(&self) -> bool {
        !self.hits.waiting.is_empty()
    }

    /// Hits that were forgotten, because more than [`MOST_MAD_HITS`] waited.
    pub const fn forgotten(&self) -> u64 {
        self.hits.forgotten
    }

    /// Says what becomes of a datagram. The caller calls this once for each one, in order of sending or
    /// arrival. A corrupt datagram whose ICRC is not computed anew counts as lost.
    pub fn decide(&mut self, now: Instant, facts: &MadFacts) -> Actions {
        let start = *self.start.get_or_insert(now);
        let conn = self.number(facts);
        let Some(connection) = self.connections.get_mut(&conn) else { return Actions::default() };
        let dir = facts.dir as u64;
        let pass = connection.passes.entry((facts.op as u64, dir)).or_default();
        *pass = pass.saturating_add(1);
        // The ICRC counts as a part of the packet in which no place is.
        let packet = Facts {
            dir: facts.dir,
            dev: None,
            peer: facts.peer,
            qp: u32::MAX,
            op: facts.op,
            pos: Pos::Only,
            psn: Psn::new(0),
            msn: 0,
            len: MAD_LEN as u32,
            wire_len: MAD_LEN as u32 + 4,
            ack: false,
            ecn: 0,
            stream: false,
        };
        let identity = Identity { place: 0, iter: *pass, msg: None };
        let mut case = Case::new(now, start, &packet, u32::MAX, identity, Some(conn));
        for ((index, rule), (seen, hits)) in self.plan.rules.iter().enumerate().zip(&mut self.counts) {
            if rule.kind() != Kind::Mad || !case.matches(rule) {
                continue;
            }
            let mut none = RuleInFlow::default();
            let counts = rule.term(Key::Nth).is_some() || rule.term(Key::Count).is_some();
            let state = match connection.rules.entry((index, dir)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) if counts => {
                    self.states += 1;
                    place.insert(none)
                }
                Entry::Vacant(_) => &mut none,
            };
            if !reach(rule, state) {
                continue;
            }
            *seen += 1;
            let draw = draw_of(self.plan.seed, index, rule).with(conn).with(dir).with(facts.op as u64);
            let effects = case.apply(rule, draw, &mut Limit::default(), state);
            *hits += u64::from(!effects.is_empty());
            let victim = Victim::Mad { dir: facts.dir, conn, op: facts.op, iter: *pass };
            for effect in effects {
                self.hits.note(Hit { rule: index, victim, effect });
            }
            if case.actions.drop {
                break;
            }
        }
        let actions = case.finish();
        while self.states > MOST_STATES {
            self.forget_oldest();
        }
        actions
    }

    /// The number of the datagram's connection, which it may begin.
    fn number(&mut self, facts: &MadFacts) -> u64 {
        let theirs = (facts.theirs != CommId::NONE).then_some((facts.peer, facts.theirs));
        let ours = (facts.ours != CommId::NONE).then_some(facts.ours);
        // The passive end has an id of its own as soon as it answers.
        let open = |number: &u64| {
            let known = self.connections.get(number).and_then(|connection| connection.ours);
            ours.is_none() || known.is_none() || known == ours
        };
        let known = ours.and_then(|id| self.by_ours.get(&id).copied());
        let known = known.or_else(|| theirs.and_then(|id| self.by_theirs.get(&id).copied().filter(open)));
        let number = known.unwrap_or_else(|| {
            if self.connections.len() == MOST_MAD_CONNECTIONS {
                self.forget_oldest();
            }
            self.next += 1;
            self.connections.insert(self.next - 1, Connection::default());
            self.next - 1
        });
        if let Some(connection) = self.connections.get_mut(&number) {
            if let (Some(id), None) = (ours, connection.ours) {
                connection.ours = ours;
                self.by_ours.insert(id, number);
            }
            if let (Some(id), None) = (theirs, connection.theirs) {
                connection.theirs = theirs;
                self.by_theirs.insert(id, number);
            }
        }
        number
    }

    fn forget_oldest(&mut self) {
        let Some((number, Connection { ours, theirs, rules, .. })) = self.connections.pop_first() else {
            self.states = 0;
            return;
        };
        self.states -= rules.len();
        if let Some(id) = ours.filter(|id| self.by_ours.get(id) == Some(&number)) {
            self.by_ours.remove(&id);
        }
        if let Some(id) = theirs.filter(|id| self.by_theirs.get(id) == Some(&number)) {
            self.by_theirs.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests;
