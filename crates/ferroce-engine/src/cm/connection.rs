//! Connections and SIDR requests of this process.

use std::fmt;
use std::sync::Arc;

use ferroce_cm::{AcceptParams, ConnectParams, SidrAnswer, SidrParams};
use ferroce_ipc::{CmDone, CmRequest};
use ferroce_wire::Psn;
use ferroce_wire::cm::{CmTime, CommId, Info, PrivateData, RejReason, Req};

use super::{CmError, EventSink, iwarp};
use crate::engine::Engine;

/// A communication id of this process. Dropped, it is closed at the broker.
pub(super) struct Owned {
    engine: Arc<Engine>,
    id: CommId,
}

impl Owned {
    pub(super) fn new(engine: Arc<Engine>, id: CommId) -> Self {
        Self { engine, id }
    }

    /// Has the broker make one, whose events `sink` takes.
    fn begin(request: CmRequest, sink: EventSink) -> Result<Self, CmError> {
        let engine = super::engine()?;
        let set = |done: &CmDone| engine.connections().set(done.id, sink);
        let done = engine.broker().connections(request, set)?;
        Ok(Self { engine, id: done.id })
    }

    /// Sends a request about it, and waits for the answer.
    fn ask(&self, request: CmRequest) -> Result<(), CmError> {
        self.engine.flush_all();
        self.engine.broker().connections(request, |_| {})?;
        Ok(())
    }

    /// Sends a request about it that needs no answer.
    fn go_on(&self, request: CmRequest) -> Result<(), CmError> {
        self.engine.flush_all();
        Ok(self.engine.broker().go_on(request)?)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.engine.is_ours() {
            self.engine.connections().forget(self.id);
            self.engine.broker().tell(CmRequest::Close(self.id));
        }
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

/// A connection of either transport, or a request for one. The drop ends it according to its state: it
/// disconnects, rejects or gives up.
#[derive(Debug)]
pub struct Connection(pub(super) Transport);

/// The transport of a connection.
#[derive(Debug)]
pub(super) enum Transport {
    Roce(Owned),
    Iwarp(iwarp::Connection),
}

impl Connection {
    /// Sends a REQ as it is; [`super::Port::connect`] makes one for a route. Returns the REQ as well, from
    /// which and from the REP [`super::attributes::active`] derives the attributes of the queue pair.
    ///
    /// # Errors
    /// [`CmError::NoAddress`], [`CmError::Full`], and those of a process without broker or slot.
    pub fn send(params: &ConnectParams, sink: EventSink) -> Result<(Self, Req), CmError> {
        let psn = match params.starting_psn {
            Some(psn) => psn,
            None => Psn::new(super::engine()?.secret_random()),
        };
        let request = ConnectParams { starting_psn: Some(psn), ..*params };
        let owned = Owned::begin(CmRequest::Connect(Box::new(request)), sink)?;
        let req = params.req(owned.id, psn);
        Ok((Self(Transport::Roce(owned)), req))
    }

    /// Communication id of the connection; `None` on iWARP, which has none.
    pub fn id(&self) -> Option<CommId> {
        match &self.0 {
            Transport::Roce(owned) => Some(owned.id),
            Transport::Iwarp(_) => None,
        }
    }

    /// From now on `sink` takes its events. Events that were delivered before stay where they are.
    #[doc(alias = "rdma_migrate_id")]
    pub fn set_sink(&self, sink: EventSink) {
        match &self.0 {
            Transport::Roce(owned) => owned.engine.connections().set(owned.id, sink),
            Transport::Iwarp(connection) => connection.set_sink(sink),
        }
    }

    /// Agrees to a request, with private data in the place of those of `params`: at most 196 octets by RoCE,
    /// 251 by iWARP. The RoCE queue pair must be able to receive before. iWARP takes the queue pair from INIT
    /// to RTS, and uses nothing else of `params` but its depths, which are rounded up to a power of two, at
    /// most 128.
    ///
    /// # Errors
    /// [`CmError::Gone`] if the peer took the request back; if it does so during the call, an event reports
    /// it. [`CmError::State`] if there is no request to answer. [`CmError::PrivateData`].
    /// [`CmError::Invalid`] if iWARP cannot use the queue pair.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, params: &AcceptParams, private: &[u8]) -> Result<(), CmError> {
        match &self.0 {
            Transport::Roce(owned) => {
                let params = AcceptParams { private: PrivateData::new(private)?, ..*params };
                owned.go_on(CmRequest::Accept { id: owned.id, params: Box::new(params) })
            }
            Transport::Iwarp(connection) => connection.accept(params, private),
        }
    }

    /// Refuses a request, or a reply of RoCE, with private data of at most 148 octets by RoCE, 251 by iWARP.
    /// iWARP has no reasons.
    ///
    /// # Errors
    /// As [`Connection::accept`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, reason: RejReason, private: &[u8]) -> Result<(), CmError> {
        match &self.0 {
            Transport::Roce(owned) => {
                let private = Box::new(PrivateData::new(private)?);
                owned.ask(CmRequest::Reject { id: owned.id, reason, info: Info::NONE, private })
            }
            Transport::Iwarp(connection) => connection.reject(private),
        }
    }

    /// After a reply: the queue pair is set up. At the passive end: data came before the peer's last message.
    /// TCP needs no hint.
    ///
    /// # Errors
    /// [`CmError::Gone`]. If the connection ends during the call, an event reports it.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), CmError> {
        match &self.0 {
            Transport::Roce(owned) => owned.go_on(CmRequest::Establish(owned.id)),
            Transport::Iwarp(_) => Ok(()),
        }
    }

    /// Ends the connection, or agrees that the peer ends it. The RoCE queue pair should be in the error state
    /// before; iWARP takes it there. If an iWARP peer has another stack, this waits until FIN has left, for
    /// 250 ms at most.
    ///
    /// # Errors
    /// [`CmError::Gone`] by RoCE; none if it ends already. [`CmError::State`] by iWARP if it is not yet
    /// established, which by RoCE changes nothing.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), CmError> {
        match &self.0 {
            Transport::Roce(owned) => owned.go_on(CmRequest::Disconnect(owned.id)),
            Transport::Iwarp(connection) => connection.disconnect(),
        }
    }

    /// The program has fetched the request: it leaves the listener's backlog, as in Linux (6.12,
    /// `ucma_get_event`), and a RoCE peer gets an MRA if it repeats its message (`cma_ib_req_handler`).
    pub fn was_fetched(&self) {
        match &self.0 {
            Transport::Roce(owned) => was_fetched(owned),
            Transport::Iwarp(connection) => connection.was_fetched(),
        }
    }
}

fn was_fetched(owned: &Owned) {
    let service_timeout = CmTime::saturating(24);
    owned.engine.broker().tell(CmRequest::Mra { id: owned.id, service_timeout, at_once: false });
}

/// A request for the UD queue pair behind a service, ours or a peer's. Dropped, ours is given up and a peer's
/// is refused.
#[derive(Debug)]
pub struct SidrRequest(pub(super) Owned);

impl SidrRequest {
    /// Asks a peer, whose answer `sink` takes.
    ///
    /// # Errors
    /// As [`Connection::send`].
    #[doc(alias = "rdma_connect")]
    pub fn send(params: &SidrParams, sink: EventSink) -> Result<Self, CmError> {
        Owned::begin(CmRequest::Resolve(Box::new(*params)), sink).map(Self)
    }

    /// Communication id of the SIDR request.
    pub fn id(&self) -> CommId {
        self.0.id
    }

    /// From now on `sink` takes its events.
    pub fn set_sink(&self, sink: EventSink) {
        self.0.engine.connections().set(self.0.id, sink);
    }

    /// The program has fetched the request: it leaves the listener's backlog, as in Linux (6.12,
    /// `ucma_get_event`).
    pub fn was_fetched(&self) {
        was_fetched(&self.0);
    }

    /// Answers a peer.
    ///
    /// # Errors
    /// [`CmError::Gone`] if it was answered.
    #[doc(alias = "rdma_accept")]
    pub fn answer(&self, answer: &SidrAnswer) -> Result<(), CmError> {
        let request = CmRequest::Answer { id: self.0.id, answer: Box::new(*answer) };
        self.0.engine.broker().connections(request, |_| {})?;
        Ok(())
    }
}
