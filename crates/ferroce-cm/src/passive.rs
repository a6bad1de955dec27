//! The passive end of a connection: it receives the REQ, sends the REP and receives the RTU (IBTA 12.9).

use alloc::boxed::Box;
use ferroce_wire::cm::{About, CommId, Info, Message, PrivateData, RejReason, Req, Rtu, Transport};
use ferroce_wire::{Instant, PathMtu, Pkey, Psn};

use super::connection::{CmState, Connection, QpKey, Role, rep_time};
use super::listeners::{Ask, check_addresses};
use super::types::{AcceptParams, CmEventKind, ListenerId, Route};
use super::{CmDropReason, CmError, ConnectionManager};

/// A request that is not reported to any program.
enum Refusal {
    Drop(CmDropReason),
    Rej(RejReason),
}

impl ConnectionManager {
    pub(super) fn handle_req(
        &mut self,
        now: Instant,
        from: Route,
        tid: u64,
        req: &Req,
    ) -> Result<(), CmDropReason> {
        if req.local_id == CommId::NONE {
            return Err(CmDropReason::Invalid);
        }
        let (_, user) = self.listening(req.service_id, &from, Ask::Connection);
        if let Some(id) = self.repeated(from, req.local_id, req.ca_guid, user) {
            return self.repeated_req(from, tid, id, req);
        }
        if let Some(id) = self.crossed(from, req, user) {
            return self.crossing_req(from, tid, id, req);
        }
        let reason = match self.examine(now, from, req) {
            Ok(listener) => return self.take_req(from, tid, req, listener),
            Err(Refusal::Drop(reason)) => return Err(reason),
            Err(Refusal::Rej(reason)) => reason,
        };
        let info = match reason {
            // The largest MTU that exists (IBTA 12.6.7).
            RejReason::INVALID_MTU => Info::new(&[PathMtu::B4096 as u8]),
            _ => Info::NONE,
        };
        self.refuse(from, tid, req.local_id, About::REQ, reason, info);
        Err(CmDropReason::Refused)
    }

    /// The listener that takes a request, or the reason for a refusal.
    fn examine(&mut self, now: Instant, from: Route, req: &Req) -> Result<ListenerId, Refusal> {
        let honest = check_addresses(req.service_id, &req.private.0, &from).map_err(Refusal::Drop)?;
        let listener = self.listeners.find(req.service_id, &from, Ask::Connection).filter(|_| honest);
        let listener = listener.ok_or(Refusal::Rej(RejReason::INVALID_SERVICE_ID))?;
        if !matches!(req.transport, Transport::Rc | Transport::Uc | Transport::XRC) {
            return Err(Refusal::Rej(RejReason::INVALID_TRANSPORT_TYPE));
        }
        if PathMtu::try_from(req.path_mtu).is_err() {
            return Err(Refusal::Rej(RejReason::INVALID_MTU));
        }
        if !req.pkey.matches(Pkey::DEFAULT) {
            return Err(Refusal::Rej(RejReason::UNSUPPORTED));
        }
        let user = self.listeners.owner(listener).map_or(0, |owner| self.user(owner));
        let key = QpKey { remote: from.remote, guid: req.ca_guid, qpn: req.qpn.value(), user };
        if let Some(old) = self.by_qp.get(&key).copied() {
            // According to our table that queue pair is connected, or was until just now (IBTA 12.9.8.3.1).
            if !self.end_stale(now, old) {
                return Err(Refusal::Drop(CmDropReason::Backlog));
            }
            return Err(Refusal::Rej(RejReason::STALE_CONNECTION));
        }
        Ok(listener)
    }

    fn take_req(
        &mut self,
        from: Route,
        tid: u64,
        req: &Req,
        listener: ListenerId,
    ) -> Result<(), CmDropReason> {
        let owner = self.listeners.wait(listener).ok_or(CmDropReason::Backlog)?;
        let Ok(id) = self.allocate(owner) else {
            self.listeners.answered(listener);
            return Err(CmDropReason::Backlog);
        };
        let psn = Psn::new(self.random.next_u32());
        self.insert(Connection {
            id,
            user: self.user(owner),
            role: Role::Passive,
            peer_to_peer: false,
            route: from,
            listener: Some(listener),
            transaction_id: tid,
            req: *req,
            rep: None,
            psn,
            response_time: rep_time(req),
            orphaned: false,
            state: CmState::ReqRcvd,
        });
        self.tell_request(id, Some(listener));
        Ok(())
    }

    fn tell_request(&mut self, id: CommId, listener: Option<ListenerId>) {
        let Some(connection) = self.connections.get(&id) else { return };
        let kind = CmEventKind::Request {
            listener,
            route: connection.route,
            req: Box::new(connection.req),
            starting_psn: connection.psn,
        };
        self.tell(id, kind);
    }

    /// The peer repeats its REQ, so our answer to it was lost.
    fn repeated_req(&mut self, from: Route, tid: u64, id: CommId, req: &Req) -> Result<(), CmDropReason> {
        let Some(connection) = self.connections.get(&id) else { return Err(CmDropReason::UnknownId) };
        let first = &connection.req;
        if (first.qpn, first.starting_psn, first.service_id) != (req.qpn, req.starting_psn, req.service_id) {
            // A different request uses an id that is in use (IBTA 12.6.7, reason 30).
            self.refuse(from, tid, req.local_id, About::REQ, RejReason::DUPLICATE_COMM_ID, Info::NONE);
            return Err(CmDropReason::Refused);
        }
        match connection.state {
            CmState::MraReqSent(service_timeout) => self.send_mra_message(id, service_timeout),
            CmState::TimeWait(_) => {
                self.refuse(from, tid, req.local_id, About::REQ, RejReason::STALE_CONNECTION, Info::NONE);
            }
            // A REP is repeated by its own timer.
            _ => {}
        }
        Err(CmDropReason::Duplicate)
    }

    /// Two peers send each other REQs: the end with the larger GUID, then the larger queue pair number, stays
    /// active (Linux orders them so; IBTA 12.10 requires only a comparison).
    fn crossing_req(&mut self, from: Route, tid: u64, id: CommId, req: &Req) -> Result<(), CmDropReason> {
        let Some(connection) = self.connections.get(&id) else { return Err(CmDropReason::UnknownId) };
        let ours = (connection.req.ca_guid, connection.req.qpn.value(), connection.req.local_id);
        let theirs = (req.ca_guid, req.qpn.value(), req.local_id);
        let open = matches!(connection.state, CmState::ReqSent(_) | CmState::MraReqRcvd(_));
        if !open || ours >= theirs {
            return Err(CmDropReason::Duplicate);
        }
        let honest = check_addresses(req.service_id, &req.private.0, &from)?;
        let (remote, user) = (from.remote, connection.user);
        let key = QpKey { remote, guid: req.ca_guid, qpn: req.qpn.value(), user };
        if !honest || self.by_qp.contains_key(&key) || PathMtu::try_from(req.path_mtu).is_err() {
            return Err(CmDropReason::Invalid);
        }
        self.turn_passive(id, |connection| {
            connection.req = *req;
            connection.transaction_id = tid;
            connection.response_time = rep_time(req);
        });
        self.tell_request(id, None);
        Ok(())
    }

    /// Accepts a request. The queue pair must be able to receive: the peer may send as soon as it has the
    /// REP.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownId`]; [`CmError::State`] if the request was answered before.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&mut self, now: Instant, id: CommId, params: &AcceptParams) -> Result<(), CmError> {
        let connection = self.get(id)?;
        if !connection.state.waits_for_program() {
            return Err(CmError::State(connection.state.name()));
        }
        let rep = params.rep(id, connection.psn, &connection.req);
        let retry = connection.first_try(now);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.rep = Some(rep);
        }
        self.enter(id, "accept", CmState::RepSent(retry));
        self.send(id, Message::Rep(rep));
        Ok(())
    }

    /// Refuses a request or a reply.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownId`]; [`CmError::State`] if no request or reply is pending.
    #[doc(alias = "rdma_reject")]
    pub fn reject(
        &mut self,
        now: Instant,
        id: CommId,
        reason: RejReason,
        info: Info,
        private: PrivateData<148>,
    ) -> Result<(), CmError> {
        match self.get(id)?.state {
            CmState::ReqRcvd | CmState::MraReqSent(_) => {
                self.send_rej(id, About::REQ, reason, info, private);
                self.remove(id);
            }
            CmState::RepRcvd | CmState::MraRepSent(_) => {
                self.send_rej(id, About::REP, reason, info, private);
                self.time_wait(now, id, "reject");
            }
            ref other => return Err(CmError::State(other.name())),
        }
        Ok(())
    }

    pub(super) fn handle_rtu(&mut self, from: Route, rtu: &Rtu) -> Result<(), CmDropReason> {
        let connection = self.of_peer(from, rtu.remote_id, rtu.local_id)?;
        let id = connection.id;
        match connection.state {
            CmState::RepSent(_) | CmState::MraRepRcvd(_) => {
                self.enter(id, "RTU", CmState::Established);
                self.tell(id, CmEventKind::Established);
                Ok(())
            }
            CmState::Established => Err(CmDropReason::Duplicate),
            CmState::ReqSent(_)
            | CmState::MraReqRcvd(_)
            | CmState::RepRcvd
            | CmState::MraRepSent(_)
            | CmState::ReqRcvd
            | CmState::MraReqSent(_)
            | CmState::DreqSent(_)
            | CmState::DreqRcvd
            | CmState::TimeWait(_) => Err(CmDropReason::State),
        }
    }
}
