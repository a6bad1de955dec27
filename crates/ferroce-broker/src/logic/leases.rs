//! Leases: which slots a client gets, and what it gets back from an earlier broker.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ferroce_datapath::udp::OpenError;
use ferroce_ipc::{AddressSockets, LAST_MEMBER, Leased, Message, Refusal, RefusalCode, Strange};
use tracing::{debug, error, info, warn};

use super::{Broker, MOST_SLOTS, UNKNOWN, Waiting, Want, addresses};
use crate::groups::GrowError;
use crate::slots::{MOST_WHOLE, Slot, Slots, first_of, member_of};
use crate::system::System;
use crate::{ClientId, ProcessId, refusal};
use ferroce_host::netdev::Address;

impl<S: System> Broker<S> {
    pub(super) fn lease_or_refuse(&mut self, now: Instant, waiting: &Waiting, last_try: bool) {
        if !self.clients.contains_key(&waiting.client) {
            return;
        }
        let found = match &waiting.want {
            Want::Lease(count) => self.lease(now, waiting.client, *count, last_try),
            Want::Back(slots) => self.take_back(now, waiting.client, slots, last_try),
        };
        match found {
            Ok(Some((slots, notice))) => self.grant(waiting.client, waiting.id, slots, notice),
            Ok(None) => {
                debug!(client = ?waiting.client, "a lease waits for programs of an earlier ferroced");
                self.waiting.push(waiting.clone());
            }
            Err(refused) => {
                warn!(client = ?waiting.client, "lease refused: {refused}");
                self.send(waiting.client, waiting.id, Message::Refused(refused), Vec::new());
            }
        }
    }

    /// Finds `count` leases; `None` while programs of an earlier broker may still come back. Returns their
    /// first slots, not yet marked, and a notice for the user.
    pub(super) fn lease(
        &mut self,
        now: Instant,
        client: ClientId,
        count: u8,
        last_try: bool,
    ) -> Result<Option<(Vec<u16>, String)>, Refusal> {
        let by_rings = self.leases_by_rings(client, count);
        self.may_lease(client, count, by_rings)?;
        let Some(notices) = self.open_addresses(now, client, last_try)? else { return Ok(None) };
        let mut found = Vec::new();
        while found.len() < usize::from(count) {
            let free = match by_rings {
                true => {
                    let held: Vec<u16> =
                        self.slots.of(client).into_iter().chain(found.iter().copied()).collect();
                    self.slots.find_single(&held)
                }
                false => self.slots.whole_free().map(first_of).find(|slot| !found.contains(slot)),
            };
            if let Some(slot) = free {
                found.push(slot);
                continue;
            }
            // A further member, to be leased whole or divided.
            let open = if by_rings { self.slots.whole_free().next() } else { None };
            let member = match open {
                Some(member) => member,
                None if self.slots.len() > usize::from(LAST_MEMBER) => {
                    let sentence = "all slots of this network namespace are leased";
                    return Err(refusal(RefusalCode::NoSlots, sentence));
                }
                None => match self.groups.grow(&mut self.system) {
                    Ok((member, moved)) => {
                        self.slots.push(Slot::Free);
                        self.tell_parked(moved);
                        member
                    }
                    Err(GrowError::Incomplete) if !last_try => return Ok(None),
                    Err(e) => return Err(self.cannot_grow(&e)),
                },
            };
            if by_rings {
                self.slots.divide(member);
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
        self.retry_taken();
        let addresses = self.addresses_of(client);
        let mut notices = Vec::new();
        for address in &addresses {
            if self.groups.contains(*address) {
                continue;
            }
            match self.groups.open(&mut self.system, *address) {
                Ok(moved) => {
                    self.sync_slots(now);
                    self.tell_parked(moved);
                }
                Err(GrowError::Open { source: OpenError::InUse(_), .. }) if !last_try => return Ok(None),
                Err(GrowError::Open { source: OpenError::InUse(_), .. }) => {
                    let sentence = self.held_sentence(*address);
                    error!("{sentence}");
                    notices.push(sentence);
                    self.taken.insert(*address);
                }
                Err(GrowError::Open { source: OpenError::NoAddress(_), .. }) => {
                    self.absent.insert(*address);
                }
                Err(e) => return Err(self.cannot_grow(&e)),
            }
        }
        if !addresses.iter().any(|address| self.groups.contains(*address)) {
            notices.extend(self.taken.iter().map(|address| self.held_sentence(*address)).next());
            let sentence = match notices.first() {
                Some(notice) => format!(
                    "{notice}: stop it, or run in a network namespace of your own: ferroce run --private-net -- CMD"
                ),
                None => "no device has an address that works; is lo up? (ip link set lo up)".to_owned(),
            };
            let code = if notices.is_empty() { RefusalCode::Failed } else { RefusalCode::PortTaken };
            return Err(refusal(code, sentence));
        }
        self.skip_survivors(now)?;
        self.publish();
        self.expect_survivors(now)?;
        Ok(Some(notices))
    }

    /// Whether a program has no sockets, and its packets travel by rings: those of other users, because a
    /// socket of a group lets its holder change the whole group, and those for which no member is left.
    fn leases_by_rings(&self, client: ClientId, count: u8) -> bool {
        let holds = |which: Vec<u16>| !which.is_empty();
        match holds(self.slots.leases_of(client)) {
            true => self.slots.members_of(client).is_empty(),
            false => self.is_foreign(client) || self.slots.whole() + usize::from(count) > MOST_WHOLE,
        }
    }

    /// Whether a program may have `count` more leases.
    fn may_lease(&self, client: ClientId, count: u8, by_rings: bool) -> Result<(), Refusal> {
        let count = usize::from(count);
        if self.slots.leases_of(client).len() + count > MOST_SLOTS {
            let sentence = format!("a program may have {MOST_SLOTS} slots at most");
            return Err(refusal(RefusalCode::NoSlots, sentence));
        }
        if by_rings { self.is_within_share(client, count) } else { Ok(()) }
    }

    /// The answer to a lease whose sockets cannot be opened.
    fn cannot_grow(&mut self, error: &GrowError) -> Refusal {
        self.exhausted |= error.is_out_of_descriptors();
        failed(error)
    }

    /// Programs of an earlier broker that do not answer, because they are stopped perhaps, hold slots that we
    /// know by number alone: as many as their address has sockets. They are nobody else's on any address. The
    /// host may have lost that address, so that no device has it.
    pub(super) fn skip_survivors(&mut self, now: Instant) -> Result<(), Refusal> {
        let most = usize::from(LAST_MEMBER) + 1;
        let members = |address: &Address| self.system.members_in_kernel(*address).unwrap_or(most);
        let taken = self.taken.iter().map(members).max().unwrap_or(0);
        let floor = taken.max(self.unseen_members()).min(most);
        if self.slots.len() < floor {
            let moved = self.groups.level(floor).map_err(|e| failed(&e))?;
            while self.slots.len() < floor {
                self.slots.push(Slot::Unknown { until: now + UNKNOWN });
            }
            self.tell_parked(moved);
        }
        Ok(())
    }

    /// Whether others hold the port of an address.
    pub(super) fn are_taken(&self) -> bool {
        self.taken.iter().any(|address| self.system.members_in_kernel(*address) != Some(0))
    }

    /// The size of the largest group that is not ours, 0 if there is none. Such a group was an earlier
    /// broker's, so there is none any more once none is found.
    pub(super) fn unseen_members(&mut self) -> usize {
        if !self.unseen {
            return 0;
        }
        let members = self.system.most_members_but(&|ip| self.groups.contains_ip(ip));
        // A socket alone is no group: the broker has one of each.
        self.unseen = members > 1;
        if self.unseen { members } else { 0 }
    }

    /// Looks whether ports that others held are free now, and addresses that were not there are.
    pub(super) fn retry_taken(&mut self) {
        let before = self.taken.len() + self.absent.len();
        let Self { system, groups, taken, absent, .. } = self;
        for addresses in [taken, absent] {
            addresses.retain(|address| !groups.contains(*address) && groups.open(system, *address).is_err());
        }
        if self.taken.len() + self.absent.len() < before {
            self.tell_parked(true);
            self.publish();
        }
    }

    pub(super) fn held_sentence(&self, address: Address) -> String {
        format!("UDP port 4791 of {address} is held by {}", self.system.port_holder(address))
    }

    /// Keeps the slot table as long as the groups.
    pub(super) fn sync_slots(&mut self, now: Instant) {
        while self.slots.len() < self.groups.size() {
            let state = match (self.slots.len(), self.groups.adopted()) {
                (0, _) => Slot::Leased(ClientId(u64::MAX)),
                (_, true) => Slot::Unknown { until: now + UNKNOWN },
                (_, false) => Slot::Free,
            };
            self.slots.push(state);
        }
    }

    /// Hands slots to a client, with the sockets of all addresses it sees.
    /// `leases` are named by their first slots.
    pub(super) fn grant(&mut self, client: ClientId, id: u32, leases: Vec<u16>, notice: String) {
        let slots = self.slots.expand(&leases);
        let members: Vec<u8> = leases.iter().map(|slot| member_of(*slot)).collect();
        let uid = self.clients.get(&client).map(|known| known.peer.uid);
        let order = uid.zip(slots.first()).map(|(uid, slot)| self.numbers.next(uid, *slot));
        if members.iter().any(|member| self.slots.is_divided(*member)) {
            self.hold(client, &slots);
            let leased = Leased { slots: slots.clone(), by_rings: true, addresses: 0, notice, order };
            self.send(client, id, Message::Leased(leased), Vec::new());
            self.connections_resume(client, &slots);
            return;
        }
        let addresses: Vec<Address> = self
            .addresses_of(client)
            .into_iter()
            .filter(|address| self.groups.has(*address, &members))
            .collect();
        let lend = |address: &Address| {
            self.groups.lease(*address, &members)?;
            Ok((*address, self.groups.members(*address, &members)?))
        };
        let sockets: std::io::Result<Vec<(Address, Vec<OwnedFd>)>> = addresses.iter().map(lend).collect();
        let result = sockets.and_then(|sockets| Ok((sockets, self.groups.parked()?)));
        let (sockets, parked) = match result {
            Ok(both) => both,
            Err(e) => {
                let sentence = format!("ferroced cannot pass descriptors on: {e}");
                self.send(client, id, Message::Refused(refusal(RefusalCode::Failed, sentence)), Vec::new());
                return;
            }
        };
        self.hold(client, &slots);
        if let Some(known) = self.clients.get_mut(&client) {
            known.addresses = addresses.iter().copied().collect();
        }
        let count = sockets.len() as u16;
        let leased = Leased { slots, by_rings: false, addresses: count, notice, order };
        self.send(client, id, Message::Leased(leased), vec![parked]);
        for (address, descriptors) in sockets {
            self.send_address(client, id, address, members.clone(), descriptors);
        }
    }

    /// From now on these slots are the client's.
    fn hold(&mut self, client: ClientId, slots: &[u16]) {
        self.view_changes += 1;
        let Some(peer) = self.clients.get(&client).map(|known| known.peer) else { return };
        slots.iter().for_each(|slot| self.cm.set_user(*slot, peer.uid));
        for slot in self.slots.leases(slots) {
            if matches!(self.slots.get(slot), Some(Slot::Unknown { .. })) {
                self.untold.insert(slot);
            }
            self.slots.set(slot, Slot::Leased(client));
            if self.slots.is_divided(member_of(slot)) && self.owners.insert(slot, peer.uid) != Some(peer.uid)
            {
                self.system.keep_owner(slot, Some(peer.uid));
            }
            info!(pid = peer.pid, slot, "leased");
        }
    }

    pub(super) fn send_address(
        &mut self,
        client: ClientId,
        id: u32,
        address: Address,
        members: Vec<u8>,
        sockets: Vec<OwnedFd>,
    ) {
        if members.is_empty() {
            return;
        }
        let message = AddressSockets { ip: address.ip, scope_id: address.scope_id, members };
        self.send(client, id, Message::Address(message), sockets);
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
        if self.is_foreign(client) {
            // It was given no such descriptors, so they are not those of an earlier broker.
            let sentence = "these slots were leased without sockets";
            return self.send(
                client,
                id,
                Message::Refused(refusal(RefusalCode::BadRequest, sentence)),
                Vec::new(),
            );
        }
        let Some(known) = self.clients.get_mut(&client) else { return };
        let process = known.process;
        let devices = std::mem::take(&mut known.known);
        let known_before = self.groups.len();
        match self.groups.adopt(&mut self.system, parked.as_fd()) {
            Ok(true) => {
                self.survivors.wait(now);
                let groups = &self.groups;
                self.taken.retain(|address| !groups.contains(*address));
                self.sync_slots(now);
                self.devices.restore(&devices);
                let size = self.slots.len();
                if let Err(e) = self.groups.level(size).map(drop).and_then(|()| Ok(self.groups.park_all()?)) {
                    warn!("cannot park what was taken back: {e}");
                }
                self.tell_parked(true);
                self.publish();
            }
            Ok(false) => {}
            Err(e) => warn!(?client, "a program's parked descriptors cannot be read: {e}"),
        }
        if known_before == 0 && self.groups.len() == 0 {
            // Its sockets are on no address that we could take back: what it holds is lost.
            self.send(
                client,
                id,
                Message::Refused(refusal(RefusalCode::Failed, "nothing to take back")),
                Vec::new(),
            );
            return;
        }
        let mut slots = self.slots.expand(claimed);
        // A claim stands for a whole member. An earlier broker may have divided it, and its slots have other
        // holders then.
        let divided: BTreeSet<u8> = self.expected.keys().map(|slot| member_of(*slot)).collect();
        slots.retain(|slot| {
            let member = member_of(*slot);
            !divided.contains(&member)
                && !self.slots.is_divided(member)
                && self.is_free_for(*slot, client, process)
        });
        // A slot that this broker takes for a free one was the program's at an earlier broker, too.
        let free =
            self.slots.leases(&slots).into_iter().filter(|slot| self.slots.get(*slot) == Some(Slot::Free));
        self.untold.extend(free);
        // Its own sockets again, not emptied: traffic goes on.
        self.hold(client, &slots);
        self.resumed(client, id, slots);
        self.retry_waiting(now);
    }

    /// Whether a program that claims a slot can have it: an open one that no other process holds.
    fn is_free_for(&self, slot: u16, client: ClientId, process: ProcessId) -> bool {
        match self.slots.get(slot) {
            Some(Slot::Free | Slot::Unknown { .. }) => true,
            Some(Slot::Away { process: away, .. }) => away == process,
            Some(Slot::Leased(holder)) => {
                holder == client || self.clients.get(&holder).is_some_and(|holder| holder.process == process)
            }
            None => false,
        }
    }

    pub(super) fn resumed(&mut self, client: ClientId, id: u32, slots: Vec<u16>) {
        let members: Vec<u8> = self.slots.leases(&slots).iter().map(|slot| member_of(*slot)).collect();
        let parked = match self.groups.parked() {
            Ok(parked) => parked,
            Err(e) => {
                let sentence = format!("ferroced cannot pass descriptors on: {e}");
                self.send(client, id, Message::Refused(refusal(RefusalCode::Failed, sentence)), Vec::new());
                return;
            }
        };
        let mut sockets = Vec::new();
        for address in self.addresses_of(client).into_iter().filter(|_| !members.is_empty()) {
            if !self.groups.is_adopted(address)
                && let Err(e) = self.groups.lease(address, &members)
            {
                debug!(%address, "no sockets for a program that came back: {e}");
            }
            if let Ok(members) = self.groups.members(address, &members) {
                sockets.push((address, members));
            }
        }
        if let Some(known) = self.clients.get_mut(&client) {
            known.addresses = sockets.iter().map(|(address, _)| *address).collect();
            info!(pid = known.peer.pid, ?slots, "resumed");
        }
        let (slots, addresses) = (slots, sockets.len() as u16);
        let leased = Leased { slots: slots.clone(), addresses, ..Leased::default() };
        self.send(client, id, Message::Leased(leased), vec![parked]);
        for (address, descriptors) in sockets {
            self.send_address(client, id, address, members.clone(), descriptors);
        }
        self.connections_resume(client, &slots);
    }

    /// Finds the slots without sockets that a program held at an earlier broker, or at this one before its
    /// connection broke: those that its user has, as that broker kept it.
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
        let Some(known) = self.clients.get_mut(&client) else { return Ok(None) };
        let (uid, process) = (known.peer.uid, known.process);
        let devices = std::mem::take(&mut known.known);
        self.devices.restore(&devices);
        self.follow_xdp();
        let mut slots = claimed.to_vec();
        slots.retain(|slot| {
            self.owners.get(slot) == Some(&uid)
                && self.slots.is_divided(member_of(*slot))
                && self.is_free_for(*slot, client, process)
        });
        if slots.is_empty() {
            return Err(refusal(RefusalCode::Failed, "nothing to take back"));
        }
        Ok(Some((slots, String::new())))
    }

    /// Slots without sockets that an earlier broker leased stay with their users until these had time to come
    /// back.
    fn expect_survivors(&mut self, now: Instant) -> Result<(), Refusal> {
        let expected = std::mem::take(&mut self.expected);
        let Some(last) = expected.keys().map(|slot| member_of(*slot)).max() else { return Ok(()) };
        let size = usize::from(last) + 1;
        let moved = self.groups.level(size).map_err(|e| failed(&e))?;
        while self.slots.len() < size {
            let first = self.slots.len() == 0;
            self.slots.push(if first { Slot::Leased(ClientId(u64::MAX)) } else { Slot::Free });
        }
        self.tell_parked(moved);
        self.survivors.wait(now);
        for (slot, uid) in expected {
            self.slots.divide(member_of(slot));
            if self.slots.is_divided(member_of(slot)) {
                self.slots.set(slot, Slot::Unknown { until: now + UNKNOWN });
                self.owners.insert(slot, uid);
            }
        }
        Ok(())
    }

    pub(super) fn retry_waiting(&mut self, now: Instant) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.lease_or_refuse(now, &waiting, false);
        }
    }

    pub(super) fn free(&mut self, slots: &[u16]) {
        self.view_changes += 1;
        for slot in self.slots.leases(slots) {
            info!(slot, "slot is free");
            self.cm.close_owner(slot);
            self.untold.remove(&slot);
            self.numbers.ended(slot, self.slots.is_divided(member_of(slot)));
            self.slots.set(slot, Slot::Free);
            if self.owners.remove(&slot).is_some() {
                self.system.keep_owner(slot, None);
            }
            // A divided member is released with its last slot.
            if !self.slots.is_divided(member_of(slot)) {
                self.groups.release(member_of(slot));
            }
        }
        self.settle_ledgers();
        if !slots.is_empty() && self.slots.all_free() {
            // No program uses the groups of addresses that are gone, so they can go as well.
            let host = &self.host;
            self.groups.retain(|address| host.iter().any(|n| n.addresses.contains(&address.ip)));
            if self.groups.len() == 0 {
                self.slots = Slots::default();
            }
        }
    }

    pub(super) fn is_open_elsewhere(&self, slot: u16) -> bool {
        // Only programs' own sockets can be open elsewhere.
        if self.slots.is_divided(member_of(slot)) {
            return false;
        }
        let address = self.devices.all().flat_map(addresses).find(|address| self.groups.contains(*address));
        let socket = address.and_then(|address| self.groups.members(address, &[member_of(slot)]).ok()?.pop());
        socket.is_some_and(|socket| self.system.is_open_elsewhere(socket.as_fd()))
    }
}

fn failed(error: &GrowError) -> Refusal {
    let mut sentence = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        sentence = format!("{sentence}: {cause}");
        source = cause.source();
    }
    refusal(RefusalCode::Failed, sentence)
}
