//! SIDR requests for UD queue pairs, at both ends (IBTA 12.11).

use alloc::boxed::Box;
use core::time::Duration;

use ferroce_wire::cm::{CommId, Mad, Message, SidrRep, SidrReq, SidrStatus};
use ferroce_wire::{Instant, Pkey};

use super::connection::{Retry, bounded};
use super::listeners::{Ask, check_addresses};
use super::types::{CmEventKind, ListenerId, Route, SidrAnswer, SidrParams};
use super::{CmDropReason, CmError, ConnectionManager};

#[derive(Clone, Debug)]
pub(super) enum Sidr {
    /// Our request, repeated until the peer answers.
    Asking { route: Route, traffic_class: u8, mad: Mad, response_time: Duration, retry: Retry },
    /// A peer's request, not yet answered by the program; in the backlog of `listener` until the program has
    /// fetched it.
    Asked { route: Route, transaction_id: u64, req: SidrReq, listener: Option<ListenerId> },
}

impl ConnectionManager {
    /// Sends a SIDR_REQ for a service to a peer. [`CmEventKind::SidrReply`] or [`CmEventKind::Unreachable`]
    /// follows.
    ///
    /// # Errors
    ///
    /// [`CmError::Full`].
    pub fn resolve(&mut self, now: Instant, owner: u16, params: &SidrParams) -> Result<CommId, CmError> {
        let id = self.allocate(owner)?;
        let req = SidrReq {
            request_id: id,
            pkey: Pkey::DEFAULT,
            service_id: params.service_id,
            private: params.private,
        };
        let transaction_id = u64::from(self.random.next_u32()) << 32 | u64::from(id.0);
        let mad = Mad { transaction_id, message: Message::SidrReq(req) };
        let response_time = bounded(params.response_timeout.duration());
        let retry = Retry { at: now + response_time, left: params.max_cm_retries.min(15) };
        let (route, traffic_class) = (params.route, params.traffic_class);
        self.count_in(id, self.user(owner));
        self.timers.insert((retry.at, id));
        self.sidr.insert(id, Sidr::Asking { route, traffic_class, mad, response_time, retry });
        self.transmit(Some(owner), route, traffic_class, &mad);
        Ok(id)
    }

    /// Answers a SIDR request; its id becomes invalid. If the answer is lost, the peer repeats the request.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownId`] if no such request is pending.
    pub fn answer_sidr(&mut self, id: CommId, answer: &SidrAnswer) -> Result<(), CmError> {
        let Some(Sidr::Asked { route, transaction_id, req, .. }) = self.sidr.get(&id) else {
            return Err(CmError::UnknownId(id));
        };
        let (route, transaction_id) = (*route, *transaction_id);
        let rep = SidrRep {
            request_id: req.request_id,
            status: answer.status,
            ece: answer.ece,
            qpn: answer.qpn,
            service_id: req.service_id,
            qkey: answer.qkey,
            private: answer.private,
            ..SidrRep::default()
        };
        self.remove_sidr(id);
        self.transmit(
            Some(Self::owner(id)),
            route,
            0,
            &Mad { transaction_id, message: Message::SidrRep(rep) },
        );
        Ok(())
    }

    fn remove_sidr(&mut self, id: CommId) {
        match self.sidr.remove(&id) {
            Some(Sidr::Asking { retry, .. }) => {
                self.timers.remove(&(retry.at, id));
            }
            Some(Sidr::Asked { route, req, listener, .. }) => {
                self.asked.remove(&(route, req.request_id, self.user(Self::owner(id))));
                self.leave_backlog(listener);
            }
            None => return,
        }
        // A user's slots close their requests before another user has them.
        self.count_out(id, self.user(Self::owner(id)));
    }

    /// The program has fetched a peer's request, which leaves the backlog (Linux 6.12, `ucma_get_event`).
    /// Returns whether `id` is a SIDR request.
    pub(super) fn fetched_sidr(&mut self, id: CommId) -> bool {
        let Some(sidr) = self.sidr.get_mut(&id) else { return false };
        if let Sidr::Asked { listener, .. } = sidr {
            let listener = listener.take();
            self.leave_backlog(listener);
        }
        true
    }

    fn leave_backlog(&mut self, listener: Option<ListenerId>) {
        if let Some(listener) = listener {
            self.listeners.answered(listener);
        }
    }

    /// Drops our own request, or refuses the peer's.
    pub(super) fn close_sidr(&mut self, id: CommId) {
        if let Some(Sidr::Asked { .. }) = self.sidr.get(&id) {
            // The entry exists, so this call answers it.
            let refusal = SidrAnswer { status: SidrStatus::REJECTED, ..SidrAnswer::default() };
            let _ = self.answer_sidr(id, &refusal);
        } else {
            self.remove_sidr(id);
        }
    }

    pub(super) fn sidr_timeout(&mut self, now: Instant, id: CommId) {
        let Some(Sidr::Asking { route, traffic_class, mad, response_time, retry }) = self.sidr.get_mut(&id)
        else {
            return;
        };
        let Some(next) = retry.again(now, *response_time) else {
            self.tell(id, CmEventKind::Unreachable);
            self.remove_sidr(id);
            return;
        };
        *retry = next;
        let (route, traffic_class, mad, at) = (*route, *traffic_class, *mad, retry.at);
        self.timers.insert((at, id));
        self.transmit_again(Self::owner(id), route, traffic_class, &mad);
    }

    pub(super) fn handle_sidr_req(
        &mut self,
        from: Route,
        tid: u64,
        req: &SidrReq,
    ) -> Result<(), CmDropReason> {
        if req.request_id == CommId::NONE {
            return Err(CmDropReason::Invalid);
        }
        let (_, user) = self.listening(req.service_id, &from, Ask::Datagram);
        if self.pending(from, req.request_id, user).is_some() {
            return Err(CmDropReason::Duplicate);
        }
        let honest = check_addresses(req.service_id, &req.private.0, &from)?;
        let listener = self.listeners.find(req.service_id, &from, Ask::Datagram);
        let Some(listener) = listener.filter(|_| honest && req.pkey.matches(Pkey::DEFAULT)) else {
            let SidrReq { request_id, service_id, .. } = *req;
            let status = SidrStatus::UNSUPPORTED;
            let rep = SidrRep { request_id, service_id, status, ..SidrRep::default() };
            self.answer(None, from, Mad { transaction_id: tid, message: Message::SidrRep(rep) });
            return Err(CmDropReason::Refused);
        };
        let owner = self.listeners.wait(listener).ok_or(CmDropReason::Backlog)?;
        let Ok(id) = self.allocate(owner) else {
            self.listeners.answered(listener);
            return Err(CmDropReason::Backlog);
        };
        self.count_in(id, self.user(owner));
        self.asked.insert((from, req.request_id, self.user(owner)), id);
        let listener_of = Some(listener);
        self.sidr
            .insert(id, Sidr::Asked { route: from, transaction_id: tid, req: *req, listener: listener_of });
        self.tell(id, CmEventKind::SidrRequest { listener, route: from, req: Box::new(*req) });
        Ok(())
    }

    pub(super) fn handle_sidr_rep(&mut self, from: Route, rep: &SidrRep) -> Result<(), CmDropReason> {
        let id = rep.request_id;
        let Some(Sidr::Asking { route, mad, .. }) = self.sidr.get(&id) else {
            return Err(CmDropReason::UnknownId);
        };
        let Message::SidrReq(req) = &mad.message else { return Err(CmDropReason::State) };
        // A refusal may carry another service id.
        let same = req.service_id == rep.service_id || rep.status != SidrStatus::VALID;
        if *route != from || !same {
            return Err(CmDropReason::WrongPeer);
        }
        self.tell(id, CmEventKind::SidrReply { rep: Box::new(*rep) });
        self.remove_sidr(id);
        Ok(())
    }
}
