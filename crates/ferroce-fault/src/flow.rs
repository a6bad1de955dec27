//! The memory of one flow: which packet is which.

use std::collections::VecDeque;

use ferroce_wire::Psn;

use crate::facts::{Class, Dir, Facts, Pos};

/// PSNs whose passes are counted, behind the newest one.
const PASSES: usize = 4096;
/// Messages whose numbers are known, behind the newest one.
const MESSAGES: usize = 1024;

/// A queue pair and one of its peers.
#[derive(Debug)]
pub(crate) struct FlowState {
    pub(crate) qp: u32,
    /// Number of the peer, by order of appearance at the queue pair.
    pub(crate) peer: u32,
    /// The PSNs of our requests, and those of the peer's.
    sequences: [Sequence; 2],
    /// The sequence spaces, by direction, then by class.
    spaces: [[Space; 4]; 2],
    /// The state of each rule in this flow, by rule, then by direction.
    pub(crate) rules: Vec<[RuleInFlow; 2]>,
    /// The request that an answer refused: later ones are lost until it comes again.
    pub(crate) refused: Option<i64>,
}

/// The state of a rule in one flow and direction.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RuleInFlow {
    /// Packets that matched all other terms.
    pub(crate) reached: u64,
    /// Packets that it acted on.
    pub(crate) acted: u64,
    /// The bad state of `burst`.
    pub(crate) bad: bool,
}

/// The identity of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// The PSN's distance from the first one of its sequence, without wrapping.
    pub(crate) place: i64,
    /// How often this PSN has come by, 1 for the first time. At most 255.
    pub(crate) iter: u32,
    /// The number of its message, if it belongs to one.
    pub(crate) msg: Option<u64>,
}

impl Identity {
    /// The relative PSN as terms compare it: 24 bits.
    pub(crate) const fn psn(&self) -> u32 {
        self.place.rem_euclid(1 << 24) as u32
    }
}

/// PSNs in one sequence.
#[derive(Default, Debug)]
struct Sequence {
    first: Option<Psn>,
    /// The newest place.
    newest: i64,
}

impl Sequence {
    fn place(&mut self, psn: Psn) -> i64 {
        let first = *self.first.get_or_insert(psn);
        let newest = first.add(self.newest.rem_euclid(1 << 24) as u32);
        let place = self.newest + i64::from(psn.since(newest));
        self.newest = self.newest.max(place);
        place
    }
}

/// Packets of one direction and class.
#[derive(Default, Debug)]
struct Space {
    /// The place of the first entry of `passes`.
    base: i64,
    passes: VecDeque<u8>,
    /// The first place and the number of each message.
    messages: VecDeque<(i64, u64)>,
    next_message: u64,
    /// Behind the highest place so far.
    end: i64,
    counted: i64,
}

impl Space {
    /// Counts a packet at `place`; how often one was there.
    fn pass(&mut self, place: i64) -> u32 {
        if self.passes.is_empty() {
            self.base = place;
        }
        let beyond = place - self.base - self.passes.len() as i64;
        if beyond >= PASSES as i64 {
            // A jump: nothing of what is known is near any more.
            self.passes.clear();
            self.base = place;
        }
        while place < self.base && self.passes.len() < PASSES {
            self.passes.push_front(0);
            self.base -= 1;
        }
        while place >= self.base + self.passes.len() as i64 {
            if self.passes.len() == PASSES {
                self.passes.pop_front();
                self.base += 1;
            }
            self.passes.push_back(0);
        }
        // Further behind than is remembered: the second time at least.
        let index = usize::try_from(place - self.base).ok();
        let Some(count) = index.and_then(|index| self.passes.get_mut(index)) else { return 2 };
        *count = count.saturating_add(1);
        u32::from(*count)
    }

    /// The number of the message that the packet at `place` belongs to.
    fn message(&mut self, place: i64, pos: Pos) -> Option<u64> {
        if matches!(pos, Pos::First | Pos::Only) && (place >= self.end || self.messages.is_empty()) {
            if self.messages.len() == MESSAGES {
                self.messages.pop_front();
            }
            self.messages.push_back((place, self.next_message));
            self.next_message += 1;
        }
        self.end = self.end.max(place + 1);
        let later = self.messages.partition_point(|(first, _)| *first <= place);
        self.messages.get(later.checked_sub(1)?).map(|(_, number)| *number)
    }
}

impl FlowState {
    pub(crate) fn new(qp: u32, peer: u32, rules: usize) -> Self {
        let rules = vec![[RuleInFlow::default(); 2]; rules];
        let (sequences, spaces) = Default::default();
        Self { qp, peer, sequences, spaces, rules, refused: None }
    }

    /// Finds out which packet this is, and counts it.
    pub(crate) fn identify(&mut self, facts: &Facts<'_>) -> Identity {
        let class = facts.op.class();
        let dir = facts.dir as usize;
        let Some(space) = self.spaces.get_mut(dir).and_then(|spaces| spaces.get_mut(class as usize)) else {
            return Identity { place: 0, iter: 1, msg: None };
        };
        if class == Class::Other {
            space.counted += 1;
            return Identity { place: space.counted - 1, iter: 1, msg: None };
        }
        // Answers carry the PSNs of the other direction's requests.
        let ours = (facts.dir == Dir::Tx) == (class == Class::Request);
        let place = self.sequences.get_mut(usize::from(!ours)).map_or(0, |s| s.place(facts.psn));
        let msg = match class {
            Class::Request | Class::ReadResp => space.message(place, facts.pos),
            Class::Ack | Class::Other => None,
        };
        Identity { place, iter: space.pass(place), msg }
    }
}
