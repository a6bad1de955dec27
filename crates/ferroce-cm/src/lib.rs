//! Connection management: how connections begin and end (IBTA 12).
//!
//! A [`ConnectionManager`] reads no clock and opens no socket. The caller gives it the commands of programs,
//! the MADs that arrived and the time, and takes MADs to send, events for programs, and the time of the next
//! call.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

extern crate alloc;

mod active;
pub mod attributes;
mod connection;
mod counters;
mod disconnect;
mod error;
pub mod extension;
mod listeners;
mod passive;
mod random;
mod record;
mod seen;
mod sidr;
mod stale;
mod table;
mod types;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use ferroce_wire::Instant;
use ferroce_wire::cm::{
    About, Apr, AprStatus, CommId, Info, Lap, Mad, Message, PrivateData, Rej, RejReason, ServiceId,
};
use ferroce_wire::mad::MadError;

pub use self::counters::{CmCounters, PerMessage};
pub use self::error::{CmDropReason, CmError, ImportError};
pub use self::seen::Seen;
pub use self::types::{
    AcceptParams, Bind, CmEvent, CmEventKind, ConnectParams, Disconnect, Kind, ListenParams, ListenerId,
    Route, SidrAnswer, SidrParams, Transmit,
};

use self::connection::{Connection, QpKey, ReqKey};
use self::listeners::{Ask, Listeners};
use self::random::Random;
use self::sidr::Sidr;
use self::stale::Allowance;

/// All connections, SIDR requests and listeners behind one queue pair 1, without I/O.
///
/// # How to drive it
///
/// - Commands: [`listen`](Self::listen), [`connect`](Self::connect), [`accept`](Self::accept),
///   [`reject`](Self::reject), [`establish`](Self::establish), [`disconnect`](Self::disconnect),
///   [`close`](Self::close) and others.
/// - Input: [`handle_mad`](Self::handle_mad) for each MAD, [`handle_timeout`](Self::handle_timeout) when
///   [`poll_timeout`](Self::poll_timeout) has come. An early or repeated call does nothing.
/// - Output, after each of these: [`poll_transmit`](Self::poll_transmit) until `None`, then
///   [`poll_event`](Self::poll_event) until `None`, then wait for input, or until
///   [`poll_timeout`](Self::poll_timeout).
///
/// A MAD that could not be sent counts as lost: drop it, the retries replace it. `now` never goes backwards.
///
/// Each connection has an owner, a number in the upper 12 bits of its [`CommId`]. The caller checks that a
/// program owns the connection it names. Communication ids and PSNs cannot be guessed without the key.
///
/// Every resource is bounded, whatever a peer sends: connections by [`CmConfig`], pending requests by their
/// listener's backlog, the wait for each answer by the protocol's timers. Only a program that neither answers
/// nor closes keeps its connections for longer.
#[derive(Debug)]
pub struct ConnectionManager {
    config: CmConfig,
    random: Random,
    connections: BTreeMap<CommId, Connection>,
    /// Connections and SIDR requests of each user and owner.
    used: BTreeMap<(u32, u16), usize>,
    /// The user without a share of its own, and the share of each other one; see [`Self::bound_users`].
    share: Option<(u32, usize)>,
    by_req: BTreeMap<ReqKey, CommId>,
    by_qp: BTreeMap<QpKey, CommId>,
    /// Peer-to-peer connections, the last part of the key is their user.
    peers: BTreeMap<(ServiceId, Route, u32), CommId>,
    sidr: BTreeMap<CommId, Sidr>,
    /// SIDR requests of peers by their route, their id and the user who is asked.
    asked: BTreeMap<(Route, CommId, u32), CommId>,
    /// The users of owners, see [`Self::set_user`].
    users: BTreeMap<u16, u32>,
    listeners: Listeners,
    timers: BTreeSet<(Instant, CommId)>,
    outbox: VecDeque<Transmit>,
    events: VecDeque<CmEvent>,
    counters: CmCounters,
    /// Connections of each user that may still end because a request names their peer's queue pair.
    stale: BTreeMap<u32, Allowance>,
}

#[derive(Clone, Debug)]
pub struct CmConfig {
    /// The key for communication ids and PSNs: random and secret.
    pub key: [u64; 2],
    /// Maximum of connections and SIDR requests, time-wait included.
    pub max_connections: usize,
    pub max_per_owner: usize,
}

/// If this number of answers waits to be sent, unknown senders get no answer.
const OUTBOX: usize = 4096;
/// Timers that one call handles: all connections of a program may be due at once.
const MOST_DUE: usize = 256;

impl ConnectionManager {
    pub fn new(config: CmConfig) -> Self {
        Self {
            random: Random::new(config.key),
            config,
            connections: BTreeMap::new(),
            used: BTreeMap::new(),
            share: None,
            by_req: BTreeMap::new(),
            by_qp: BTreeMap::new(),
            peers: BTreeMap::new(),
            sidr: BTreeMap::new(),
            asked: BTreeMap::new(),
            users: BTreeMap::new(),
            listeners: Listeners::default(),
            timers: BTreeSet::new(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
            stale: BTreeMap::new(),
        }
    }

    /// Bits of a communication id below its owner's number.
    pub(crate) const OWNER_SHIFT: u32 = 20;

    /// The first and the last communication id of an owner.
    pub(crate) fn ids_of(owner: u16) -> core::ops::RangeInclusive<CommId> {
        let low = u32::from(owner) << Self::OWNER_SHIFT;
        CommId(low)..=CommId(low | ((1 << Self::OWNER_SHIFT) - 1))
    }

    /// The owner of a communication id.
    pub const fn owner(id: CommId) -> u16 {
        (id.0 >> Self::OWNER_SHIFT) as u16
    }

    /// Says which user an owner's connections and listeners belong to from now on; 0 if nothing was said. All
    /// users share the table, but a connection never decides what becomes of a request to a listener of
    /// another user.
    pub fn set_user(&mut self, owner: u16, user: u32) {
        self.users.insert(owner, user);
    }

    fn user(&self, owner: u16) -> u32 {
        self.users.get(&owner).copied().unwrap_or_default()
    }

    /// The number of connections, time-wait included, and SIDR requests.
    pub fn in_use(&self) -> usize {
        self.connections.len() + self.sidr.len()
    }

    /// Bounds the connections and SIDR requests of each user but `own`, the peers' requests and time-wait
    /// included.
    pub fn bound_users(&mut self, own: u32, most: usize) {
        self.share = Some((own, most));
    }

    /// The number of connections and SIDR requests of a user, those of owners that are gone included.
    pub fn in_use_by(&self, user: u32) -> usize {
        self.used.range((user, 0)..=(user, u16::MAX)).map(|(_, used)| used).sum()
    }

    /// Frees the room of queues that were longer.
    pub fn shrink(&mut self) {
        self.outbox.shrink_to_fit();
        self.events.shrink_to_fit();
    }

    /// Whether there is no connection, SIDR request, listener or timer.
    pub fn is_empty(&self) -> bool {
        self.in_use() == 0
            && self.listeners.len() == 0
            && self.timers.is_empty()
            && self.by_req.is_empty()
            && self.by_qp.is_empty()
            && self.peers.is_empty()
            && self.asked.is_empty()
            && self.used.is_empty()
    }

    /// The numbers of connections (time-wait included), SIDR requests and listeners.
    pub fn census(&self) -> (usize, usize, usize) {
        (self.connections.len(), self.sidr.len(), self.listeners.len())
    }

    /// The name of a connection's state; `None` if the id is unknown.
    pub fn state(&self, id: CommId) -> Option<&'static str> {
        self.connections.get(&id).map(|connection| connection.state.name())
    }

    /// Whether a connection or SIDR request has this id.
    pub fn knows(&self, id: CommId) -> bool {
        self.connections.contains_key(&id) || self.sidr.contains_key(&id)
    }

    /// The two ends of a connection; `None` if the id is unknown.
    pub fn route(&self, id: CommId) -> Option<Route> {
        self.connections.get(&id).map(|connection| connection.route)
    }

    /// The connections that an owner has not closed, time-wait included.
    pub fn connections_of(&self, owner: u16) -> impl Iterator<Item = CommId> + '_ {
        let all = self.connections.range(Self::ids_of(owner));
        all.filter(|(_, connection)| !connection.orphaned).map(|(id, _)| *id)
    }

    pub const fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Starts to listen for a service. The caller has checked that the owner may bind the port.
    ///
    /// # Errors
    ///
    /// [`CmError::InUse`] if another listener has the same service, addresses and kind.
    pub fn listen(&mut self, owner: u16, params: ListenParams) -> Result<ListenerId, CmError> {
        self.listeners.add(owner, params)
    }

    /// Stops listening. The program can still accept or reject pending requests.
    pub fn unlisten(&mut self, id: ListenerId) {
        self.listeners.remove(id);
    }

    /// Whether a MAD has a recipient here: `false` for requests without a listener.
    pub fn has_taker(&self, from: Route, mad: &[u8]) -> bool {
        match Mad::parse(mad).map(|mad| mad.message) {
            Ok(request @ (Message::Req(_) | Message::SidrReq(_))) => self.recipient(from, &request).is_some(),
            _ => true,
        }
    }

    /// The owner of the listener that takes a request, and its user.
    fn listening(&self, service: ServiceId, from: &Route, ask: Ask) -> (Option<u16>, Option<u32>) {
        let owner = self.listeners.find(service, from, ask).and_then(|id| self.listeners.owner(id));
        (owner, owner.map(|owner| self.user(owner)))
    }

    /// The owner of the connection, SIDR request or listener that a message from a peer is for. The message
    /// may still be of no effect there.
    pub fn recipient(&self, from: Route, message: &Message) -> Option<u16> {
        let ours = match message {
            Message::Req(req) => {
                let (owner, user) = self.listening(req.service_id, &from, Ask::Connection);
                let known = self.repeated(from, req.local_id, req.ca_guid, user);
                return known.or_else(|| self.crossed(from, req, user)).map(Self::owner).or(owner);
            }
            Message::SidrReq(req) => {
                let (owner, user) = self.listening(req.service_id, &from, Ask::Datagram);
                return self.pending(from, req.request_id, user).map(Self::owner).or(owner);
            }
            _ => message.receiver_id()?,
        };
        let route = match self.sidr.get(&ours) {
            Some(Sidr::Asking { route, .. } | Sidr::Asked { route, .. }) => Some(*route),
            None => self.route(ours),
        };
        (route == Some(from)).then_some(Self::owner(ours))
    }

    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let transmit = self.outbox.pop_front()?;
        self.counters.tx_msgs.count(&transmit.mad[..]);
        Some(transmit)
    }

    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// The time of the next call of [`handle_timeout`](Self::handle_timeout); `None` if no timer runs.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Handles the timers that are due, 256 at most: [`poll_timeout`](Self::poll_timeout) then tells of the
    /// others.
    pub fn handle_timeout(&mut self, now: Instant) {
        for _ in 0..MOST_DUE {
            let Some((_, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) else { return };
            self.timers.pop_first();
            if self.connections.contains_key(&id) {
                self.connection_timeout(now, id);
            } else {
                self.sidr_timeout(now, id);
            }
        }
    }

    /// Handles a MAD of 256 octets that arrived at queue pair 1.
    ///
    /// # Errors
    ///
    /// The reason why it had no effect. An answer may have to be sent nevertheless.
    pub fn handle_mad(&mut self, now: Instant, from: Route, mad: &[u8]) -> Result<(), CmDropReason> {
        self.counters.rx_msgs.count(mad);
        let result = self.dispatch(now, from, mad);
        if let Err(reason) = result {
            self.counters.drop_of(reason);
            if reason == CmDropReason::Duplicate {
                self.counters.rx_duplicates.count(mad);
            }
        }
        result
    }

    fn dispatch(&mut self, now: Instant, from: Route, bytes: &[u8]) -> Result<(), CmDropReason> {
        let mad = match Mad::parse(bytes) {
            Ok(mad) => mad,
            Err(error) => {
                self.refuse_version(from, bytes, error);
                return Err(CmDropReason::Malformed(error));
            }
        };
        let tid = mad.transaction_id;
        match &mad.message {
            Message::Req(req) => self.handle_req(now, from, tid, req),
            Message::Mra(mra) => self.handle_mra(now, from, mra),
            Message::Rej(rej) => self.handle_rej(now, from, rej),
            Message::Rep(rep) => self.handle_rep(now, from, tid, rep),
            Message::Rtu(rtu) => self.handle_rtu(from, rtu),
            Message::Dreq(dreq) => self.handle_dreq(now, from, tid, dreq),
            Message::Drep(drep) => self.handle_drep(now, from, drep),
            Message::Lap(lap) => self.handle_lap(from, tid, lap),
            // We send no LAPs.
            Message::Apr(_) => Err(CmDropReason::State),
            Message::SidrReq(req) => self.handle_sidr_req(from, tid, req),
            Message::SidrRep(rep) => self.handle_sidr_rep(from, rep),
        }
    }

    /// Refuses a REQ of an unknown class version (IBTA 12.6.7, reason 31).
    fn refuse_version(&mut self, from: Route, bytes: &[u8], error: MadError) {
        if let MadError::ClassVersion(_) = error
            && let Some((tid, id)) = Mad::foreign_req(bytes)
        {
            self.refuse(from, tid, id, About::REQ, RejReason::CLASS_VERSION, Info::NONE);
        }
    }

    /// Refuses a message of an unknown sender, without an id of ours.
    fn refuse(
        &mut self,
        from: Route,
        transaction_id: u64,
        remote_id: CommId,
        about: About,
        reason: RejReason,
        info: Info,
    ) {
        let private = PrivateData::EMPTY;
        let rej = Rej { local_id: CommId::NONE, remote_id, about, reason, info, private };
        self.answer(None, from, Mad { transaction_id, message: Message::Rej(rej) });
    }

    /// RoCE has no alternate paths (rxe 6.12 refuses them too).
    fn handle_lap(&mut self, from: Route, tid: u64, lap: &Lap) -> Result<(), CmDropReason> {
        let connection = self.of_peer(from, lap.remote_id, lap.local_id)?;
        let apr = Apr {
            local_id: connection.id,
            remote_id: lap.local_id,
            status: AprStatus::UNSUPPORTED,
            info: Info::NONE,
            private: PrivateData::EMPTY,
        };
        let owner = Self::owner(connection.id);
        self.answer(Some(owner), from, Mad { transaction_id: tid, message: Message::Apr(apr) });
        Err(CmDropReason::Refused)
    }
}
