//! The connection of an id: its events, and those that the program gets. iWARP has those of Linux with siw:
//! there is no CONNECT_RESPONSE, and the queue pair is in RTS when ESTABLISHED comes.
//!
//! Events come on the engine's background thread, which only queues them. The thread of the program that
//! fetches an event carries out what follows from it, such as setting up the queue pair after a reply, as in
//! rdma-core.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::cm::attributes::{self, ConnectedAttr};
use ferroce_engine::cm::{
    self, AcceptParams, Disconnect, Event, EventKind, EventSink, Request, Terms, resolve, steps,
};
use ferroce_engine::{AhAttr, MAX_RD_ATOM, QpAttr, QpAttrMask, QpState, Service};
use ferroce_wire::cm::{CmTime, Ece, Path, RejReason, SidrRep, SidrStatus};
use ferroce_wire::{Gid, Qpn};

use super::address;
use super::arrival::NewId;
use super::program_event::{NO_DATAGRAMS, NOTHING, ProgramEvent};
use super::queue_pair::{catch_up, fail_qp, queue_pair};
use super::route::path_record;
use super::state::{IdHandle, IdState, Link, LiveId, Phase, What};
use crate::attr;
use crate::context::ContextHandle;
use crate::errno::Errno;
use crate::handle::get;
use crate::reason;

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
    let what = match event.kind {
        EventKind::Request(_) | EventKind::SidrRequest { .. } if is_dead => return,
        // A listener takes the requests that fit its queue pairs; others are refused here.
        EventKind::Request(request) if !id.is_for_datagrams() => {
            Arrival::of_connection(live, *request).pending()
        }
        EventKind::SidrRequest { request, route, local, remote, private } if id.is_for_datagrams() => {
            let id = NewId::new(live, |id, live| {
                request.set_sink(sink(id, live));
                Link { sidr_request: Some(request.into()), ..Link::default() }
            });
            let param = abi::rdma_cm_event_param { ud: NO_DATAGRAMS };
            Arrival { id, on: Some(route), local, remote, param, path: None, private }.pending()
        }
        EventKind::Request(_) | EventKind::SidrRequest { .. } => return,
        kind => What::Connection(kind),
    };
    live.state.lock().queue(id, live, what);
}

/// A peer's request that the program did not fetch yet.
struct Arrival {
    id: NewId,
    /// The addresses of a request by RoCE.
    on: Option<cm::Route>,
    local: SocketAddr,
    remote: SocketAddr,
    /// The parameters of the request, which name no memory: their pointer is NULL.
    param: abi::rdma_cm_event_param,
    /// The path of a connection by RoCE, and the code of its MTU.
    path: Option<(Path, u8)>,
    private: Box<[u8]>,
}

// SAFETY: its parameters name no memory; their pointer is NULL.
unsafe impl Send for Arrival {}
// SAFETY: as for `Send`.
unsafe impl Sync for Arrival {}

impl Arrival {
    /// For a request at the listener `at`.
    fn of_connection(at: &LiveId, request: Request) -> Self {
        let Request { connection, local, remote, responder_resources, initiator_depth, private, roce } =
            request;
        // The depths are the peer's, and so change places.
        let depths = abi::rdma_conn_param {
            responder_resources: initiator_depth,
            initiator_depth: responder_resources,
            ..NOTHING
        };
        let conn = roce.as_ref().map_or(depths, |roce| abi::rdma_conn_param {
            flow_control: u8::from(roce.req.flow_control),
            retry_count: roce.req.retry_count,
            rnr_retry_count: roce.req.rnr_retry_count,
            srq: u8::from(roce.req.srq),
            qp_num: roce.req.qpn.value(),
            ..depths
        });
        let path = roce.as_ref().map(|roce| (roce.req.primary, roce.req.path_mtu));
        let on = roce.as_ref().map(|roce| roce.route);
        let id = NewId::new(at, |id, live| {
            connection.set_sink(sink(id, live));
            // A queue pair of the program's own may be set up before it accepts: then all that was offered
            // counts.
            let whole = AcceptParams {
                responder_resources: initiator_depth.min(DEPTH),
                initiator_depth: responder_resources.min(DEPTH),
                ..AcceptParams::new(0, Qpn::new(0))
            };
            Link {
                connection: Some(connection.into()),
                offered: (initiator_depth, responder_resources),
                agreed: roce.as_ref().and_then(|roce| roce.attributes(&whole)),
                remote_ece: roce.as_ref().map_or(Ece::default(), |roce| roce.req.ece),
                asked: roce.map(Arc::from),
                ..Link::default()
            }
        });
        Self { id, on, local, remote, param: abi::rdma_cm_event_param { conn }, path, private }
    }

    fn pending(self) -> What {
        What::Request(Box::new(move |listen, of| {
            let (local, remote) = (self.local, self.remote);
            self.id.was_fetched();
            let told = presented(listen, of, self);
            if told.is_none() {
                tracing::warn!(%local, %remote, "a request is refused: no device or no way back for it");
            }
            told
        }))
    }
}

fn presented(listen: &'static IdHandle, of: &LiveId, arrival: Arrival) -> Option<ProgramEvent> {
    let Arrival { id, on, local, remote, param, path, private } = arrival;
    let route = resolve::back(on.as_ref(), local, remote).ok()?;
    let event = id.present(listen, of, route.clone(), |id, state| {
        // A SIDR request comes without a path: its answer goes back as it came, and datagrams have addresses
        // of their own. iWARP has no path record.
        if let Some((path, mtu)) = path {
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
    Some(ProgramEvent { param, private, ..event })
}

/// The program fetches an event of a connection. `None` if the program need not know of it.
pub(super) fn tell(id: &'static IdHandle, live: &Arc<LiveId>, kind: EventKind) -> Option<ProgramEvent> {
    // The call that asked is through, and left what the answer belongs to.
    drop(live.asking.lock());
    let silent = -libc::ETIMEDOUT;
    let is_passive = matches!(live.state.lock().phase, Phase::Requested | Phase::Accepted);
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
        EventKind::Reply { rep } => Some(answered(id, live, &rep)),
        EventKind::Established(Terms { responder_resources, initiator_depth, private }) => {
            let mut state = live.state.lock();
            if !matches!(state.phase, Phase::Connecting | Phase::Accepted) {
                return None;
            }
            state.phase = Phase::Connected;
            drop(state);
            // iWARP tells the depths of the queue pair, in the places of the peer's.
            let conn = abi::rdma_conn_param {
                initiator_depth: responder_resources,
                responder_resources: initiator_depth,
                ..NOTHING
            };
            Some(ProgramEvent {
                param: abi::rdma_cm_event_param { conn },
                private,
                ..ProgramEvent::plain(id, abi::RDMA_CM_EVENT_ESTABLISHED, 0)
            })
        }
        EventKind::Rejected { reason, private } => {
            match reason {
                // The programs' own business.
                RejReason::CONSUMER => {}
                RejReason::INVALID_SERVICE_ID => no_connection(id, is_passive, NO_LISTENER),
                reason => no_connection(id, is_passive, &format!("refused: {reason}")),
            }
            // Linux 6.1, `cma_iw_handler`.
            let status = match reason {
                _ if !live.state.lock().is_iwarp() => c_int::from(reason.0),
                RejReason::INVALID_SERVICE_ID => -libc::ECONNREFUSED,
                _ => -libc::ECONNRESET,
            };
            Some(ProgramEvent { private, ..refused(abi::RDMA_CM_EVENT_REJECTED, status) })
        }
        EventKind::Failed(error) => {
            let code = Errno::from(error).code();
            // In Linux, TCP's errors are of the call; here, where the call does not wait, an address that
            // cannot be reached is UNREACHABLE.
            let kind = match code {
                libc::EHOSTUNREACH | libc::ENETUNREACH => abi::RDMA_CM_EVENT_UNREACHABLE,
                _ => abi::RDMA_CM_EVENT_CONNECT_ERROR,
            };
            Some(refused(kind, -code))
        }
        EventKind::Unreachable => {
            no_connection(id, is_passive, "no answer; `ferroce ping` with this host tells why");
            Some(refused(abi::RDMA_CM_EVENT_UNREACHABLE, silent))
        }
        EventKind::Disconnected(Disconnect::NoAnswer) => ended(silent),
        EventKind::Disconnected(Disconnect::ByPeer | Disconnect::ByUs) => ended(0),
        EventKind::TimeWaitOver => Some(ProgramEvent::plain(id, abi::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0)),
        EventKind::Lost => {
            let phase = live.state.lock().phase;
            match phase {
                Phase::Connecting | Phase::Requested | Phase::Answered => {
                    no_connection(id, is_passive, "ferroced ended while the connection was made");
                    Some(refused(abi::RDMA_CM_EVENT_UNREACHABLE, silent))
                }
                // The answer to a SIDR request outlives it.
                _ if id.is_for_datagrams() => None,
                _ => ended(silent),
            }
        }
        EventKind::SidrReply { rep } => Some(found(id, live, &rep)),
        EventKind::Request(_) | EventKind::SidrRequest { .. } => None,
    }
}

const NO_LISTENER: &str = "refused: nobody listens there; start the server first, and compare the port";

/// Tells why the peer of an id was not reached.
#[cold]
fn no_connection(id: &IdHandle, is_passive: bool, why: &str) {
    let peer = address::of_storage(&get!(id.route.addr.unnamed_2.dst_storage));
    let peer = peer.map_or_else(|_| "an unknown address".to_owned(), |peer| peer.to_string());
    let call = if is_passive { "rdma_accept" } else { "rdma_connect" };
    reason::tell(call, &io::Error::other(format!("{peer}: {why}")));
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
        false => {
            match rep.status {
                SidrStatus::REJECTED => {}
                SidrStatus::UNSUPPORTED => no_connection(id, false, NO_LISTENER),
                status => no_connection(id, false, &format!("refused: {status}")),
            }
            (abi::RDMA_CM_EVENT_UNREACHABLE, c_int::from(rep.status.0))
        }
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
            let _ = connection.reject(RejReason::CONSUMER, &[]);
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
pub(super) fn step(state: &IdState, service: Service, to: QpState) -> Result<(QpAttr, QpAttrMask), Errno> {
    let agreed = state.link.agreed.ok_or(Errno::EINVAL)?;
    let timeout = state.options.ack_timeout.unwrap_or(agreed.timeout);
    let ah = ah_attr(state).ok_or(Errno::EINVAL)?;
    Ok(steps::step(service, to, &ConnectedAttr { timeout, ..agreed }, ah))
}

/// The address vector of the peer; `None` before the route is resolved.
fn ah_attr(state: &IdState) -> Option<AhAttr> {
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
