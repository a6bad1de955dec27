//! The table of slots and their holders. It opens no socket.
//!
//! A slot is bits 23 to 12 of queue pair numbers, a member bits 23 to 16: the kernel chooses the receiving
//! socket by the member, which has sixteen slots. A program with sockets of its own holds a whole member.
//! Other members are divided: the broker keeps their sockets, and leases their slots one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ferroce_ipc::{LAST_MEMBER, MEMBER_SLOTS};

use super::{ClientId, ProcessId};

/// Members with sockets of programs. The others are left for programs without, of which each needs one slot
/// only.
pub const MOST_WHOLE: usize = 128;

/// State of one slot, or of a whole member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Open, held by nobody.
    Free,
    /// Held by a connected program (member 0: by the broker, whose id is no client's).
    Leased(ClientId),
    /// The slot's program lives but is not connected: it may come back and resume. After `until` it will not:
    /// it called exec.
    Away {
        /// The program.
        process: ProcessId,
        /// Time at which the broker gives up; `None` (never) if it closed the connection.
        until: Option<Instant>,
    },
    /// Open since an earlier broker, and nobody said yet that it is his. Not before `until` is it looked at
    /// again.
    Unknown {
        /// Time of the next look whether any process has the slot's socket open.
        until: Instant,
    },
}

#[derive(Debug)]
enum Member {
    /// The broker leases the member as a whole, and this is the state of all its slots.
    Whole(Slot),
    /// Each slot of the member has a holder of its own.
    Divided(Box<[Slot; MEMBER_SLOTS as usize]>),
}

/// The state of every member that is open, by number.
#[derive(Debug, Default)]
pub struct Slots(Vec<Member>);

/// The member of a slot.
pub const fn member_of(slot: u16) -> u8 {
    (slot / MEMBER_SLOTS) as u8
}

/// The first slot of a member.
pub const fn first_of(member: u8) -> u16 {
    member as u16 * MEMBER_SLOTS
}

impl Slots {
    /// Number of open members, which is the size of every group.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Opens the next member.
    pub fn push(&mut self, state: Slot) {
        self.0.push(Member::Whole(state));
    }

    /// State of a slot, `None` if it is not open.
    pub fn get(&self, slot: u16) -> Option<Slot> {
        match self.0.get(usize::from(member_of(slot)))? {
            Member::Whole(state) => Some(*state),
            Member::Divided(states) => states.get(usize::from(slot % MEMBER_SLOTS)).copied(),
        }
    }

    /// Changes the state of an open slot, and of its whole member if that is not divided; of any other
    /// nothing. A divided member without a holder becomes a whole one again.
    pub fn set(&mut self, slot: u16, state: Slot) {
        let Some(entry) = self.0.get_mut(usize::from(member_of(slot))) else { return };
        match entry {
            Member::Whole(whole) => *whole = state,
            Member::Divided(states) => {
                if let Some(entry) = states.get_mut(usize::from(slot % MEMBER_SLOTS)) {
                    *entry = state;
                }
                if states.iter().all(|state| *state == Slot::Free) {
                    *entry = Member::Whole(Slot::Free);
                }
            }
        }
    }

    /// Divides a member that nobody holds: its slots are leased one by one. Each has the state of the whole
    /// member.
    pub fn divide(&mut self, member: u8) {
        if let Some(entry) = self.0.get_mut(usize::from(member))
            && let Member::Whole(state @ (Slot::Free | Slot::Unknown { .. })) = *entry
            && member > 0
        {
            *entry = Member::Divided(Box::new([state; MEMBER_SLOTS as usize]));
        }
    }

    /// Whether the broker keeps the sockets of a member and leases its slots one by one.
    pub fn is_divided(&self, member: u8) -> bool {
        matches!(self.0.get(usize::from(member)), Some(Member::Divided(_)))
    }

    /// The divided members.
    pub fn divided(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=LAST_MEMBER).filter(|member| self.is_divided(*member))
    }

    /// How many members have a holder, or may have one.
    pub fn whole(&self) -> usize {
        let held = |member: &&Member| matches!(member, Member::Whole(state) if *state != Slot::Free);
        self.0.iter().skip(1).filter(held).count()
    }

    /// Slots that are leased, of divided members, one by one.
    pub fn single(&self) -> impl Iterator<Item = (u16, Slot)> + '_ {
        self.iter().filter(|(slot, _)| self.is_divided(member_of(*slot)))
    }

    /// How many slots could be leased one by one, if none were.
    pub const fn most_single() -> usize {
        (LAST_MEMBER as usize - MOST_WHOLE) * MEMBER_SLOTS as usize
    }

    /// A free slot for a program that holds `held`: of a divided member, and with other low bits than those
    /// that it holds, because queue pairs of a program are found by bits 15 to 0 of their numbers.
    pub fn find_single(&self, held: &[u16]) -> Option<u16> {
        let low = |slot: u16| slot % MEMBER_SLOTS;
        let taken: BTreeSet<u16> = held.iter().map(|slot| low(*slot)).collect();
        let free = |(slot, state): &(u16, Slot)| *state == Slot::Free && !taken.contains(&low(*slot));
        self.single().find(free).map(|(slot, _)| slot)
    }

    /// The free members, by number.
    pub fn whole_free(&self) -> impl Iterator<Item = u8> + '_ {
        let free = |(_, member): &(usize, &Member)| matches!(member, Member::Whole(Slot::Free));
        self.0.iter().enumerate().skip(1).filter(free).map(|(member, _)| member as u8)
    }

    /// The leases but the broker's own, with their state: the first slot of each whole member, and each slot
    /// of the others.
    pub fn iter(&self) -> impl Iterator<Item = (u16, Slot)> + '_ {
        self.0.iter().enumerate().skip(1).flat_map(|(member, entry)| {
            let first = first_of(member as u8);
            let (whole, divided) = match entry {
                Member::Whole(state) => (Some((first, *state)), None),
                Member::Divided(states) => (None, Some((first..).zip(states.iter().copied()))),
            };
            whole.into_iter().chain(divided.into_iter().flatten())
        })
    }

    /// The leases, by their first slot, in a state that `which` accepts.
    pub fn select(&self, which: impl Fn(Slot) -> bool) -> Vec<u16> {
        self.iter().filter(|(_, state)| which(*state)).map(|(slot, _)| slot).collect()
    }

    /// All slots of the leases that these slots belong to.
    pub fn expand(&self, slots: &[u16]) -> Vec<u16> {
        let mut all = BTreeSet::new();
        for slot in slots {
            match self.is_divided(member_of(*slot)) {
                true => all.extend([*slot]),
                false => all.extend((first_of(member_of(*slot))..).take(usize::from(MEMBER_SLOTS))),
            }
        }
        all.into_iter().collect()
    }

    /// The leases, by their first slot, that these slots belong to.
    pub fn leases(&self, slots: &[u16]) -> Vec<u16> {
        let first = |slot: &u16| match self.is_divided(member_of(*slot)) {
            true => *slot,
            false => first_of(member_of(*slot)),
        };
        slots.iter().map(first).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// All slots that a client holds.
    pub fn of(&self, client: ClientId) -> Vec<u16> {
        self.expand(&self.leases_of(client))
    }

    /// All slots of each client.
    pub fn by_client(&self) -> BTreeMap<ClientId, Vec<u16>> {
        let mut held: BTreeMap<ClientId, Vec<u16>> = BTreeMap::new();
        for (slot, state) in self.iter() {
            if let Slot::Leased(client) = state {
                held.entry(client).or_default().extend(self.expand(&[slot]));
            }
        }
        held
    }

    /// The leases of a client, by their first slot.
    pub fn leases_of(&self, client: ClientId) -> Vec<u16> {
        self.select(|state| state == Slot::Leased(client))
    }

    /// The members that a client holds whole.
    pub fn members_of(&self, client: ClientId) -> Vec<u8> {
        let leases = self.leases_of(client).into_iter().map(|slot| (slot, member_of(slot)));
        leases.filter(|(_, member)| !self.is_divided(*member)).map(|(_, member)| member).collect()
    }

    /// Whether no program holds any, nor might.
    pub fn all_free(&self) -> bool {
        self.iter().all(|(_, state)| state == Slot::Free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Slot = Slot::Leased(ClientId(1));

    fn open(members: usize) -> Slots {
        let mut slots = Slots::default();
        (0..members).for_each(|_| slots.push(Slot::Free));
        slots
    }

    #[test]
    fn a_whole_member_is_one_lease_of_sixteen_slots() {
        let mut slots = open(4);
        slots.set(first_of(2), ONE);
        assert_eq!(slots.of(ClientId(1)), (32..48).collect::<Vec<u16>>());
        assert_eq!((slots.leases_of(ClientId(1)), slots.members_of(ClientId(1))), (vec![32], vec![2]));
        assert_eq!((slots.get(40), slots.get(31)), (Some(ONE), Some(Slot::Free)));
        assert_eq!(slots.leases(&[33, 47, 16]), [16, 32]);
        assert_eq!((slots.whole(), slots.whole_free().next()), (1, Some(1)));
        slots.divide(2);
        assert!(!slots.is_divided(2), "it has a holder");
        slots.divide(0);
        assert!(!slots.is_divided(0), "the broker's own");
    }

    #[test]
    fn slots_of_a_divided_member_have_holders_of_their_own() {
        let mut slots = open(3);
        slots.divide(1);
        assert_eq!(slots.find_single(&[]), Some(16));
        slots.set(16, ONE);
        slots.set(18, Slot::Leased(ClientId(2)));
        assert_eq!((slots.of(ClientId(1)), slots.of(ClientId(2))), (vec![16], vec![18]));
        assert!(slots.members_of(ClientId(1)).is_empty());
        assert_eq!(slots.find_single(&[0x20, 0x51]), Some(19), "neither 16 and 18, which are held, nor 17");
        assert_eq!(slots.expand(&[18, 32]), (18..19).chain(32..48).collect::<Vec<u16>>());
        slots.set(16, Slot::Free);
        assert!(slots.is_divided(1));
        slots.set(18, Slot::Free);
        assert!(!slots.is_divided(1) && slots.all_free(), "whole again");
    }
}
