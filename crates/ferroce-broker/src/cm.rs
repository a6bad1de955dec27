//! Connections of all programs: what the broker decides about them.

mod faults;
mod ids;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ferroce_cm::{
    CmConfig, CmError, CmEventKind, ConnectionManager, Kind, ListenParams, ListenerId, Route, Transmit,
};
use ferroce_ipc::{CmBind, CmDone, CmNotice, CmRequest, CmStatus, Refusal, RefusalCode};
use ferroce_wire::cm::{CommId, Mad, PortSpace};
use ferroce_wire::{Instant as CmInstant, RoceVersion};
use tracing::debug;

use faults::Faults;

use super::early_requests::EarlyRequests;
use super::ports::{BindError, BindingId, Ports};
use super::refusal;
use ferroce_host::netdev::Address;

/// Connections and SIDR requests of one program, and of all. Each takes about a kilobyte.
const MOST_OF_ONE: usize = 65_536;
const MOST: usize = 262_144;
/// Ports of one program.
const MOST_BINDS: usize = 65_536;
/// Events that wait for a program that is away.
const MOST_HELD: usize = 32_768;

/// A bind: its program's slot, and its program's name for it.
type BindKey = (u16, u64);

/// A port in use.
#[derive(Clone, Copy, Debug)]
struct Bound {
    id: BindingId,
    /// As asked for, with its port.
    bind: CmBind,
    /// While it listens.
    listener: Option<ListenerId>,
}

/// Connections, ports and listeners of this network namespace.
#[derive(Debug)]
pub struct Cm {
    pub(super) manager: ConnectionManager,
    ports: Ports,
    binds: BTreeMap<BindKey, Bound>,
    /// How many each program has.
    bound: BTreeMap<u16, usize>,
    listeners: BTreeMap<ListenerId, BindKey>,
    /// Origin of the state machine's time.
    base: Option<Instant>,
    now: CmInstant,
    serial: u64,
    /// Events of programs whose connection to us is lost, by slot.
    held: BTreeMap<u16, VecDeque<CmNotice>>,
    random: u64,
    early_requests: EarlyRequests,
    /// The rules of programs for management datagrams, if any has some.
    faults: Option<Box<Faults>>,
    /// To be sent next.
    ready: VecDeque<Transmit>,
}

/// The program that sends a request.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// Slots of the program, at least one.
    pub slots: &'a [u16],
    /// Whether it may have ports below 1024.
    pub low_ports: bool,
}

impl Cm {
    /// `secret` is random, and the key of communication ids. `first_port` is another random number: where the
    /// search for a free port begins is no secret, because any program sees its port. `free_ports` are those
    /// to choose from for whom any will do.
    pub fn new(secret: [u64; 2], first_port: u64, free_ports: (u16, u16)) -> Self {
        let config = CmConfig { key: secret, max_connections: MOST, max_per_owner: MOST_OF_ONE };
        Self {
            manager: ConnectionManager::new(config),
            ports: Ports::new(free_ports.0..=free_ports.1),
            binds: BTreeMap::new(),
            bound: BTreeMap::new(),
            listeners: BTreeMap::new(),
            base: None,
            now: CmInstant::ZERO,
            serial: 0,
            held: BTreeMap::new(),
            random: first_port,
            early_requests: EarlyRequests::default(),
            faults: None,
            ready: VecDeque::new(),
        }
    }

    /// Time has passed.
    pub fn clock(&mut self, now: Instant) {
        let base = *self.base.get_or_insert(now);
        let passed = now.saturating_duration_since(base).as_nanos();
        self.now = self.now.max(CmInstant::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX)));
    }

    /// Time at which [`Cm::tick`] has something to do; `None` if no timer runs.
    pub fn deadline(&self) -> Option<Instant> {
        let late = self.faults.as_ref().and_then(|faults| faults.next());
        let due = self.manager.poll_timeout().into_iter().chain(self.early_requests.deadline()).chain(late);
        let at = due.min()?;
        self.base.map(|base| base + Duration::from_nanos(at.as_nanos()))
    }

    /// Does what is due.
    pub fn tick(&mut self) {
        self.release_late();
        self.manager.handle_timeout(self.now);
        self.take_early_requests();
    }

    /// Whether there is no connection, nor anything left of one.
    pub fn is_idle(&self) -> bool {
        self.manager.in_use() == 0 && self.early_requests.deadline().is_none()
    }

    /// Numbers of connections, SIDR requests and listeners, and the counters.
    pub fn status(&self) -> CmStatus {
        let (connections, sidr_requests, listeners) = self.manager.census();
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        CmStatus {
            connections: small(connections),
            sidr_requests: small(sidr_requests),
            listeners: small(listeners),
            ports: small(self.binds.len()),
            counters: *self.manager.counters(),
            no_mad: 0,
        }
    }

    /// A MAD came to queue pair 1.
    pub fn mad(&mut self, from: Route, mad: &[u8]) {
        if !self.early_requests.keep(self.now, from, mad, &self.manager) {
            self.receive(from, mad);
        }
    }

    /// Requests that came before their listener, and those that waited for one in vain.
    fn take_early_requests(&mut self) {
        for (from, mad) in self.early_requests.take(self.now, &self.manager) {
            self.receive(from, &mad);
        }
    }

    fn handle(&mut self, from: Route, mad: &[u8]) {
        if let Err(reason) = self.manager.handle_mad(self.now, from, mad) {
            debug!(?from, "dropped a MAD: {reason}");
        }
    }

    /// Takes the next event, with the slot of the program that owns its connection or listener.
    pub fn poll_event(&mut self) -> Option<CmNotice> {
        loop {
            let mut event = self.manager.poll_event()?;
            if let CmEventKind::Request { listener: Some(listener), .. }
            | CmEventKind::SidrRequest { listener, .. } = &mut event.kind
            {
                let Some((_, handle)) = self.listeners.get(listener) else {
                    // The listener ended before its program heard of the request: nobody will answer.
                    self.manager.close(self.now, event.id);
                    continue;
                };
                *listener = ListenerId(*handle);
            }
            let (serial, record) = self.record(event.id);
            return Some(CmNotice { event, serial, record });
        }
    }

    /// Ports that these slots have bound.
    pub fn binds_of(&self, slots: impl Iterator<Item = u16>) -> usize {
        slots.filter_map(|slot| self.bound.get(&slot)).sum()
    }

    /// Blocks of ephemeral ports of these slots.
    pub fn blocks_of(&self, slots: impl Iterator<Item = u16>) -> usize {
        slots.map(|slot| self.ports.blocks_of(slot)).sum()
    }

    /// Keeps an event for a program that is away.
    pub fn hold(&mut self, notice: CmNotice) {
        let held = self.held.entry(notice.event.owner).or_default();
        if held.len() < MOST_HELD {
            held.push_back(notice);
        }
    }

    /// How many events are kept for the slots that count.
    pub fn count_held(&self, counts: impl Fn(u16) -> bool) -> usize {
        self.held.iter().filter(|(slot, _)| counts(**slot)).map(|(_, held)| held.len()).sum()
    }

    /// Takes the events that were kept while the slot's program was away.
    pub fn take_held(&mut self, slot: u16) -> VecDeque<CmNotice> {
        self.held.remove(&slot).unwrap_or_default()
    }

    /// The holder of a slot is no more: the peers of at most `most` connections are told. Returns how many
    /// more it would have told: 0 if there may be others.
    pub fn close_owner(&mut self, slot: u16, most: usize) -> usize {
        self.end_rules(slot);
        self.ports.release_owner(slot);
        self.binds.retain(|(owner, _), _| *owner != slot);
        self.bound.remove(&slot);
        self.listeners.retain(|_, (owner, _)| *owner != slot);
        self.held.remove(&slot);
        self.manager.close_owner(self.now, slot, most)
    }

    /// The slot that owns the ports of a program with these slots: that of its earlier ones, since a slot
    /// that it leases later can be lower.
    fn owner(&self, slots: &[u16]) -> Option<u16> {
        let has_bound = |slot: &u16| self.bound.get(slot).is_some_and(|count| *count > 0);
        let earlier = slots.iter().copied().find(has_bound).or_else(|| self.ports.block_owner(slots));
        earlier.or(slots.first().copied())
    }

    /// Does what a program asks for. `has` says which addresses are ours.
    pub fn request(
        &mut self,
        asker: Asker<'_>,
        request: CmRequest,
        has: impl Fn(Address) -> bool,
    ) -> Result<CmDone, Refusal> {
        let Some(owner) = self.owner(asker.slots) else {
            return Err(refusal(RefusalCode::BadRequest, "connections need a slot: lease one first"));
        };
        let now = self.now;
        let id = match request {
            CmRequest::Bind(bind) => {
                let port = self.bind(owner, bind, asker.low_ports, has)?;
                return Ok(CmDone { port, ..CmDone::default() });
            }
            CmRequest::Listen { handle, backlog } => return self.listen((owner, handle), backlog),
            CmRequest::Unbind { handle } => {
                if let Some(bound) = self.binds.remove(&(owner, handle)) {
                    self.ports.release(bound.id);
                    if let Some(count) = self.bound.get_mut(&owner) {
                        *count = count.saturating_sub(1);
                    }
                    if let Some(listener) = bound.listener {
                        self.manager.unlisten(listener);
                        self.listeners.remove(&listener);
                    }
                }
                return Ok(CmDone::default());
            }
            CmRequest::Connect(mut params) => {
                params.route = checked(params.route, has)?;
                self.manager.connect(now, owner, &params).map_err(refused)?
            }
            CmRequest::Resolve(mut params) => {
                params.route = checked(params.route, has)?;
                self.manager.resolve(now, owner, &params).map_err(refused)?
            }
            CmRequest::Accept { id, params } => {
                self.manager.accept(now, own(asker, id)?, &params).map_err(refused)?;
                id
            }
            CmRequest::Reject { id, reason, info, private } => {
                self.manager.reject(now, own(asker, id)?, reason, info, *private).map_err(refused)?;
                id
            }
            CmRequest::Establish(id) => {
                self.manager.establish(own(asker, id)?).map_err(refused)?;
                id
            }
            CmRequest::Disconnect(id) => {
                self.manager.disconnect(now, own(asker, id)?).map_err(refused)?;
                id
            }
            CmRequest::Close(id) => {
                self.manager.close(now, own(asker, id)?);
                return Ok(CmDone { id, ..CmDone::default() });
            }
            CmRequest::Mra { id, service_timeout, at_once } => {
                self.manager.send_mra(own(asker, id)?, service_timeout, at_once).map_err(refused)?;
                id
            }
            CmRequest::Answer { id, answer } => {
                self.manager.answer_sidr(own(asker, id)?, &answer).map_err(refused)?;
                id
            }
            CmRequest::Restored => return Ok(CmDone::default()),
            CmRequest::PortBlock { space, first } => {
                let entropy = self.entropy();
                let port = self.ports.take_block(owner, space, first, entropy).map_err(port_refused)?;
                return Ok(CmDone { port, ..CmDone::default() });
            }
            CmRequest::PortBlockReturn { space, first } => {
                self.ports.return_block(owner, space, first);
                return Ok(CmDone::default());
            }
            CmRequest::Restore { id, record } => {
                own(asker, id)?;
                self.restore(id, &record, has)?;
                id
            }
        };
        let (serial, record) = self.record(id);
        Ok(CmDone { id, port: 0, serial, record })
    }

    fn bind(
        &mut self,
        owner: u16,
        bind: CmBind,
        low_ports: bool,
        has: impl Fn(Address) -> bool,
    ) -> Result<u16, Refusal> {
        let key = (owner, bind.handle);
        if let Some(known) = self.binds.get(&key) {
            // Again, after the connection to us was lost.
            return match known.bind == bind {
                true => Ok(bind.port),
                false => Err(refusal(RefusalCode::BadRequest, "the handle names another bind")),
            };
        }
        if self.bound.get(&owner).is_some_and(|count| *count >= MOST_BINDS) {
            let sentence = format!("a program may bind {MOST_BINDS} ports at most");
            return Err(refusal(RefusalCode::Full, sentence));
        }
        let address = Address::of(bind.address, bind.interface);
        // A program may bind a loopback address even if no device has it: the port is then reserved, and no
        // request comes.
        if !bind.address.is_unspecified() && !bind.address.is_loopback() && !has(address) {
            let sentence = format!("no device has the address {address}");
            return Err(refusal(RefusalCode::NoAddress, sentence));
        }
        let wanted = CmBind { address: address.ip, interface: address.scope_id, ..bind };
        let entropy = self.entropy();
        let (id, port) = self.ports.bind(owner, &wanted, low_ports, entropy).map_err(port_refused)?;
        *self.bound.entry(owner).or_default() += 1;
        self.binds.insert(key, Bound { id, bind: CmBind { port, ..bind }, listener: None });
        Ok(port)
    }

    /// Knuth's generator: where the search for free ports begins need not be a secret.
    fn entropy(&mut self) -> u32 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 32) as u32
    }

    fn listen(&mut self, key: BindKey, backlog: u16) -> Result<CmDone, Refusal> {
        let Some(bound) = self.binds.get_mut(&key) else { return Err(port_refused(BindError::Unknown)) };
        let done = CmDone { port: bound.bind.port, ..CmDone::default() };
        if bound.listener.is_some() {
            return Ok(done);
        }
        self.ports.listen(bound.id).map_err(port_refused)?;
        let (space, port, bind) = self.ports.get(bound.id).ok_or_else(|| port_refused(BindError::Unknown))?;
        let params = ListenParams {
            service_id: space.service_id(port),
            bind,
            kind: match space {
                PortSpace::Tcp | PortSpace::Sdp => Kind::Connections,
                PortSpace::Udp | PortSpace::Ipoib => Kind::Datagrams,
                PortSpace::Ib => Kind::Both,
            },
            backlog: backlog.into(),
        };
        let listener = self.manager.listen(key.0, params).map_err(refused)?;
        bound.listener = Some(listener);
        self.listeners.insert(listener, key);
        self.take_early_requests();
        Ok(done)
    }

    /// A program tells what an earlier broker knew.
    fn restore(&mut self, id: CommId, record: &[u8], has: impl Fn(Address) -> bool) -> Result<(), Refusal> {
        if self.manager.knows(id) {
            // We are that broker.
            return Ok(());
        }
        let owner = ConnectionManager::owner(id);
        let ours = |route: &Route| has(start_of(route));
        match self.manager.import(self.now, owner, record, ours) {
            Ok(taken) if taken == id => Ok(()),
            Ok(other) => {
                self.manager.close(self.now, other);
                Err(refusal(RefusalCode::BadRequest, "the record is of another connection"))
            }
            Err(e) => Err(refusal(RefusalCode::UnknownId, e.to_string())),
        }
    }

    /// A connection's record as it is now, empty without such a connection, and its place in the order of
    /// records.
    fn record(&mut self, id: CommId) -> (u64, Vec<u8>) {
        self.serial += 1;
        (self.serial, self.manager.export(self.now, id).unwrap_or_default())
    }
}

/// The connection or SIDR request of ours that a MAD is about; `None` for a MAD that begins one, or is
/// malformed.
pub fn addressee(mad: &[u8]) -> Option<CommId> {
    Mad::parse(mad).ok()?.message.receiver_id()
}

/// Only one's own connections can be named.
fn own(asker: Asker<'_>, id: CommId) -> Result<CommId, Refusal> {
    match asker.slots.contains(&ConnectionManager::owner(id)) {
        true => Ok(id),
        false => Err(refused(CmError::UnknownId(id))),
    }
}

fn refused(error: CmError) -> Refusal {
    let code = match error {
        CmError::UnknownId(_) => RefusalCode::UnknownId,
        CmError::State(_) => RefusalCode::WrongState,
        CmError::InUse(_) => RefusalCode::AddressInUse,
        CmError::Full(_) => RefusalCode::Full,
    };
    refusal(code, error.to_string())
}

/// The route of a program's request, if it begins at an address of ours.
fn checked(route: Route, has: impl Fn(Address) -> bool) -> Result<Route, Refusal> {
    let address = start_of(&route);
    if !has(address) {
        let sentence = format!("no device has the address {address}");
        return Err(refusal(RefusalCode::NoAddress, sentence));
    }
    match route.version() {
        RoceVersion::V1 => Ok(route),
        RoceVersion::V2 => Ok(Route { interface: address.scope_id, ..route }),
    }
}

fn port_refused(error: BindError) -> Refusal {
    let code = match error {
        BindError::InUse(_) => RefusalCode::AddressInUse,
        BindError::WildcardInUse(_) => RefusalCode::WildcardInUse,
        BindError::Access(_) => RefusalCode::Permission,
        BindError::Exhausted => RefusalCode::NoAddress,
        BindError::Unknown => RefusalCode::UnknownId,
    };
    refusal(code, error.to_string())
}

/// The local address at which a route begins.
pub fn start_of(route: &Route) -> Address {
    Address::of(route.local, route.ifindex())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ports are public, and Knuth's generator is solved from a few of its numbers: they tell nothing of the
    /// key.
    #[test]
    fn ports_tell_nothing_of_the_key_of_ids() {
        let ports = |secret, first_port| {
            let mut cm = Cm::new(secret, first_port, (1024, 65_535));
            (0..64).map(|_| cm.entropy()).collect::<Vec<_>>()
        };
        assert_eq!(ports([1, 2], 7), ports([3, 4], 7));
        assert_ne!(ports([1, 2], 7), ports([1, 2], 8));
    }
}
