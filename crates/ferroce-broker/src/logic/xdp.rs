//! AF_XDP: which interfaces have an XDP program, and which programs have a port there.
//!
//! The holder of a port at the interface itself, a direct port, can send any frame, and the broker cannot take
//! that back while the holder has the descriptor. Therefore a program gets it only if the kernel would give it
//! a packet socket as well ([`crate::privilege`]), or if an administrator chose it for the programs of root.
//! All others get a port at a pair.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferroce_host::netdev::Netdev;
use ferroce_ipc::{Datapath, DatapathState, DeviceInfo, Message, Peer, Refusal, RefusalCode, XdpPorts};
use tracing::{debug, info, warn};

use super::Clients;
use super::links::Links;
use crate::by_pair::ByPair;
use crate::devices::Devices;
use crate::slots::Slots;
use crate::system::{PortOf, System};
use crate::xdp::{AttachError, MAX_PACKET, Mode, Pair, Place, XdpPort, XdpUplink};
use crate::{ClientId, refusal};

/// Ports of all programs. Each is two interfaces, and some MiB of memory that the kernel locks.
const MOST_PORTS: usize = 256;
/// Ports of all programs of another user than the broker's.
const MOST_OF_USER: usize = 64;
/// The packets of a pair are not longer, since a port has no place for longer ones.
const LONGEST: u32 = MAX_PACKET as u32;
/// IPv6 needs interfaces whose packets may be this long (RFC 8200 section 5).
const SHORTEST: u32 = 1280;
/// An interface whose XDP program could not be attached is tried again after this time, and then each time
/// after twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// The kernel frees a queue some milliseconds after its socket was closed. Until then a port cannot be
/// opened.
const QUEUE_RETRY: Duration = Duration::from_millis(30);
/// Number of attempts after which the request is refused.
const QUEUE_TRIES: u32 = 10;

/// Whether the administrator wants AF_XDP for a device.
fn wants(device: &DeviceInfo) -> bool {
    device.settings.datapath == Datapath::Xdp && !device.is_iwarp() && device.datapath != DatapathState::Dpdk
}

/// The addresses of a device whose packets take AF_XDP: those on its own interface. Packets of a VLAN above
/// it have tags, which the XDP program does not write, and packets of a bond leave by an interface that the
/// bond chooses. The kernel forwards nothing from or to link-local addresses, so a port could not send from
/// them.
fn own_addresses(device: &DeviceInfo) -> BTreeSet<IpAddr> {
    let own = device.gids.iter().filter(|entry| entry.ifindex == device.ifindex);
    let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    own.map(|entry| entry.gid.to_ip()).filter(|ip| !link_local(ip)).collect()
}

fn is_suitable(netdev: &Netdev) -> bool {
    !netdev.loopback && netdev.mac.is_some() && netdev.vlan.is_none() && netdev.kind != "vlan"
}

/// A counter's name. The datapath names reasons.
fn counter(reason: &str) -> String {
    format!("xdp_drop_{reason}")
}

/// Interfaces by index, and their ports.
#[derive(Debug)]
pub(super) struct Xdp<S: System> {
    uplinks: BTreeMap<u32, Attached<S::Uplink>>,
    failures: BTreeMap<u32, Failure>,
    ports: BTreeMap<(ClientId, u32), OpenPort<PortOf<S>>>,
    /// Ports whose queue is not free yet.
    opening: Vec<Opening>,
    /// The count of changes that the slots of the ports reflect.
    settled: u64,
    /// Packets that programs which are no longer attached dropped, by device.
    dropped: BTreeMap<u32, BTreeMap<String, u64>>,
    /// An interface lost its XDP program, so that devices have another way.
    lost: bool,
    /// The time of the last event that came with one.
    clock: Instant,
}

#[derive(Debug)]
struct Attached<U> {
    uplink: U,
    addresses: BTreeSet<IpAddr>,
    /// How many ports were opened at a pair, by the reason.
    by_pair: BTreeMap<ByPair, u64>,
}

/// An attempt that failed, and what it depended on.
#[derive(Debug)]
struct Failure {
    state: DatapathState,
    netdev: Netdev,
    addresses: BTreeSet<IpAddr>,
    /// When to try again, and the time until the attempt after that. `None`: only when the interface changes.
    again: Option<(Instant, Duration)>,
}

#[derive(Debug)]
struct OpenPort<P> {
    port: P,
    place: Place,
    slots: Vec<u16>,
    uid: u32,
}

#[derive(Debug)]
struct Opening {
    client: ClientId,
    /// The request.
    id: u32,
    ifindex: u32,
    uid: u32,
    place: Place,
    tries: u32,
    at: Instant,
}

/// The owners that matter for ports.
#[derive(Debug)]
pub(super) struct Around<'a, S> {
    pub(super) system: &'a mut S,
    pub(super) links: &'a mut Links,
    pub(super) clients: &'a mut Clients,
    pub(super) slots: &'a Slots,
}

impl<S: System> Xdp<S> {
    pub(super) fn new(clock: Instant) -> Self {
        Self {
            uplinks: BTreeMap::new(),
            failures: BTreeMap::new(),
            ports: BTreeMap::new(),
            opening: Vec::new(),
            settled: 0,
            dropped: BTreeMap::new(),
            lost: false,
            clock,
        }
    }

    /// Takes the time of an event.
    pub(super) fn clock(&mut self, now: Instant) {
        self.clock = now;
    }

    /// Time at which to call [`Xdp::retry`]; `None` if no attempt is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let attempts = self.failures.values().filter_map(|failure| Some(failure.again?.0));
        attempts.chain(self.opening.iter().map(|opening| opening.at)).min()
    }

    /// The program with the direct port of an interface, or whose request for it is not answered yet.
    fn direct(&self, ifindex: u32) -> Option<ClientId> {
        let open =
            self.ports.iter().filter(|((_, index), open)| (*index, open.place) == (ifindex, Place::Direct));
        let opening = self.opening.iter().filter(|o| (o.ifindex, o.place) == (ifindex, Place::Direct));
        open.map(|((client, _), _)| *client).chain(opening.map(|o| o.client)).next()
    }

    /// How many ports the programs of a user have, or all programs.
    fn count(&self, uid: Option<u32>) -> usize {
        let open = self.ports.values().map(|open| open.uid);
        let uids = open.chain(self.opening.iter().map(|opening| opening.uid));
        uids.filter(|other| uid.is_none_or(|uid| *other == uid)).count()
    }

    /// Gives every interface the XDP program that its devices' settings ask for, and states which way the
    /// packets of each device take.
    pub(super) fn follow(&mut self, with: &mut Around<'_, S>) {
        let devices: Vec<DeviceInfo> = with.links.devices.all().cloned().collect();
        let mut wanted: BTreeMap<u32, (Netdev, BTreeSet<IpAddr>)> = BTreeMap::new();
        let mut states: BTreeMap<u32, DatapathState> = BTreeMap::new();
        for device in devices.iter().filter(|device| wants(device)) {
            match with.links.netdev(device.ifindex) {
                Some(netdev) if is_suitable(netdev) => {
                    let entry = wanted.entry(device.ifindex);
                    entry
                        .or_insert_with(|| (netdev.clone(), BTreeSet::new()))
                        .1
                        .extend(own_addresses(device));
                }
                _ => drop(states.insert(device.ifindex, DatapathState::WrongInterface)),
            }
        }
        let unwanted = |ifindex: &&u32| !wanted.contains_key(*ifindex);
        let gone: Vec<u32> = self.uplinks.keys().filter(unwanted).copied().collect();
        gone.into_iter().for_each(|ifindex| self.detach(ifindex, with));
        self.failures.retain(|ifindex, _| wanted.contains_key(ifindex));
        for (ifindex, (netdev, addresses)) in wanted {
            states.insert(ifindex, self.serve_interface(&netdev, addresses, with));
        }
        for device in devices {
            let state = states.get(&device.ifindex).copied().filter(|_| wants(&device)).unwrap_or_default();
            with.links.devices.set_datapath(device.id, state);
        }
    }

    /// Attaches a program to an interface, or tells the attached one its addresses.
    fn serve_interface(
        &mut self,
        netdev: &Netdev,
        addresses: BTreeSet<IpAddr>,
        with: &mut Around<'_, S>,
    ) -> DatapathState {
        let ifindex = netdev.ifindex;
        let mut delay = FIRST_RETRY;
        if let Some(attached) = self.uplinks.get_mut(&ifindex) {
            if attached.addresses == addresses {
                return state_of(attached.uplink.mode());
            }
            match attached.uplink.set_addresses(&addresses) {
                Ok(()) => {
                    attached.addresses = addresses;
                    return state_of(attached.uplink.mode());
                }
                Err(e) => {
                    warn!(netdev.name, "the XDP program cannot take {} addresses: {e}", addresses.len());
                    self.detach(ifindex, with);
                    return self.failed(netdev, addresses, DatapathState::Failed, delay);
                }
            }
        }
        if let Some(failure) = self.failures.get(&ifindex) {
            let same = failure.netdev == *netdev && failure.addresses == addresses;
            match failure.again {
                Some((at, next)) if same && at <= self.clock => delay = next,
                _ if same => return failure.state,
                _ => {}
            }
        }
        let attached = with.system.attach_xdp(netdev).and_then(|mut uplink| {
            uplink.set_addresses(&addresses).map_err(AttachError::Io)?;
            Ok(uplink)
        });
        match attached {
            Ok(uplink) => {
                let mode = uplink.mode();
                info!(netdev.name, ?mode, "XDP program attached");
                self.failures.remove(&ifindex);
                self.uplinks.insert(ifindex, Attached { uplink, addresses, by_pair: BTreeMap::new() });
                state_of(mode)
            }
            Err(e) => {
                let state = match &e {
                    AttachError::Permission(_) => DatapathState::NoPermission,
                    AttachError::Unsupported(_) => DatapathState::NoSupport,
                    AttachError::Busy => DatapathState::Busy,
                    AttachError::Io(_) => DatapathState::Failed,
                };
                // Further attempts usually fail for the same reason, which the log then has.
                if self.failures.get(&ifindex).is_none_or(|failure| failure.state != state) {
                    warn!(netdev.name, "no XDP program, so packets take UDP sockets: {e}");
                }
                self.failed(netdev, addresses, state, delay)
            }
        }
    }

    /// Remembers an attempt that failed. The interface may have room for our program later; rights and the
    /// kernel do not change while this process runs.
    fn failed(
        &mut self,
        netdev: &Netdev,
        addresses: BTreeSet<IpAddr>,
        state: DatapathState,
        delay: Duration,
    ) -> DatapathState {
        let passes = matches!(state, DatapathState::Busy | DatapathState::Failed);
        let again = passes.then(|| (self.clock + delay, (delay * 2).min(LAST_RETRY)));
        self.failures.insert(netdev.ifindex, Failure { state, netdev: netdev.clone(), addresses, again });
        state
    }

    /// Takes the XDP program off an interface. The ports there end.
    fn detach(&mut self, ifindex: u32, with: &mut Around<'_, S>) {
        let closed: Vec<(ClientId, u32)> =
            self.ports.keys().filter(|(_, index)| *index == ifindex).copied().collect();
        closed.into_iter().for_each(|key| self.close_port(key, with.system));
        for opening in self.opening.extract_if(.., |opening| opening.ifindex == ifindex).collect::<Vec<_>>() {
            Self::give_up(
                opening,
                refusal(RefusalCode::WrongState, "the interface has no XDP program any more"),
                with,
            );
        }
        let Some(attached) = self.uplinks.remove(&ifindex) else { return };
        let rxe = with.links.devices.all().find(|device| device.ifindex == ifindex && !device.is_iwarp());
        if let Some(id) = rxe.map(|device| device.id) {
            let sum = self.dropped.entry(id).or_default();
            for (reason, more) in attached.uplink.drops() {
                let count = sum.entry(counter(reason)).or_default();
                *count = count.wrapping_add(more);
            }
        }
        info!(ifindex, "XDP program removed");
    }

    /// The packets that XDP programs dropped at a device's interface, by counter.
    fn counts_of_drops(&self, device: u32, devices: &Devices) -> BTreeMap<String, u64> {
        let mut sum = self.dropped.get(&device).cloned().unwrap_or_default();
        let own = devices.all().find(|known| known.id == device && !known.is_iwarp());
        let attached = own.and_then(|known| self.uplinks.get(&known.ifindex));
        for (reason, more) in attached.map(|attached| attached.uplink.drops()).unwrap_or_default() {
            let count = sum.entry(counter(reason)).or_default();
            *count = count.wrapping_add(more);
        }
        sum
    }

    /// A program asks for a port. It receives the answer at once, or after some attempts.
    pub(super) fn open(
        &mut self,
        client: ClientId,
        id: u32,
        ifindex: u32,
        with: &mut Around<'_, S>,
    ) -> Result<(), Refusal> {
        let Some(known) = with.clients.get(client) else { return Ok(()) };
        let (uid, devices) = (known.peer.uid, with.links.view(known.view));
        if with.slots.of(client).is_empty() {
            let sentence = "AF_XDP sockets are for programs that hold slots";
            return Err(refusal(RefusalCode::BadRequest, sentence));
        }
        let Some(device) = devices.iter().find(|device| device.ifindex == ifindex && !device.is_iwarp())
        else {
            let sentence = format!("no RoCE device of this program is on interface {ifindex}");
            return Err(refusal(RefusalCode::UnknownNetdev, sentence));
        };
        if !device.datapath.is_xdp() {
            let (name, state) = (&device.name, device.datapath);
            let sentence = format!(
                "the datapath of {name} is {state}: use UDP sockets, or see `ferroce doctor` after `ferroce link set {name} \
                 datapath xdp`"
            );
            return Err(refusal(RefusalCode::WrongState, sentence));
        }
        self.close_port((client, ifindex), with.system);
        let earlier = self.opening.extract_if(.., |o| (o.client, o.ifindex) == (client, ifindex));
        for opening in earlier.collect::<Vec<_>>() {
            Self::give_up(opening, refusal(RefusalCode::WrongState, "a later request took its place"), with);
        }
        self.may_have_port(uid, with.clients.uid())?;
        let Some(netdev) = with.links.netdev(ifindex).cloned() else {
            return Err(refusal(RefusalCode::UnknownNetdev, format!("interface {ifindex} is gone")));
        };
        let place = match self.may_have_direct(client, device, &netdev, with) {
            Ok(()) => Place::Direct,
            Err(reason) => {
                let pair = self.make_pair(&netdev, with)?;
                self.count_by_pair(client, ifindex, reason, with.clients);
                Place::Pair(pair)
            }
        };
        let at = self.clock;
        self.open_port(Opening { client, id, ifindex, uid, place, tries: 0, at }, with);
        Ok(())
    }

    fn make_pair(&mut self, netdev: &Netdev, with: &mut Around<'_, S>) -> Result<Pair, Refusal> {
        let mtu = netdev.mtu.clamp(SHORTEST, LONGEST);
        with.system.make_pair(mtu).map_err(|e| self.no_pair(netdev, &e, with))
    }

    fn may_have_port(&self, uid: u32, own_uid: u32) -> Result<(), Refusal> {
        let own = self.count(Some(uid));
        let sentence = if uid != own_uid && own >= MOST_OF_USER {
            format!(
                "programs of {} have {own} AF_XDP sockets, which is all that a user may have: end some of them, or use UDP sockets",
                Peer::user(uid)
            )
        } else if self.count(None) >= MOST_PORTS {
            format!(
                "there are {MOST_PORTS} AF_XDP sockets, which is all that ferroced gives: end some programs, or use UDP sockets"
            )
        } else {
            return Ok(());
        };
        Err(refusal(RefusalCode::Full, sentence))
    }

    /// The answer if a pair cannot be made. If no later attempt can succeed, the interface loses its XDP
    /// program, so that the device tells the reason and no further program asks.
    fn no_pair(&mut self, netdev: &Netdev, error: &io::Error, with: &mut Around<'_, S>) -> Refusal {
        let (lasts, code, sentence) = match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::PermissionDenied, _) => (
                Some(DatapathState::NoPermission),
                RefusalCode::Permission,
                "ferroced may not make veth interfaces: start it as root, or with CAP_NET_ADMIN".to_owned(),
            ),
            (_, Some(libc::EOPNOTSUPP)) => (
                Some(DatapathState::NoSupport),
                RefusalCode::Failed,
                "this kernel has no veth interfaces: use UDP sockets".to_owned(),
            ),
            (_, Some(libc::EROFS)) => (
                Some(DatapathState::Failed),
                RefusalCode::Failed,
                "ferroced cannot switch forwarding on for its veth interfaces, because /proc/sys is read-only: mount it \
                 writable for ferroced"
                    .to_owned(),
            ),
            _ => (None, RefusalCode::Failed, format!("ferroced cannot make veth interfaces: {error}")),
        };
        warn!(netdev.name, "no pair of veth interfaces: {error}");
        if let Some(state) = lasts {
            let addresses = self.uplinks.get(&netdev.ifindex).map(|attached| attached.addresses.clone());
            self.detach(netdev.ifindex, with);
            self.failed(netdev, addresses.unwrap_or_default(), state, LAST_RETRY);
            self.lost = true;
        }
        refusal(code, sentence)
    }

    /// Opens a port, and answers the request. If a direct port cannot be opened, the program gets one at a
    /// pair.
    fn open_port(&mut self, opening: Opening, with: &mut Around<'_, S>) {
        let Opening { client, id, ifindex, uid, place, .. } = opening;
        let slots = with.slots.of(client);
        let Some(attached) = self.uplinks.get_mut(&ifindex) else {
            return Self::give_up(
                opening,
                refusal(RefusalCode::WrongState, "the interface has no XDP program any more"),
                with,
            );
        };
        let opened = attached.uplink.open(place, &slots).and_then(|port| Ok((port.descriptors()?, port)));
        match opened {
            Ok((descriptors, port)) => {
                let pid = with.clients.pid_of(client);
                info!(pid, ifindex, ?place, "AF_XDP port opened");
                self.ports.insert((client, ifindex), OpenPort { port, place, slots, uid });
                let direct = place == Place::Direct;
                with.clients.send(client, id, Message::Xdp { ifindex, direct }, descriptors);
            }
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && opening.tries < QUEUE_TRIES => {
                let (tries, at) = (opening.tries + 1, self.clock + QUEUE_RETRY);
                self.opening.push(Opening { tries, at, ..opening });
            }
            Err(e) if place == Place::Direct => {
                warn!(ifindex, "no AF_XDP socket at the interface itself: {e}");
                self.open_at_pair(opening, with);
            }
            Err(e) => {
                warn!(ifindex, "no AF_XDP socket: {e}");
                let sentence = match e.raw_os_error() {
                    Some(libc::ENOBUFS) => {
                        "ferroced may not lock more memory for AF_XDP: start it with CAP_IPC_LOCK, or raise its limit of locked \
                         memory (LimitMEMLOCK=infinity, ulimit -l unlimited)"
                            .to_owned()
                    }
                    _ => format!("ferroced cannot open an AF_XDP socket: {e}"),
                };
                Self::give_up(opening, refusal(RefusalCode::Failed, sentence), with);
            }
        }
    }

    /// Answers a request for which no direct port can be opened.
    fn open_at_pair(&mut self, opening: Opening, with: &mut Around<'_, S>) {
        let Opening { client, ifindex, .. } = opening;
        let netdev = with.links.netdev(ifindex).cloned();
        let gone = || refusal(RefusalCode::UnknownNetdev, format!("interface {ifindex} is gone"));
        match netdev.ok_or_else(gone).and_then(|netdev| self.make_pair(&netdev, with)) {
            Ok(pair) => {
                self.count_by_pair(client, ifindex, ByPair::Failed, with.clients);
                self.open_port(Opening { place: Place::Pair(pair), tries: 0, ..opening }, with);
            }
            Err(refused) => Self::give_up(opening, refused, with),
        }
    }

    /// Refuses a request. Its pair, if any, was made already.
    fn give_up(opening: Opening, refused: Refusal, with: &mut Around<'_, S>) {
        if let Place::Pair(_) = opening.place {
            with.system.remove_port(None, opening.place);
        }
        if with.clients.get(opening.client).is_some() {
            with.clients.refuse(opening.client, opening.id, refused);
        }
    }

    fn close_port(&mut self, key: (ClientId, u32), system: &mut S) {
        let Some(mut open) = self.ports.remove(&key) else { return };
        // The system may close it later, when another program holds the slots.
        if let Err(e) = open.port.set_slots(&[]) {
            debug!("the slots of a port cannot be taken back: {e}");
        }
        debug!(client = ?key.0, ifindex = key.1, "AF_XDP port closed");
        system.remove_port(Some(open.port), open.place);
    }

    /// Makes the ports follow the slots of their programs. A program without slots has no port.
    pub(super) fn settle(&mut self, view_changes: u64, with: &mut Around<'_, S>) {
        if self.settled == view_changes {
            return;
        }
        self.settled = view_changes;
        if self.ports.is_empty() && self.opening.is_empty() {
            return;
        }
        let mut held = with.slots.by_client();
        let clients: BTreeSet<ClientId> = self.ports.keys().map(|(client, _)| *client).collect();
        for client in clients {
            let slots = held.remove(&client).unwrap_or_default();
            let own: Vec<(ClientId, u32)> =
                self.ports.range((client, 0)..=(client, u32::MAX)).map(|(key, _)| *key).collect();
            for key in own {
                let Some(open) = self.ports.get_mut(&key).filter(|open| open.slots != slots) else {
                    continue;
                };
                let followed =
                    if slots.is_empty() { Ok(false) } else { open.port.set_slots(&slots).map(|()| true) };
                match followed {
                    Ok(true) => open.slots.clone_from(&slots),
                    Ok(false) => self.close_port(key, with.system),
                    Err(e) => {
                        warn!(?client, "an AF_XDP port cannot take the slots of its program, and ends: {e}");
                        self.close_port(key, with.system);
                    }
                }
            }
        }
        if self.opening.is_empty() {
            return;
        }
        let holds = with.slots.by_client();
        let left = self.opening.extract_if(.., |opening| !holds.contains_key(&opening.client));
        for opening in left.collect::<Vec<_>>() {
            let sentence = "AF_XDP sockets are for programs that hold slots";
            Self::give_up(opening, refusal(RefusalCode::BadRequest, sentence), with);
        }
    }

    /// Whether an attempt to attach an XDP program is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.failures.values().any(|failure| failure.again.is_some_and(|(at, _)| at <= now))
    }

    /// Whether an interface lost its XDP program since the last call.
    pub(super) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Makes the attempts to open a port that are due.
    pub(super) fn retry(&mut self, now: Instant, with: &mut Around<'_, S>) {
        let due = self.opening.extract_if(.., |opening| opening.at <= now);
        for opening in due.collect::<Vec<_>>() {
            self.open_port(opening, with);
        }
    }

    /// Removes everything that this broker made in the system and that would outlive it.
    pub(super) fn end(&mut self, with: &mut Around<'_, S>) {
        let attached: Vec<u32> = self.uplinks.keys().copied().collect();
        attached.into_iter().for_each(|ifindex| self.detach(ifindex, with));
        with.system.finish_removals();
    }

    /// Counters of AF_XDP that the broker keeps for a device.
    pub(super) fn statistics(
        &self,
        device: u32,
        devices: &Devices,
        clients: &Clients,
    ) -> impl Iterator<Item = (String, u64)> {
        let ports = self.counts_of_ports(device, devices, clients);
        self.counts_of_drops(device, devices).into_iter().chain(ports)
    }

    /// Whether a program gets a direct port on the interface of a device.
    fn may_have_direct(
        &self,
        client: ClientId,
        device: &DeviceInfo,
        netdev: &Netdev,
        with: &Around<'_, S>,
    ) -> Result<(), ByPair> {
        let known = with.clients.get(client).ok_or(ByPair::Failed)?;
        if device.settings.xdp_ports == XdpPorts::Pairs {
            return Err(ByPair::Setting);
        }
        // The user of a broker that is not root's can write the file with its settings, so that the setting
        // proves nothing there.
        let by_setting =
            device.settings.xdp_ports == XdpPorts::Direct && with.clients.uid() == 0 && known.peer.uid == 0;
        if !by_setting {
            known.privilege.map_err(ByPair::Unprivileged)?;
        }
        match with.system.receive_queues(netdev) {
            ..=1 => {}
            count => return Err(ByPair::Queues(count)),
        }
        match self.direct(netdev.ifindex) {
            Some(_) => Err(ByPair::Taken),
            None => Ok(()),
        }
    }

    /// A program gets a port at a pair.
    fn count_by_pair(&mut self, client: ClientId, ifindex: u32, reason: ByPair, clients: &Clients) {
        let pid = clients.pid_of(client);
        info!(pid, ifindex, "the AF_XDP port of a program is at a pair: {reason}");
        if let Some(attached) = self.uplinks.get_mut(&ifindex) {
            // Of reasons with parts, the first one stands for all with its counter.
            let same = attached.by_pair.keys().find(|known| known.counter() == reason.counter()).copied();
            *attached.by_pair.entry(same.unwrap_or(reason)).or_default() += 1;
        }
    }

    /// How many ports of each kind there are at the interface of a device, the process with the direct one,
    /// and how often a program got a pair, by reason. Empty without an XDP program.
    fn counts_of_ports(&self, device: u32, devices: &Devices, clients: &Clients) -> BTreeMap<String, u64> {
        let own = devices.all().find(|known| known.id == device && !known.is_iwarp());
        let attached = own.and_then(|known| Some((known.ifindex, self.uplinks.get(&known.ifindex)?)));
        let Some((ifindex, attached)) = attached else { return BTreeMap::new() };
        let here = self.ports.iter().filter(|((_, index), _)| *index == ifindex);
        let (mut direct, mut pairs, mut pid) = (0, 0, None);
        for ((client, _), open) in here {
            match open.place {
                Place::Pair(_) => pairs += 1,
                Place::Direct => {
                    direct += 1;
                    pid = clients.pid_of(*client).map(u64::from);
                }
            }
        }
        let counts =
            [("xdp_ports_direct", Some(direct)), ("xdp_ports_pairs", Some(pairs)), ("xdp_direct_pid", pid)];
        let counts = counts.into_iter().filter_map(|(name, count)| Some((name.to_owned(), count?)));
        let reasons = attached.by_pair.iter().map(|(reason, count)| (reason.counter().to_owned(), *count));
        counts.chain(reasons).collect()
    }
}

const fn state_of(mode: Mode) -> DatapathState {
    match mode {
        Mode::Native => DatapathState::XdpNative,
        Mode::Generic => DatapathState::XdpGeneric,
    }
}
