//! Connections of ids at iWARP devices: TCP's, which the broker has no part in (RFC 5044, RFC 6581).
//!
//! Events are those of Linux with siw: there is no CONNECT_RESPONSE, and the queue pair is in RTS when
//! ESTABLISHED comes. All of the private data is the program's.

use std::net::SocketAddr;
use std::sync::Arc;

use ferroce_abi as abi;
use ferroce_engine::cm::resolve::{self, Transports};
use ferroce_engine::iwarp::{AcceptParams, ConnectParams, Connection, Event, Port, Request, Sink};
use ferroce_engine::{QpAccess, QpAttr, QpAttrMask, QpState};

use super::arrival::NewId;
use super::program_event::{NOTHING, ProgramEvent};
use super::queue_pair::{catch_up, fail_qp};
use super::state::{IdHandle, Link, LiveId, PendingRequest, Phase, What};
use crate::errno::Errno;

/// Reads of a queue pair, at each end.
pub(super) const DEPTH: u8 = ferroce_engine::iwarp::MAX_DEPTH;

/// The sink of an id's events. The queue holds them until the program fetches them.
pub(super) fn sink(id: &'static IdHandle, live: &Arc<LiveId>) -> Sink {
    let of = Arc::downgrade(live);
    Sink::new(move |event| {
        // An event of an id that is gone ends what it brought.
        if let Some(live) = of.upgrade() {
            deliver(id, &live, event);
        }
    })
}

fn deliver(id: &'static IdHandle, live: &Arc<LiveId>, event: Event) {
    let what = match event {
        Event::Request(request) => What::Request(Box::new(Arrival::new(live, *request))),
        event => What::Stream(event),
    };
    live.state.lock().queue(id, live, what);
}

/// Asks the peer for a connection. The id's phase is [`Phase::Connecting`].
pub(super) fn connect(
    id: &'static IdHandle,
    live: &Arc<LiveId>,
    port: &Port,
    params: &ConnectParams<'_>,
) -> Result<(), Errno> {
    // An event that is fetched before this returns waits for `asking`.
    let _asking = live.asking.lock();
    let connection = Connection::connect(port, params, sink(id, live))?;
    live.state.lock().link.stream = Some(Arc::new(connection));
    Ok(())
}

/// Answers a request: the queue pair goes to RTS, and the peer is told.
pub(super) fn accept(live: &LiveId, connection: &Connection, params: &AcceptParams<'_>) -> Result<(), Errno> {
    // ESTABLISHED may be fetched before this returns.
    live.state.lock().phase = Phase::Accepted;
    connection.accept(params).map_err(|error| {
        live.state.lock().phase = Phase::Requested;
        Errno::from(error)
    })
}

/// Ends the connection. Returns whether an event will tell of that.
pub(super) fn disconnect(
    id: &'static IdHandle,
    phase: Phase,
    connection: &Connection,
) -> Result<bool, Errno> {
    if !matches!(phase, Phase::Accepted | Phase::Connected | Phase::Ended) {
        return Err(Errno::EINVAL);
    }
    fail_qp(id);
    connection.disconnect()?;
    Ok(phase != Phase::Ended)
}

/// The program fetches an event of a connection. `None` if the program need not know of it.
pub(super) fn tell(id: &'static IdHandle, live: &Arc<LiveId>, event: Event) -> Option<ProgramEvent> {
    // The call that asked is through, and left what the answer belongs to.
    drop(live.asking.lock());
    match event {
        Event::Established { ird, ord, private } => {
            let mut state = live.state.lock();
            if !matches!(state.phase, Phase::Connecting | Phase::Accepted) {
                return None;
            }
            state.phase = Phase::Connected;
            drop(state);
            let conn = abi::rdma_conn_param { initiator_depth: ird, responder_resources: ord, ..NOTHING };
            Some(ProgramEvent {
                param: abi::rdma_cm_event_param { conn },
                private: private.into(),
                ..ProgramEvent::plain(id, abi::RDMA_CM_EVENT_ESTABLISHED, 0)
            })
        }
        Event::Failed { errno, private } => {
            live.state.lock().phase = Phase::Ended;
            fail_qp(id);
            Some(ProgramEvent { private: private.into(), ..ProgramEvent::plain(id, failure(errno), -errno) })
        }
        Event::Disconnected => {
            // The event comes once, whichever end disconnected.
            let was = std::mem::replace(&mut live.state.lock().phase, Phase::Ended);
            (was != Phase::Ended).then(|| {
                catch_up(id);
                ProgramEvent::plain(id, abi::RDMA_CM_EVENT_DISCONNECTED, 0)
            })
        }
        Event::Request(_) => None,
    }
}

/// The event for a failure (Linux 6.1, `cma_iw_handler`). There, TCP's errors are of the call; here, where
/// the call does not wait, an address that cannot be reached is UNREACHABLE.
fn failure(errno: i32) -> abi::rdma_cm_event_type {
    match errno {
        libc::ECONNRESET | libc::ECONNREFUSED => abi::RDMA_CM_EVENT_REJECTED,
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => abi::RDMA_CM_EVENT_UNREACHABLE,
        _ => abi::RDMA_CM_EVENT_CONNECT_ERROR,
    }
}

/// The attributes of a queue pair of the program's own for the step to `to`, as Linux gives them (6.1,
/// `iw_cm_init_qp_attr`): the connection itself takes the queue pair to RTS.
pub(super) fn step(to: QpState) -> Result<(QpAttr, QpAttrMask), Errno> {
    match to {
        QpState::Init | QpState::Rtr => {
            let access = QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ;
            let attr = QpAttr { qp_state: QpState::Init, access, port_num: 1, ..QpAttr::default() };
            Ok((attr, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS | QpAttrMask::PORT))
        }
        QpState::Rts => Ok((QpAttr { qp_state: QpState::Rts, ..QpAttr::default() }, QpAttrMask::empty())),
        _ => Err(Errno::EINVAL),
    }
}

/// The queue pair and the depths of a connection, of which a program names each.
pub(super) fn depths(param: &abi::rdma_conn_param, offer: Option<(u8, u8)>) -> Result<(u8, u8), Errno> {
    let depth =
        |asked, offer| ferroce_engine::cm::attributes::depth(asked, DEPTH, offer).map_err(|_| Errno::EINVAL);
    let ird = depth(param.responder_resources, offer.map(|(ird, _)| ird))?;
    Ok((ird, depth(param.initiator_depth, offer.map(|(_, ord)| ord))?))
}

/// A request that the program did not fetch yet.
struct Arrival {
    id: NewId,
    local: SocketAddr,
    remote: SocketAddr,
    /// The peer's depths.
    conn: abi::rdma_conn_param,
    private: Box<[u8]>,
}

// SAFETY: its parameters name no memory; their pointer is NULL.
unsafe impl Send for Arrival {}
// SAFETY: as for `Send`.
unsafe impl Sync for Arrival {}

impl Arrival {
    /// For a request at the listener `at`.
    fn new(at: &LiveId, request: Request) -> Self {
        let Request { connection, local, remote, ird, ord, private } = request;
        let depth = |depth: u16| u8::try_from(depth).unwrap_or(u8::MAX);
        // The depths are the peer's, and so change places.
        let conn =
            abi::rdma_conn_param { responder_resources: depth(ord), initiator_depth: depth(ird), ..NOTHING };
        let id = NewId::new(at, |id, live| {
            connection.set_sink(sink(id, live));
            let offered = Some((conn.responder_resources, conn.initiator_depth));
            Link { stream: Some(Arc::new(connection)), offered, ..Link::default() }
        });
        Self { id, local, remote, conn, private: private.into() }
    }
}

impl PendingRequest for Arrival {
    fn take(self: Box<Self>, listen: &'static IdHandle, of: &Arc<LiveId>) -> Option<ProgramEvent> {
        let (local, remote) = (self.local, self.remote);
        self.id.was_fetched();
        let told = presented(listen, of, *self);
        if told.is_none() {
            tracing::warn!(%local, %remote, "a request is refused: no device or no way back for it");
        }
        told
    }
}

fn presented(listen: &'static IdHandle, of: &LiveId, arrival: Arrival) -> Option<ProgramEvent> {
    let Arrival { id, local, remote, conn, private } = arrival;
    let mut route = resolve::route_by(Transports::Iwarp, Some(local), remote).ok()?;
    route.source = local;
    let event = id.present(listen, of, route, |_, _| ())?;
    Some(ProgramEvent { param: abi::rdma_cm_event_param { conn }, private, ..event })
}
