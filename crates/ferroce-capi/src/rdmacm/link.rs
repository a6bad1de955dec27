//! The connection of an id: what the broker tells of it, and what the program is told.
//!
//! Events come on the engine's background thread, which only queues them. Their consequences, such as setting
//! up the queue pair after a reply, is done by the thread of the program that fetches the event, as in
//! rdma-core.

use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::cm::attributes::{self, ConnectedAttr};
use ferroce_engine::cm::{self, CmEventKind, Disconnect, Event, EventSink, resolve, steps};
use ferroce_engine::{AhAttr, MAX_RD_ATOM, QpAttr, QpAttrMask, QpState, Service};
use ferroce_wire::Gid;
use ferroce_wire::cm::{
    CmTime, Info, IpCmHeader, Path, PrivateData, RejReason, Req, ServiceId, SidrRep, SidrReq, SidrStatus,
};

use super::arrival::NewId;
use super::program_event::{NO_DATAGRAMS, NOTHING, ProgramEvent};
use super::queue_pair::{catch_up, fail_qp, queue_pair};
use super::route::path_record;
use super::state::{IdHandle, Link, LiveId, PendingRequest, Phase, State, What};
use crate::attr;
use crate::context::ContextHandle;
use crate::errno::Errno;
use crate::handle::get;

/// Reads and atomics of a queue pair.
pub(super) const DEPTH: u8 = MAX_RD_ATOM as u8;
/// Answers of our queue pairs take as long as rxe says its own do: 4.096 µs × 2^15.
pub(super) const ACK_DELAY: CmTime = CmTime::saturating(15);

/// The sink of an id's events. The queue holds them until the program fetches them.
pub(super) fn sink(id: &'static IdHandle, live: &Arc<LiveId>) -> EventSink {
    let of = Arc::downgrade(live);
    EventSink::new(move |event| {
        // An event of an id that is gone ends what it brought.
        if let Some(live) = of.upgrade() {
            deliver(id, &live, event);
        }
    })
}

fn deliver(id: &'static IdHandle, live: &Arc<LiveId>, event: Event) {
    // A listener whose device is gone has no more requests, although another device may have its address now.
    let is_dead = live.state.lock().context.is_some_and(ContextHandle::is_dead);
    let what = match (event.kind, event.incoming) {
        (CmEventKind::Request { .. } | CmEventKind::SidrRequest { .. }, _) if is_dead => return,
        // A listener takes the requests that fit its queue pairs; others are refused here.
        (CmEventKind::Request { route, starting_psn, req, .. }, Some(incoming)) if !id.is_for_datagrams() => {
            let params = RequestParams::of_connection(&req);
            let link = |sink| {
                let connection = incoming.connection();
                connection.set_sink(sink);
                // A queue pair of the program's own may be set up before it accepts: then all that was
                // offered counts.
                let (ours, theirs) = (req.responder_resources.min(DEPTH), req.initiator_depth.min(DEPTH));
                Link {
                    connection: Some(connection.into()),
                    agreed: attributes::passive(&req, starting_psn, ours, theirs),
                    remote_ece: req.ece,
                    req: Some(req),
                    psn: starting_psn,
                    ..Link::default()
                }
            };
            What::Request(Box::new(Arrival::new(live, route, params, link)))
        }
        (CmEventKind::SidrRequest { route, req, .. }, Some(incoming)) if id.is_for_datagrams() => {
            let params = RequestParams::of_sidr_request(&req);
            let link = |sink| {
                let request = incoming.sidr_request();
                request.set_sink(sink);
                Link { sidr_request: Some(request.into()), ..Link::default() }
            };
            What::Request(Box::new(Arrival::new(live, route, params, link)))
        }
        // A crossing request is an event of an id that connects peer to peer, and librdmacm has none.
        (CmEventKind::Request { .. } | CmEventKind::SidrRequest { .. }, _) => return,
        (kind, _) => What::Connection(kind),
    };
    live.state.lock().queue(id, live, what);
}

/// A peer's request, in the form that the program receives.
pub(super) struct RequestParams {
    service: ServiceId,
    /// For connections: what they are to be like.
    conn: abi::rdma_conn_param,
    /// For connections: over which path.
    path: Option<(Path, u8)>,
    private: Box<[u8]>,
}

impl RequestParams {
    fn of_connection(req: &Req) -> Self {
        // The depths are the peer's, and so change places.
        let conn = abi::rdma_conn_param {
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: u8::from(req.flow_control),
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: u8::from(req.srq),
            qp_num: req.qpn.value(),
            ..NOTHING
        };
        let path = Some((req.primary, req.path_mtu));
        Self { service: req.service_id, conn, path, private: Box::new(req.private.0) }
    }

    fn of_sidr_request(req: &SidrReq) -> Self {
        Self { service: req.service_id, conn: NOTHING, path: None, private: Box::new(req.private.0) }
    }
}

// SAFETY: its parameters name no memory; their pointer is NULL.
unsafe impl Send for RequestParams {}
// SAFETY: as for `Send`.
unsafe impl Sync for RequestParams {}

/// A request that the program did not fetch yet.
pub(super) struct Arrival {
    id: NewId,
    route: cm::Route,
    wish: RequestParams,
}

impl Arrival {
    /// For a request at the listener `at`; `link` gives the request the id's sink.
    fn new(at: &LiveId, route: cm::Route, wish: RequestParams, link: impl FnOnce(EventSink) -> Link) -> Self {
        Self { id: NewId::new(at, |id, live| link(sink(id, live))), route, wish }
    }
}

impl PendingRequest for Arrival {
    fn take(self: Box<Self>, listen: &'static IdHandle, of: &Arc<LiveId>) -> Option<ProgramEvent> {
        let cm::Route { local, remote, .. } = self.route;
        self.id.was_fetched();
        let told = presented(listen, of, *self);
        if told.is_none() {
            tracing::warn!(%local, %remote, "a request is refused: no device or no way back for it, or it says no address");
        }
        told
    }
}

fn presented(listen: &'static IdHandle, of: &LiveId, arrival: Arrival) -> Option<ProgramEvent> {
    let Arrival { id, route: on, wish } = arrival;
    let (header, rest) = IpCmHeader::parse(&wish.private).ok()?;
    let (_, port) = wish.service.port()?;
    let source = on.local_addr(port);
    let destination = on.remote_addr(header.source_port);
    let mut route = resolve::back(&on, source, destination).ok()?;
    route.source = source;
    let event = id.present(listen, of, route.clone(), |id, state| {
        // A SIDR request comes without a path: its answer goes back as it came, and datagrams have addresses
        // of their own.
        if let Some((path, mtu)) = wish.path {
            let record = abi::ibv_sa_path_rec {
                flow_label: path.flow_label.to_be(),
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
                sl: path.sl,
                mtu,
                ..path_record(&route, &state.options)
            };
            state.set_path(id, record);
        }
    })?;
    let param = match wish.path {
        Some(_) => abi::rdma_cm_event_param { conn: wish.conn },
        None => abi::rdma_cm_event_param { ud: NO_DATAGRAMS },
    };
    Some(ProgramEvent { param, private: rest.into(), ..event })
}

/// The program fetches an event of a connection. `None` if the program need not know of it.
pub(super) fn tell(id: &'static IdHandle, live: &Arc<LiveId>, kind: CmEventKind) -> Option<ProgramEvent> {
    // The call that asked is through, and left what the answer belongs to.
    drop(live.asking.lock());
    let silent = -libc::ETIMEDOUT;
    let ended = |status| {
        let mut state = live.state.lock();
        // The event comes once, whichever end disconnected.
        let was = std::mem::replace(&mut state.phase, Phase::Ended);
        drop(state);
        (was != Phase::Ended).then(|| {
            // As in librdmacm, the queue pair ends with `rdma_disconnect`: until then the program may poll
            // what was acknowledged before the peer ended the connection.
            catch_up(id);
            ProgramEvent::plain(id, abi::RDMA_CM_EVENT_DISCONNECTED, status)
        })
    };
    let refused = |event, status| {
        live.state.lock().phase = Phase::Ended;
        // A queue pair of datagrams is not the peer's alone.
        if !id.is_for_datagrams() {
            fail_qp(id);
        }
        ProgramEvent::plain(id, event, status)
    };
    match kind {
        CmEventKind::Reply { rep } => Some(answered(id, live, &rep)),
        CmEventKind::Established => {
            let mut state = live.state.lock();
            if state.phase != Phase::Accepted {
                return None;
            }
            state.phase = Phase::Connected;
            Some(ProgramEvent::plain(id, abi::RDMA_CM_EVENT_ESTABLISHED, 0))
        }
        CmEventKind::Rejected { reason, private, .. } => Some(ProgramEvent {
            private: Box::new(private.0),
            ..refused(abi::RDMA_CM_EVENT_REJECTED, c_int::from(reason.0))
        }),
        CmEventKind::Unreachable => Some(refused(abi::RDMA_CM_EVENT_UNREACHABLE, silent)),
        CmEventKind::Disconnected(Disconnect::NoAnswer) => ended(silent),
        CmEventKind::Disconnected(Disconnect::ByPeer | Disconnect::ByUs) => ended(0),
        CmEventKind::TimeWaitOver => Some(ProgramEvent::plain(id, abi::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0)),
        CmEventKind::Lost => {
            let phase = live.state.lock().phase;
            match phase {
                Phase::Connecting | Phase::Requested | Phase::Answered => {
                    Some(refused(abi::RDMA_CM_EVENT_UNREACHABLE, silent))
                }
                // The answer to a SIDR request outlives it.
                _ if id.is_for_datagrams() => None,
                _ => ended(silent),
            }
        }
        CmEventKind::SidrReply { rep } => Some(found(id, live, &rep)),
        CmEventKind::Request { .. } | CmEventKind::SidrRequest { .. } => None,
    }
}

/// The answer to our SIDR request, as the program sees it.
fn found(id: &'static IdHandle, live: &LiveId, rep: &SidrRep) -> ProgramEvent {
    let mut state = live.state.lock();
    let valid = rep.status == SidrStatus::VALID;
    state.phase = if valid { Phase::Connected } else { Phase::Ended };
    state.link.remote_ece = rep.ece;
    // The request is answered, and the broker has forgotten it.
    let request = state.link.sidr_request.take();
    let ud = match ah_attr(&state) {
        Some(ah_attr) if valid => {
            let ah_attr = attr::c_ah(&ah_attr);
            abi::rdma_ud_param { ah_attr, qp_num: rep.qpn.value(), qkey: rep.qkey.value(), ..NO_DATAGRAMS }
        }
        _ => NO_DATAGRAMS,
    };
    drop(state);
    drop(request);
    let (kind, status) = match valid {
        true => (abi::RDMA_CM_EVENT_ESTABLISHED, 0),
        false => (abi::RDMA_CM_EVENT_UNREACHABLE, c_int::from(rep.status.0)),
    };
    ProgramEvent {
        param: abi::rdma_cm_event_param { ud },
        private: Box::new(rep.private.0),
        ..ProgramEvent::plain(id, kind, status)
    }
}

/// The peer agreed: sets up the queue pair and says so, unless the program has one of its own.
fn answered(id: &'static IdHandle, live: &Arc<LiveId>, rep: &ferroce_wire::cm::Rep) -> ProgramEvent {
    // The depths are the peer's, and so change places (Linux 6.12, `cm_format_rep_event`).
    let conn = abi::rdma_conn_param {
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        flow_control: u8::from(rep.flow_control),
        rnr_retry_count: rep.rnr_retry_count,
        srq: u8::from(rep.srq),
        qp_num: rep.qpn.value(),
        ..NOTHING
    };
    let qp = get!(id.qp);
    let connection = {
        let mut state = live.state.lock();
        let life = state.record.map_or(16, |record| record.packet_life_time);
        let req = state.link.req.clone();
        state.link.remote_ece = rep.ece;
        state.link.agreed = req.and_then(|req| attributes::active(&req, rep, CmTime::saturating(life)));
        state.phase = if qp.is_null() { Phase::Answered } else { Phase::Connected };
        state.link.connection.clone()
    };
    let told = |kind, status| ProgramEvent {
        param: abi::rdma_cm_event_param { conn },
        private: Box::new(rep.private.0),
        ..ProgramEvent::plain(id, kind, status)
    };
    if qp.is_null() {
        return told(abi::RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    }
    let Some(connection) = connection else {
        return told(abi::RDMA_CM_EVENT_CONNECT_ERROR, -libc::EINVAL);
    };
    let ready =
        bring_up(id, live).and_then(|()| connection.establish().map_err(Errno::from)).map_err(Errno::code);
    match ready {
        Ok(()) => told(abi::RDMA_CM_EVENT_ESTABLISHED, 0),
        Err(code) => {
            live.state.lock().phase = Phase::Ended;
            let _ = connection.reject(RejReason::CONSUMER, Info::NONE, PrivateData::EMPTY);
            fail_qp(id);
            told(abi::RDMA_CM_EVENT_CONNECT_ERROR, -code)
        }
    }
}

/// Takes the id's queue pair to where both ends can send.
pub(super) fn bring_up(id: &'static IdHandle, live: &LiveId) -> Result<(), Errno> {
    let (handle, qp) = queue_pair(id)?;
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let (attr, mask) = step(&live.state.lock(), qp.engine.service(), to)?;
        handle.modify(&qp, &attr, mask)?;
    }
    Ok(())
}

/// The attributes of a connected queue pair for its step to `to`; EINVAL while the ends did not say enough.
pub(super) fn step(state: &State, service: Service, to: QpState) -> Result<(QpAttr, QpAttrMask), Errno> {
    let agreed = state.link.agreed.ok_or(Errno::EINVAL)?;
    let timeout = state.options.ack_timeout.unwrap_or(agreed.timeout);
    let ah = ah_attr(state).ok_or(Errno::EINVAL)?;
    Ok(steps::step(service, to, &ConnectedAttr { timeout, ..agreed }, ah))
}

/// The address vector of the peer; `None` before the route is resolved.
fn ah_attr(state: &State) -> Option<AhAttr> {
    let (route, record) = (state.route.as_ref()?, state.record.as_ref()?);
    // SAFETY: every member of the union is sixteen octets.
    let dgid = Gid(unsafe { record.dgid.raw });
    Some(AhAttr {
        dgid,
        flow_label: u32::from_be(record.flow_label),
        sgid_index: route.local.gid.index as u8,
        hop_limit: record.hop_limit,
        traffic_class: record.traffic_class,
        sl: record.sl,
        ..AhAttr::default()
    })
}
