//! Connections, as far as clients, slots and addresses matter for them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ferroce_cm::{ConnectionManager, Route, Transmit};
use ferroce_host::netdev::sender;
use ferroce_ipc::{CmNotice, CmRequest, Message, Origin, Refusal, RefusalCode};
use ferroce_wire::cm::CommId;
use tracing::{debug, warn};

use super::{Broker, Output, addresses};
use crate::cm::{Asker, addressee, start_of};
use crate::privilege::restricts;
use crate::slots::Slot;
use crate::system::System;
use crate::{ClientId, refusal};
use ferroce_host::netdev::Address;

/// How long programs of an earlier broker have to tell what they have, before a peer's message about it is
/// answered as if it were nobody's.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Events that wait for programs of another user that are away: as many as for one of the broker's user.
const MOST_HELD_OF_USER: usize = 32_768;
/// Messages of peers that wait as long, and those of one address. Peers repeat the others.
const MOST_WAITING: usize = 4096;
const MOST_OF_ONE: usize = MOST_WAITING / 4;

/// MADs from peers that wait until the programs of an earlier broker have come back.
#[derive(Debug, Default)]
pub struct Survivors {
    until: Option<Instant>,
    waiting: VecDeque<(Route, Box<[u8]>)>,
}

impl Survivors {
    /// We took over from an earlier broker.
    pub fn wait(&mut self, now: Instant) {
        self.until = Some(now + PATIENCE);
    }

    /// Time at which [`Survivors::tick`] ends it.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.until = self.until.filter(|until| *until > now);
    }
}

impl<S: System> Broker<S> {
    /// A MAD came to queue pair 1 of an address.
    pub fn mad(&mut self, now: Instant, from: Route, mad: &[u8]) {
        self.cm.clock(now);
        if self.survivors.until.is_some() {
            let waiting = &mut self.survivors.waiting;
            let theirs = waiting.iter().filter(|(other, _)| sender(other.remote) == sender(from.remote));
            if waiting.len() < MOST_WAITING && theirs.count() < MOST_OF_ONE {
                waiting.push_back((from, mad.into()));
            }
        } else {
            self.take_mad(from, mad);
        }
        self.connections_settle();
    }

    /// So many datagrams to queue pair 1 held no MAD.
    pub fn no_mads(&mut self, count: u64) {
        self.no_mad = self.no_mad.wrapping_add(count);
    }

    /// Whether a MAD to ourselves is to be a packet: a program of a user at one of its ends asks for that, or
    /// any program of root or of the broker's user.
    pub fn shows(&self, transmit: &Transmit) -> bool {
        let mut showing = self.clients.iter().filter(|(_, known)| known.shows_mads).peekable();
        if showing.peek().is_none() {
            return false;
        }
        let receiver = addressee(transmit.mad.as_slice()).map(ConnectionManager::owner);
        let user = |slot| match self.slots.get(slot) {
            Some(Slot::Leased(client)) => self.uid_of(client),
            _ => None,
        };
        let users = [transmit.owner.and_then(user), receiver.and_then(user)];
        showing.any(|(client, known)| !self.is_restricted(*client) || users.contains(&Some(known.peer.uid)))
    }

    fn take_mad(&mut self, from: Route, mad: &[u8]) {
        let addressee = addressee(mad);
        // A program may hold the address of a device that is no more: nobody listens there, and nobody
        // answers (Linux 6.12, `cm_remove_one`).
        if addressee.is_none() && !self.devices.have(start_of(&from)) {
            debug!(?from, "dropped a request to an address without a device");
            return;
        }
        let slot = addressee.map(ConnectionManager::owner).and_then(|slot| self.slots.get(slot));
        // Of a program that is stopped, say: only it knows whether there is that connection. Peers repeat.
        if !matches!(slot, Some(Slot::Unknown { .. })) {
            self.cm.mad(from, mad);
        }
    }

    /// Connections and SIDR requests of all programs.
    pub fn connection_count(&self) -> usize {
        self.cm.count()
    }

    /// Frees the room of queues that were longer.
    pub fn shrink(&mut self) {
        self.output.shrink_to_fit();
        self.cm.shrink();
    }

    /// Whether every program of an earlier broker has told what it has.
    fn all_told(&self) -> bool {
        let unknown = self.slots.iter().any(|(_, state)| matches!(state, Slot::Unknown { .. }));
        !unknown && self.untold.is_empty()
    }

    /// The addresses that have queue pair 1.
    pub fn own_addresses(&self) -> Vec<Address> {
        self.groups.addresses()
    }

    /// Another number than before, if these, or their sockets, changed.
    pub fn group_changes(&self) -> u64 {
        self.groups.changes()
    }

    /// A duplicate of the broker's own socket on an address: close it when [`Broker::group_changes`] changes.
    pub fn own_socket(&self, address: Address) -> io::Result<OwnedFd> {
        self.groups.members(address, &[0])?.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A duplicate of the socket of a divided member on an address, emptied and with a buffer.
    pub fn divided_socket(&self, address: Address, member: u8) -> io::Result<OwnedFd> {
        self.groups.lease(address, &[member])?;
        self.groups.members(address, &[member])?.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether the ICRC of what comes to an address counts.
    pub fn checks_crc(&self, address: Address) -> bool {
        self.devices.settings_at(address).all(|settings| settings.crc)
    }

    /// Opens the addresses of links, so that who asks there is answered although no program runs.
    pub(super) fn serve_links(&mut self) {
        let links = self.devices.all().filter(|device| device.origin == Origin::Link);
        let closed =
            |address: &Address| !self.groups.contains(*address) && self.devices.is_assigned(*address);
        let closed: Vec<Address> = links.flat_map(addresses).filter(closed).collect();
        for address in closed {
            match self.groups.open(&mut self.system, address) {
                Ok(moved) => {
                    if self.slots.len() == 0 {
                        self.slots.push(Slot::Leased(ClientId(u64::MAX)));
                    }
                    self.tell_parked(moved);
                }
                // A program that leases a slot receives this as a notice.
                Err(e) => debug!(%address, "not served: {e}"),
            }
        }
    }

    /// Whether a program may say what an earlier broker knew of a connection: one that took back the slot and
    /// has not told all yet, and a program of another user as that broker wrote it.
    fn may_restore(&self, client: ClientId, id: CommId, record: &[u8]) -> Result<(), Refusal> {
        // We may be that broker.
        if self.cm.knows(id) {
            return Ok(());
        }
        let told =
            self.slots.leases(&[ConnectionManager::owner(id)]).iter().all(|slot| !self.untold.contains(slot));
        let uid = self.uid_of(client).filter(|uid| self.is_restricted_user(*uid));
        let known = || uid.zip(self.record_key.as_ref()).is_none_or(|(uid, key)| key.knows(uid, record));
        if !told && known() {
            return Ok(());
        }
        Err(refusal(
            RefusalCode::UnknownId,
            "no earlier ferroced is known to have given this program that connection",
        ))
    }

    /// Marks the record of a connection in a slot, for the next broker, if the slot is of another user's
    /// program.
    fn seal(&self, slot: u16, record: &mut [u8]) {
        let uid = self.owners.get(&slot).filter(|uid| self.is_restricted_user(**uid));
        if let Some((uid, key)) = uid.zip(self.record_key.as_ref()) {
            key.seal(*uid, record);
        }
    }

    /// A client's request about connections.
    pub(super) fn connections(&mut self, client: ClientId, request: CmRequest) -> Result<Message, Refusal> {
        match &request {
            CmRequest::Restored => self.slots.leases_of(client).iter().for_each(|slot| {
                self.untold.remove(slot);
            }),
            CmRequest::Restore { id, record } => self.may_restore(client, *id, record)?,
            _ => {}
        }
        self.may_request(client, &request)?;
        let slots = self.slots.of(client);
        if let (CmRequest::Connect(_) | CmRequest::Accept { .. }, Some(slot)) =
            (&request, self.slots.leases(&slots).first())
        {
            self.numbers.connects(*slot);
        }
        let low_ports = self.clients.get(&client).is_some_and(|known| known.low_ports);
        let groups = &self.groups;
        let mut done = self
            .cm
            .request(Asker { slots: &slots, low_ports }, request, |address| groups.contains(address))?;
        self.seal(ConnectionManager::owner(done.id), &mut done.record);
        Ok(Message::CmDone(done))
    }

    /// Passes on what came of it: MADs to peers, news to owners.
    pub(super) fn connections_settle(&mut self) {
        if self.survivors.until.is_some() && self.all_told() {
            self.survivors.until = None;
        }
        if self.survivors.until.is_none() {
            for (from, mad) in std::mem::take(&mut self.survivors.waiting) {
                self.take_mad(from, &mad);
            }
        }
        while let Some(mut transmit) = self.cm.poll_transmit() {
            let Route { local, remote, .. } = transmit.route;
            if let Some(settings) = self.devices.settings_at(start_of(&transmit.route)).next() {
                transmit.traffic_class = settings.traffic_class(local, remote, transmit.traffic_class);
            }
            self.output.push_back(Output::Mad(transmit));
        }
        while let Some(mut notice) = self.cm.poll_event() {
            self.seal(notice.event.owner, &mut notice.record);
            match self.slots.get(notice.event.owner) {
                Some(Slot::Leased(client)) if self.clients.contains_key(&client) => {
                    self.send(client, 0, Message::CmEvent(notice), Vec::new());
                }
                Some(Slot::Away { .. }) => self.keep(notice),
                _ => warn!(event = ?notice.event, "an event of a connection that belongs to nobody"),
            }
        }
        while let Some(slot) = self.cm.poll_hits() {
            // A program that comes back gives its rules again, and is told then.
            if let Some(Slot::Leased(client)) = self.slots.get(slot) {
                self.send(client, 0, Message::MadFaultHits, Vec::new());
            }
        }
    }

    /// Keeps an event that its program did not read, until it is there again.
    pub fn keep_event(&mut self, notice: CmNotice) {
        if matches!(self.slots.get(notice.event.owner), Some(Slot::Away { .. })) {
            self.keep(notice);
        }
    }

    /// Keeps an event for a program that is away. Programs of another user share a bound.
    fn keep(&mut self, notice: CmNotice) {
        let user = |slot: &u16| self.owners.get(slot).filter(|uid| restricts(self.uid, **uid));
        if let Some(uid) = user(&notice.event.owner)
            && self.cm.count_held(|slot| user(&slot) == Some(uid)) >= MOST_HELD_OF_USER
        {
            debug!(uid, "an event is dropped: too many wait for programs of this user that are away");
            return;
        }
        self.cm.hold(notice);
    }

    /// A program is there again.
    pub(super) fn connections_resume(&mut self, client: ClientId, slots: &[u16]) {
        for slot in slots {
            for notice in self.cm.take_held(*slot) {
                self.send(client, 0, Message::CmEvent(notice), Vec::new());
            }
        }
    }
}
