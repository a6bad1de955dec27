//! Connections and questions of this process.

use std::fmt;
use std::sync::Arc;

use ferroce_ipc::{CmAsk, CmConnect, CmRequest, CmRoute};
use ferroce_proto::cm::{AcceptParams, ConnectParams, Route, SidrAnswer, SidrParams};
use ferroce_wire::cm::{
    About, CmTime, CommId, Info, PrivateData, Rej, RejReason, Rep, Req, ServiceId, SidrRep, SidrReq,
};
use ferroce_wire::{Pkey, Psn};

use super::{CmError, Target};
use crate::engine::Engine;

/// A connection, or what may become one. Dropped, it is ended as its state wants: disconnected, rejected, given up.
pub struct Connection {
    engine: Arc<Engine>,
    id: CommId,
}

impl Connection {
    /// Asks a peer for a connection, and tells `target` what becomes of it. Returns the REQ as well, from which and from
    /// the REP [`super::attributes::active`] derives what the queue pair is set to.
    ///
    /// # Errors
    /// [`CmError::NoAddress`], [`CmError::Full`], and those of a process without broker or slot.
    #[doc(alias = "rdma_connect")]
    pub fn connect(params: &ConnectParams, target: Target) -> Result<(Self, Req), CmError> {
        let engine = super::engine()?;
        let psn = params.starting_psn.unwrap_or_else(|| Psn::new(engine.secret_random()));
        let mut req = params.req(CommId::NONE, psn);
        let connect = CmConnect {
            route: said(params.route),
            peer_to_peer: params.peer_to_peer,
            packet_life: params.packet_life,
            ack_delay: params.ack_delay,
            req,
        };
        let request = CmRequest::Connect(Box::new(connect));
        let done = engine.broker().connections(request, |done| engine.connections().set(done.id, target))?;
        req.local_id = done.id;
        Ok((Self { engine, id: done.id }, req))
    }

    pub(super) fn adopted(engine: Arc<Engine>, id: CommId) -> Self {
        Self { engine, id }
    }

    /// Its communication id.
    pub fn id(&self) -> CommId {
        self.id
    }

    /// From now on `target` is told what happens to it. Events that were told before stay where they are.
    #[doc(alias = "rdma_migrate_id")]
    pub fn set_target(&self, target: Target) {
        self.engine.connections().set(self.id, target);
    }

    /// Agrees to a request. The queue pair must be able to receive before.
    ///
    /// # Errors
    /// [`CmError::Gone`] if the peer took the request back; if it does so meanwhile, its events tell.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, params: &AcceptParams, req: &Req) -> Result<(), CmError> {
        // The PSN is the broker's, who told it with the request.
        let rep = Rep { local_id: self.id, ..params.rep(self.id, Psn::new(0), req) };
        self.go_on(CmRequest::Accept(Box::new(rep)))
    }

    /// Refuses a request or a reply.
    ///
    /// # Errors
    /// As [`Connection::accept`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, reason: RejReason, info: Info, private: PrivateData<148>) -> Result<(), CmError> {
        let (local_id, remote_id, about) = (self.id, CommId::NONE, About::REQ);
        self.ask(CmRequest::Reject(Box::new(Rej { local_id, remote_id, about, reason, info, private })))
    }

    /// After a reply: the queue pair is set up. At the passive end: data came before the peer's last message.
    ///
    /// # Errors
    /// [`CmError::Gone`]. If it ends meanwhile, its events tell.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), CmError> {
        self.go_on(CmRequest::Establish(self.id))
    }

    /// Ends the connection, or agrees that the peer ends it. The queue pair should be in the error state before.
    ///
    /// # Errors
    /// [`CmError::Gone`]; none if it ends already, or is not yet established, which changes nothing.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), CmError> {
        self.go_on(CmRequest::Disconnect(self.id))
    }

    /// The decision about a request or a reply will take longer: the peer is told now, or when it asks again.
    ///
    /// # Errors
    /// As [`Connection::accept`].
    pub fn delay(&self, service_timeout: CmTime, at_once: bool) -> Result<(), CmError> {
        self.ask(CmRequest::Mra { id: self.id, service_timeout, at_once })
    }

    fn go_on(&self, request: CmRequest) -> Result<(), CmError> {
        self.engine.flush_delayed_acks();
        Ok(self.engine.broker().go_on(request)?)
    }

    fn ask(&self, request: CmRequest) -> Result<(), CmError> {
        self.engine.flush_delayed_acks();
        self.engine.broker().connections(request, |_| {})?;
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        close(&self.engine, self.id);
    }
}

/// A question for a queue pair of datagrams, ours or a peer's. Dropped, ours is given up and a peer's is refused.
pub struct Question {
    engine: Arc<Engine>,
    id: CommId,
}

impl Question {
    /// Asks a peer, and tells `target` the answer.
    ///
    /// # Errors
    /// As [`Connection::connect`].
    #[doc(alias = "rdma_connect")]
    pub fn ask(params: &SidrParams, target: Target) -> Result<Self, CmError> {
        let engine = super::engine()?;
        let req = SidrReq {
            request_id: CommId::NONE,
            pkey: Pkey::DEFAULT,
            service_id: params.service_id,
            private: params.private,
        };
        let ask = CmAsk {
            route: said(params.route),
            response_timeout: params.response_timeout,
            retries: params.max_cm_retries,
            traffic_class: params.traffic_class,
            req,
        };
        let request = CmRequest::Ask(Box::new(ask));
        let done = engine.broker().connections(request, |done| engine.connections().set(done.id, target))?;
        Ok(Self { engine, id: done.id })
    }

    pub(super) fn adopted(engine: Arc<Engine>, id: CommId) -> Self {
        Self { engine, id }
    }

    /// Its id.
    pub fn id(&self) -> CommId {
        self.id
    }

    /// From now on `target` is told what happens to it.
    pub fn set_target(&self, target: Target) {
        self.engine.connections().set(self.id, target);
    }

    /// Answers a peer.
    ///
    /// # Errors
    /// [`CmError::Gone`] if it was answered.
    #[doc(alias = "rdma_accept")]
    pub fn answer(&self, answer: &SidrAnswer) -> Result<(), CmError> {
        let rep = SidrRep {
            request_id: self.id,
            status: answer.status,
            info: Info::NONE,
            ece: answer.ece,
            qpn: answer.qpn,
            service_id: ServiceId(0),
            qkey: answer.qkey,
            private: answer.private,
        };
        self.engine.broker().connections(CmRequest::Answer(Box::new(rep)), |_| {})?;
        Ok(())
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        close(&self.engine, self.id);
    }
}

fn close(engine: &Engine, id: CommId) {
    if engine.is_ours() {
        engine.connections().forget(id);
        engine.broker().tell(CmRequest::Close(id));
    }
}

fn said(route: Route) -> CmRoute {
    CmRoute { local: route.local, remote: route.remote, interface: route.interface }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("id", &self.id).finish_non_exhaustive()
    }
}
