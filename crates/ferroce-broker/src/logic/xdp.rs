//! AF_XDP: which interfaces have an XDP program, and which programs have a port there.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferroce_host::netdev::Netdev;
use ferroce_ipc::{Datapath, DatapathState, DeviceInfo, Message, Peer, Refusal, RefusalCode};
use tracing::{debug, info, warn};

use super::Broker;
use super::uplinks::{Attached, Failure, OpenPort, Opening};
use crate::by_pair::ByPair;
use crate::system::System;
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

impl<S: System> Broker<S> {
    /// Gives every interface the XDP program that its devices' settings ask for, and states which way the
    /// packets of each device take.
    pub(super) fn follow_xdp(&mut self) {
        let devices: Vec<DeviceInfo> = self.devices.all().cloned().collect();
        let mut wanted: BTreeMap<u32, (Netdev, BTreeSet<IpAddr>)> = BTreeMap::new();
        let mut states: BTreeMap<u32, DatapathState> = BTreeMap::new();
        for device in devices.iter().filter(|device| wants(device)) {
            match self.host.iter().find(|netdev| netdev.ifindex == device.ifindex) {
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
        let gone: Vec<u32> = self.xdp.uplinks.keys().filter(unwanted).copied().collect();
        gone.into_iter().for_each(|ifindex| self.detach(ifindex));
        self.xdp.failures.retain(|ifindex, _| wanted.contains_key(ifindex));
        for (ifindex, (netdev, addresses)) in wanted {
            states.insert(ifindex, self.serve_interface(&netdev, addresses));
        }
        for device in devices {
            let state = states.get(&device.ifindex).copied().filter(|_| wants(&device)).unwrap_or_default();
            self.devices.set_datapath(device.id, state);
        }
    }

    /// Attaches a program to an interface, or tells the attached one its addresses.
    fn serve_interface(&mut self, netdev: &Netdev, addresses: BTreeSet<IpAddr>) -> DatapathState {
        let ifindex = netdev.ifindex;
        let mut delay = FIRST_RETRY;
        if let Some(attached) = self.xdp.uplinks.get_mut(&ifindex) {
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
                    self.detach(ifindex);
                    return self.failed(netdev, addresses, DatapathState::Failed, delay);
                }
            }
        }
        if let Some(failure) = self.xdp.failures.get(&ifindex) {
            let same = failure.netdev == *netdev && failure.addresses == addresses;
            match failure.again {
                Some((at, next)) if same && at <= self.xdp.clock => delay = next,
                _ if same => return failure.state,
                _ => {}
            }
        }
        let attached = self.system.attach_xdp(netdev).and_then(|mut uplink| {
            uplink.set_addresses(&addresses).map_err(AttachError::Io)?;
            Ok(uplink)
        });
        match attached {
            Ok(uplink) => {
                let mode = uplink.mode();
                info!(netdev.name, ?mode, "XDP program attached");
                self.xdp.failures.remove(&ifindex);
                self.xdp.uplinks.insert(ifindex, Attached { uplink, addresses, by_pair: BTreeMap::new() });
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
                if self.xdp.failures.get(&ifindex).is_none_or(|failure| failure.state != state) {
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
        let again = passes.then(|| (self.xdp.clock + delay, (delay * 2).min(LAST_RETRY)));
        self.xdp.failures.insert(netdev.ifindex, Failure { state, netdev: netdev.clone(), addresses, again });
        state
    }

    /// Takes the XDP program off an interface. The ports there end.
    fn detach(&mut self, ifindex: u32) {
        let closed: Vec<(ClientId, u32)> =
            self.xdp.ports.keys().filter(|(_, index)| *index == ifindex).copied().collect();
        closed.into_iter().for_each(|key| self.close_port(key));
        for opening in
            self.xdp.opening.extract_if(.., |opening| opening.ifindex == ifindex).collect::<Vec<_>>()
        {
            self.give_up(
                opening,
                refusal(RefusalCode::WrongState, "the interface has no XDP program any more"),
            );
        }
        let Some(attached) = self.xdp.uplinks.remove(&ifindex) else { return };
        let rxe = self.devices.all().find(|device| device.ifindex == ifindex && !device.is_iwarp());
        if let Some(id) = rxe.map(|device| device.id) {
            let sum = self.xdp.dropped.entry(id).or_default();
            for (reason, more) in attached.uplink.drops() {
                let count = sum.entry(counter(reason)).or_default();
                *count = count.wrapping_add(more);
            }
        }
        info!(ifindex, "XDP program removed");
    }

    /// The packets that XDP programs dropped at a device's interface, by counter.
    pub(super) fn xdp_dropped(&self, device: u32) -> BTreeMap<String, u64> {
        let mut sum = self.xdp.dropped.get(&device).cloned().unwrap_or_default();
        let own = self.devices.all().find(|known| known.id == device && !known.is_iwarp());
        let attached = own.and_then(|known| self.xdp.uplinks.get(&known.ifindex));
        for (reason, more) in attached.map(|attached| attached.uplink.drops()).unwrap_or_default() {
            let count = sum.entry(counter(reason)).or_default();
            *count = count.wrapping_add(more);
        }
        sum
    }

    /// A program asks for a port, and knows direct ones if `able`. It receives the answer at once, or after
    /// some attempts.
    pub(super) fn open_xdp(
        &mut self,
        client: ClientId,
        id: u32,
        ifindex: u32,
        able: bool,
    ) -> Result<(), Refusal> {
        let Some(known) = self.clients.get(&client) else { return Ok(()) };
        let (uid, devices) = (known.peer.uid, self.told(known.view, known.minor));
        if self.slots.of(client).is_empty() {
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
        self.close_port((client, ifindex));
        let earlier = self.xdp.opening.extract_if(.., |o| (o.client, o.ifindex) == (client, ifindex));
        for opening in earlier.collect::<Vec<_>>() {
            self.give_up(opening, refusal(RefusalCode::WrongState, "a later request took its place"));
        }
        self.may_have_port(uid)?;
        let Some(netdev) = self.host.iter().find(|netdev| netdev.ifindex == ifindex).cloned() else {
            return Err(refusal(RefusalCode::UnknownNetdev, format!("interface {ifindex} is gone")));
        };
        let place = match self.may_have_direct(client, device, &netdev, able) {
            Ok(()) => Place::Direct,
            Err(reason) => {
                let pair = self.make_pair(&netdev)?;
                self.count_by_pair(client, ifindex, reason);
                Place::Pair(pair)
            }
        };
        let at = self.xdp.clock;
        self.open_port(Opening { client, id, ifindex, uid, place, tries: 0, at });
        Ok(())
    }

    fn make_pair(&mut self, netdev: &Netdev) -> Result<Pair, Refusal> {
        let mtu = netdev.mtu.clamp(SHORTEST, LONGEST);
        self.system.make_pair(mtu).map_err(|e| self.no_pair(netdev, &e))
    }

    fn may_have_port(&self, uid: u32) -> Result<(), Refusal> {
        let own = self.xdp.count(Some(uid));
        let sentence = if uid != self.uid && own >= MOST_OF_USER {
            format!(
                "programs of {} have {own} AF_XDP sockets, which is all that a user may have: end some of them, or use UDP sockets",
                Peer::user(uid)
            )
        } else if self.xdp.count(None) >= MOST_PORTS {
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
    fn no_pair(&mut self, netdev: &Netdev, error: &io::Error) -> Refusal {
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
            let addresses = self.xdp.uplinks.get(&netdev.ifindex).map(|attached| attached.addresses.clone());
            self.detach(netdev.ifindex);
            self.failed(netdev, addresses.unwrap_or_default(), state, LAST_RETRY);
            self.publish();
        }
        refusal(code, sentence)
    }

    /// Opens a port, and answers the request. If a direct port cannot be opened, the program gets one at a
    /// pair.
    fn open_port(&mut self, opening: Opening) {
        let Opening { client, id, ifindex, uid, place, .. } = opening;
        let slots = self.slots.of(client);
        let Some(attached) = self.xdp.uplinks.get_mut(&ifindex) else {
            return self.give_up(
                opening,
                refusal(RefusalCode::WrongState, "the interface has no XDP program any more"),
            );
        };
        let opened = attached.uplink.open(place, &slots).and_then(|port| Ok((port.descriptors()?, port)));
        match opened {
            Ok((descriptors, port)) => {
                let pid = self.clients.get(&client).map(|known| known.peer.pid);
                info!(pid, ifindex, ?place, "AF_XDP port opened");
                self.xdp.ports.insert((client, ifindex), OpenPort { port, place, slots, uid });
                let direct = place == Place::Direct;
                self.send(client, id, Message::Xdp { ifindex, direct }, descriptors);
            }
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && opening.tries < QUEUE_TRIES => {
                let (tries, at) = (opening.tries + 1, self.xdp.clock + QUEUE_RETRY);
                self.xdp.opening.push(Opening { tries, at, ..opening });
            }
            Err(e) if place == Place::Direct => {
                warn!(ifindex, "no AF_XDP socket at the interface itself: {e}");
                self.open_at_pair(opening);
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
                self.give_up(opening, refusal(RefusalCode::Failed, sentence));
            }
        }
    }

    /// Answers a request for which no direct port can be opened.
    fn open_at_pair(&mut self, opening: Opening) {
        let Opening { client, ifindex, .. } = opening;
        let netdev = self.host.iter().find(|netdev| netdev.ifindex == ifindex).cloned();
        let gone = || refusal(RefusalCode::UnknownNetdev, format!("interface {ifindex} is gone"));
        match netdev.ok_or_else(gone).and_then(|netdev| self.make_pair(&netdev)) {
            Ok(pair) => {
                self.count_by_pair(client, ifindex, ByPair::Failed);
                self.open_port(Opening { place: Place::Pair(pair), tries: 0, ..opening });
            }
            Err(refused) => self.give_up(opening, refused),
        }
    }

    /// Refuses a request. Its pair, if any, was made already.
    fn give_up(&mut self, opening: Opening, refused: Refusal) {
        if let Place::Pair(_) = opening.place {
            self.system.remove_port(None, opening.place);
        }
        if self.clients.contains_key(&opening.client) {
            self.send(opening.client, opening.id, Message::Refused(refused), Vec::new());
        }
    }

    fn close_port(&mut self, key: (ClientId, u32)) {
        let Some(mut open) = self.xdp.ports.remove(&key) else { return };
        // The system may close it later, when another program holds the slots.
        if let Err(e) = open.port.set_slots(&[]) {
            debug!("the slots of a port cannot be taken back: {e}");
        }
        debug!(client = ?key.0, ifindex = key.1, "AF_XDP port closed");
        self.system.remove_port(Some(open.port), open.place);
    }

    /// Makes the ports follow the slots of their programs. A program without slots has no port.
    pub(super) fn settle_xdp(&mut self) {
        if self.xdp.settled == self.view_changes {
            return;
        }
        self.xdp.settled = self.view_changes;
        if self.xdp.ports.is_empty() && self.xdp.opening.is_empty() {
            return;
        }
        let mut held = self.slots.by_client();
        let clients: BTreeSet<ClientId> = self.xdp.ports.keys().map(|(client, _)| *client).collect();
        for client in clients {
            let slots = held.remove(&client).unwrap_or_default();
            let own: Vec<(ClientId, u32)> =
                self.xdp.ports.range((client, 0)..=(client, u32::MAX)).map(|(key, _)| *key).collect();
            for key in own {
                let Some(open) = self.xdp.ports.get_mut(&key).filter(|open| open.slots != slots) else {
                    continue;
                };
                let followed =
                    if slots.is_empty() { Ok(false) } else { open.port.set_slots(&slots).map(|()| true) };
                match followed {
                    Ok(true) => open.slots.clone_from(&slots),
                    Ok(false) => self.close_port(key),
                    Err(e) => {
                        warn!(?client, "an AF_XDP port cannot take the slots of its program, and ends: {e}");
                        self.close_port(key);
                    }
                }
            }
        }
        if self.xdp.opening.is_empty() {
            return;
        }
        let holds = self.slots.by_client();
        let left = self.xdp.opening.extract_if(.., |opening| !holds.contains_key(&opening.client));
        for opening in left.collect::<Vec<_>>() {
            let sentence = "AF_XDP sockets are for programs that hold slots";
            self.give_up(opening, refusal(RefusalCode::BadRequest, sentence));
        }
    }

    /// Makes the attempts that are due.
    pub(super) fn retry_xdp(&mut self, now: Instant) {
        let due = |failure: &Failure| failure.again.is_some_and(|(at, _)| at <= now);
        if self.xdp.failures.values().any(due) {
            self.publish();
        }
        let due = self.xdp.opening.extract_if(.., |opening| opening.at <= now);
        for opening in due.collect::<Vec<_>>() {
            self.open_port(opening);
        }
    }

    /// Removes the pairs that an earlier broker left. Only for the one broker of the network namespace, which
    /// holds its name.
    pub fn remove_left_pairs(&mut self) {
        self.system.remove_left_pairs();
    }

    /// Removes everything that this broker made in the system and that would outlive it.
    pub fn end(&mut self) {
        let attached: Vec<u32> = self.xdp.uplinks.keys().copied().collect();
        attached.into_iter().for_each(|ifindex| self.detach(ifindex));
        self.system.finish_removals();
    }
}

const fn state_of(mode: Mode) -> DatapathState {
    match mode {
        Mode::Native => DatapathState::XdpNative,
        Mode::Generic => DatapathState::XdpGeneric,
    }
}
