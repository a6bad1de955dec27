//! Faults on purpose in management datagrams: the rules of programs, which the broker applies to what they
//! send and receive.
//!
//! A program gives its rules ([`ferroce_ipc::Message::MadFaults`]), and they act on the datagrams of its own
//! connections, SIDR requests and listeners alone. A datagram that is late waits in a queue of that program.
//! Without rules of any program nothing of this exists.

use std::collections::{BTreeMap, VecDeque};

use ferroce_cm::{ConnectionManager, Route, Transmit};
use ferroce_fault::{Corruption, Dir, HeldQueue, Kind, MadFacts, MadJudge, Plan, Release};
use ferroce_ipc::{MadFaultReport, Refusal, RefusalCode};
use ferroce_wire::Instant;
use ferroce_wire::cm::{Mad, Message};
use ferroce_wire::mad::MAD_LEN;
use tracing::debug;

use super::Cm;
use crate::refusal;

/// Late datagrams of one program. Further ones are lost.
const MOST_LATE: usize = 1024;
/// Hits in one report.
const MOST_REPORTED: usize = 256;

/// The rules of all programs.
#[derive(Debug, Default)]
pub(super) struct Faults {
    programs: BTreeMap<u64, Program>,
    /// The program of each slot.
    slots: BTreeMap<u16, u64>,
    next: u64,
}

/// A program with rules.
#[derive(Debug)]
struct Program {
    /// The program's number for its rules.
    generation: u32,
    judge: MadJudge,
    late: HeldQueue<Late>,
    /// It was told that there are hits, and has not asked for them.
    told: bool,
}

/// A datagram that waits.
#[derive(Debug)]
enum Late {
    In(Route, Box<[u8]>),
    Out(Transmit),
}

impl Faults {
    /// Time at which the next late datagram is due; `None` if no datagram waits.
    pub(super) fn next(&self) -> Option<Instant> {
        self.programs.values().filter_map(|program| program.late.next()).min()
    }

    fn of(&mut self, slot: u16) -> Option<&mut Program> {
        self.programs.get_mut(self.slots.get(&slot)?)
    }

    /// Takes the datagrams that are due, in the order of their programs.
    fn due(&mut self, now: Instant) -> Vec<Late> {
        let programs = self.programs.values_mut();
        programs.flat_map(|program| std::iter::from_fn(|| program.late.pop(now))).collect()
    }

    /// Forgets the rules for a slot. Returns the datagrams that waited, if no other slot has these rules.
    fn forget(&mut self, slot: u16) -> Vec<Late> {
        let Some(id) = self.slots.remove(&slot) else { return Vec::new() };
        if self.slots.values().any(|other| *other == id) {
            return Vec::new();
        }
        let Some(mut program) = self.programs.remove(&id) else { return Vec::new() };
        program.late.release_all();
        std::iter::from_fn(|| program.late.pop(Instant::ZERO)).collect()
    }
}

impl Program {
    fn keep(&mut self, release: Release, late: Late) {
        let kept = self.late.len() < MOST_LATE && self.late.push(release, (0, 0), MAD_LEN, late).is_ok();
        if !kept {
            debug!("more than {MOST_LATE} management datagrams of a program are late: one is lost");
        }
    }
}

impl Cm {
    /// Takes the rules of the program with these slots, of a leased member the first one, into force in place
    /// of earlier ones. Rules of the same generation go on, and are for all of these slots.
    pub fn take_rules(&mut self, slots: &[u16], generation: u32, rules: &str) -> Result<(), Refusal> {
        if slots.is_empty() {
            let sentence = "rules for management datagrams need a slot: lease one first";
            return Err(refusal(RefusalCode::BadRequest, sentence));
        }
        let plan: Plan = rules.parse().map_err(|error| {
            refusal(RefusalCode::BadRequest, format!("a rule for management datagrams: {error}"))
        })?;
        if plan.rules.iter().any(|rule| rule.kind() != Kind::Mad) {
            let sentence = "the broker applies rules for management datagrams alone";
            return Err(refusal(RefusalCode::BadRequest, sentence));
        }
        if let Some(faults) = &mut self.faults
            && let Some(id) = slots.iter().find_map(|slot| faults.slots.get(slot)).copied()
            && let Some(program) = faults.programs.get_mut(&id).filter(|known| known.generation == generation)
        {
            program.told = false;
            faults.slots.extend(slots.iter().map(|slot| (*slot, id)));
            return Ok(());
        }
        slots.iter().for_each(|slot| self.end_rules(*slot));
        if !plan.rules.is_empty() {
            let faults = self.faults.get_or_insert_default();
            let judge = MadJudge::new(plan);
            let program = Program { generation, judge, late: HeldQueue::default(), told: false };
            faults.next += 1;
            faults.programs.insert(faults.next, program);
            faults.slots.extend(slots.iter().map(|slot| (*slot, faults.next)));
        }
        Ok(())
    }

    /// Ends the rules for a slot: what waited goes on at once.
    pub(super) fn end_rules(&mut self, slot: u16) {
        let Some(faults) = &mut self.faults else { return };
        let late = faults.forget(slot);
        if faults.programs.is_empty() {
            self.faults = None;
        }
        self.go_on(late);
    }

    /// Has the late datagrams go on that are due.
    pub(super) fn release_late(&mut self) {
        if let Some(faults) = &mut self.faults {
            let due = faults.due(self.now);
            self.go_on(due);
        }
    }

    fn go_on(&mut self, late: Vec<Late>) {
        for late in late {
            match late {
                Late::In(from, mad) => self.handle(from, &mad),
                Late::Out(transmit) => self.ready.push_back(transmit),
            }
        }
    }

    /// The counts and new hits of the rules that the program with these slots gave; empty without rules.
    pub fn report_rules(&mut self, slots: &[u16]) -> MadFaultReport {
        let program = self.faults.as_mut().and_then(|faults| {
            let id = slots.iter().find_map(|slot| faults.slots.get(slot))?;
            faults.programs.get_mut(id)
        });
        let Some(program) = program else { return MadFaultReport::default() };
        program.told = false;
        let hits = program.judge.take_hits(MOST_REPORTED);
        let hits = hits.iter().filter_map(|hit| Some((u16::try_from(hit.rule).ok()?, hit.to_string())));
        MadFaultReport {
            generation: program.generation,
            unlogged: program.judge.forgotten(),
            counts: program.judge.counts().to_vec(),
            hits: hits.collect(),
            more: program.judge.has_hits(),
        }
    }

    /// A slot of the next program that is to be told of hits.
    pub fn poll_hits(&mut self) -> Option<u16> {
        let Faults { programs, slots, .. } = &mut **self.faults.as_mut()?;
        let news = |(_, program): &(&u64, &mut Program)| !program.told && program.judge.has_hits();
        let (id, program) = programs.iter_mut().find(news)?;
        program.told = true;
        slots.iter().find(|(_, of)| *of == id).map(|(slot, _)| *slot)
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        loop {
            if let Some(transmit) = self.ready.pop_front() {
                return Some(transmit);
            }
            let transmit = self.manager.poll_transmit()?;
            let Some(faults) = &mut self.faults else { return Some(transmit) };
            self.ready.extend(judge_sent(faults, self.now, transmit));
        }
    }

    /// Handles a MAD that came, after the rules of the program that it is for have acted on it.
    pub(super) fn receive(&mut self, from: Route, mad: &[u8]) {
        if let Some(faults) = &mut self.faults {
            for copy in judge_received(faults, self.now, &self.manager, from, mad) {
                self.handle(from, &copy);
            }
        } else {
            self.handle(from, mad);
        }
    }
}

/// The copies of a datagram that leave now.
fn judge_sent(faults: &mut Faults, now: Instant, transmit: Transmit) -> VecDeque<Transmit> {
    let program = transmit.owner.and_then(|slot| faults.of(slot));
    let message = Mad::parse(&transmit.mad[..]).map(|mad| mad.message);
    let (Some(program), Ok(message)) = (program, message) else { return [transmit].into() };
    let facts = MadFacts::of(&message, Dir::Tx, transmit.route.remote);
    let actions = program.judge.decide(now, &facts);
    // The parser refuses rules that would change what others receive.
    if actions.drop || actions.corrupt.is_some() {
        return VecDeque::new();
    }
    let mut copies: VecDeque<Transmit> = [transmit].into();
    if actions.duplicate {
        copies.extend(copies.front().cloned());
    }
    if let Some(release) = actions.release {
        copies.drain(..).for_each(|copy| program.keep(release, Late::Out(copy)));
    }
    copies
}

/// The copies of a datagram that have arrived now.
fn judge_received(
    faults: &mut Faults,
    now: Instant,
    manager: &ConnectionManager,
    from: Route,
    mad: &[u8],
) -> Vec<Box<[u8]>> {
    let message = Mad::parse(mad).map(|mad| mad.message);
    let Ok(message) = message else { return vec![mad.into()] };
    let slot = manager.recipient(from, &message);
    let Some(program) = slot.and_then(|slot| faults.of(slot)) else { return vec![mad.into()] };
    let actions = program.judge.decide(now, &MadFacts::of(&message, Dir::Rx, from.remote));
    if actions.drop {
        return Vec::new();
    }
    let mut octets: Box<[u8]> = mad.into();
    if let Some(corruption) = actions.corrupt
        && !corrupt(manager, from, &message, &mut octets, &corruption)
    {
        return Vec::new();
    }
    let mut copies = vec![octets];
    if actions.duplicate {
        copies.extend(copies.first().cloned());
    }
    if let Some(release) = actions.release {
        copies.drain(..).for_each(|copy| program.keep(release, Late::In(from, copy)));
    }
    copies
}

/// Flips a bit. Whether the datagram is still about nobody else: its recipient may be none, but is no other
/// program, and its sender's queue pair is the same, because a request ends an older connection of its queue
/// pair.
fn corrupt(
    manager: &ConnectionManager,
    from: Route,
    message: &Message,
    octets: &mut [u8],
    corruption: &Corruption,
) -> bool {
    let sender = |message: &Message| match message {
        Message::Req(req) => Some((req.ca_guid, req.qpn)),
        Message::Rep(rep) => Some((rep.ca_guid, rep.qpn)),
        _ => None,
    };
    corruption.apply(octets);
    let Ok(changed) = Mad::parse(octets).map(|mad| mad.message) else { return true };
    let recipient = manager.recipient(from, &changed);
    let same = recipient.is_none() || recipient == manager.recipient(from, message);
    same && sender(&changed).is_none_or(|changed| Some(changed) == sender(message))
}
