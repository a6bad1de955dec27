//! The active end of a connection: it sends the REQ, receives the REP and sends the RTU (IBTA 12.9).

use alloc::boxed::Box;
use ferroce_wire::Instant;
use ferroce_wire::cm::{
    About, CmTime, CommId, Info, Message, Mra, PrivateData, Rej, RejReason, Rep, Req, Rtu,
};

use super::connection::{CmState, Connection, LONGEST_WAIT, QpKey, Retry, Role, bounded};
use super::types::{CmEventKind, ConnectParams, Disconnect, Route};
use super::{CmDropReason, CmError, ConnectionManager, attributes};

impl ConnectionManager {
    /// Sends a REQ to a peer. The outcome is [`CmEventKind::Reply`], [`CmEventKind::Rejected`] or
    /// [`CmEventKind::Unreachable`]; peer to peer, [`CmEventKind::Request`] may come instead.
    ///
    /// # Errors
    ///
    /// [`CmError::Full`]; [`CmError::InUse`] if a peer-to-peer REQ for the same service is already
    /// outstanding to that peer.
    pub fn connect(&mut self, now: Instant, owner: u16, params: &ConnectParams) -> Result<CommId, CmError> {
        let user = self.user(owner);
        if params.peer_to_peer && self.peers.contains_key(&(params.service_id, params.route, user)) {
            return Err(CmError::InUse(params.service_id));
        }
        let id = self.allocate(owner)?;
        let psn = params.starting_psn.unwrap_or_else(|| ferroce_wire::Psn::new(self.random.next_u32()));
        let transaction_id = u64::from(self.random.next_u32()) << 32 | u64::from(id.0);
        let req = params.req(id, psn);
        let response_time = bounded(attributes::response_time(params.packet_life, params.response_timeout));
        let retry = Retry { at: now + response_time, left: req.max_cm_retries };
        self.insert(Connection {
            id,
            user,
            role: Role::Active,
            peer_to_peer: params.peer_to_peer,
            route: params.route,
            listener: None,
            transaction_id,
            req,
            rep: None,
            psn,
            response_time,
            orphaned: false,
            state: CmState::ReqSent(retry),
        });
        self.send(id, Message::Req(req));
        Ok(id)
    }

    /// Reports that the program has set up its queue pair after [`CmEventKind::Reply`]: sends the RTU, and
    /// the connection is established. No event follows. At the passive end, the program calls this when data
    /// arrived before the RTU (`AsyncEvent::CommEst`); [`CmEventKind::Established`] follows.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownId`]; [`CmError::State`] if the peer has not replied, or was not replied to. The
    /// call succeeds if the connection is already established.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&mut self, id: CommId) -> Result<(), CmError> {
        let connection = self.get(id)?;
        match connection.state {
            CmState::RepRcvd | CmState::MraRepSent(_) => {
                self.enter(id, "establish", CmState::Established);
                self.send_rtu(id);
                Ok(())
            }
            CmState::RepSent(_) | CmState::MraRepRcvd(_) => {
                self.enter(id, "data", CmState::Established);
                self.tell(id, CmEventKind::Established);
                Ok(())
            }
            CmState::Established => Ok(()),
            ref other => Err(CmError::State(other.name())),
        }
    }

    fn send_rtu(&mut self, id: CommId) {
        if let Some(remote_id) = self.connections.get(&id).and_then(Connection::remote_id) {
            self.send(id, Message::Rtu(Rtu { local_id: id, remote_id, private: PrivateData::EMPTY }));
        }
    }

    /// Repeats the unanswered message, or gives up when no retries are left.
    pub(super) fn connection_timeout(&mut self, now: Instant, id: CommId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let again = |retry: Retry| retry.again(now, connection.response_time);
        let (req, rep) = (connection.req, connection.rep);
        match connection.state {
            CmState::ReqSent(retry) => match again(retry) {
                Some(retry) => self.repeat(id, CmState::ReqSent(retry), Message::Req(req)),
                None => self.give_up(id, About::REQ),
            },
            CmState::MraReqRcvd(retry) => match again(retry) {
                Some(retry) => self.repeat(id, CmState::MraReqRcvd(retry), Message::Req(req)),
                None => self.give_up(id, About::REQ),
            },
            CmState::RepSent(retry) => match again(retry).zip(rep) {
                Some((retry, rep)) => self.repeat(id, CmState::RepSent(retry), Message::Rep(rep)),
                None => self.give_up(id, About::REP),
            },
            CmState::MraRepRcvd(retry) => match again(retry).zip(rep) {
                Some((retry, rep)) => self.repeat(id, CmState::MraRepRcvd(retry), Message::Rep(rep)),
                None => self.give_up(id, About::REP),
            },
            CmState::DreqSent(retry) => match again(retry).zip(self.dreq(id)) {
                Some((retry, dreq)) => self.repeat(id, CmState::DreqSent(retry), Message::Dreq(dreq)),
                None => self.dreq_unanswered(now, id),
            },
            CmState::TimeWait(_) => {
                self.tell(id, CmEventKind::TimeWaitOver);
                self.remove(id);
            }
            CmState::RepRcvd
            | CmState::MraRepSent(_)
            | CmState::ReqRcvd
            | CmState::MraReqSent(_)
            | CmState::Established
            | CmState::DreqRcvd => {}
        }
    }

    fn repeat(&mut self, id: CommId, state: CmState, message: Message) {
        self.enter(id, "timeout", state);
        if let Some(connection) = self.connections.get(&id) {
            let (route, mad) = (connection.route, connection.mad(message));
            let traffic_class = connection.req.primary.traffic_class;
            self.transmit_again(Self::owner(id), route, traffic_class, &mad);
        }
    }

    /// The peer does not answer: sends it a REJ, in case it can receive, and reports the end to the program.
    fn give_up(&mut self, id: CommId, about: About) {
        self.send_timeout(id, about);
        self.tell(id, CmEventKind::Unreachable);
        self.remove(id);
    }

    /// REJ 4. Its additional information is our GUID, by which a peer finds its connection although we do not
    /// know its id (IBTA 12.6.7).
    pub(super) fn send_timeout(&mut self, id: CommId, about: About) {
        let Some(connection) = self.connections.get(&id) else { return };
        let guid = match (connection.role, &connection.rep) {
            (Role::Passive, Some(rep)) => rep.ca_guid,
            (Role::Active, _) | (Role::Passive, None) => connection.req.ca_guid,
        };
        let info = Info::new(&guid.to_be_bytes());
        self.send_rej(id, about, RejReason::TIMEOUT, info, PrivateData::EMPTY);
    }

    pub(super) fn send_rej(
        &mut self,
        id: CommId,
        about: About,
        reason: RejReason,
        info: Info,
        private: PrivateData<148>,
    ) {
        let Some(connection) = self.connections.get(&id) else { return };
        let remote_id = connection.remote_id().unwrap_or(CommId::NONE);
        self.send(id, Message::Rej(Rej { local_id: id, remote_id, about, reason, info, private }));
    }

    pub(super) fn handle_rep(
        &mut self,
        now: Instant,
        from: Route,
        tid: u64,
        rep: &Rep,
    ) -> Result<(), CmDropReason> {
        if rep.local_id == CommId::NONE {
            return Err(CmDropReason::Invalid);
        }
        let id = rep.remote_id;
        let Some(connection) = self.connections.get(&id) else {
            // The program has given up the request: the peer need not repeat its REP for a minute (IBTA
            // 12.6.7, reason 6).
            self.refuse(from, tid, rep.local_id, About::REP, RejReason::INVALID_COMM_ID, Info::NONE);
            return Err(CmDropReason::UnknownId);
        };
        if connection.route != from || connection.role != Role::Active {
            return Err(CmDropReason::WrongPeer);
        }
        match connection.state {
            CmState::ReqSent(_) | CmState::MraReqRcvd(_) => self.take_rep(now, id, rep),
            CmState::RepRcvd
            | CmState::MraRepSent(_)
            | CmState::Established
            | CmState::DreqSent(_)
            | CmState::DreqRcvd
            | CmState::TimeWait(_) => self.repeated_rep(id, tid, rep),
            CmState::ReqRcvd | CmState::MraReqSent(_) | CmState::RepSent(_) | CmState::MraRepRcvd(_) => {
                Err(CmDropReason::State)
            }
        }
    }

    fn take_rep(&mut self, now: Instant, id: CommId, rep: &Rep) -> Result<(), CmDropReason> {
        let Some(connection) = self.connections.get_mut(&id) else { return Err(CmDropReason::UnknownId) };
        connection.rep = Some(*rep);
        let key = connection.qp_key();
        if let Some(old) = key.and_then(|key| self.holder(key, id)) {
            // According to our table that queue pair is connected: the peer has started anew (IBTA
            // 12.9.8.3.1).
            self.send_rej(id, About::REP, RejReason::STALE_CONNECTION, Info::NONE, PrivateData::EMPTY);
            self.tell(id, stale());
            self.remove(id);
            self.end_stale(now, old);
            return Err(CmDropReason::Refused);
        }
        if let Some(key) = key {
            self.by_qp.insert(key, id);
        }
        self.enter(id, "REP", CmState::RepRcvd);
        self.tell(id, CmEventKind::Reply { rep: Box::new(*rep) });
        Ok(())
    }

    /// Another connection that has this queue pair of the peer.
    pub(super) fn holder(&self, key: QpKey, id: CommId) -> Option<CommId> {
        self.by_qp.get(&key).copied().filter(|holder| *holder != id)
    }

    /// The peer repeats its REP, so our answer to it was lost.
    fn repeated_rep(&mut self, id: CommId, tid: u64, rep: &Rep) -> Result<(), CmDropReason> {
        let Some(connection) = self.connections.get(&id) else { return Err(CmDropReason::UnknownId) };
        if connection.remote_id() != Some(rep.local_id) {
            // The REP answers a late duplicate of a REQ: that duplicate led to another connection, which has
            // ended.
            let from = connection.route;
            self.refuse(from, tid, rep.local_id, About::REP, RejReason::INVALID_COMM_ID, Info::NONE);
            return Err(CmDropReason::WrongPeer);
        }
        match connection.state {
            CmState::Established => self.send_rtu(id),
            CmState::MraRepSent(service_timeout) => self.send_mra_message(id, service_timeout),
            // The program has not fetched the reply, or sets up its queue pair (Linux 6.12,
            // `cma_ib_handler`).
            CmState::RepRcvd => self.send_mra_message(id, LONGEST_WAIT),
            _ => {}
        }
        Err(CmDropReason::Duplicate)
    }

    /// Announces that the program needs more time to decide about a REQ or a REP. With `at_once` the MRA is
    /// sent now, otherwise when the peer repeats its message. There is no MRA for a SIDR request, which only
    /// leaves the backlog.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownId`]; [`CmError::State`] if the peer expects no answer.
    pub fn send_mra(&mut self, id: CommId, service_timeout: CmTime, at_once: bool) -> Result<(), CmError> {
        if self.fetched_sidr(id) {
            return Ok(());
        }
        let state = match self.get(id)?.state {
            CmState::ReqRcvd | CmState::MraReqSent(_) => CmState::MraReqSent(service_timeout),
            CmState::RepRcvd | CmState::MraRepSent(_) => CmState::MraRepSent(service_timeout),
            ref other => return Err(CmError::State(other.name())),
        };
        self.enter(id, "send MRA", state);
        if at_once {
            self.send_mra_message(id, service_timeout);
        }
        Ok(())
    }

    pub(super) fn send_mra_message(&mut self, id: CommId, service_timeout: CmTime) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Some(remote_id) = connection.remote_id() else { return };
        let about = if connection.role == Role::Passive { About::REQ } else { About::REP };
        let private = PrivateData::EMPTY;
        self.send(id, Message::Mra(Mra { local_id: id, remote_id, about, service_timeout, private }));
    }

    pub(super) fn handle_mra(&mut self, now: Instant, from: Route, mra: &Mra) -> Result<(), CmDropReason> {
        let id = mra.remote_id;
        let connection = self.connections.get(&id).ok_or(CmDropReason::UnknownId)?;
        if connection.route != from {
            return Err(CmDropReason::WrongPeer);
        }
        let wait = mra.service_timeout.min(LONGEST_WAIT).duration();
        let patient = |retry: Retry| Retry { at: now + wait + connection.response_time, ..retry };
        let state = match (connection.state, mra.about) {
            (CmState::ReqSent(retry), About::REQ) => CmState::MraReqRcvd(patient(retry)),
            (CmState::RepSent(retry), About::REP) if connection.remote_id() == Some(mra.local_id) => {
                CmState::MraRepRcvd(patient(retry))
            }
            // Only one MRA counts: a peer must not be able to postpone the end for ever.
            (CmState::MraReqRcvd(_) | CmState::MraRepRcvd(_), _) => {
                return Err(CmDropReason::Duplicate);
            }
            _ => return Err(CmDropReason::State),
        };
        self.enter(id, "MRA", state);
        Ok(())
    }

    pub(super) fn handle_rej(&mut self, now: Instant, from: Route, rej: &Rej) -> Result<(), CmDropReason> {
        let id = self.rejected(from, rej)?;
        let Some(connection) = self.connections.get(&id) else { return Err(CmDropReason::UnknownId) };
        let kind = CmEventKind::Rejected {
            about: rej.about,
            reason: rej.reason,
            info: rej.info,
            private: Box::new(rej.private),
        };
        let stale = rej.reason == RejReason::STALE_CONNECTION;
        let of_req = rej.about == About::REQ && rej.reason != RejReason::TIMEOUT;
        let wait = match connection.state {
            // The other end has not connected yet: its own REQ will come later, or it will accept the next
            // repetition of ours.
            CmState::ReqSent(_) if connection.peer_to_peer && rej.reason == RejReason::INVALID_SERVICE_ID => {
                return Err(CmDropReason::Duplicate);
            }
            CmState::ReqSent(_) | CmState::MraReqRcvd(_) => stale,
            // The peer refuses a duplicate of a REQ that it answered before; peer to peer, it refuses our own
            // REQ.
            CmState::RepRcvd
            | CmState::MraRepSent(_)
            | CmState::RepSent(_)
            | CmState::MraRepRcvd(_)
            | CmState::Established
                if of_req =>
            {
                return Err(CmDropReason::Duplicate);
            }
            CmState::ReqRcvd | CmState::MraReqSent(_) => {
                if rej.reason != RejReason::TIMEOUT && rej.reason != RejReason::CONSUMER {
                    return Err(CmDropReason::State);
                }
                false
            }
            CmState::RepSent(_) | CmState::MraRepRcvd(_) => stale,
            CmState::RepRcvd | CmState::MraRepSent(_) => true,
            CmState::Established if rej.local_id == CommId::NONE => {
                return Err(CmDropReason::WrongPeer);
            }
            CmState::Established => true,
            // The REJ answers a message older than our DREQ, or it is forged.
            CmState::DreqSent(_) if rej.local_id == CommId::NONE && rej.about != About::OTHER => {
                return Err(CmDropReason::WrongPeer);
            }
            CmState::DreqSent(_) => {
                self.disconnected(now, id, "REJ", Disconnect::ByUs);
                return Ok(());
            }
            CmState::DreqRcvd | CmState::TimeWait(_) => return Err(CmDropReason::State),
        };
        self.tell(id, kind);
        if wait {
            self.time_wait(now, id, "REJ");
        } else {
            self.remove(id);
        }
        Ok(())
    }

    /// The connection that a REJ refers to, if it comes from that connection's peer.
    fn rejected(&self, from: Route, rej: &Rej) -> Result<CommId, CmDropReason> {
        if rej.remote_id == CommId::NONE && rej.reason == RejReason::TIMEOUT {
            // The sender does not know our id; it identifies itself by its own id and GUID.
            let guid = rej.info.get().first_chunk().ok_or(CmDropReason::Invalid)?;
            let id = self.repeated(from, rej.local_id, u64::from_be_bytes(*guid), None);
            let id = id.ok_or(CmDropReason::UnknownId)?;
            let same = self.connections.get(&id).is_some_and(|connection| connection.route == from);
            return if same { Ok(id) } else { Err(CmDropReason::WrongPeer) };
        }
        let connection = self.connections.get(&rej.remote_id).ok_or(CmDropReason::UnknownId)?;
        let theirs = connection.remote_id();
        let named = rej.local_id == CommId::NONE || theirs.is_none_or(|theirs| theirs == rej.local_id);
        if connection.route != from || !named {
            return Err(CmDropReason::WrongPeer);
        }
        Ok(connection.id)
    }

    /// The REQ of a connection and, if it came, the REP.
    pub fn messages(&self, id: CommId) -> Option<(&Req, Option<&Rep>)> {
        self.connections.get(&id).map(|connection| (&connection.req, connection.rep.as_ref()))
    }
}

/// The event for a REP that contradicts our table.
fn stale() -> CmEventKind {
    CmEventKind::Rejected {
        about: About::REP,
        reason: RejReason::STALE_CONNECTION,
        info: Info::NONE,
        private: Box::new(PrivateData::EMPTY),
    }
}
