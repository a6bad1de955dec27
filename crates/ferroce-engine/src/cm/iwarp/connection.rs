//! Connections of this process.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use ferroce_cm::{AcceptParams, Disconnect};
use ferroce_host::{fork::Guarded, tcp};
use ferroce_paths::clock;
use ferroce_paths::streams::{MOST_PATIENCE, Remains, patience};
use ferroce_proto::Service;
use ferroce_proto::iwarp::setup::{Responder, SetupParams};
use ferroce_proto::iwarp::{Rtr, StreamConfig};
use ferroce_wire::cm::PrivateDataTooLong;
use ferroce_wire::iwarp::mpa::MAX_SENT_PRIVATE;
use ferroce_wire::{Instant, Qpn};
use parking_lot::Mutex;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::backlog::Place;
use super::manager::{LOOK, Manager, Results, Unfinished, Wait, Waiting};
use crate::cm::event::{EventKind, EventSink, Terms};
use crate::cm::{CmError, resolve};
use crate::engine::Engine;
use crate::lane::{Agreed, BeginError, Endpoint, StreamEvents};

/// The time in which the initiator of a peer-to-peer connection sends its first FPDU after the reply (RFC
/// 6581 section 9 names none). siw 6.1 waits without a bound, and a synchronous `rdma_accept` with it.
const FIRST_FPDU_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, or a request for one. The drop ends it according to its state: it disconnects, rejects or
/// gives up. It does not wait: a process that exits afterwards gives a peer with another stack the time that
/// [`Connection::disconnect`] waits for.
pub(in crate::cm) struct Connection(pub(super) Arc<Shared>);

/// The state of a connection.
pub(super) struct Shared {
    me: Weak<Shared>,
    pub(super) engine: Arc<Engine>,
    pub(super) manager: Arc<Manager>,
    /// Our end asks for CRCs.
    pub(super) crc: bool,
    sink: Mutex<EventSink>,
    /// Taken before the lock of an endpoint.
    phase: Mutex<Phase>,
    /// The program has no more use for it.
    dropped: AtomicBool,
    /// The passive end may send, or the connection ended: nobody waits for the first FPDU.
    heard: AtomicBool,
}

/// How far a connection has come.
enum Phase {
    /// The set-up is under way; the number of the manager's wait.
    SettingUp(u64),
    /// The peer's request waits for the program's answer.
    Requested(Box<Requested>),
    /// A queue pair has it.
    Running { endpoint: Weak<Endpoint>, config: StreamConfig },
    /// The connection ended.
    Over,
}

impl Phase {
    fn running(endpoint: &Arc<Endpoint>, config: StreamConfig) -> Self {
        Self::Running { endpoint: Arc::downgrade(endpoint), config }
    }
}

struct Requested {
    socket: Guarded<OwnedFd>,
    responder: Responder,
    /// Place in the backlog of the listener, until the program has the request.
    place: Option<Place>,
}

impl Connection {
    /// From now on `sink` takes its events.
    pub(in crate::cm) fn set_sink(&self, sink: EventSink) {
        *self.0.sink.lock() = sink;
    }

    /// Agrees to a request: the queue pair goes to RTS, and then the peer is told. ESTABLISHED follows, at
    /// once or, if the peer asked for peer-to-peer mode, with its first FPDU. If none comes within 10 s, the
    /// connection ends. After another error than those of the arguments the queue pair is in the error state.
    pub(in crate::cm) fn accept(&self, params: &AcceptParams, private: &[u8]) -> Result<(), CmError> {
        let shared = &self.0;
        let endpoint = find(&shared.engine, params.qpn)?;
        shared.engine.flush_all();
        let mut phase = shared.phase.lock();
        let Phase::Requested(requested) = &mut *phase else { return Err(not_asked()) };
        let accepted = requested.responder.accept(&SetupParams {
            crc: shared.crc,
            ird: params.responder_resources,
            ord: params.initiator_depth,
            private,
            peer_to_peer: false,
        });
        let accepted = accepted.map_err(|_| too_long(private))?;
        let before = std::mem::replace(&mut *phase, Phase::running(&endpoint, accepted.stream));
        let Phase::Requested(requested) = before else { return Err(not_asked()) };
        let begun = shared.begin(&endpoint, accepted.stream, requested.socket, &accepted.reply, &[]);
        if begun.is_err() {
            *phase = Phase::Over;
        }
        drop(phase);
        begun?;
        if accepted.stream.rtr.is_some() {
            let wait = FirstFpdu { shared: Arc::clone(shared), until: clock::now() + FIRST_FPDU_TIMEOUT };
            // The manager watches no socket for it, so nothing is refused.
            let _ = shared.manager.add(shared.manager.number(), Box::new(wait));
        }
        Ok(())
    }

    /// The program has fetched the request: it leaves the backlog.
    pub(in crate::cm) fn was_fetched(&self) {
        if let Phase::Requested(requested) = &mut *self.0.phase.lock() {
            requested.place = None;
        }
    }

    /// Refuses a request.
    pub(in crate::cm) fn reject(&self, private: &[u8]) -> Result<(), CmError> {
        let shared = &self.0;
        let mut phase = shared.phase.lock();
        let Phase::Requested(requested) = &mut *phase else { return Err(not_asked()) };
        let reply = requested.responder.reject(private).map_err(|_| too_long(private))?;
        if let Phase::Requested(requested) = std::mem::replace(&mut *phase, Phase::Over) {
            // siw forgets the private data of a reply that it reads together with FIN.
            let fin_at = clock::now() + patience(&requested.socket);
            shared.manager.linger(Arc::new(requested.socket), reply, fin_at, || ());
        }
        Ok(())
    }

    /// Ends the connection: the queue pair goes to the error state, and an event follows. A connection that
    /// ended before stays as it is. See `streams::patience` for the wait.
    pub(in crate::cm) fn disconnect(&self) -> Result<(), CmError> {
        let foreign = self.0.end()?;
        // Programs exit next, perhaps by a signal, which sends FIN at once.
        let begun = clock::now();
        while foreign && !self.0.has_ended() && clock::now() < begun + MOST_PATIENCE {
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A forked child holds copies of locks that other threads of its parent had.
        if !self.0.engine.is_ours() {
            return;
        }
        self.0.dropped.store(true, Ordering::SeqCst);
        let setting_up = match &*self.0.phase.lock() {
            Phase::SettingUp(number) => Some(*number),
            _ => None,
        };
        match setting_up {
            Some(number) => self.0.manager.cancel(number),
            // Each of them has an effect in one state only.
            None => drop((self.reject(&[]), self.0.end())),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(engine: &Arc<Engine>, manager: &Arc<Manager>, crc: bool, sink: EventSink) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            engine: Arc::clone(engine),
            manager: Arc::clone(manager),
            crc,
            sink: Mutex::new(sink),
            phase: Mutex::new(Phase::Over),
            dropped: AtomicBool::new(false),
            heard: AtomicBool::new(false),
        })
    }

    /// The receiver of its events.
    pub(super) fn sink(&self) -> EventSink {
        self.sink.lock().clone()
    }

    /// Ends the connection, unless it ended before. Returns whether the peer has another stack: FIN then
    /// leaves a moment later, on the background thread.
    fn end(&self) -> Result<bool, CmError> {
        let (endpoint, foreign) = match &mut *self.phase.lock() {
            Phase::Running { endpoint, config } => (endpoint.upgrade(), !config.extensions),
            Phase::Over => return Ok(false),
            Phase::SettingUp(_) | Phase::Requested(_) => {
                return Err(CmError::State("the connection is not established".to_owned()));
            }
        };
        if let (Some(endpoint), Some(me)) = (endpoint, self.events()) {
            endpoint.disconnect_stream(&me);
        }
        Ok(foreign)
    }

    fn has_ended(&self) -> bool {
        matches!(*self.phase.lock(), Phase::Over)
    }

    /// Whether the program has no more use for it.
    pub(super) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
    }

    /// Reads that the queue pair serves at once, and those that it may have outstanding.
    fn depths(&self) -> (u8, u8) {
        match &*self.phase.lock() {
            Phase::Running { config, .. } => (config.ird, config.ord),
            Phase::SettingUp(_) | Phase::Requested(_) | Phase::Over => (0, 0),
        }
    }

    fn events(&self) -> Option<Arc<dyn StreamEvents>> {
        self.me.upgrade().map(|me| me as Arc<_>)
    }

    /// The active end's set-up is under way, as this wait of the manager.
    pub(super) fn sets_up(&self, number: u64) {
        *self.phase.lock() = Phase::SettingUp(number);
    }

    /// The set-up failed, or the queue pair gave the connection back.
    pub(super) fn is_over(&self) {
        *self.phase.lock() = Phase::Over;
    }

    /// The peer's request is here, and the program shall answer it.
    pub(super) fn requested(&self, socket: Guarded<OwnedFd>, responder: Responder, place: Place) {
        *self.phase.lock() = Phase::Requested(Box::new(Requested { socket, responder, place: Some(place) }));
    }

    /// The peer's reply is here: connects the queue pair, and gives it the octets behind the reply.
    pub(super) fn replied(
        &self,
        qpn: Qpn,
        config: StreamConfig,
        socket: Guarded<OwnedFd>,
        behind: &[u8],
    ) -> Result<(), Errno> {
        // The responder may send after the first FPDU (RFC 5044 7.1.2), and there are programs in which it
        // has the first word. So one comes at once: a write without payload, which changes nothing.
        let config = StreamConfig { rtr: Some(config.rtr.unwrap_or(Rtr::Write)), ..config };
        let mut phase = self.phase.lock();
        let begun = find(&self.engine, qpn).and_then(|endpoint| {
            *phase = Phase::running(&endpoint, config);
            self.begin(&endpoint, config, socket, &[], behind)
        });
        if begun.is_err() {
            *phase = Phase::Over;
        }
        begun
    }

    fn begin(
        &self,
        endpoint: &Arc<Endpoint>,
        config: StreamConfig,
        socket: Guarded<OwnedFd>,
        reply: &[u8],
        arrived: &[u8],
    ) -> Result<(), Errno> {
        let events = self.events().ok_or(Errno::INVAL)?;
        let segment = tcp::segment_size(&socket).map_err(errno_of)?;
        let by = self.engine.lanes().streams().map_err(errno_of)?;
        let agreed = Agreed { config, segment, socket, reply, arrived, events, by };
        endpoint.begin_stream(agreed).map_err(|error| {
            tracing::debug!(qpn = endpoint.qpn.value(), %error, "a connection cannot begin");
            match error {
                BeginError::State(_) => Errno::INVAL,
                BeginError::Connection(error) => errno_of(error),
            }
        })
    }

    /// The passive end may send: its program learns it.
    fn tell_established(&self) {
        let (responder_resources, initiator_depth) = self.depths();
        let terms = Terms { responder_resources, initiator_depth, ..Terms::default() };
        self.sink().deliver(EventKind::Established(terms));
    }

    /// The queue pair gave the connection back: its program learns it.
    fn tell_disconnected(&self) {
        self.is_over();
        self.sink().deliver(EventKind::Disconnected(Disconnect::ByPeer));
    }
}

/// The passive end's wait for the first FPDU of a peer-to-peer connection, which the queue pair reads.
struct FirstFpdu {
    shared: Arc<Shared>,
    until: Instant,
}

impl Waiting for FirstFpdu {
    fn socket(&self) -> BorrowedFd<'_> {
        self.shared.manager.watched()
    }

    fn interest(&self) -> Option<EventFlags> {
        None
    }

    fn until(&self) -> Option<Instant> {
        Some(self.until)
    }

    fn is_cancelled(&self) -> bool {
        self.shared.heard.load(Ordering::SeqCst)
    }

    fn go_on(self: Box<Self>, _: Instant, _: &mut Results) -> Option<Wait> {
        Some(self)
    }

    fn expire(self: Box<Self>, _: Instant, _: &mut Results) -> Option<Wait> {
        if !self.is_cancelled() {
            tracing::info!(
                "the peer asked for a peer-to-peer connection and sent nothing: the connection ends"
            );
            // The event that follows is that of a connection that ended.
            let _ = self.shared.end();
        }
        None
    }

    fn unwatched(self: Box<Self>, _: Errno, _: Instant, _: &mut Results) -> Option<Wait> {
        Some(self)
    }
}

impl StreamEvents for Shared {
    fn established(&self) {
        self.heard.store(true, Ordering::SeqCst);
        if let Some(me) = self.me.upgrade() {
            self.manager.note(move |_| me.tell_established());
        }
    }

    fn ended(&self, remains: Remains) {
        self.heard.store(true, Ordering::SeqCst);
        if let Some(me) = self.me.upgrade() {
            let waits = remains.fin_at > clock::now();
            let unfinished = waits.then(|| Unfinished::new(&self.manager));
            let Remains { socket, unsent, fin_at } = remains;
            self.manager.note(move |manager| {
                manager.linger(socket, unsent, fin_at, move || {
                    drop(unfinished);
                    me.tell_disconnected();
                });
            });
        }
    }
}

/// The endpoint of an iWARP queue pair of this process.
pub(super) fn find(engine: &Engine, qpn: Qpn) -> Result<Arc<Endpoint>, Errno> {
    let endpoint = engine.hub().table.get(qpn).ok_or(Errno::INVAL)?;
    if endpoint.service == Service::Iwarp { Ok(endpoint) } else { Err(Errno::INVAL) }
}

pub(super) fn too_long(private: &[u8]) -> CmError {
    PrivateDataTooLong { given: private.len(), max: MAX_SENT_PRIVATE }.into()
}

fn not_asked() -> CmError {
    CmError::State("there is no request to answer".to_owned())
}

/// Whether our end asks for CRCs at a local address: a setting of the link.
pub(super) fn crc_at(engine: &Engine, local: SocketAddr) -> bool {
    resolve::iwarp_device(engine, local).is_none_or(|device| device.settings.crc)
}

pub(super) fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
