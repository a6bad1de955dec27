//! The table of connections: ids, indexes, timers, and the one place where states change.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use ferroce_wire::Instant;
use ferroce_wire::cm::{CommId, Mad, Message, Req};
use ferroce_wire::mad::MAD_LEN;

use super::connection::{CmState, Connection, ReqKey, Role};
use super::types::{CmEvent, CmEventKind, Route, Transmit};
use super::{CmDropReason, CmError, ConnectionManager, ImportError, OUTBOX};

impl ConnectionManager {
    /// Reserves an unused id of an owner.
    pub(super) fn allocate(&mut self, owner: u16) -> Result<CommId, CmError> {
        self.room(owner)?;
        // Owners use a small part of their ids, so a few draws find a free one.
        for _ in 0..1000 {
            let random = self.random.next_u32() >> (32 - Self::OWNER_SHIFT);
            let id = CommId(u32::from(owner) << Self::OWNER_SHIFT | random);
            if id != CommId::NONE && !self.connections.contains_key(&id) && !self.sidr.contains_key(&id) {
                return Ok(id);
            }
        }
        Err(CmError::Full(self.config.max_per_owner))
    }

    pub(super) fn room(&self, owner: u16) -> Result<(), CmError> {
        if self.in_use() >= self.config.max_connections {
            return Err(CmError::Full(self.config.max_connections));
        }
        let user = self.user(owner);
        if self.used.get(&(user, owner)).is_some_and(|used| *used >= self.config.max_per_owner) {
            return Err(CmError::Full(self.config.max_per_owner));
        }
        match self.share {
            Some((own, most)) if user != own && self.in_use_by(user) >= most => Err(CmError::Full(most)),
            _ => Ok(()),
        }
    }

    pub(super) fn count_in(&mut self, id: CommId, user: u32) {
        let used = self.used.entry((user, Self::owner(id))).or_default();
        *used = used.saturating_add(1);
    }

    pub(super) fn count_out(&mut self, id: CommId, user: u32) {
        let key = (user, Self::owner(id));
        if let Some(used) = self.used.get_mut(&key) {
            *used = used.saturating_sub(1);
            if *used == 0 {
                self.used.remove(&key);
            }
        }
    }

    /// Adds a connection to the table and all its indexes.
    pub(super) fn insert(&mut self, connection: Connection) {
        let id = connection.id;
        self.count_in(id, connection.user);
        if let Some(key) = connection.req_key() {
            self.by_req.insert(key, id);
        }
        if let Some(key) = connection.qp_key() {
            self.by_qp.entry(key).or_insert(id);
        }
        if let Some(key) = connection.peer_key() {
            self.peers.insert(key, id);
        }
        if let Some(at) = connection.state.deadline() {
            self.timers.insert((at, id));
        }
        self.connections.insert(id, connection);
    }

    pub(super) fn remove(&mut self, id: CommId) {
        let Some(connection) = self.connections.remove(&id) else { return };
        tracing::debug!(?id, from = connection.state.name(), to = "idle");
        self.count_out(id, connection.user);
        if let Some(key) = connection.req_key()
            && self.by_req.get(&key) == Some(&id)
        {
            self.by_req.remove(&key);
        }
        if let Some(key) = connection.qp_key()
            && self.by_qp.get(&key) == Some(&id)
        {
            self.by_qp.remove(&key);
        }
        if let Some(key) = connection.peer_key() {
            self.peers.remove(&key);
        }
        if let Some(at) = connection.state.deadline() {
            self.timers.remove(&(at, id));
        }
        if connection.state.is_in_backlog()
            && let Some(listener) = connection.listener
        {
            self.listeners.answered(listener);
        }
    }

    /// Changes a connection's state. No other function does.
    pub(super) fn enter(&mut self, id: CommId, event: &'static str, to: CmState) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let from = core::mem::replace(&mut connection.state, to);
        tracing::debug!(?id, from = from.name(), event, to = to.name());
        if let Some(at) = from.deadline() {
            self.timers.remove(&(at, id));
        }
        if let Some(at) = to.deadline() {
            self.timers.insert((at, id));
        }
        if from.is_in_backlog()
            && !to.is_in_backlog()
            && let Some(listener) = connection.listener.take()
        {
            self.listeners.answered(listener);
        }
    }

    /// Moves a connection to time-wait.
    pub(super) fn time_wait(&mut self, now: Instant, id: CommId, event: &'static str) {
        if let Some(connection) = self.connections.get(&id) {
            let state = connection.time_wait(now);
            self.enter(id, event, state);
        }
    }

    pub(super) fn get(&self, id: CommId) -> Result<&Connection, CmError> {
        let connection = self.connections.get(&id).ok_or(CmError::UnknownId(id))?;
        // The program has closed the connection, so its id is unknown to programs.
        if connection.orphaned { Err(CmError::UnknownId(id)) } else { Ok(connection) }
    }

    /// The connection that a message names by both ids, if it comes from that connection's peer.
    pub(super) fn of_peer(
        &self,
        from: Route,
        ours: CommId,
        theirs: CommId,
    ) -> Result<&Connection, CmDropReason> {
        let connection = self.connections.get(&ours).ok_or(CmDropReason::UnknownId)?;
        if connection.route != from || connection.remote_id() != Some(theirs) {
            return Err(CmDropReason::WrongPeer);
        }
        Ok(connection)
    }

    /// The connection of a REQ that came before. `user` is the user of the listener for it; without one, all
    /// users' connections count.
    pub(super) fn repeated(&self, from: Route, id: CommId, guid: u64, user: Option<u32>) -> Option<CommId> {
        entry_of(&self.by_req, user, |user| ReqKey { remote: from.remote, id, guid, user })
    }

    /// The peer-to-peer connection that a REQ crosses; `user` as in [`Self::repeated`].
    pub(super) fn crossed(&self, from: Route, req: &Req, user: Option<u32>) -> Option<CommId> {
        entry_of(&self.peers, user, |user| (req.service_id, from, user))
    }

    /// The peer's SIDR request that came before and waits for an answer; `user` as in [`Self::repeated`].
    pub(super) fn pending(&self, from: Route, id: CommId, user: Option<u32>) -> Option<CommId> {
        entry_of(&self.asked, user, |user| (from, id, user))
    }

    /// Sends a message of a connection.
    pub(super) fn send(&mut self, id: CommId, message: Message) {
        if let Some(connection) = self.connections.get(&id) {
            let (route, mad) = (connection.route, connection.mad(message));
            let traffic_class = connection.req.primary.traffic_class;
            self.transmit(Some(Self::owner(id)), route, traffic_class, &mad);
        }
    }

    /// Answers a sender without an entry in the table, or for an `owner`, unless the outbox is full.
    pub(super) fn answer(&mut self, owner: Option<u16>, to: Route, mad: Mad) {
        if self.outbox.len() < OUTBOX {
            self.transmit(owner, to, 0, &mad);
        }
    }

    pub(super) fn transmit(&mut self, owner: Option<u16>, route: Route, traffic_class: u8, mad: &Mad) {
        tracing::trace!(?route, message = mad.message.name(), "send");
        let mad: Box<[u8; MAD_LEN]> = Box::new(mad.emit());
        self.outbox.push_back(Transmit { route, owner, traffic_class, mad });
    }

    /// Sends an unanswered message again.
    pub(super) fn transmit_again(&mut self, owner: u16, route: Route, traffic_class: u8, mad: &Mad) {
        self.transmit(Some(owner), route, traffic_class, mad);
        if let Some(again) = self.outbox.back() {
            self.counters.tx_retries.count(&again.mad[..]);
        }
    }

    /// Reports an event to a connection's program, if it has one.
    pub(super) fn tell(&mut self, id: CommId, kind: CmEventKind) {
        if self.connections.get(&id).is_none_or(|connection| !connection.orphaned) {
            self.events.push_back(CmEvent { owner: Self::owner(id), id, kind });
        }
    }

    /// Whether a connection from a record conflicts with no other one.
    pub(super) fn admits(&self, connection: &Connection) -> Result<(), ImportError> {
        let taken = connection.req_key().is_some_and(|key| self.by_req.contains_key(&key))
            || connection.qp_key().is_some_and(|key| self.by_qp.contains_key(&key))
            || connection.peer_key().is_some_and(|key| self.peers.contains_key(&key));
        if taken {
            return Err(ImportError::InUse);
        }
        self.has_place(connection.id)
    }

    /// Whether an id is free and the limits allow another entry.
    pub(super) fn has_place(&self, id: CommId) -> Result<(), ImportError> {
        if self.connections.contains_key(&id) || self.sidr.contains_key(&id) {
            return Err(ImportError::InUse);
        }
        self.room(Self::owner(id)).map_err(|error| match error {
            CmError::Full(limit) => ImportError::Full(limit),
            CmError::UnknownId(_) | CmError::State(_) | CmError::InUse(_) => ImportError::Invalid,
        })
    }

    /// Makes a peer-to-peer connection the passive end of the other end's REQ.
    pub(super) fn turn_passive(&mut self, id: CommId, change: impl FnOnce(&mut Connection)) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        change(&mut connection);
        connection.role = Role::Passive;
        if let Some(key) = connection.req_key() {
            self.by_req.insert(key, id);
        }
        if let Some(key) = connection.qp_key() {
            self.by_qp.insert(key, id);
        }
        self.connections.insert(id, connection);
        self.enter(id, "REQ of the peer", CmState::ReqRcvd);
    }
}

/// The entry of a user; without one, the first of any user.
fn entry_of<K: Ord>(map: &BTreeMap<K, CommId>, user: Option<u32>, key: impl Fn(u32) -> K) -> Option<CommId> {
    let users = user.map_or((0, u32::MAX), |user| (user, user));
    map.range(key(users.0)..=key(users.1)).next().map(|(_, id)| *id)
}
