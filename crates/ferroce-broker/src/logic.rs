//! The broker's decisions: clients, devices, leases. Connections, processes and time are told to it; what it
//! wants sent is asked of it.

mod connections;
mod direct;
mod dpdk;
mod faults;
mod frames;
mod leases;
mod ledgers;
mod links;
mod orders;
mod output;
mod pipes;
mod requests;
mod uplinks;
mod users;
mod xdp;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ferroce_ipc::{
    ALL_USERS, CmStatus, DEVICE_BYTES, DeviceInfo, GID_BYTES, Hello, MAC_BYTES, MAJOR, MAX_MESSAGE, Message,
    Peer, RULE_BYTES, Refusal, RefusalCode, ResourceCounts, SHOW_MADS, STATUS_PROGRAMS, Status, Strange,
};
use tracing::{debug, warn};

use super::cm::Cm;
use super::devices::Devices;
use super::groups::Groups;
use super::numbers::Numbers;
use super::privilege::Unprivileged;
use super::record_key::RecordKey;
use super::slots::{Slot, Slots};
use super::system::System;
use super::{ClientId, ProcessId, refusal};
use connections::Survivors;
use ferroce_host::fork::Guarded;
use ferroce_host::netdev::{Address, Netdev};
use ledgers::Ledgers;
use orders::Orders;
pub use output::{Output, PipeEnd};
use uplinks::Xdp;

/// How long a connection may be gone while its process lives, before its slots are free: then it has called
/// exec.
const AWAY: Duration = Duration::from_millis(500);
/// How long programs that outlived an earlier broker have to come back before a new program's lease is
/// refused.
const SURVIVORS: Duration = Duration::from_millis(1500);
/// How often slots that nobody claimed after an adoption are looked at.
const UNKNOWN: Duration = Duration::from_secs(5);
/// Devices in one client's view; its GIDs are as many as a message then has room for.
const MOST_DEVICES: usize = 256;
/// Slots of one program.
const MOST_SLOTS: usize = 16;

/// The state machine. After each call take [`Broker::poll_output`] until it is empty, and call
/// [`Broker::tick`] when [`Broker::deadline`] has passed.
#[derive(Debug)]
pub struct Broker<S: System> {
    system: S,
    uid: u32,
    devices: Devices,
    host: Vec<Netdev>,
    /// Addresses whose port somebody else holds: not in any GID table.
    taken: BTreeSet<Address>,
    /// Programs of an earlier broker may hold sockets of any address, also of one that the host has lost.
    unseen: bool,
    /// Addresses that the system lists and does not have.
    absent: BTreeSet<Address>,
    groups: Groups<S::Group>,
    slots: Slots,
    numbers: Numbers,
    /// The user of each slot that is leased without sockets.
    owners: BTreeMap<u16, u32>,
    /// The same of an earlier broker, until the first request for slots.
    expected: BTreeMap<u16, u32>,
    /// Programs of all users are served.
    all_users: bool,
    clients: BTreeMap<ClientId, Client>,
    /// Leases that wait for programs of an earlier broker.
    waiting: Vec<Waiting>,
    leaving: bool,
    /// A descriptor could not be had.
    exhausted: bool,
    stopped: bool,
    cm: Cm,
    survivors: Survivors,
    /// Leases that programs took back from an earlier broker, by their first slot, until they have told all
    /// their connections.
    untold: BTreeSet<u16>,
    /// The key of records that programs of other users keep, if these are served.
    record_key: Option<RecordKey>,
    ledgers: Ledgers,
    /// Orders about faults that programs have not answered.
    orders: Orders,
    xdp: Xdp<S::Uplink>,
    /// Datagrams to queue pair 1 that held no MAD.
    no_mad: u64,
    /// Grows whenever [`Broker::switch_view`] may have changed.
    view_changes: u64,
    output: VecDeque<Output>,
}

#[derive(Debug)]
struct Client {
    peer: Peer,
    process: ProcessId,
    /// Whether its death can be seen apart from its connection's end.
    watched: bool,
    greeted: bool,
    /// The minor version of the protocol that it speaks.
    minor: u16,
    /// The program's packets are to be seen, MADs within the host included.
    shows_mads: bool,
    /// Its packets of RoCE v2 are frames.
    frames_v2: bool,
    /// Its doorbell for pipes, and the file about its memory, if it takes pipes.
    offered: Vec<Guarded<Strange>>,
    view: Option<u32>,
    /// The devices as the client last received them.
    devices: Vec<DeviceInfo>,
    /// The devices that the client knew from an earlier broker.
    known: Vec<DeviceInfo>,
    /// Addresses whose sockets it has.
    addresses: BTreeSet<Address>,
    resources: ResourceCounts,
    /// Whether it may send any frame anyway, as of its last request for a port of AF_XDP.
    privilege: Result<(), Unprivileged>,
    /// Whether it may take ports below 1024, as of its last request for one.
    low_ports: bool,
    /// The name of its process, and when the broker read that.
    command: Option<(Instant, String)>,
}

/// A request for slots that waits.
#[derive(Clone, Debug)]
struct Waiting {
    client: ClientId,
    id: u32,
    want: Want,
    until: Instant,
}

#[derive(Clone, Debug)]
enum Want {
    /// So many new leases.
    Lease(u8),
    /// These slots, which the program held without sockets at an earlier broker.
    Back(Vec<u16>),
}

impl<S: System> Broker<S> {
    /// A broker of user `uid`. `random_guid` is the node GUID of interfaces without a hardware address, not
    /// zero.
    pub fn new(mut system: S, uid: u32, random_guid: [u8; 8], netdevs: Vec<Netdev>) -> Self {
        let mut devices = Devices::new(random_guid, system.configured_links(), system.may_send_frames());
        let netdevs = dpdk::open_configured(&mut system, &devices).unwrap_or(netdevs);
        devices.update(netdevs.clone());
        let [first_port, _] = system.secret();
        let cm = Cm::new(system.secret(), first_port, system.free_ports());
        let expected = system.owners();
        let unseen = system.most_members_but(&|_| false) > 1;
        let mut broker = Self {
            system,
            uid,
            devices,
            host: netdevs,
            taken: BTreeSet::new(),
            unseen,
            absent: BTreeSet::new(),
            groups: Groups::new(),
            slots: Slots::default(),
            numbers: Numbers::default(),
            owners: BTreeMap::new(),
            expected,
            all_users: false,
            clients: BTreeMap::new(),
            waiting: Vec::new(),
            leaving: false,
            exhausted: false,
            stopped: false,
            cm,
            survivors: Survivors::default(),
            untold: BTreeSet::new(),
            record_key: None,
            ledgers: Ledgers::new(Instant::now()),
            orders: Orders::default(),
            xdp: Xdp::new(Instant::now()),
            no_mad: 0,
            view_changes: 0,
            output: VecDeque::new(),
        };
        broker.follow_xdp();
        broker
    }

    /// Takes the next action.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.output.pop_front()
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
        self.exhausted && self.serves_nobody()
    }

    /// Whether it was told to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether nobody uses this broker, although it may have links.
    pub fn is_unused(&self) -> bool {
        self.clients.is_empty() && self.slots.all_free() && self.cm.is_idle()
    }

    /// The server found no descriptor for a connection.
    pub fn no_descriptor(&mut self) {
        self.exhausted = true;
    }

    /// Time at which to call [`Broker::tick`]; `None` if no timer runs.
    pub fn deadline(&self) -> Option<Instant> {
        let slots = self.slots.iter().filter_map(|(_, state)| match state {
            Slot::Away { until, .. } => until,
            Slot::Unknown { until } => Some(until),
            Slot::Free | Slot::Leased(_) => None,
        });
        slots
            .chain(self.waiting.iter().map(|w| w.until))
            .chain(self.cm.deadline())
            .chain(self.survivors.until())
            .chain(self.orders.deadline())
            .chain(self.xdp.deadline())
            .min()
    }

    /// Somebody connected. `watched`: the server will call [`Broker::died`] for the process.
    pub fn connected(&mut self, client: ClientId, peer: Peer, process: ProcessId, watched: bool) {
        // Root may ask, but will not be served by somebody else: as long as nobody else is, it needs the
        // name.
        let foreign = peer.uid != self.uid && !self.all_users;
        if foreign && (peer.uid != 0 || self.is_idle()) {
            self.leaving = self.is_idle();
            let code = if self.leaving { RefusalCode::Leaving } else { RefusalCode::ForeignUser };
            let sentence = format!(
                "this network namespace is served by ferroced of uid {}, which cannot lend sockets to {}: run in a \
                 namespace of your own: ferroce run --private-net -- CMD",
                self.uid,
                Peer::user(peer.uid)
            );
            return self.turn_away(client, code, sentence);
        }
        self.leaving = false;
        let new = Client {
            peer,
            process,
            watched,
            greeted: false,
            minor: 0,
            shows_mads: false,
            frames_v2: false,
            offered: Vec::new(),
            view: None,
            devices: Vec::new(),
            known: Vec::new(),
            addresses: BTreeSet::new(),
            resources: ResourceCounts::default(),
            privilege: Err(Unprivileged::Unknown),
            low_ports: false,
            command: None,
        };
        self.clients.insert(client, new);
        let mut hello = Hello::ours("");
        hello.features |= if self.all_users { ALL_USERS } else { 0 };
        self.send(client, 0, Message::Hello(hello), Vec::new());
    }

    /// The other end closed the connection.
    pub fn disconnected(&mut self, now: Instant, client: ClientId) {
        self.clock(now);
        self.remove(client, Some(now + AWAY));
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
        let clients: Vec<ClientId> =
            self.clients.iter().filter(|(_, c)| c.process == process).map(|(id, _)| *id).collect();
        for client in clients {
            self.close(client);
        }
        self.free(&self.slots.select(|state| matches!(state, Slot::Away { process: p, .. } if p == process)));
        self.settle();
    }

    /// The processes that slots or connections belong to: their deaths matter.
    pub fn processes(&self) -> BTreeSet<ProcessId> {
        let away = self.slots.iter().filter_map(|(_, state)| match state {
            Slot::Away { process, .. } => Some(process),
            _ => None,
        });
        self.clients.values().map(|client| client.process).chain(away).collect()
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
        let Some(known) = self.clients.get(&client) else { return };
        let unanswered = id == 0 && matches!(message, Message::Cm(_));
        let outcome = match (known.greeted, message) {
            (false, Message::Hello(hello)) => match self.greet(client, &hello) {
                Ok(()) => return,
                Err(refusal) => {
                    self.send(client, id, Message::Refused(refusal), Vec::new());
                    self.close(client);
                    return;
                }
            },
            (false, _) => Err(None),
            (true, message) => self.request(now, client, id, message, descriptors),
        };
        match outcome {
            Ok(Some(_)) | Err(Some(_)) if unanswered => {}
            // Before whatever comes of it: a peer may be as fast as the answer.
            Ok(Some(answer)) => self.send(client, id, answer, Vec::new()),
            Ok(None) => {}
            Err(Some(refusal)) => self.send(client, id, Message::Refused(refusal), Vec::new()),
            Err(None) => {
                let sentence = "this message does not belong here".to_owned();
                self.send(
                    client,
                    id,
                    Message::Refused(refusal(RefusalCode::BadRequest, sentence)),
                    Vec::new(),
                );
                self.close(client);
            }
        }
        self.settle();
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.clock(now);
        self.cm.tick();
        self.survivors.tick(now);
        self.expire_orders(now);
        let gone = |state| matches!(state, Slot::Away { until: Some(until), .. } if until <= now);
        self.free(&self.slots.select(gone));
        let due = self.slots.select(|state| matches!(state, Slot::Unknown { until } if until <= now));
        // While programs of an earlier broker do not answer, we do not have the sockets to look at.
        let survivors = !due.is_empty() && (self.are_taken() || self.unseen_members() > 0);
        for slot in due {
            match survivors || self.is_open_elsewhere(slot) {
                true => self.slots.set(slot, Slot::Unknown { until: now + UNKNOWN }),
                false => self.free(&[slot]),
            }
        }
        let (late, early) = std::mem::take(&mut self.waiting).into_iter().partition(|w| w.until <= now);
        self.waiting = early;
        let late: Vec<Waiting> = late;
        for waiting in late {
            self.lease_or_refuse(now, &waiting, true);
        }
        self.retry_xdp(now);
        self.settle();
    }

    fn clock(&mut self, now: Instant) {
        self.cm.clock(now);
        self.xdp.clock(now);
        self.ledgers.clock(now);
    }

    /// After an event: what depends on the programs follows them.
    fn settle(&mut self) {
        self.connections_settle();
        self.settle_xdp();
    }

    /// The host's interfaces changed.
    pub fn netdevs_changed(&mut self, netdevs: Vec<Netdev>) {
        self.host = netdevs;
        // An address that disappears is examined anew when it comes back.
        let listed = |address: &Address| {
            let same = |netdev: &Netdev, ip: &IpAddr| Address::of(*ip, netdev.ifindex) == *address;
            self.host.iter().any(|netdev| netdev.addresses.iter().any(|ip| same(netdev, ip)))
        };
        self.taken.retain(listed);
        self.absent.retain(listed);
        self.retry_taken();
        self.publish();
    }

    /// State for people.
    pub fn status(&mut self, client: ClientId) -> Status {
        let programs =
            self.lease_entries(client, STATUS_PROGRAMS).into_iter().map(|(_, entry)| entry).collect();
        Status {
            broker_pid: std::process::id(),
            broker_uid: self.uid,
            group_size: self.slots.len() as u16,
            groups: self.groups.len() as u16,
            adopted: self.groups.adopted(),
            build: Hello::ours("").build,
            programs,
            cm: Box::new(CmStatus { no_mad: self.no_mad, ..self.cm.status() }),
        }
    }

    fn serves_nobody(&self) -> bool {
        self.slots.all_free() && !self.devices.has_links()
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
            netdev => Some(self.devices.view_of(netdev)?),
        };
        debug!(?client, build = hello.build, netdev = hello.netdev, "greeted");
        let devices = self.told(view, hello.minor);
        if let Some(known) = self.clients.get_mut(&client) {
            (known.greeted, known.minor) = (true, hello.minor);
            known.shows_mads = hello.features & SHOW_MADS != 0;
            (known.view, known.devices) = (view, devices);
        }
        Ok(())
    }

    /// Forgets a client and closes its connection; its slots wait for its process.
    fn close(&mut self, client: ClientId) {
        self.remove(client, None);
        self.output.push_back(Output::Close(client));
    }

    fn remove(&mut self, client: ClientId, until: Option<Instant>) {
        self.view_changes += 1;
        let Some(gone) = self.clients.remove(&client) else { return };
        self.waiting.retain(|w| w.client != client);
        self.end_orders(client, gone.peer.pid);
        if let Some(view) = gone.view {
            self.devices.drop_view(view);
        }
        let slots = self.slots.leases_of(client);
        let waits = gone.watched && !slots.is_empty();
        self.put_ledger_away(client, waits);
        if !gone.watched {
            self.free(&slots);
            return;
        }
        for slot in slots {
            self.slots.set(slot, Slot::Away { process: gone.process, until });
        }
    }

    fn send(&mut self, client: ClientId, id: u32, message: Message, descriptors: Vec<OwnedFd>) {
        self.output.push_back(Output::Send { client, id, message, descriptors });
    }

    fn tell_parked(&mut self, moved: bool) {
        if !moved {
            return;
        }
        let holds = |client: &ClientId| !self.slots.members_of(*client).is_empty();
        let programs: Vec<ClientId> = self.clients.keys().copied().filter(holds).collect();
        for client in programs {
            match self.groups.parked() {
                Ok(parked) => self.send(client, 0, Message::Parked, vec![parked]),
                Err(e) => warn!("cannot pass on the parked descriptors: {e}"),
            }
        }
    }

    fn view(&self, own: Option<u32>) -> Vec<DeviceInfo> {
        let mut devices = self.devices.view(own);
        devices.truncate(MOST_DEVICES);
        let rules: usize = devices.iter().map(|device| device.settings.rules.len()).sum();
        let mut left = MAX_MESSAGE - 64 - DEVICE_BYTES * devices.len() - RULE_BYTES * rules;
        for device in &mut devices {
            device.gids.truncate(left / GID_BYTES);
            left -= device.gids.len() * GID_BYTES;
        }
        for device in &mut devices {
            while device.macs.len() > left / MAC_BYTES {
                device.macs.pop_last();
            }
            left -= device.macs.len() * MAC_BYTES;
        }
        devices
    }

    fn addresses_of(&self, client: ClientId) -> Vec<Address> {
        let Some(known) = self.clients.get(&client) else { return Vec::new() };
        let mut found = Vec::new();
        for address in self.view(known.view).iter().flat_map(addresses) {
            if !found.contains(&address) && self.devices.is_assigned(address) {
                found.push(address);
            }
        }
        found
    }

    /// Brings the devices up to date and tells every client what changed for it: first the sockets of new
    /// addresses, then the GIDs that need them.
    fn publish(&mut self) {
        self.view_changes += 1;
        let mut netdevs = self.host.clone();
        for netdev in &mut netdevs {
            netdev.addresses.retain(|ip| {
                let address = Address::of(*ip, netdev.ifindex);
                !self.taken.contains(&address) && !self.absent.contains(&address)
            });
        }
        self.devices.update(netdevs);
        self.follow_xdp();
        self.serve_links();
        let clients: Vec<ClientId> =
            self.clients.iter().filter(|(_, c)| c.greeted).map(|(id, _)| *id).collect();
        for client in clients {
            self.send_new_addresses(client);
            let Some(known) = self.clients.get(&client) else { continue };
            let devices = self.told(known.view, known.minor);
            if devices != known.devices {
                if let Some(known) = self.clients.get_mut(&client) {
                    known.devices.clone_from(&devices);
                }
                self.send(client, 0, Message::Devices(devices), Vec::new());
            }
        }
    }

    fn send_new_addresses(&mut self, client: ClientId) {
        if self.slots.leases_of(client).is_empty() {
            return;
        }
        let members = self.slots.members_of(client);
        for address in self.addresses_of(client) {
            if self.clients.get(&client).is_none_or(|known| known.addresses.contains(&address)) {
                continue;
            }
            if !self.groups.has(address, &members) {
                // A new address, or one that was gone while slots were opened.
                let grown = match self.groups.contains(address) {
                    true => self.groups.level(self.groups.size()),
                    false => self.groups.open(&mut self.system, address),
                };
                match grown {
                    Ok(moved) => self.tell_parked(moved),
                    Err(e) => {
                        warn!(%address, "no sockets for a new address: {e}");
                        continue;
                    }
                }
            }
            match self.groups.lease(address, &members).and_then(|()| self.groups.members(address, &members)) {
                Ok(sockets) => {
                    if let Some(known) = self.clients.get_mut(&client) {
                        known.addresses.insert(address);
                    }
                    self.send_address(client, 0, address, members.clone(), sockets);
                }
                Err(e) => warn!(%address, "no sockets for a new address: {e}"),
            }
        }
    }
}

/// The addresses of a device's GIDs.
fn addresses(device: &DeviceInfo) -> impl Iterator<Item = Address> + '_ {
    device.gids.iter().map(|entry| Address::of(entry.gid.to_ip(), entry.ifindex))
}

#[cfg(test)]
mod tests;
