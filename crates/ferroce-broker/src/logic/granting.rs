//! How slots change hands: what a lease, a return and an end do to slots, sockets, connections and ledgers.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ferroce_host::netdev::Address;
use ferroce_ipc::{AddressSockets, LAST_MEMBER, Leased, Message, Refusal, RefusalCode, Strange};
use tracing::{debug, info, warn};

use super::addresses::Opened;
use super::leases::{UNCLAIMED_CHECK_INTERVAL, Waiting, Want};
use super::{Broker, MOST_ENDED};
use crate::devices::gids_of;
use crate::groups::GrowError;
use crate::slots::{Slot, Slots, member_of};
use crate::system::System;
use crate::{ClientId, ProcessId, refusal};

/// The process of a slot that nobody gets back: no process has this number.
const NOBODY: ProcessId = ProcessId(u64::MAX);

impl<S: System> Broker<S> {
    pub(super) fn lease_or_refuse(&mut self, now: Instant, waiting: Waiting, last_try: bool) {
        let client = waiting.client;
        if self.clients.get(client).is_none() {
            return;
        }
        let found = match &waiting.want {
            Want::Lease(count) => self.lease(now, client, *count, last_try),
            Want::Back(slots) => self.take_back(now, client, slots, last_try),
        };
        match found {
            Ok(Some((slots, notice))) => self.grant(client, waiting.id, slots, notice),
            Ok(None) => {
                debug!(?client, "a lease waits for programs of an earlier ferroced");
                self.leases.wait(waiting);
            }
            Err(refused) => {
                warn!(?client, "lease refused: {refused}");
                self.clients.refuse(client, waiting.id, refused);
            }
        }
    }

    /// Finds `count` leases; `None` while programs of an earlier broker may still come back. Returns their
    /// first slots, not yet marked, and a notice for the user.
    fn lease(
        &mut self,
        now: Instant,
        client: ClientId,
        count: u8,
        last_try: bool,
    ) -> Result<Option<(Vec<u16>, String)>, Refusal> {
        let by_rings = self.leases.are_by_rings(client, count, &self.clients);
        self.leases.may_lease(client, count, by_rings, &self.clients)?;
        let Some(notices) = self.open_addresses(now, client, last_try)? else { return Ok(None) };
        let mut found = Vec::new();
        while found.len() < usize::from(count) {
            if let Some(slot) = self.leases.find(client, &found, by_rings) {
                found.push(slot);
                continue;
            }
            // A further member, to be leased whole or divided.
            let open = if by_rings { self.leases.slots.whole_free().next() } else { None };
            let member = match open {
                Some(member) => member,
                None if self.leases.slots.len() > usize::from(LAST_MEMBER) => {
                    let sentence = "all slots of this network namespace are leased";
                    return Err(refusal(RefusalCode::NoSlots, sentence));
                }
                None => match self.addresses.groups.grow(&mut self.system) {
                    Ok((member, moved)) => {
                        self.leases.slots.push(Slot::Free);
                        self.tell_parked(moved);
                        member
                    }
                    Err(GrowError::Incomplete) if !last_try => return Ok(None),
                    Err(e) => return Err(self.addresses.cannot_grow(&e)),
                },
            };
            if by_rings {
                self.leases.slots.divide(member);
            }
        }
        Ok(Some((found, notices.join("; "))))
    }

    /// Opens the sockets of all addresses that a client sees; `None` while programs of an earlier broker may
    /// still come back. Returns notices for the user.
    fn open_addresses(
        &mut self,
        now: Instant,
        client: ClientId,
        last_try: bool,
    ) -> Result<Option<Vec<String>>, Refusal> {
        self.retry_hidden();
        let addresses = self.addresses_of(client);
        let mut notices = Vec::new();
        for address in &addresses {
            if self.addresses.groups.contains(*address) {
                continue;
            }
            match self.addresses.open(&mut self.system, *address, last_try)? {
                Opened::Yes(moved) => {
                    self.fill_slots(now);
                    self.tell_parked(moved);
                }
                Opened::NotYet => return Ok(None),
                Opened::Taken(sentence) => notices.push(sentence),
                Opened::Absent => {}
            }
        }
        if !addresses.iter().any(|address| self.addresses.groups.contains(*address)) {
            return Err(self.addresses.none_works(&self.system, &notices));
        }
        let floor = self.addresses.members_of_survivors(&self.system);
        if self.leases.slots.len() < floor {
            let moved = self.addresses.level(floor)?;
            self.leases.fill(floor, Slot::Unknown { until: now + UNCLAIMED_CHECK_INTERVAL });
            self.tell_parked(moved);
        }
        self.publish();
        if let Some((expected, size)) = self.leases.take_expected() {
            let moved = self.addresses.level(size)?;
            self.leases.fill(size, Slot::Free);
            self.tell_parked(moved);
            self.connections.wait_for_survivors(now);
            self.leases.expect(expected, now + UNCLAIMED_CHECK_INTERVAL);
        }
        Ok(Some(notices))
    }

    /// Keeps the slot table as long as the groups.
    fn fill_slots(&mut self, now: Instant) {
        let state = match self.addresses.groups.adopted() {
            true => Slot::Unknown { until: now + UNCLAIMED_CHECK_INTERVAL },
            false => Slot::Free,
        };
        self.leases.fill(self.addresses.groups.size(), state);
    }

    /// Hands slots to a client, with the sockets of all addresses it sees.
    /// `leases` are named by their first slots.
    fn grant(&mut self, client: ClientId, id: u32, leases: Vec<u16>, notice: String) {
        let slots = self.leases.slots.expand(&leases);
        let members: Vec<u8> = leases.iter().map(|slot| member_of(*slot)).collect();
        let uid = self.clients.uid_of(client);
        let order = uid.zip(slots.first()).map(|(uid, slot)| self.leases.order(uid, *slot));
        if members.iter().any(|member| self.leases.slots.is_divided(*member)) {
            self.hold(client, &slots);
            let leased = Leased { slots: slots.clone(), by_rings: true, addresses: 0, notice, order };
            self.clients.send(client, id, Message::Leased(leased), Vec::new());
            self.connections.resume(client, &slots, &mut self.clients);
            return;
        }
        let addresses = self.addresses_of(client);
        let groups = &self.addresses.groups;
        let lend = |address: &Address| {
            groups.lease(*address, &members)?;
            Ok((*address, groups.members(*address, &members)?))
        };
        let complete = addresses.iter().filter(|address| groups.has(**address, &members));
        let sockets: std::io::Result<Vec<(Address, Vec<OwnedFd>)>> = complete.map(lend).collect();
        let (sockets, parked) = match sockets.and_then(|sockets| Ok((sockets, groups.parked()?))) {
            Ok(both) => both,
            Err(e) => return self.clients.refuse(client, id, cannot_pass(&e)),
        };
        self.hold(client, &slots);
        let addresses = sockets.len() as u16;
        let leased = Leased { slots, by_rings: false, addresses, notice, order };
        self.send_leased(client, id, leased, parked, &members, sockets);
    }

    /// Sends the answer to a lease with its sockets.
    fn send_leased(
        &mut self,
        client: ClientId,
        id: u32,
        leased: Leased,
        parked: OwnedFd,
        members: &[u8],
        sockets: Vec<(Address, Vec<OwnedFd>)>,
    ) {
        if let Some(known) = self.clients.get_mut(client) {
            known.addresses = sockets.iter().map(|(address, _)| *address).collect();
        }
        self.clients.send(client, id, Message::Leased(leased), vec![parked]);
        for (address, descriptors) in sockets {
            self.send_address(client, id, address, members, descriptors);
        }
    }

    pub(super) fn send_address(
        &mut self,
        client: ClientId,
        id: u32,
        address: Address,
        members: &[u8],
        sockets: Vec<OwnedFd>,
    ) {
        if !members.is_empty() {
            let Address { ip, scope_id } = address;
            let message = Message::Address(AddressSockets { ip, scope_id, members: members.to_vec() });
            self.clients.send(client, id, message, sockets);
        }
    }

    /// From now on these slots are the client's.
    fn hold(&mut self, client: ClientId, slots: &[u16]) {
        self.view_changes += 1;
        let Some(peer) = self.clients.get(client).map(|known| known.peer) else { return };
        for slot in self.leases.slots.leases(slots) {
            if matches!(self.leases.slots.get(slot), Some(Slot::Unknown { .. })) {
                self.connections.expect_records_of(slot);
            }
            self.leases.take(slot, client, peer, &mut self.system);
        }
        slots.iter().for_each(|slot| self.connections.cm.manager.set_user(*slot, peer.uid));
    }

    /// A program says what it held from an earlier broker, or from us before its connection broke.
    pub(super) fn resume(
        &mut self,
        now: Instant,
        client: ClientId,
        id: u32,
        claimed: &[u16],
        parked: Strange,
    ) {
        if self.clients.is_foreign(client) {
            // A foreign program was given no such descriptors, so they are not those of an earlier broker.
            let sentence = "these slots were leased without sockets";
            return self.clients.refuse(client, id, refusal(RefusalCode::BadRequest, sentence));
        }
        let Some(known) = self.clients.get_mut(client) else { return };
        let process = known.process;
        let devices = std::mem::take(&mut known.devices_before);
        let groups_before = self.addresses.groups.len();
        match self.addresses.groups.adopt(&mut self.system, parked.as_fd()) {
            Ok(true) => {
                self.connections.wait_for_survivors(now);
                self.addresses.adopted();
                self.fill_slots(now);
                self.links.devices.restore(&devices);
                let groups = &mut self.addresses.groups;
                let size = self.leases.slots.len();
                if let Err(e) = groups.level(size).map(drop).and_then(|()| Ok(groups.park_all()?)) {
                    warn!("cannot park what was taken back: {e}");
                }
                self.tell_parked(true);
                self.publish();
            }
            Ok(false) => {}
            Err(e) => warn!(?client, "a program's parked descriptors cannot be read: {e}"),
        }
        if groups_before == 0 && self.addresses.groups.len() == 0 {
            // The program's sockets are on no address that we could take back: what it holds is lost.
            return self.clients.refuse(client, id, refusal(RefusalCode::Failed, "nothing to take back"));
        }
        let slots = self.leases.claimed(claimed, client, process, &self.clients);
        for slot in self.leases.slots.leases(&slots) {
            // A slot that this broker takes for a free one was the program's at an earlier broker, too.
            if self.leases.slots.get(slot) == Some(Slot::Free) {
                self.connections.expect_records_of(slot);
            }
        }
        // The program keeps its own sockets, which are not emptied: traffic goes on.
        self.hold(client, &slots);
        self.resumed(client, id, slots);
        for waiting in self.leases.take_waiting(|_| true) {
            self.lease_or_refuse(now, waiting, false);
        }
    }

    fn resumed(&mut self, client: ClientId, id: u32, slots: Vec<u16>) {
        let leases = self.leases.slots.leases(&slots);
        let members: Vec<u8> = leases.iter().map(|slot| member_of(*slot)).collect();
        let groups = &self.addresses.groups;
        let parked = match groups.parked() {
            Ok(parked) => parked,
            Err(e) => return self.clients.refuse(client, id, cannot_pass(&e)),
        };
        let mut sockets = Vec::new();
        for address in self.addresses_of(client).into_iter().filter(|_| !members.is_empty()) {
            if !groups.is_adopted(address)
                && let Err(e) = groups.lease(address, &members)
            {
                debug!(%address, "no sockets for a program that came back: {e}");
            }
            if let Ok(members) = groups.members(address, &members) {
                sockets.push((address, members));
            }
        }
        info!(pid = self.clients.pid_of(client), ?slots, "resumed");
        let addresses = sockets.len() as u16;
        let leased = Leased { slots: slots.clone(), addresses, ..Leased::default() };
        self.send_leased(client, id, leased, parked, &members, sockets);
        self.connections.resume(client, &slots, &mut self.clients);
    }

    /// Finds the slots without sockets that a program held at an earlier broker, or at this one before its
    /// connection broke.
    fn take_back(
        &mut self,
        now: Instant,
        client: ClientId,
        claimed: &[u16],
        last_try: bool,
    ) -> Result<Option<(Vec<u16>, String)>, Refusal> {
        if self.open_addresses(now, client, last_try)?.is_none() {
            return Ok(None);
        }
        let Some(known) = self.clients.get_mut(client) else { return Ok(None) };
        let process = known.process;
        self.links.devices.restore(&std::mem::take(&mut known.devices_before));
        self.follow_xdp();
        match self.leases.claimed_by_rings(claimed, client, process, &self.clients) {
            none if none.is_empty() => Err(refusal(RefusalCode::Failed, "nothing to take back")),
            slots => Ok(Some((slots, String::new()))),
        }
    }

    pub(super) fn free(&mut self, slots: &[u16]) {
        self.view_changes += 1;
        let mut most = MOST_ENDED;
        for slot in self.leases.slots.leases(slots) {
            most = self.connections.close_owner(slot, most);
            if most == 0 {
                // The other connections end in the next tick.
                self.leases.slots.set(slot, Slot::Away { process: NOBODY, until: Some(self.ledgers.now) });
                continue;
            }
            // A divided member is released with its last slot.
            if let Some(member) = self.leases.free(slot, &mut self.system) {
                self.addresses.groups.release(member);
            }
        }
        self.ledgers.settle(&self.leases, &self.links.devices);
        if !slots.is_empty() && self.leases.slots.all_free() {
            // No program uses the groups of addresses that are gone, so they can go as well.
            let host = &self.links.host;
            self.addresses.groups.retain(|address| host.iter().any(|n| n.addresses.contains(&address.ip)));
            if self.addresses.groups.len() == 0 {
                self.leases.slots = Slots::default();
            }
        }
    }

    pub(super) fn is_open_elsewhere(&self, slot: u16) -> bool {
        let member = member_of(slot);
        // Only programs' own sockets can be open elsewhere.
        if self.leases.slots.is_divided(member) {
            return false;
        }
        let groups = &self.addresses.groups;
        let address = self.links.devices.all().flat_map(gids_of).find(|address| groups.contains(*address));
        let socket = address.and_then(|address| groups.members(address, &[member]).ok()?.pop());
        socket.is_some_and(|socket| self.system.is_open_elsewhere(socket.as_fd()))
    }
}

fn cannot_pass(error: &std::io::Error) -> Refusal {
    refusal(RefusalCode::Failed, format!("ferroced cannot pass descriptors on: {error}"))
}
