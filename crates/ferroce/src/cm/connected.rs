//! Connections, and those that are on their way to be.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ferroce_engine::cm::attributes;
use ferroce_engine::cm::{CmError, Connection, Event, EventKind, EventSink, Queue};
use ferroce_engine::{Qp, QpAttr, QpAttrMask, QpState};
use ferroce_wire::cm::{CmTime, RejReason, Rep, Req};

use super::ConnectError;
use super::end::End;
use crate::{Error, ProtectionDomain, QueuePair, ReadyToSend};

/// The events of a connection. When it ends, its queue pair does, so that a thread that waits for completions
/// wakes.
pub(super) struct Events {
    queue: Arc<Queue>,
    watched: Mutex<Watched>,
}

/// The queue pair of a connection, and whether the connection is over. Either may be known first.
#[derive(Default)]
struct Watched {
    qp: Option<Weak<Qp>>,
    over: bool,
}

impl Events {
    pub(super) fn new() -> Result<Arc<Self>, ConnectError> {
        Ok(Arc::new(Self { queue: Queue::new()?, watched: Mutex::default() }))
    }

    /// From now on `qp` ends with the connection, or now if the connection is over.
    pub(super) fn watch(&self, qp: &Arc<Qp>) {
        self.update(|watched| watched.qp = Some(Arc::downgrade(qp)));
    }

    fn update(&self, change: impl FnOnce(&mut Watched)) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut watched);
        let ended = if watched.over { watched.qp.as_ref().and_then(Weak::upgrade) } else { None };
        drop(watched);
        if let Some(qp) = ended {
            // A queue pair that was destroyed needs nothing more.
            let _ = fail(&qp);
        }
    }

    pub(super) fn sink(self: &Arc<Self>) -> EventSink {
        let events = Arc::clone(self);
        EventSink::new(move |event| events.push(event))
    }

    fn push(&self, event: Event) {
        if ends(&event.kind) {
            self.update(|watched| watched.over = true);
        }
        self.queue.push(event);
    }
}

/// Takes a queue pair to its error state: what was posted completes as flushed.
pub(crate) fn fail(qp: &Qp) -> Result<(), Error> {
    let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
    Ok(qp.modify(&attr, QpAttrMask::STATE)?)
}

/// The addresses of both ends.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

/// How far the connection has come.
enum Stage {
    /// The peer was asked; the REQ by RoCE.
    Asked { end: Box<End>, req: Option<Box<Req>>, packet_life: CmTime },
    /// The peer was answered.
    Answered { qp: Box<QueuePair<ReadyToSend>>, domain: ProtectionDomain },
    /// The queue pair was handed over, or the connection failed.
    Done,
}

/// A connection that its peer has not agreed to yet, or does not know of. Dropped, it is given up.
pub struct Pending {
    // Dropped first: the peer is told before the queue pair goes.
    connection: Option<Connection>,
    /// Keeps the port bound while the connection exists.
    port: Option<ferroce_engine::cm::Port>,
    events: Arc<Events>,
    names: Names,
    stage: Stage,
}

impl Pending {
    pub(super) fn asked(
        end: End,
        connection: Connection,
        port: ferroce_engine::cm::Port,
        events: Arc<Events>,
        req: Option<Req>,
        packet_life: CmTime,
    ) -> Self {
        let names = Names { local: end.route.source, peer: end.route.destination };
        let stage = Stage::Asked { end: Box::new(end), req: req.map(Box::new), packet_life };
        Self { connection: Some(connection), port: Some(port), events, names, stage }
    }

    pub(super) fn answered(
        qp: QueuePair<ReadyToSend>,
        domain: ProtectionDomain,
        connection: Connection,
        events: Arc<Events>,
        names: Names,
    ) -> Self {
        let stage = Stage::Answered { qp: Box::new(qp), domain };
        Self { connection: Some(connection), port: None, events, names, stage }
    }

    /// The connection, if it is there. Never waits; after it said something else than `None`, it says
    /// [`Peer::Ended`](crate::error::Peer::Ended).
    ///
    /// # Errors
    ///
    /// [`Peer::Rejected`](crate::error::Peer::Rejected),
    /// [`Peer::Unreachable`](crate::error::Peer::Unreachable), [`Peer::Ended`](crate::error::Peer::Ended),
    /// and the errors of the queue pair.
    pub fn poll(&mut self) -> Result<Option<Connected>, Error> {
        match self.events.queue.poll() {
            Some(event) => self.take_event(event.kind),
            None if matches!(self.stage, Stage::Done) => Err(ConnectError::Over.into()),
            None => Ok(None),
        }
    }

    /// Waits for the connection.
    ///
    /// # Errors
    ///
    /// As [`Self::poll`]; `WouldBlock` if the descriptor was made non-blocking, `Interrupted` by a signal:
    /// wait again.
    pub fn wait(&mut self) -> Result<Connected, Error> {
        loop {
            if matches!(self.stage, Stage::Done) {
                return Err(ConnectError::Over.into());
            }
            let event = self.events.queue.get().map_err(ConnectError::Events)?;
            if let Some(connected) = self.take_event(event.kind)? {
                return Ok(connected);
            }
        }
    }

    fn take_event(&mut self, kind: EventKind) -> Result<Option<Connected>, Error> {
        let error = match kind {
            EventKind::Reply { rep } => return self.reply(&rep).map(Some),
            EventKind::Established(terms) => return Ok(self.established(terms.private)),
            EventKind::Rejected { reason, private } => ConnectError::Rejected { reason, private },
            EventKind::Failed(error) => error.into(),
            EventKind::Unreachable => ConnectError::Unreachable,
            EventKind::Disconnected(_) | EventKind::Lost => ConnectError::Over,
            _ => return Ok(None),
        };
        self.stage = Stage::Done;
        Err(error.into())
    }

    /// The peer agreed: sets up the queue pair and tells it.
    fn reply(&mut self, rep: &Rep) -> Result<Connected, Error> {
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        let (Stage::Asked { end, req: Some(req), packet_life }, Some(connection)) =
            (stage, self.connection.take())
        else {
            return Err(ConnectError::Over.into());
        };
        let refuse = |connection: Connection| {
            // An error means that the peer is gone; the connection is closed in any case.
            let _ = connection.reject(RejReason::CONSUMER, &[]);
        };
        let Some(agreed) = attributes::active(&req, rep, packet_life) else {
            refuse(connection);
            return Err(ConnectError::Malformed.into());
        };
        let domain = end.domain.clone();
        let path = req.primary;
        match end.connect(&agreed, path.flow_label, path.traffic_class, path.hop_limit) {
            Ok(qp) => {
                self.events.watch(qp.engine());
                connection.establish().map_err(ConnectError::from)?;
                Ok(self.connected(qp, domain, connection, Box::new(rep.private.0)))
            }
            Err(error) => {
                refuse(connection);
                Err(error)
            }
        }
    }

    /// The peer knows, or it agreed by iWARP, which has moved the queue pair.
    fn established(&mut self, private: Box<[u8]>) -> Option<Connected> {
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        let (qp, domain) = match stage {
            Stage::Asked { end, .. } => {
                let End { qp, domain, .. } = *end;
                self.events.watch(qp.engine());
                (qp.moved(), domain)
            }
            Stage::Answered { qp, domain } => (*qp, domain),
            Stage::Done => return None,
        };
        let connection = self.connection.take()?;
        Some(self.connected(qp, domain, connection, private))
    }

    fn connected(
        &mut self,
        qp: QueuePair<ReadyToSend>,
        domain: ProtectionDomain,
        connection: Connection,
        private: Box<[u8]>,
    ) -> Connected {
        let (events, port, names) = (Arc::clone(&self.events), self.port.take(), self.names);
        Connected { connection, qp, domain, _port: port, events, names, private, over: false }
    }
}

impl AsFd for Pending {
    /// Readable while [`Pending::poll`] would say something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.queue.fd()
    }
}

/// A connection. Dropped, it is disconnected.
#[doc(alias = "rdma_cm_id")]
pub struct Connected {
    // Dropped first: the peer is told before the queue pair goes.
    connection: Connection,
    qp: QueuePair<ReadyToSend>,
    domain: ProtectionDomain,
    _port: Option<ferroce_engine::cm::Port>,
    events: Arc<Events>,
    names: Names,
    private: Box<[u8]>,
    over: bool,
}

impl Connected {
    /// The connection's queue pair. Receives that were posted before the connection are still posted.
    pub fn queue_pair(&self) -> &QueuePair<ReadyToSend> {
        &self.qp
    }

    /// The queue pair's protection domain: where to register memory.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Our address and port.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> SocketAddr {
        self.names.local
    }

    /// The peer's address and port.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> SocketAddr {
        self.names.peer
    }

    /// The private data of the peer's acceptance: [`ACCEPT_PRIVATE_DATA`](super::ACCEPT_PRIVATE_DATA) octets
    /// by RoCE, zeros at the end; by iWARP those that the peer gave. Empty at the end that agreed.
    pub fn private_data(&self) -> &[u8] {
        &self.private
    }

    /// Ends the connection, or agrees that the peer ended it: the queue pair goes to its error state, where
    /// work requests that are left complete as flushed, and the peer is told. Another time it does nothing.
    ///
    /// # Errors
    ///
    /// Fails if the broker of the process is gone; the queue pair is in its error state all the same.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), Error> {
        if self.qp.engine().state() != QpState::Error {
            fail(self.qp.engine())?;
        }
        match self.connection.disconnect() {
            Ok(()) | Err(CmError::Gone(_)) => Ok(()),
            Err(error) => Err(ConnectError::from(error).into()),
        }
    }

    /// Whether the connection is over, because either end ended it. Never waits. Its queue pair is then in
    /// its error state.
    ///
    /// When the peer ended it, [`Self::disconnect`] tells the peer that we know; dropping the connection does
    /// so too.
    pub fn poll_disconnected(&mut self) -> bool {
        while let Some(event) = self.events.queue.poll() {
            self.over |= ends(&event.kind);
        }
        self.over
    }

    /// Waits until the connection is over.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the descriptor was made non-blocking, `Interrupted` by a signal: wait again.
    pub fn wait_disconnected(&mut self) -> Result<(), Error> {
        while !self.over {
            let event = self.events.queue.get().map_err(ConnectError::Events)?;
            self.over = ends(&event.kind);
        }
        Ok(())
    }
}

fn ends(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Disconnected(_) | EventKind::Lost)
}

impl AsFd for Connected {
    /// Readable while [`Connected::poll_disconnected`] may say something new.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.queue.fd()
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Names { local, peer } = self.names;
        f.debug_struct("Pending").field("local", &local).field("peer", &peer).finish_non_exhaustive()
    }
}
