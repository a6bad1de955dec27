//! Connections and SIDR requests of this process.

use std::fmt;
use std::sync::Arc;

use ferroce_cm::{AcceptParams, ConnectParams, SidrAnswer, SidrParams};
use ferroce_ipc::{CmDone, CmRequest};
use ferroce_wire::Psn;
use ferroce_wire::cm::{CmTime, CommId, Info, PrivateData, RejReason, Req};

use super::{CmError, EventSink};
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

/// A connection, or a request for one. The drop ends it according to its state: it disconnects, rejects or
/// gives up.
#[derive(Debug)]
pub struct Connection(pub(super) Owned);

impl Connection {
    /// Asks a peer for a connection, whose events `sink` takes. Returns the REQ as well, from which and from
    /// the REP [`super::attributes::active`] derives the attributes of the queue pair.
    ///
    /// # Errors
    /// [`CmError::NoAddress`], [`CmError::Full`], and those of a process without broker or slot.
    #[doc(alias = "rdma_connect")]
    pub fn connect(params: &ConnectParams, sink: EventSink) -> Result<(Self, Req), CmError> {
        let psn = match params.starting_psn {
            Some(psn) => psn,
            None => Psn::new(super::engine()?.secret_random()),
        };
        let request = ConnectParams { starting_psn: Some(psn), ..*params };
        let owned = Owned::begin(CmRequest::Connect(Box::new(request)), sink)?;
        let req = params.req(owned.id, psn);
        Ok((Self(owned), req))
    }

    /// Communication id of the connection.
    pub fn id(&self) -> CommId {
        self.0.id
    }

    /// From now on `sink` takes its events. Events that were delivered before stay where they are.
    #[doc(alias = "rdma_migrate_id")]
    pub fn set_sink(&self, sink: EventSink) {
        self.0.engine.connections().set(self.0.id, sink);
    }

    /// Agrees to a request. The queue pair must be able to receive before.
    ///
    /// # Errors
    /// [`CmError::Gone`] if the peer took the request back; if it does so during the call, an event reports
    /// it.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, params: &AcceptParams) -> Result<(), CmError> {
        self.0.go_on(CmRequest::Accept { id: self.0.id, params: Box::new(*params) })
    }

    /// Refuses a request or a reply.
    ///
    /// # Errors
    /// As [`Connection::accept`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, reason: RejReason, info: Info, private: PrivateData<148>) -> Result<(), CmError> {
        self.0.ask(CmRequest::Reject { id: self.0.id, reason, info, private: Box::new(private) })
    }

    /// After a reply: the queue pair is set up. At the passive end: data came before the peer's last message.
    ///
    /// # Errors
    /// [`CmError::Gone`]. If the connection ends during the call, an event reports it.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), CmError> {
        self.0.go_on(CmRequest::Establish(self.0.id))
    }

    /// Ends the connection, or agrees that the peer ends it. The queue pair should be in the error state
    /// before.
    ///
    /// # Errors
    /// [`CmError::Gone`]; none if it ends already, or is not yet established, which changes nothing.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), CmError> {
        self.0.go_on(CmRequest::Disconnect(self.0.id))
    }

    /// The program has fetched the request: it leaves the listener's backlog, as in Linux (6.12,
    /// `ucma_get_event`), and the peer gets an MRA if it repeats its message (`cma_ib_req_handler`).
    pub fn was_fetched(&self) {
        was_fetched(&self.0);
    }

    /// The decision about a request or a reply will take longer: the peer gets an MRA now, or when it repeats
    /// its message.
    ///
    /// # Errors
    /// As [`Connection::accept`].
    pub fn delay(&self, service_timeout: CmTime, at_once: bool) -> Result<(), CmError> {
        self.0.ask(CmRequest::Mra { id: self.0.id, service_timeout, at_once })
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
    /// As [`Connection::connect`].
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
    /// `ucma_get_event`). A broker before this rule refuses the message, and nothing follows.
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
