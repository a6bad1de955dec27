//! Leases: which program holds which slots, and which slots the programs of an earlier broker hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ferroce_ipc::{Peer, QpnOrder, Refusal, RefusalCode};
use tracing::info;

use super::Clients;
use crate::numbers::Numbers;
use crate::slots::{MOST_WHOLE, Slot, Slots, first_of, member_of};
use crate::system::System;
use crate::{ClientId, ProcessId, refusal};

/// Interval between two checks of slots that no program claimed after the broker adopted them.
pub(super) const UNCLAIMED_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time that programs which outlived an earlier broker have to reconnect and to report their connections.
/// Until then a lease that cannot be granted waits instead of being refused, and MADs of peers wait instead
/// of being answered.
pub(super) const RETURN_GRACE: Duration = Duration::from_millis(1500);
/// Slots of one program.
const MOST_SLOTS: usize = 16;
/// The broker as the holder of slots: no client has this id.
const BROKER: Slot = Slot::Leased(ClientId(u64::MAX));

/// The slots and their users, and the requests for slots that wait.
#[derive(Debug)]
pub(super) struct Leases {
    pub(super) slots: Slots,
    numbers: Numbers,
    /// The user of each slot that is leased without sockets.
    owners: BTreeMap<u16, u32>,
    /// The user of each slot that an earlier broker leased without sockets. Empty after the first request
    /// for slots.
    expected: BTreeMap<u16, u32>,
    /// Requests that wait for programs of an earlier broker.
    waiting: Vec<Waiting>,
}

/// A request for slots that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) client: ClientId,
    pub(super) id: u32,
    pub(super) want: Want,
    pub(super) until: Instant,
}

#[derive(Clone, Debug)]
pub(super) enum Want {
    /// Number of new leases.
    Lease(u8),
    /// Slots that the program held without sockets at an earlier broker, and wants back.
    Back(Vec<u16>),
}

impl Leases {
    pub(super) fn new(expected: BTreeMap<u16, u32>) -> Self {
        Self {
            slots: Slots::default(),
            numbers: Numbers::default(),
            owners: BTreeMap::new(),
            expected,
            waiting: Vec::new(),
        }
    }

    /// Time at which a slot or a request that waits is due; `None` if none is.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let slots = self.slots.iter().filter_map(|(_, state)| match state {
            Slot::Away { until, .. } => until,
            Slot::Unknown { until } => Some(until),
            Slot::Free | Slot::Leased(_) => None,
        });
        slots.chain(self.waiting.iter().map(|waiting| waiting.until)).min()
    }

    /// Keeps a request until programs of an earlier broker had time to come back.
    pub(super) fn wait(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
    }

    /// Takes the requests that wait and that `which` accepts.
    pub(super) fn take_waiting(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        self.waiting.extract_if(.., |waiting| which(waiting)).collect()
    }

    /// The processes that slots wait for.
    pub(super) fn processes_away(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.slots.iter().filter_map(|(_, state)| match state {
            Slot::Away { process, .. } => Some(process),
            _ => None,
        })
    }

    /// The user of the program that holds a slot without sockets.
    pub(super) fn owner(&self, slot: u16) -> Option<u32> {
        self.owners.get(&slot).copied()
    }

    /// The slots that the programs of a user hold without sockets.
    pub(super) fn slots_of_user(&self, uid: u32) -> impl Iterator<Item = u16> + '_ {
        self.owners.iter().filter(move |(_, owner)| **owner == uid).map(|(slot, _)| *slot)
    }

    /// The slots of all programs of a client's user, if that is all that it may see.
    pub(super) fn visible_slots(&self, client: ClientId, clients: &Clients) -> Option<BTreeSet<u16>> {
        let uid = clients.uid_of(client).filter(|uid| clients.restricts(*uid))?;
        Some(self.slots_of_user(uid).collect())
    }

    /// Whether a program has no sockets, and its packets travel by rings: those of other users, because a
    /// socket of a group lets its holder change the whole group, and those for which no member is left.
    pub(super) fn are_by_rings(&self, client: ClientId, count: u8, clients: &Clients) -> bool {
        match self.slots.leases_of(client).is_empty() {
            false => self.slots.members_of(client).is_empty(),
            true => clients.is_foreign(client) || self.slots.whole() + usize::from(count) > MOST_WHOLE,
        }
    }

    /// Whether a program may have `count` more leases. A program of another user may not if its user then
    /// holds more slots than are free for others.
    pub(super) fn may_lease(
        &self,
        client: ClientId,
        count: u8,
        by_rings: bool,
        clients: &Clients,
    ) -> Result<(), Refusal> {
        let count = usize::from(count);
        if self.slots.leases_of(client).len() + count > MOST_SLOTS {
            let sentence = format!("a program may have {MOST_SLOTS} slots at most");
            return Err(refusal(RefusalCode::NoSlots, sentence));
        }
        let Some(uid) = clients.foreign_uid(client).filter(|_| by_rings) else { return Ok(()) };
        let used = self.slots.single().filter(|(_, state)| *state != Slot::Free).count();
        let own = self.slots_of_user(uid).count();
        if own + count <= Slots::most_single().saturating_sub(used + count) {
            return Ok(());
        }
        let sentence = format!(
            "programs of {} hold {own} slots, and may hold no more than are free for other users: end some of them",
            Peer::user(uid)
        );
        Err(refusal(RefusalCode::NoSlots, sentence))
    }

    /// A free lease for a client that is also to have the leases `found`; `None` without one.
    pub(super) fn find(&self, client: ClientId, found: &[u16], by_rings: bool) -> Option<u16> {
        match by_rings {
            true => {
                let held: Vec<u16> = self.slots.of(client).into_iter().chain(found.iter().copied()).collect();
                self.slots.find_single(&held)
            }
            false => self.slots.whole_free().map(first_of).find(|slot| !found.contains(slot)),
        }
    }

    /// The order in which the holder of a slot takes its queue pair numbers.
    pub(super) fn order(&mut self, uid: u32, slot: u16) -> QpnOrder {
        self.numbers.next(uid, slot)
    }

    /// A program connects a queue pair.
    pub(super) fn connects(&mut self, client: ClientId) {
        if let Some(slot) = self.slots.leases_of(client).first() {
            self.numbers.connects(*slot);
        }
    }

    /// From now on a lease is the client's.
    pub(super) fn take(&mut self, slot: u16, client: ClientId, peer: Peer, system: &mut impl System) {
        self.slots.set(slot, Slot::Leased(client));
        if self.slots.is_divided(member_of(slot)) && self.owners.insert(slot, peer.uid) != Some(peer.uid) {
            system.keep_owner(slot, Some(peer.uid));
        }
        info!(pid = peer.pid, slot, "leased");
    }

    /// Frees a lease. Returns its member if no slot of that is leased one by one.
    pub(super) fn free(&mut self, slot: u16, system: &mut impl System) -> Option<u8> {
        info!(slot, "slot is free");
        let member = member_of(slot);
        self.numbers.ended(slot, self.slots.is_divided(member));
        self.slots.set(slot, Slot::Free);
        if self.owners.remove(&slot).is_some() {
            system.keep_owner(slot, None);
        }
        (!self.slots.is_divided(member)).then_some(member)
    }

    /// Opens slots until there are `size` members.
    pub(super) fn fill(&mut self, size: usize, state: Slot) {
        while self.slots.len() < size {
            self.slots.push(if self.slots.len() == 0 { BROKER } else { state });
        }
    }

    /// The slots of a claim that the program may have, which had sockets at an earlier broker.
    pub(super) fn claimed(
        &self,
        claimed: &[u16],
        client: ClientId,
        process: ProcessId,
        clients: &Clients,
    ) -> Vec<u16> {
        let mut slots = self.slots.expand(claimed);
        // A claim stands for a whole member. An earlier broker may have divided it, and its slots have other
        // holders then.
        let divided: BTreeSet<u8> = self.expected.keys().map(|slot| member_of(*slot)).collect();
        slots.retain(|slot| {
            let member = member_of(*slot);
            !divided.contains(&member)
                && !self.slots.is_divided(member)
                && self.is_free_for(*slot, client, process, clients)
        });
        slots
    }

    /// The slots of a claim that the program may have, which had no sockets at an earlier broker, or at this
    /// one before its connection broke: those that its user has, as that broker kept it.
    pub(super) fn claimed_by_rings(
        &self,
        claimed: &[u16],
        client: ClientId,
        process: ProcessId,
        clients: &Clients,
    ) -> Vec<u16> {
        let mut slots = claimed.to_vec();
        slots.retain(|slot| {
            self.owner(*slot) == clients.uid_of(client)
                && self.slots.is_divided(member_of(*slot))
                && self.is_free_for(*slot, client, process, clients)
        });
        slots
    }

    /// Whether a program that claims a slot can have it: an open one that no other process holds.
    fn is_free_for(&self, slot: u16, client: ClientId, process: ProcessId, clients: &Clients) -> bool {
        match self.slots.get(slot) {
            Some(Slot::Free | Slot::Unknown { .. }) => true,
            Some(Slot::Away { process: away, .. }) => away == process,
            Some(Slot::Leased(holder)) => {
                holder == client || clients.get(holder).is_some_and(|holder| holder.process == process)
            }
            None => false,
        }
    }

    /// Takes the slots that an earlier broker leased without sockets, with their users, and the number of
    /// members that hold them.
    pub(super) fn take_expected(&mut self) -> Option<(BTreeMap<u16, u32>, usize)> {
        let expected = std::mem::take(&mut self.expected);
        let last = expected.keys().map(|slot| member_of(*slot)).max()?;
        Some((expected, usize::from(last) + 1))
    }

    /// Slots without sockets that an earlier broker leased stay with their users until these had time to come
    /// back.
    pub(super) fn expect(&mut self, expected: BTreeMap<u16, u32>, until: Instant) {
        for (slot, uid) in expected {
            self.slots.divide(member_of(slot));
            if self.slots.is_divided(member_of(slot)) {
                self.slots.set(slot, Slot::Unknown { until });
                self.owners.insert(slot, uid);
            }
        }
    }
}
