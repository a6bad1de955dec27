//! The broker's decisions: clients, devices, leases. Connections, processes and time are told to it; what it
//! wants sent is asked of it.

mod addresses;
mod clients;
mod connections;
mod frames;
mod granting;
mod leases;
mod ledgers;
mod links;
mod orders;
mod output;
mod xdp;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferroce_cm::{Route, Transmit};
use ferroce_ipc::{
    CmNotice, Hello, LeaseEntry, MAJOR, Message, Origin, Peer, Refusal, RefusalCode, SHOW_MADS,
    STATUS_PROGRAMS, Status, Strange,
};
use tracing::{debug, warn};

use super::cm::Cm;
use super::devices::gids_of;
use super::gsi::Traffic;
use super::slots::Slot;
use super::switch::Counts;
use super::system::System;
use super::{ClientId, ProcessId, refusal};
use addresses::{Addresses, Opened};
use clients::Clients;
use connections::Connections;
use ferroce_host::fork::Guarded;
use ferroce_host::netdev::{Address, Netdev};
use leases::{Leases, RETURN_GRACE, UNCLAIMED_CHECK_INTERVAL, Waiting, Want};
use ledgers::Ledgers;
use links::Links;
use orders::FaultOrders;
pub use output::{Output, PipeEnd};
use xdp::{Around, Xdp};

/// Time that a program has to come back after its connection closed while its process lives. After that the
/// process has called exec, and its slots are free.
const EXEC_GRACE: Duration = Duration::from_millis(500);
/// Connections that end before other programs have their turn, because their program ended: a user may have
/// 65,536, and the end of each sends a datagram.
const MOST_ENDED: usize = 256;

/// The state machine. After each call take [`Broker::poll_output`] until it is empty, and call
/// [`Broker::tick`] when [`Broker::deadline`] has passed.
///
/// Each part of the state has an owner, whose methods take the other owners that they need.
#[derive(Debug)]
pub struct Broker<S: System> {
    system: S,
    pub(crate) clients: Clients,
    links: Links,
    pub(crate) addresses: Addresses<S::Group>,
    leases: Leases,
    pub(crate) connections: Connections,
    ledgers: Ledgers,
    orders: FaultOrders,
    xdp: Xdp<S>,
    /// Whether the broker makes way for another user's program.
    leaving: bool,
    stopped: bool,
    /// Grows whenever [`Broker::switch_view`] may have changed.
    view_changes: u64,
}

impl<S: System> Broker<S> {
    /// A broker of user `uid`. `random_guid` is the node GUID of interfaces without a hardware address, not
    /// zero.
    pub fn new(mut system: S, uid: u32, random_guid: [u8; 8], netdevs: Vec<Netdev>) -> Self {
        let links = Links::new(&mut system, random_guid, netdevs);
        let [first_port, _] = system.secret();
        let cm = Cm::new(system.secret(), first_port, system.free_ports());
        let mut broker = Self {
            clients: Clients::new(uid),
            links,
            addresses: Addresses::new(&system),
            leases: Leases::new(system.owners()),
            connections: Connections::new(cm),
            ledgers: Ledgers::new(uid, Instant::now()),
            orders: FaultOrders::default(),
            xdp: Xdp::new(Instant::now()),
            leaving: false,
            stopped: false,
            view_changes: 0,
            system,
        };
        broker.follow_xdp();
        broker
    }

    /// Serves programs of every user from now on: those that the server lets connect.
    pub fn serve_all_users(&mut self) {
        self.clients.serve_all_users();
        self.connections.serve_all_users(self.clients.uid(), self.system.record_key());
    }

    /// Takes the next action.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.clients.output().pop_front()
    }

    /// Whether nobody needs this broker: no connection, no slot that is or may be held, no link that somebody
    /// configured.
    pub fn is_idle(&self) -> bool {
        self.is_unused() && self.serves_nobody()
    }

    /// Whether it made way for another user's program, and nobody has needed it since.
    pub fn is_leaving(&self) -> bool {
        self.leaving && self.is_idle()
    }

    /// Whether it has too few descriptors to serve anybody: one that another program starts may have more.
    pub fn is_exhausted(&self) -> bool {
        self.addresses.exhausted && self.serves_nobody()
    }

    /// Whether it was told to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether nobody uses this broker, although it may have links.
    pub fn is_unused(&self) -> bool {
        self.clients.is_empty() && self.leases.slots.all_free() && self.connections.cm.is_idle()
    }

    /// The server found no descriptor for a connection.
    pub fn no_descriptor(&mut self) {
        self.addresses.exhausted = true;
    }

    /// Time at which to call [`Broker::tick`]; `None` if no timer runs.
    pub fn deadline(&self) -> Option<Instant> {
        let first = self.leases.deadline().into_iter();
        let connections = first.chain(self.connections.deadline());
        let others = self.orders.deadline().into_iter().chain(self.xdp.deadline());
        connections.chain(others).chain(self.addresses.deadline()).min()
    }

    /// Somebody connected. `watched`: the server will call [`Broker::died`] for the process.
    pub fn connected(&mut self, client: ClientId, peer: Peer, process: ProcessId, watched: bool) {
        // Root may ask, but will not be served by somebody else: as long as nobody else is, it needs the
        // name.
        if !self.clients.serves(peer.uid) && (peer.uid != 0 || self.is_idle()) {
            self.leaving = self.is_idle();
            let code = if self.leaving { RefusalCode::Leaving } else { RefusalCode::ForeignUser };
            let sentence = format!(
                "this network namespace is served by ferroced of uid {}, which cannot lend sockets to {}: run in a \
                 namespace of your own: ferroce run --private-net -- CMD",
                self.clients.uid(),
                Peer::user(peer.uid)
            );
            return self.clients.turn_away(client, code, sentence);
        }
        self.leaving = false;
        self.clients.add(client, peer, process, watched);
    }

    /// The other end closed the connection.
    pub fn disconnected(&mut self, now: Instant, client: ClientId) {
        self.clock(now);
        self.remove(client, Some(now + EXEC_GRACE));
        self.settle();
    }

    /// The server gives the connection up: it carries no messages, or nobody reads it. While the process
    /// lives its slots stay its own, because it may only be stopped.
    pub fn lost(&mut self, client: ClientId) {
        self.close(client);
        self.settle_xdp();
    }

    /// A process ended, whoever holds its connections now: a forked child may.
    pub fn died(&mut self, now: Instant, process: ProcessId) {
        self.clock(now);
        for client in self.clients.select(|client| client.process == process) {
            self.close(client);
        }
        let ended = |state| matches!(state, Slot::Away { process: p, .. } if p == process);
        self.free(&self.leases.slots.select(ended));
        self.settle();
    }

    /// The processes that slots or connections belong to: their deaths matter.
    pub fn processes(&self) -> BTreeSet<ProcessId> {
        let connected = self.clients.iter().map(|(_, client)| client.process);
        connected.chain(self.leases.processes_away()).collect()
    }

    /// A client's message.
    pub fn message(
        &mut self,
        now: Instant,
        client: ClientId,
        id: u32,
        message: Message,
        descriptors: Vec<Strange>,
    ) {
        self.clock(now);
        let Some(known) = self.clients.get(client) else { return };
        let unanswered = id == 0 && matches!(message, Message::Cm(_));
        let outcome = match (known.greeted, message) {
            (false, Message::Hello(hello)) => match self.greet(client, &hello) {
                Ok(()) => return,
                Err(refusal) => {
                    self.clients.refuse(client, id, refusal);
                    return self.close(client);
                }
            },
            (false, _) => Err(None),
            (true, message) => self.request(now, client, id, message, descriptors),
        };
        match outcome {
            Ok(Some(_)) | Err(Some(_)) if unanswered => {}
            // Before whatever comes of it: a peer may be as fast as the answer.
            Ok(Some(answer)) => self.clients.send(client, id, answer, Vec::new()),
            Ok(None) => {}
            Err(Some(refusal)) => self.clients.refuse(client, id, refusal),
            Err(None) => {
                let refused = refusal(RefusalCode::BadRequest, "this message does not belong here");
                self.clients.refuse(client, id, refused);
                self.close(client);
            }
        }
        self.settle();
    }

    /// Answers a greeted client: with a message, with a refusal, with nothing yet, or (`Err(None)`) by
    /// closing.
    fn request(
        &mut self,
        now: Instant,
        client: ClientId,
        id: u32,
        message: Message,
        descriptors: Vec<Strange>,
    ) -> Result<Option<Message>, Option<Refusal>> {
        match message {
            Message::ListDevices => {
                let Some(known) = self.clients.get(client) else { return Ok(None) };
                Ok(Some(Message::Devices(self.links.view(known.view))))
            }
            Message::Devices(devices) => {
                // A broker that follows another one takes over what programs knew, links and their settings
                // included: from programs whose user may change these alone.
                let restricted = self.clients.is_restricted(client);
                if let Some(known) = self.clients.get_mut(client).filter(|_| !restricted) {
                    known.devices_before = devices;
                }
                Ok(None)
            }
            Message::Lease(count) => {
                let want = Want::Lease(count);
                self.lease_or_refuse(now, Waiting { client, id, want, until: now + RETURN_GRACE }, false);
                Ok(None)
            }
            Message::Release(slots) => {
                let held = self.leases.slots.of(client);
                let given = if slots.is_empty() { held.clone() } else { slots };
                if !given.iter().all(|slot| held.contains(slot)) {
                    let sentence = "only slots that one holds can be given back".to_owned();
                    return Err(Some(refusal(RefusalCode::BadRequest, sentence)));
                }
                self.free(&given);
                Ok(Some(Message::Done))
            }
            Message::Resume(slots) => match descriptors.into_iter().next() {
                Some(parked) => {
                    self.resume(now, client, id, &slots, parked);
                    Ok(None)
                }
                None => Err(None),
            },
            Message::ResumeByRings(slots) => {
                let want = Want::Back(slots);
                self.lease_or_refuse(now, Waiting { client, id, want, until: now + RETURN_GRACE }, false);
                Ok(None)
            }
            Message::LinkAdd { .. }
            | Message::LinkDel { .. }
            | Message::LinkSet { .. }
            | Message::LinkRename { .. } => {
                self.clients.only_for_administrators(client)?;
                let hidden = |address| self.addresses.hides(address);
                self.links.execute(message, &mut self.system, self.clients.uid(), hidden)?;
                self.publish();
                Ok(Some(Message::Done))
            }
            Message::OpenRings { v2 } => {
                self.clients.open_rings(client, id, v2, descriptors, &self.leases.slots)?;
                self.view_changes += 1;
                Ok(None)
            }
            Message::SettleRings => {
                self.clients.output().push_back(Output::SettleRings { client, id });
                Ok(None)
            }
            Message::OfferPipes { .. } => {
                if let Some(known) = self.clients.get_mut(client) {
                    known.offered = descriptors.into_iter().map(Guarded::new).collect();
                }
                Ok(Some(Message::Done))
            }
            Message::OpenPipe(slot) => {
                self.clients.open_pipe(client, id, slot, &self.leases.slots)?;
                Ok(None)
            }
            Message::OpenXdp(ifindex) => {
                let (xdp, mut around) = self.xdp();
                let opened = xdp.open(client, id, ifindex, &mut around);
                self.publish_if_xdp_is_lost();
                opened.map(|()| None).map_err(Some)
            }
            Message::GetStatus => Ok(Some(Message::Status(self.status(client)))),
            Message::Stop { force } => {
                self.clients.only_for_administrators(client)?;
                if !force {
                    self.clients.refuse_if_used(client, &self.leases.slots, &self.system)?;
                }
                // The broker ends as soon as the answer is sent.
                self.stopped = true;
                Ok(Some(Message::Done))
            }
            Message::Report(counts) => {
                if let Some(known) = self.clients.get_mut(client) {
                    known.resources = counts;
                }
                Ok(None)
            }
            Message::Cm(request) => {
                let (leases, groups) = (&mut self.leases, &self.addresses.groups);
                let done = self.connections.request(client, request, leases, &self.clients, groups)?;
                Ok(Some(done))
            }
            Message::Ledger => match descriptors.into_iter().next() {
                Some(file) => {
                    self.ledgers.take(client, file, &self.clients, &self.links.devices);
                    Ok(None)
                }
                None => Err(None),
            },
            Message::GetStatistics(device) => {
                let devices = &self.links.devices;
                let Some(id) = devices.id_of(&device) else {
                    let sentence = format!("there is no device named {device}");
                    return Err(Some(refusal(RefusalCode::UnknownLink, sentence)));
                };
                let restricted = self.clients.is_restricted(client);
                let mut counts = self.ledgers.statistics(&device, restricted, devices);
                counts.extend(self.xdp.statistics(id, devices, &self.clients));
                Ok(Some(Message::Statistics(counts)))
            }
            Message::GetCmIds(without) => {
                let visible = self.leases.visible_slots(client, &self.clients);
                let sees = |slot: u16| visible.as_ref().is_none_or(|slots| slots.contains(&slot));
                Ok(Some(self.connections.cm.ids(without as usize, sees)))
            }
            Message::GetLedgers => {
                let programs = self.lease_entries(client, usize::MAX);
                self.ledgers.send_all(client, id, programs, &mut self.clients);
                Ok(None)
            }
            Message::GetEndedLedgers => {
                self.ledgers.send_ended(client, id, &mut self.clients);
                Ok(None)
            }
            Message::FaultRequest { slot, pid, order } => {
                let holder = match self.leases.slots.get(slot) {
                    Some(Slot::Leased(holder)) => Some(holder),
                    _ => None,
                };
                let (clients, system) = (&mut self.clients, &self.system);
                self.orders.pass(now, (client, id), (holder, pid), order, clients, system)?;
                Ok(None)
            }
            Message::FaultReport { number, result } => {
                self.orders.done(client, number, result, &mut self.clients);
                Ok(None)
            }
            Message::MadFaults { generation, rules } => {
                // A leased member is its first slot, as owner of connections and when it is free again.
                let slots = self.leases.slots.leases_of(client);
                self.connections.cm.take_rules(&slots, generation, &rules).map_err(Some)?;
                Ok(Some(Message::Done))
            }
            Message::GetMadFaults => {
                let slots = self.leases.slots.leases_of(client);
                Ok(Some(Message::MadFaultReport(self.connections.cm.report_rules(&slots))))
            }
            // Messages that only a broker may send, and a second `Hello`.
            _ => Err(None),
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.clock(now);
        self.connections.tick(now);
        self.orders.expire(now, &mut self.clients, &self.system);
        let gone = |state| matches!(state, Slot::Away { until: Some(until), .. } if until <= now);
        self.free(&self.leases.slots.select(gone));
        let due = |state| matches!(state, Slot::Unknown { until } if until <= now);
        let due = self.leases.slots.select(due);
        // While programs of an earlier broker do not answer, we do not have the sockets to look at.
        let (addresses, system) = (&mut self.addresses, &self.system);
        let survivors =
            !due.is_empty() && (addresses.are_taken(system) || addresses.unseen_members(system) > 0);
        for slot in due {
            match survivors || self.is_open_elsewhere(slot) {
                true => self.leases.slots.set(slot, Slot::Unknown { until: now + UNCLAIMED_CHECK_INTERVAL }),
                false => self.free(&[slot]),
            }
        }
        for waiting in self.leases.take_waiting(|waiting| waiting.until <= now) {
            self.lease_or_refuse(now, waiting, true);
        }
        if self.addresses.is_due(now) {
            self.retry_hidden();
        }
        if self.xdp.is_due(now) {
            self.publish();
        }
        let (xdp, mut around) = self.xdp();
        xdp.retry(now, &mut around);
        self.publish_if_xdp_is_lost();
        self.settle();
    }

    fn clock(&mut self, now: Instant) {
        self.connections.cm.clock(now);
        self.xdp.clock(now);
        self.ledgers.clock(now);
    }

    /// After an event: what depends on the programs follows them.
    fn settle(&mut self) {
        self.connections.settle(&self.leases, &self.links.devices, &mut self.clients);
        self.settle_xdp();
    }

    fn settle_xdp(&mut self) {
        let changes = self.view_changes;
        let (xdp, mut around) = self.xdp();
        xdp.settle(changes, &mut around);
    }

    /// AF_XDP, and what it depends on.
    fn xdp(&mut self) -> (&mut Xdp<S>, Around<'_, S>) {
        let Self { system, links, clients, leases, .. } = self;
        (&mut self.xdp, Around { system, links, clients, slots: &leases.slots })
    }

    /// Gives interfaces the XDP programs that their devices' settings ask for.
    fn follow_xdp(&mut self) {
        let (xdp, mut around) = self.xdp();
        xdp.follow(&mut around);
    }

    fn publish_if_xdp_is_lost(&mut self) {
        if self.xdp.take_lost() {
            self.publish();
        }
    }

    /// Removes the pairs that an earlier broker left. Only for the one broker of the network namespace, which
    /// holds its name.
    pub fn remove_left_pairs(&mut self) {
        self.system.remove_left_pairs();
    }

    /// Removes everything that this broker made in the system and that would outlive it.
    pub fn end(&mut self) {
        let (xdp, mut around) = self.xdp();
        xdp.end(&mut around);
    }

    /// The host's interfaces changed.
    pub fn netdevs_changed(&mut self, netdevs: Vec<Netdev>) {
        self.links.host = netdevs;
        let host = &self.links.host;
        self.addresses.retain_hidden(|address| {
            let same = |netdev: &Netdev, ip: &IpAddr| Address::of(*ip, netdev.ifindex) == *address;
            host.iter().any(|netdev| netdev.addresses.iter().any(|ip| same(netdev, ip)))
        });
        self.retry_hidden();
        self.publish();
    }

    /// State for people.
    pub fn status(&mut self, client: ClientId) -> Status {
        let programs = self.lease_entries(client, STATUS_PROGRAMS);
        Status {
            broker_pid: std::process::id(),
            broker_uid: self.clients.uid(),
            group_size: self.leases.slots.len() as u16,
            groups: self.addresses.groups.len() as u16,
            adopted: self.addresses.groups.adopted(),
            build: Hello::ours("").build,
            programs: programs.into_iter().map(|(_, entry)| entry).collect(),
            cm: Box::new(self.connections.status()),
        }
    }

    /// The first `most` clients that hold slots, as far as `asker` may see them.
    fn lease_entries(&mut self, asker: ClientId, most: usize) -> Vec<(ClientId, LeaseEntry)> {
        self.clients.lease_entries(asker, most, &self.leases.slots, &self.system, self.ledgers.now)
    }

    /// A MAD came to queue pair 1 of an address.
    pub fn mad(&mut self, now: Instant, from: Route, mad: &[u8]) {
        self.connections.cm.clock(now);
        self.connections.mad(from, mad, &self.leases.slots, &self.links.devices);
        self.connections.settle(&self.leases, &self.links.devices, &mut self.clients);
    }

    /// Whether a MAD to ourselves is to be a packet: a program of a user at one of its ends asks for that, or
    /// any program of root or of the broker's user.
    pub fn shows(&self, transmit: &Transmit) -> bool {
        connections::shows(transmit, &self.leases.slots, &self.clients)
    }

    /// Keeps an event that its program did not read, until it is there again.
    pub fn keep_event(&mut self, notice: CmNotice) {
        self.connections.keep(notice, &self.leases, &self.clients);
    }

    /// Frees the room of queues that were longer.
    pub fn shrink(&mut self) {
        self.clients.output().shrink_to_fit();
        self.connections.cm.manager.shrink();
    }

    /// Packets of queue pair 1, which is the broker's own, count for the device of their address.
    pub fn mads_passed(&mut self, address: Address, traffic: &Traffic) {
        self.ledgers.mads_passed(address, traffic, &self.links.devices);
    }

    /// Frames that were dropped at an interface count for a device there.
    pub fn frames_dropped(&mut self, ifindex: u32, more: &Counts) {
        self.ledgers.frames_dropped(ifindex, more, &self.links.devices);
    }

    /// Whether the ICRC of what comes to an address counts.
    pub fn checks_crc(&self, address: Address) -> bool {
        self.links.devices.settings_at(address).all(|settings| settings.crc)
    }

    fn serves_nobody(&self) -> bool {
        self.leases.slots.all_free() && !self.links.devices.has_links()
    }

    fn greet(&mut self, client: ClientId, hello: &Hello) -> Result<(), Refusal> {
        if hello.major != MAJOR {
            let theirs = format!("{}.{} ({})", hello.major, hello.minor, hello.build);
            let sentence = format!(
                "ferroced speaks protocol {MAJOR}.{}, this program {theirs}: end the programs that use ferroced, so that \
                 a new one can start",
                ferroce_ipc::MINOR
            );
            return Err(refusal(RefusalCode::Version, sentence));
        }
        let view = match hello.netdev.as_str() {
            "" => None,
            netdev => Some(self.links.devices.view_of(netdev)?),
        };
        debug!(?client, build = hello.build, netdev = hello.netdev, "greeted");
        let devices = self.links.view(view);
        if let Some(known) = self.clients.get_mut(client) {
            known.greeted = true;
            known.shows_mads = hello.features & SHOW_MADS != 0;
            (known.view, known.devices) = (view, devices);
        }
        Ok(())
    }

    /// Forgets a client and closes its connection; its slots wait for its process.
    fn close(&mut self, client: ClientId) {
        self.remove(client, None);
        self.clients.output().push_back(Output::Close(client));
    }

    fn remove(&mut self, client: ClientId, until: Option<Instant>) {
        self.view_changes += 1;
        let Some(gone) = self.clients.remove(client) else { return };
        self.leases.take_waiting(|waiting| waiting.client == client);
        self.orders.end(client, gone.peer.pid, &mut self.clients);
        if let Some(view) = gone.view {
            self.links.devices.drop_view(view);
        }
        let slots = self.leases.slots.leases_of(client);
        let waits = gone.watched && !slots.is_empty();
        self.ledgers.put_away(client, waits, &self.links.devices);
        if !gone.watched {
            self.free(&slots);
            return;
        }
        for slot in slots {
            self.leases.slots.set(slot, Slot::Away { process: gone.process, until });
        }
    }

    fn tell_parked(&mut self, moved: bool) {
        if moved {
            self.addresses.tell_parked(&self.leases.slots, &mut self.clients);
        }
    }

    /// Looks whether addresses that could not be opened can be now.
    fn retry_hidden(&mut self) {
        if self.addresses.retry_hidden(&mut self.system) {
            self.tell_parked(true);
            self.publish();
        }
    }

    fn addresses_of(&self, client: ClientId) -> Vec<Address> {
        self.clients.get(client).map(|known| self.links.addresses_of(known.view)).unwrap_or_default()
    }

    /// Brings the devices up to date and tells every client what changed for it: first the sockets of new
    /// addresses, then the GIDs that need them.
    fn publish(&mut self) {
        self.view_changes += 1;
        // A turn begins again when a port turns out to be taken: the GID tables lose its address first. No
        // turn frees a port, so there are no more turns than addresses.
        while !self.publish_once() {}
    }

    /// Returns false if the port of a further address is taken, which changes the tables.
    fn publish_once(&mut self) -> bool {
        self.links.taken.clone_from(self.addresses.taken());
        self.links.update(|address| self.addresses.hides(address));
        self.follow_xdp();
        self.serve_links();
        for client in self.clients.select(|client| client.greeted) {
            self.send_new_addresses(client);
            if self.links.taken != *self.addresses.taken() {
                return false;
            }
            let Some(known) = self.clients.get_mut(client) else { continue };
            let devices = self.links.view(known.view);
            if devices != known.devices {
                known.devices.clone_from(&devices);
                self.clients.send(client, 0, Message::Devices(devices), Vec::new());
            }
        }
        true
    }

    /// Opens the addresses of links, so that who asks there is answered although no program runs.
    fn serve_links(&mut self) {
        let (devices, groups) = (&self.links.devices, &self.addresses.groups);
        let links = devices.all().filter(|device| device.origin == Origin::Link);
        let closed = |address: &Address| !groups.contains(*address) && devices.is_assigned(*address);
        let closed: Vec<Address> = links.flat_map(gids_of).filter(closed).collect();
        for address in closed {
            match self.addresses.groups.open(&mut self.system, address) {
                Ok(moved) => {
                    self.leases.fill(1, Slot::Free);
                    self.tell_parked(moved);
                }
                // A program that leases a slot receives this as a notice.
                Err(e) => debug!(%address, "not served: {e}"),
            }
        }
    }

    fn send_new_addresses(&mut self, client: ClientId) {
        if self.leases.slots.leases_of(client).is_empty() {
            return;
        }
        let members = self.leases.slots.members_of(client);
        for address in self.addresses_of(client) {
            if self.clients.get(client).is_none_or(|known| known.addresses.contains(&address)) {
                continue;
            }
            let (groups, size) = (&self.addresses.groups, self.addresses.groups.size());
            if !groups.has(address, &members) {
                // A new address, or one that was gone while slots were opened.
                let grown = match groups.contains(address) {
                    true => self.addresses.level(size).map(Opened::Yes),
                    false => self.addresses.open(&mut self.system, address, true),
                };
                match grown {
                    Ok(Opened::Yes(moved)) => self.tell_parked(moved),
                    Ok(_) => continue,
                    Err(e) => {
                        warn!(%address, "no sockets for a new address: {e}");
                        continue;
                    }
                }
            }
            let groups = &self.addresses.groups;
            match groups.lease(address, &members).and_then(|()| groups.members(address, &members)) {
                Ok(sockets) => {
                    if let Some(known) = self.clients.get_mut(client) {
                        known.addresses.insert(address);
                    }
                    self.send_address(client, 0, address, &members, sockets);
                }
                Err(e) => warn!(%address, "no sockets for a new address: {e}"),
            }
        }
    }
}

#[cfg(test)]
mod tests;
