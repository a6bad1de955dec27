//! Connections, as far as clients, slots and addresses matter for them.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use ferroce_cm::{ConnectionManager, Route, Transmit};
use ferroce_host::netdev::sender;
use ferroce_ipc::{CmNotice, CmRequest, CmStatus, Message, Peer, Refusal, RefusalCode};
use ferroce_wire::cm::CommId;
use tracing::{debug, warn};

use super::leases::{Leases, RETURN_GRACE};
use super::{Clients, Output};
use crate::cm::{Asker, Cm, addressee, start_of};
use crate::devices::Devices;
use crate::groups::Groups;
use crate::record_key::RecordKey;
use crate::slots::{Slot, Slots};
use crate::system::Sockets;
use crate::{ClientId, refusal};

/// Events that wait for programs of another user that are away: as many as for one of the broker's user.
const MOST_HELD_OF_USER: usize = 32_768;
/// Messages of peers that wait as long, and those of one address. Peers repeat the others.
const MOST_WAITING: usize = 4096;
const MOST_OF_ONE: usize = MOST_WAITING / 4;
/// Connections and SIDR requests of all programs of another user, with those that peers asked for: a quarter
/// of those that there may be.
const MOST_CONNECTIONS: usize = 65_536;
/// Ports that all programs of another user may bind together, blocks of ephemeral ports aside.
const MOST_BINDS: usize = 16_384;
/// Blocks of ephemeral ports of all programs of another user.
const MOST_BLOCKS: usize = 64;

/// The connections of all programs, and those that programs of an earlier broker have yet to tell.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) cm: Cm,
    /// While programs of an earlier broker may come back: the end of that time.
    survivors_until: Option<Instant>,
    /// MADs from peers that wait until the programs of an earlier broker have come back.
    waiting: VecDeque<(Route, Box<[u8]>)>,
    /// Leases that programs took back from an earlier broker, by their first slot, until they have told all
    /// their connections.
    untold: BTreeSet<u16>,
    /// The key of records that programs of other users keep, if these are served.
    record_key: Option<RecordKey>,
    /// Datagrams to queue pair 1 that held no MAD.
    no_mad: u64,
}

impl Connections {
    pub(super) fn new(cm: Cm) -> Self {
        Self {
            cm,
            survivors_until: None,
            waiting: VecDeque::new(),
            untold: BTreeSet::new(),
            record_key: None,
            no_mad: 0,
        }
    }

    /// Serves programs of every user from now on, with bounds for users other than `own`.
    pub(super) fn serve_all_users(&mut self, own: u32, key: RecordKey) {
        self.cm.manager.bound_users(own, MOST_CONNECTIONS);
        self.record_key = Some(key);
    }

    /// Programs of an earlier broker may come back from now on.
    pub(super) fn wait_for_survivors(&mut self, now: Instant) {
        self.survivors_until = Some(now + RETURN_GRACE);
    }

    /// The holder of a slot came back from an earlier broker and is to tell its connections.
    pub(super) fn expect_records_of(&mut self, slot: u16) {
        self.untold.insert(slot);
    }

    /// Time at which to call [`Connections::tick`]; `None` if no timer runs.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.cm.deadline().into_iter().chain(self.survivors_until).min()
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.cm.tick();
        self.survivors_until = self.survivors_until.filter(|until| *until > now);
    }

    /// A MAD came to queue pair 1 of an address.
    pub(super) fn mad(&mut self, from: Route, mad: &[u8], slots: &Slots, devices: &Devices) {
        if self.survivors_until.is_none() {
            return self.take_mad(from, mad, slots, devices);
        }
        let theirs = self.waiting.iter().filter(|(other, _)| sender(other.remote) == sender(from.remote));
        if self.waiting.len() < MOST_WAITING && theirs.count() < MOST_OF_ONE {
            self.waiting.push_back((from, mad.into()));
        }
    }

    /// Counts datagrams to queue pair 1 that held no MAD.
    pub(crate) fn no_mads(&mut self, count: u64) {
        self.no_mad = self.no_mad.wrapping_add(count);
    }

    pub(super) fn status(&self) -> CmStatus {
        CmStatus { no_mad: self.no_mad, ..self.cm.status() }
    }

    fn take_mad(&mut self, from: Route, mad: &[u8], slots: &Slots, devices: &Devices) {
        let addressee = addressee(mad);
        // A program may hold the address of a device that is no more: nobody listens there, and nobody
        // answers (Linux 6.12, `cm_remove_one`).
        if addressee.is_none() && !devices.have(start_of(&from)) {
            debug!(?from, "dropped a request to an address without a device");
            return;
        }
        let slot = addressee.map(ConnectionManager::owner).and_then(|slot| slots.get(slot));
        // Of a program that is stopped, say: only it knows whether there is that connection. Peers repeat.
        if !matches!(slot, Some(Slot::Unknown { .. })) {
            self.cm.mad(from, mad);
        }
    }

    /// Whether a program may say what an earlier broker knew of a connection: one that took back the slot and
    /// has not told all yet, and a program of another user as that broker wrote it.
    fn may_restore(
        &self,
        client: ClientId,
        id: CommId,
        record: &[u8],
        slots: &Slots,
        clients: &Clients,
    ) -> Result<(), Refusal> {
        // We may be that broker.
        if self.cm.manager.knows(id) {
            return Ok(());
        }
        let leases = slots.leases(&[ConnectionManager::owner(id)]);
        let told = leases.iter().all(|slot| !self.untold.contains(slot));
        let uid = clients.uid_of(client).filter(|uid| clients.restricts(*uid));
        let known = || uid.zip(self.record_key.as_ref()).is_none_or(|(uid, key)| key.knows(uid, record));
        if !told && known() {
            return Ok(());
        }
        Err(refusal(
            RefusalCode::UnknownId,
            "no earlier ferroced is known to have given this program that connection",
        ))
    }

    /// Whether a program's user may have another connection, port or block.
    fn may_request(
        &self,
        client: ClientId,
        request: &CmRequest,
        leases: &Leases,
        clients: &Clients,
    ) -> Result<(), Refusal> {
        let Some(uid) = clients.foreign_uid(client) else { return Ok(()) };
        let slots = || leases.slots_of_user(uid);
        let (used, most, what) = match request {
            CmRequest::Connect(_) | CmRequest::Resolve(_) | CmRequest::Restore { .. } => {
                (self.cm.manager.in_use_by(uid), MOST_CONNECTIONS, "connections")
            }
            CmRequest::Bind(_) => (self.cm.binds_of(slots()), MOST_BINDS, "ports"),
            CmRequest::PortBlock { .. } => (self.cm.blocks_of(slots()), MOST_BLOCKS, "blocks of ports"),
            _ => return Ok(()),
        };
        if used < most {
            return Ok(());
        }
        let sentence =
            format!("programs of {} have {most} {what}, which is all that a user may have", Peer::user(uid));
        Err(refusal(RefusalCode::Full, sentence))
    }

    /// Marks the record of a connection in a slot, for the next broker, if the slot is of another user's
    /// program.
    fn seal(&self, slot: u16, record: &mut [u8], leases: &Leases, clients: &Clients) {
        let uid = leases.owner(slot).filter(|uid| clients.restricts(*uid));
        if let Some((uid, key)) = uid.zip(self.record_key.as_ref()) {
            key.seal(uid, record);
        }
    }

    /// A client's request about connections.
    pub(super) fn request(
        &mut self,
        client: ClientId,
        request: CmRequest,
        leases: &mut Leases,
        clients: &Clients,
        groups: &Groups<impl Sockets>,
    ) -> Result<Message, Refusal> {
        match &request {
            CmRequest::Restored => leases.slots.leases_of(client).iter().for_each(|slot| {
                self.untold.remove(slot);
            }),
            CmRequest::Restore { id, record } => {
                self.may_restore(client, *id, record, &leases.slots, clients)?;
            }
            _ => {}
        }
        self.may_request(client, &request, leases, clients)?;
        if matches!(request, CmRequest::Connect(_) | CmRequest::Accept { .. }) {
            leases.connects(client);
        }
        let slots = &leases.slots.of(client);
        let low_ports = clients.get(client).is_some_and(|known| known.low_ports);
        let asker = Asker { slots, low_ports };
        let mut done = self.cm.request(asker, request, |address| groups.contains(address))?;
        self.seal(ConnectionManager::owner(done.id), &mut done.record, leases, clients);
        Ok(Message::CmDone(done))
    }

    /// Passes on what came of it: MADs to peers, news to owners.
    pub(super) fn settle(&mut self, leases: &Leases, devices: &Devices, clients: &mut Clients) {
        let slots = &leases.slots;
        let unknown = |(_, state)| matches!(state, Slot::Unknown { .. });
        if self.survivors_until.is_some() && self.untold.is_empty() && !slots.iter().any(unknown) {
            self.survivors_until = None;
        }
        if self.survivors_until.is_none() {
            for (from, mad) in std::mem::take(&mut self.waiting) {
                self.take_mad(from, &mad, slots, devices);
            }
        }
        while let Some(mut transmit) = self.cm.poll_transmit() {
            let Route { local, remote, .. } = transmit.route;
            if let Some(settings) = devices.settings_at(start_of(&transmit.route)).next() {
                transmit.traffic_class = settings.traffic_class(local, remote, transmit.traffic_class);
            }
            clients.output().push_back(Output::Mad(transmit));
        }
        while let Some(mut notice) = self.cm.poll_event() {
            self.seal(notice.event.owner, &mut notice.record, leases, clients);
            match slots.get(notice.event.owner) {
                Some(Slot::Leased(client)) if clients.get(client).is_some() => {
                    clients.send(client, 0, Message::CmEvent(notice), Vec::new());
                }
                Some(Slot::Away { .. }) => self.keep(notice, leases, clients),
                _ => warn!(event = ?notice.event, "an event of a connection that belongs to nobody"),
            }
        }
        while let Some(slot) = self.cm.poll_hits() {
            // A program that comes back gives its rules again, and is told then.
            if let Some(Slot::Leased(client)) = slots.get(slot) {
                clients.send(client, 0, Message::MadFaultHits, Vec::new());
            }
        }
    }

    /// Keeps an event that its program did not read, if the program is away. Programs of another user share
    /// a bound.
    pub(super) fn keep(&mut self, notice: CmNotice, leases: &Leases, clients: &Clients) {
        let owner = notice.event.owner;
        if !matches!(leases.slots.get(owner), Some(Slot::Away { .. })) {
            return;
        }
        let user = |slot| leases.owner(slot).filter(|uid| clients.restricts(*uid));
        if let Some(uid) = user(owner)
            && self.cm.count_held(|slot| user(slot) == Some(uid)) >= MOST_HELD_OF_USER
        {
            debug!(uid, "an event is dropped: too many wait for programs of this user that are away");
            return;
        }
        self.cm.hold(notice);
    }

    /// A program is there again.
    pub(super) fn resume(&mut self, client: ClientId, slots: &[u16], clients: &mut Clients) {
        for slot in slots {
            for notice in self.cm.take_held(*slot) {
                clients.send(client, 0, Message::CmEvent(notice), Vec::new());
            }
        }
    }

    /// As [`Cm::close_owner`].
    pub(super) fn close_owner(&mut self, slot: u16, most: usize) -> usize {
        self.untold.remove(&slot);
        self.cm.close_owner(slot, most)
    }
}

/// Whether a MAD to ourselves is to be a packet: a program of a user at one of its ends asks for that, or any
/// program of root or of the broker's user.
pub(super) fn shows(transmit: &Transmit, slots: &Slots, clients: &Clients) -> bool {
    let mut showing = clients.iter().filter(|(_, known)| known.shows_mads).peekable();
    if showing.peek().is_none() {
        return false;
    }
    let receiver = addressee(transmit.mad.as_slice()).map(ConnectionManager::owner);
    let user = |slot| match slots.get(slot) {
        Some(Slot::Leased(client)) => clients.uid_of(client),
        _ => None,
    };
    let users = [transmit.owner.and_then(user), receiver.and_then(user)];
    showing.any(|(client, known)| !clients.is_restricted(client) || users.contains(&Some(known.peer.uid)))
}
