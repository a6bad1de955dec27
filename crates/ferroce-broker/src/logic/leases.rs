//! Leases: which slots a client gets, and what it gets back from an earlier broker.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ferroce_datapath::udp::OpenError;
use ferroce_ipc::{AddressSockets, Leased, Message, Refusal, RefusalCode};
use tracing::{debug, info, warn};

use super::{Broker, MOST_SLOTS, UNKNOWN, Waiting, addresses};
use crate::groups::GrowError;
use crate::slots::{LAST_SLOT, Slot, Slots};
use crate::system::System;
use crate::{ClientId, refusal};
use ferroce_host::netdev::Address;

impl<S: System> Broker<S> {
    pub(super) fn lease_or_refuse(&mut self, now: Instant, waiting: &Waiting, last_try: bool) {
        if !self.clients.contains_key(&waiting.client) {
            return;
        }
        match self.lease(now, waiting.client, waiting.count, last_try) {
            Ok(Some((slots, notice))) => self.grant(waiting.client, waiting.id, slots, notice),
            Ok(None) => {
                debug!(client = ?waiting.client, "a lease waits for programs of an earlier ferroced");
                self.waiting.push(Waiting { ..*waiting });
            }
            Err(refused) => {
                warn!(client = ?waiting.client, "lease refused: {refused}");
                self.send(waiting.client, waiting.id, Message::Refused(refused), Vec::new());
            }
        }
    }

    /// Finds `count` slots; `None` while programs of an earlier broker may still come back. Returns the slots, not yet
    /// marked, and a notice for the user.
    pub(super) fn lease(
        &mut self,
        now: Instant,
        client: ClientId,
        count: u8,
        last_try: bool,
    ) -> Result<Option<(Vec<u8>, String)>, Refusal> {
        let held = self.slots.of(client).len() + usize::from(count);
        if held > MOST_SLOTS {
            return Err(refusal(
                RefusalCode::NoSlots,
                format!("a program may have {MOST_SLOTS} slots at most"),
            ));
        }
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
                    notices.push(self.held_sentence(*address));
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
        let mut slots = self.slots.select(|state| state == Slot::Free);
        slots.truncate(count.into());
        while slots.len() < usize::from(count) {
            if self.slots.len() > usize::from(LAST_SLOT) {
                let sentence = format!("all {LAST_SLOT} slots of this network namespace are leased");
                return Err(refusal(RefusalCode::NoSlots, sentence));
            }
            match self.groups.grow(&mut self.system) {
                Ok((slot, moved)) => {
                    self.slots.push(Slot::Free);
                    self.tell_parked(moved);
                    slots.push(slot);
                }
                Err(GrowError::Incomplete) if !last_try => return Ok(None),
                Err(e) => return Err(self.cannot_grow(&e)),
            }
        }
        Ok(Some((slots, notices.join("; "))))
    }

    /// The answer to a lease whose sockets cannot be opened.
    fn cannot_grow(&mut self, error: &GrowError) -> Refusal {
        self.exhausted |= error.is_out_of_descriptors();
        failed(error)
    }

    /// Programs of an earlier broker that do not answer, because they are stopped perhaps, hold slots that we know by
    /// number alone: as many as their address has sockets. They are nobody else's on any address.
    pub(super) fn skip_survivors(&mut self, now: Instant) -> Result<(), Refusal> {
        let most = usize::from(LAST_SLOT) + 1;
        let members = |address: &Address| self.system.members_in_kernel(*address).unwrap_or(most);
        let floor = self.taken.iter().map(members).max().unwrap_or(0).min(most);
        if self.slots.len() < floor {
            let moved = self.groups.level(floor).map_err(|e| failed(&e))?;
            while self.slots.len() < floor {
                self.slots.push(Slot::Unknown { until: now + UNKNOWN });
            }
            self.tell_parked(moved);
        }
        Ok(())
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
    pub(super) fn grant(&mut self, client: ClientId, id: u32, slots: Vec<u8>, notice: String) {
        let addresses: Vec<Address> = self
            .addresses_of(client)
            .into_iter()
            .filter(|address| self.groups.has(*address, &slots))
            .collect();
        let lend = |address: &Address| {
            self.groups.lease(*address, &slots)?;
            Ok((*address, self.groups.members(*address, &slots)?))
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
        for slot in &slots {
            self.slots.set(*slot, Slot::Leased(client));
        }
        self.view_changes += 1;
        if let Some(known) = self.clients.get_mut(&client) {
            known.addresses = addresses.iter().copied().collect();
            info!(pid = known.peer.pid, ?slots, "leased");
        }
        let count = sockets.len() as u16;
        let leased = Leased { slots: slots.clone(), addresses: count, notice };
        self.send(client, id, Message::Leased(leased), vec![parked]);
        for (address, descriptors) in sockets {
            self.send_address(client, id, address, slots.clone(), descriptors);
        }
    }

    pub(super) fn send_address(
        &mut self,
        client: ClientId,
        id: u32,
        address: Address,
        slots: Vec<u8>,
        sockets: Vec<OwnedFd>,
    ) {
        if slots.is_empty() {
            return;
        }
        let message = AddressSockets { ip: address.ip, scope_id: address.scope_id, slots };
        self.send(client, id, Message::Address(message), sockets);
    }

    /// A program says what it held from an earlier broker, or from us before its connection broke.
    pub(super) fn resume(
        &mut self,
        now: Instant,
        client: ClientId,
        id: u32,
        claimed: &[u8],
        parked: OwnedFd,
    ) {
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
        let mut slots = claimed.to_vec();
        slots.retain(|slot| match self.slots.get(*slot) {
            Some(Slot::Free | Slot::Unknown { .. }) => true,
            Some(Slot::Away { process: p, .. }) => p == process,
            Some(Slot::Leased(holder)) => {
                holder == client || self.clients.get(&holder).is_some_and(|holder| holder.process == process)
            }
            None => false,
        });
        // Its own sockets again, not emptied: traffic goes on.
        for slot in &slots {
            self.slots.set(*slot, Slot::Leased(client));
        }
        self.view_changes += 1;
        if let Some(known) = self.clients.get_mut(&client) {
            known.restoring = true;
        }
        self.resumed(client, id, slots);
        self.retry_waiting(now);
    }

    pub(super) fn resumed(&mut self, client: ClientId, id: u32, slots: Vec<u8>) {
        let parked = match self.groups.parked() {
            Ok(parked) => parked,
            Err(e) => {
                let sentence = format!("ferroced cannot pass descriptors on: {e}");
                self.send(client, id, Message::Refused(refusal(RefusalCode::Failed, sentence)), Vec::new());
                return;
            }
        };
        let mut sockets = Vec::new();
        for address in self.addresses_of(client).into_iter().filter(|_| !slots.is_empty()) {
            if !self.groups.is_adopted(address)
                && let Err(e) = self.groups.lease(address, &slots)
            {
                debug!(%address, "no sockets for a program that came back: {e}");
            }
            if let Ok(members) = self.groups.members(address, &slots) {
                sockets.push((address, members));
            }
        }
        if let Some(known) = self.clients.get_mut(&client) {
            known.addresses = sockets.iter().map(|(address, _)| *address).collect();
            info!(pid = known.peer.pid, ?slots, "resumed");
        }
        let leased = Leased { slots: slots.clone(), addresses: sockets.len() as u16, notice: String::new() };
        self.send(client, id, Message::Leased(leased), vec![parked]);
        for (address, descriptors) in sockets {
            self.send_address(client, id, address, slots.clone(), descriptors);
        }
        self.connections_resume(client, &slots);
    }

    pub(super) fn retry_waiting(&mut self, now: Instant) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.lease_or_refuse(now, &waiting, false);
        }
    }

    pub(super) fn free(&mut self, slots: &[u8]) {
        self.view_changes += 1;
        for slot in slots {
            info!(slot, "slot is free");
            self.groups.release(*slot);
            self.cm.close_owner(*slot);
            self.slots.set(*slot, Slot::Free);
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

    pub(super) fn is_open_elsewhere(&self, slot: u8) -> bool {
        let address = self.devices.all().flat_map(addresses).find(|address| self.groups.contains(*address));
        let socket = address.and_then(|address| self.groups.members(address, &[slot]).ok()?.pop());
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
