//! How connections end: DREQ, DREP, time-wait (IBTA 12.9).

use alloc::vec::Vec;
use ferroce_wire::Instant;
use ferroce_wire::cm::{About, CommId, Drep, Dreq, Info, Mad, Message, PrivateData, RejReason};

use super::connection::{CmState, Connection};
use super::types::{CmEventKind, Disconnect, Route};
use super::{CmDropReason, CmError, ConnectionManager};

impl ConnectionManager {
    /// Ends a connection, or agrees that the peer ends it. The program should move the queue pair to the
    /// error state first.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownId`]; [`CmError::State`] if it is not yet established. The call succeeds if it is
    /// already ending.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self, now: Instant, id: CommId) -> Result<(), CmError> {
        match self.get(id)?.state {
            CmState::Established => {
                self.send_dreq(now, id);
                Ok(())
            }
            CmState::DreqRcvd => {
                self.send_drep(id);
                self.time_wait(now, id, "disconnect");
                Ok(())
            }
            CmState::DreqSent(_) | CmState::TimeWait(_) => Ok(()),
            ref other => Err(CmError::State(other.name())),
        }
    }

    /// Closes a connection, SIDR request or pending request in any state: the peer is informed, and no
    /// further event is reported for it. CmState that the protocol needs for longer is kept internally.
    pub fn close(&mut self, now: Instant, id: CommId) {
        if self.sidr.contains_key(&id) {
            self.close_sidr(id);
            return;
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.orphaned = true;
        let consumer = RejReason::CONSUMER;
        match connection.state {
            CmState::ReqSent(_) | CmState::MraReqRcvd(_) => {
                self.send_timeout(id, About::REQ);
                self.remove(id);
            }
            CmState::ReqRcvd | CmState::MraReqSent(_) => {
                self.send_rej(id, About::REQ, consumer, Info::NONE, PrivateData::EMPTY);
                self.remove(id);
            }
            CmState::RepRcvd | CmState::MraRepSent(_) => {
                self.send_rej(id, About::REP, consumer, Info::NONE, PrivateData::EMPTY);
                self.time_wait(now, id, "close");
            }
            // Revokes our own REP.
            CmState::RepSent(_) | CmState::MraRepRcvd(_) => {
                self.send_rej(id, About::OTHER, consumer, Info::NONE, PrivateData::EMPTY);
                self.time_wait(now, id, "close");
            }
            CmState::Established => self.send_dreq(now, id),
            CmState::DreqRcvd => {
                self.send_drep(id);
                self.time_wait(now, id, "close");
            }
            CmState::DreqSent(_) | CmState::TimeWait(_) => {}
        }
    }

    /// Closes the listeners of an owner that has ended, and at most `most` of its connections and SIDR
    /// requests. Returns how many more it would have closed: 0 if there may be others.
    pub fn close_owner(&mut self, now: Instant, owner: u16, most: usize) -> usize {
        self.listeners.remove_owner(owner);
        let questions = self.sidr.range(Self::ids_of(owner)).map(|(id, _)| *id);
        let ids: Vec<_> = self.connections_of(owner).chain(questions).take(most).collect();
        for id in &ids {
            self.close(now, *id);
        }
        self.events.retain(|event| event.owner != owner);
        self.users.remove(&owner);
        most - ids.len()
    }

    /// The peer uses its queue pair for a new connection, so the old one has ended. Returns false, and
    /// changes nothing, if the request may be forged and too many such requests were accepted recently.
    pub(super) fn end_stale(&mut self, now: Instant, old: CommId) -> bool {
        let ends = self.connections.get(&old).filter(|connection| connection.state == CmState::Established);
        if let Some(Connection { user, .. }) = ends {
            if !self.stale.entry(*user).or_default().take(now) {
                return false;
            }
            self.send_dreq(now, old);
        }
        true
    }

    fn send_dreq(&mut self, now: Instant, id: CommId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let retry = connection.first_try(now);
        let Some(dreq) = self.dreq(id) else { return };
        self.enter(id, "disconnect", CmState::DreqSent(retry));
        self.send(id, Message::Dreq(dreq));
    }

    pub(super) fn dreq(&self, id: CommId) -> Option<Dreq> {
        let connection = self.connections.get(&id)?;
        let remote_qpn = ferroce_wire::Qpn::new(connection.qp_key()?.qpn);
        let remote_id = connection.remote_id()?;
        Some(Dreq { local_id: id, remote_id, remote_qpn, private: PrivateData::EMPTY })
    }

    fn send_drep(&mut self, id: CommId) {
        if let Some(remote_id) = self.connections.get(&id).and_then(Connection::remote_id) {
            self.send(id, Message::Drep(Drep { local_id: id, remote_id, private: PrivateData::EMPTY }));
        }
    }

    pub(super) fn disconnected(&mut self, now: Instant, id: CommId, event: &'static str, how: Disconnect) {
        self.tell(id, CmEventKind::Disconnected(how));
        self.time_wait(now, id, event);
    }

    pub(super) fn dreq_unanswered(&mut self, now: Instant, id: CommId) {
        self.disconnected(now, id, "timeout", Disconnect::NoAnswer);
    }

    pub(super) fn handle_dreq(
        &mut self,
        now: Instant,
        from: Route,
        tid: u64,
        dreq: &Dreq,
    ) -> Result<(), CmDropReason> {
        let connection = match self.of_peer(from, dreq.remote_id, dreq.local_id) {
            Ok(connection) => connection,
            Err(reason) => {
                // An unknown DREQ is always answered with a DREP (IBTA 12.9).
                let (local_id, remote_id) = (dreq.remote_id, dreq.local_id);
                let drep = Drep { local_id, remote_id, private: PrivateData::EMPTY };
                self.answer(None, from, Mad { transaction_id: tid, message: Message::Drep(drep) });
                return Err(reason);
            }
        };
        let id = connection.id;
        if connection.local_qpn() != Some(dreq.remote_qpn) {
            return Err(CmDropReason::WrongPeer);
        }
        let (state, alone) = (connection.state, connection.orphaned);
        if let Some(connection) = self.connections.get_mut(&id) {
            // The DREP must carry the transaction id of the DREQ.
            connection.transaction_id = tid;
        }
        match state {
            CmState::Established
            | CmState::RepSent(_)
            | CmState::MraRepRcvd(_)
            | CmState::RepRcvd
            | CmState::MraRepSent(_) => {
                self.tell(id, CmEventKind::Disconnected(Disconnect::ByPeer));
                self.enter(id, "DREQ", CmState::DreqRcvd);
                if alone {
                    self.send_drep(id);
                    self.time_wait(now, id, "close");
                }
                Ok(())
            }
            // Both ends are disconnecting: neither program has to agree.
            CmState::DreqSent(_) => {
                self.send_drep(id);
                self.disconnected(now, id, "DREQ", Disconnect::ByUs);
                Ok(())
            }
            CmState::TimeWait(_) => {
                self.send_drep(id);
                Err(CmDropReason::Duplicate)
            }
            CmState::DreqRcvd => Err(CmDropReason::Duplicate),
            CmState::ReqSent(_) | CmState::MraReqRcvd(_) | CmState::ReqRcvd | CmState::MraReqSent(_) => {
                Err(CmDropReason::State)
            }
        }
    }

    pub(super) fn handle_drep(&mut self, now: Instant, from: Route, drep: &Drep) -> Result<(), CmDropReason> {
        let connection = self.of_peer(from, drep.remote_id, drep.local_id)?;
        let id = connection.id;
        match connection.state {
            CmState::DreqSent(_) => {
                self.disconnected(now, id, "DREP", Disconnect::ByUs);
                Ok(())
            }
            CmState::TimeWait(_) => Err(CmDropReason::Duplicate),
            _ => Err(CmDropReason::State),
        }
    }
}
