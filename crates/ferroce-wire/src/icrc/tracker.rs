//! What each source does with its IPv4 IDs, so that a solved ID can be believed or not.

use core::net::IpAddr;

use super::{IdSolver, Starts, compute, stored};
use crate::{Flow, Instant};

/// IDs below this can be the index of a segment in one batch: the kernel's `UDP_MAX_SEGMENTS`. Merging on the way may
/// begin in the middle of a batch, so the index a receiver sees says nothing.
const SEGMENTS: u16 = 128;
/// Packets without a verdict after which a source is taken as [`IdState::Free`].
const UNKNOWN_MAX: u16 = 64;
/// Packets in a row that show a habit, at first; doubled whenever the source breaks it.
const PROOF: u16 = 16;
const PROOF_MAX: u16 = 1024;
/// Misses in a row after which a habit is given up.
const MISSES: u8 = 3;
/// How far ahead of the last a counter may be: other traffic of the host takes IDs too.
const AHEAD: u16 = 4096;
/// IDs a host may use up for other traffic per idle millisecond.
const PER_MILLI: u128 = 1;
/// How far behind the last a reordered packet may be.
const REORDERED: u16 = 64;

/// The habit of one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdState {
    /// Not yet seen enough: any ID is believed, for at most 64 packets.
    Unknown,
    /// ID 0, or the segment's index in its batch: an unconnected socket, as ours.
    Zero,
    /// Each ID a little ahead of the last: kernel rxe.
    Counting,
    /// No habit: any ID is believed.
    Free,
}

/// Whether to believe an ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdVerdict {
    /// It fits what the source does.
    Believed,
    /// It does not: more likely the packet is corrupt.
    Refused,
}

/// What is known of one source address.
#[derive(Clone, Copy, Debug)]
pub struct IdTracker {
    state: State,
    /// Packets in a row that would show a habit.
    proof: u16,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Unknown { packets: u16, run: Run },
    Zero { misses: u8 },
    Counting { last: Last, misses: u8 },
    Free { run: Run },
}

/// How many packets in a row showed which habit.
#[derive(Clone, Copy, Debug)]
struct Run {
    zero: u16,
    counting: u16,
    last: Option<Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    id: u16,
    at: Instant,
}

impl Last {
    /// Whether `id` may come next from a counter.
    fn precedes(self, id: u16, now: Instant) -> bool {
        let idle = now.saturating_since(self.at).as_millis() * PER_MILLI;
        u128::from(id.wrapping_sub(self.id)) <= u128::from(AHEAD) + idle
    }

    /// Whether `id` is a packet or two late.
    fn follows(self, id: u16) -> bool {
        self.id.wrapping_sub(id) <= REORDERED
    }
}

impl Run {
    const START: Self = Self { zero: 0, counting: 0, last: None };

    fn observe(&mut self, now: Instant, id: u16) {
        self.zero = if id < SEGMENTS { self.zero.saturating_add(1) } else { 0 };
        let ahead = self.last.is_some_and(|last| last.precedes(id, now));
        self.counting = if ahead { self.counting.saturating_add(1) } else { 0 };
        self.last = Some(Last { id, at: now });
    }

    /// The habit that `proof` packets in a row show. A batch's segments count too, so zero is asked first.
    fn habit(&self, proof: u16) -> Option<State> {
        if self.zero >= proof {
            return Some(State::Zero { misses: 0 });
        }
        let last = self.last.filter(|_| self.counting >= proof)?;
        Some(State::Counting { last, misses: 0 })
    }
}

impl IdTracker {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self { state: State::Unknown { packets: 0, run: Run::START }, proof: PROOF }
    }

    /// What the source was found to do.
    pub const fn state(&self) -> IdState {
        match self.state {
            State::Unknown { .. } => IdState::Unknown,
            State::Zero { .. } => IdState::Zero,
            State::Counting { .. } => IdState::Counting,
            State::Free { .. } => IdState::Free,
        }
    }

    /// Judges the ID with which a packet's ICRC holds, and learns from it. Packets whose ICRC holds with no ID are not
    /// for here.
    pub fn judge(&mut self, now: Instant, id: u16) -> IdVerdict {
        let proof = self.proof;
        match &mut self.state {
            State::Unknown { packets, run } => {
                run.observe(now, id);
                *packets += 1;
                if let Some(habit) = run.habit(proof) {
                    self.state = habit;
                } else if *packets >= UNKNOWN_MAX {
                    self.state = State::Free { run: *run };
                }
            }
            State::Free { run } => {
                run.observe(now, id);
                if let Some(habit) = run.habit(proof) {
                    self.state = habit;
                }
            }
            State::Zero { misses } => {
                if id >= SEGMENTS {
                    *misses += 1;
                    let misses = *misses;
                    return self.missed(now, id, misses);
                }
                *misses = 0;
            }
            State::Counting { last, misses } => {
                if last.precedes(id, now) {
                    *last = Last { id, at: now };
                } else if !last.follows(id) {
                    *misses += 1;
                    let misses = *misses;
                    return self.missed(now, id, misses);
                }
                *misses = 0;
            }
        }
        IdVerdict::Believed
    }

    /// A habit was broken. The third time in a row the source has changed, not the packet.
    fn missed(&mut self, now: Instant, id: u16, misses: u8) -> IdVerdict {
        if misses < MISSES {
            return IdVerdict::Refused;
        }
        let mut run = Run::START;
        run.observe(now, id);
        self.state = State::Unknown { packets: 1, run };
        self.proof = (self.proof * 2).min(PROOF_MAX);
        IdVerdict::Believed
    }
}

impl Default for IdTracker {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether a packet's ICRC holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It does, as all 32 bits say: no ID had to be solved.
    Good,
    /// It does with this ID, which fits its source (counter `icrc_id_solved`).
    Solved(u16),
    /// It does not.
    Bad,
}

/// The trackers of the `N` sources heard last; `N` is a multiple of four. A source that falls out starts anew.
#[derive(Clone, Debug)]
pub struct SourceTable<const N: usize> {
    slots: [Slot; N],
    solver: IdSolver,
    starts: Starts,
    /// Lookups so far: the clock of the least recently used.
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// `None`: never used.
    source: Option<[u8; 4]>,
    used: u64,
    tracker: IdTracker,
}

/// Slots a source can be in.
const WAYS: usize = 4;

impl<const N: usize> SourceTable<N> {
    /// Knows nobody.
    pub const fn new() -> Self {
        const { assert!(N > 0 && N.is_multiple_of(WAYS)) };
        let empty = Slot { source: None, used: 0, tracker: IdTracker::new() };
        Self { slots: [empty; N], solver: IdSolver::new(), starts: Starts::new(), clock: 0 }
    }

    /// Checks the ICRC of a packet as a UDP socket receives it. `flow` is the packet's own direction: its source is the
    /// peer.
    pub fn check(&mut self, now: Instant, flow: &Flow, transport: &[u8]) -> Verdict {
        let Some(stored) = stored(transport) else { return Verdict::Bad };
        let with_id_zero = self.with_id_zero(flow, transport);
        self.judge(now, flow, with_id_zero, stored, transport.len())
    }

    /// The ICRC with ID 0; flow and length are mostly those of a packet shortly before.
    fn with_id_zero(&mut self, flow: &Flow, transport: &[u8]) -> u32 {
        let start = self.starts.of(flow, transport.len());
        let change = self.solver.mask_change(transport.len());
        change
            .and_then(|change| start.compute(transport, change))
            .unwrap_or_else(|| compute(flow, 0, transport))
    }

    /// As [`SourceTable::check`], for whoever hashed the packet with ID 0 while copying it. `stored` is the ICRC it
    /// carries, `transport_len` its octets from BTH to ICRC.
    pub fn judge(
        &mut self,
        now: Instant,
        flow: &Flow,
        with_id_zero: u32,
        stored: u32,
        transport_len: usize,
    ) -> Verdict {
        let difference = with_id_zero ^ stored;
        let source = match flow.source {
            IpAddr::V4(source) if flow.is_ipv4() => source.octets(),
            _ if difference == 0 => return Verdict::Good,
            _ => return Verdict::Bad,
        };
        let id = if difference == 0 { Some(0) } else { self.solver.solve(difference, transport_len) };
        let Some(id) = id else { return Verdict::Bad };
        let verdict = self.tracker(source).map_or(IdVerdict::Believed, |tracker| tracker.judge(now, id));
        match verdict {
            // All 32 bits agree: no habit says more than that.
            _ if difference == 0 => Verdict::Good,
            IdVerdict::Believed => Verdict::Solved(id),
            IdVerdict::Refused => Verdict::Bad,
        }
    }

    /// What a source was found to do.
    pub fn state(&self, source: [u8; 4]) -> IdState {
        let known = self.slots.iter().find(|slot| slot.source == Some(source));
        known.map_or(IdState::Unknown, |slot| slot.tracker.state())
    }

    fn tracker(&mut self, source: [u8; 4]) -> Option<&mut IdTracker> {
        self.clock += 1;
        // The upper half of a multiplicative hash, so that neighbours spread.
        let hash = u32::from_be_bytes(source).wrapping_mul(0x9e37_79b9) >> 16;
        let (sets, _) = self.slots.as_chunks_mut::<WAYS>();
        let count = sets.len();
        let set = sets.get_mut((hash as usize).checked_rem(count)?)?;
        let known = set.iter().position(|slot| slot.source == Some(source));
        let slot = match known {
            Some(way) => set.get_mut(way)?,
            None => {
                let oldest = set.iter_mut().min_by_key(|slot| slot.used)?;
                *oldest = Slot { source: Some(source), used: 0, tracker: IdTracker::new() };
                oldest
            }
        };
        slot.used = self.clock;
        Some(&mut slot.tracker)
    }
}

impl<const N: usize> Default for SourceTable<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
