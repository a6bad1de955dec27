//! Asking for connections, and answering.

use std::slice;
use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::cm::resolve::Route;
use ferroce_engine::cm::{AcceptParams, CmError, ConnectParams, SidrAnswer, SidrRequest};
use ferroce_engine::cm::{attributes, extension};
use ferroce_engine::faults::Verb;
use ferroce_wire::cm::{CmTime, Ece, PrivateData, RejReason, SidrStatus, Transport};
use ferroce_wire::{PathMtu, Qkey, Qpn};

use super::link::{self, ACK_DELAY, DEPTH};
use super::operation::operation;
use super::program_event::{EventHandle, NOTHING, acknowledge, acknowledge_last};
use super::queue_pair::fail_qp;
use super::state::{IdHandle, IdState, LiveId, Phase, Template};
use super::{event, id, qp};
use crate::call::{self, Owner};
use crate::entry::{Object, Ptr, export, named};
use crate::errno::{Errno, judged_once};
use crate::handle::{get, set};
use crate::wait;

/// A program's private data; NULL with a length means no data, as in rdma-core.
///
/// # Safety
///
/// `data` is NULL or readable for `length` octets during the call.
unsafe fn private<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: `data` has `length` octets, which nobody changes during the call.
    unsafe { slice::from_raw_parts(data.cast(), usize::from(length)) }
}

/// The queue pair that a connection is for: the id's, or the one that the program names.
fn queue_pair(id: &'static IdHandle, param: &abi::rdma_conn_param) -> (u32, bool, abi::ibv_qp_type) {
    let qp = get!(id.qp);
    match named!(qp).handle() {
        Ok(qp) => (get!(qp.qp_base.qp_num), !get!(qp.qp_base.srq).is_null(), get!(qp.qp_base.qp_type)),
        Err(_) => (param.qp_num, param.srq != 0, get!(id.qp_type)),
    }
}

fn transport(qp_type: abi::ibv_qp_type) -> Transport {
    match qp_type {
        abi::IBV_QPT_UC => Transport::Uc,
        abi::IBV_QPT_XRC_SEND | abi::IBV_QPT_XRC_RECV => Transport::XRC,
        _ => Transport::Rc,
    }
}

/// Makes the parameters of the request to the peer at the end of `route`.
fn request(
    id: &'static IdHandle,
    state: &IdState,
    route: &Route,
    param: &abi::rdma_conn_param,
) -> Result<ConnectParams, Errno> {
    let (qpn, srq, qp_type) = queue_pair(id, param);
    let params = ConnectParams {
        transport: transport(qp_type),
        responder_resources: depth(param.responder_resources, None)?,
        initiator_depth: depth(param.initiator_depth, None)?,
        flow_control: param.flow_control & 1 != 0,
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        srq,
        ack_delay: ACK_DELAY,
        ece: ece_of(id, state, extension::offer),
        ..route.request(Qpn::new(qpn), None)
    };
    // iWARP has no path record.
    let Some(record) = &state.record else { return Ok(params) };
    Ok(ConnectParams {
        path_mtu: PathMtu::try_from(record.mtu).map_err(|_| Errno::EINVAL)?,
        packet_life: CmTime::saturating(record.packet_life_time),
        traffic_class: record.traffic_class,
        hop_limit: record.hop_limit,
        flow_label: u32::from_be(record.flow_label),
        sl: record.sl,
        ..params
    })
}

/// The request to the peer.
enum Wanted {
    Connection(Box<ConnectParams>),
    /// A queue pair of datagrams, asked for with this traffic class.
    QueuePair(u8),
}

/// The parameters of a program go with queue pairs of its own; for librdmacm's they offer selective repeat or
/// agree to it.
fn ece_of(id: &'static IdHandle, state: &IdState, ours: impl FnOnce() -> Ece) -> Ece {
    if get!(id.qp).is_null() { state.link.local_ece } else { ours() }
}

fn depth(asked: u8, offer: Option<u8>) -> Result<u8, Errno> {
    attributes::depth(asked, DEPTH, offer).map_err(|_| Errno::EINVAL)
}

/// The parameters of a program that passes none.
const USUAL: abi::rdma_conn_param = abi::rdma_conn_param {
    responder_resources: abi::RDMA_MAX_RESP_RES as u8,
    initiator_depth: abi::RDMA_MAX_INIT_DEPTH as u8,
    retry_count: 7,
    rnr_retry_count: 7,
    ..NOTHING
};

export! {
    /// Asks the peer whose route was resolved for a connection. ESTABLISHED, CONNECT_RESPONSE for an id
    /// without queue pair, REJECTED or UNREACHABLE tells what becomes of it. Datagrams' peer is asked for its
    /// queue pair: ESTABLISHED brings that as `param.ud`, UNREACHABLE has the peer's status as its own if it
    /// refused. A cancellation point if the id is synchronous.
    pub waiting fn rdma_connect(
        id: Object<abi::rdma_cm_id>,
        conn_param: Ptr<abi::rdma_conn_param>,
    ) -> c_int = operation |owner| {
        let (handle, live) = id.opened()?;
        live.judge(Verb::Connect)?;
        let param = conn_param.read().unwrap_or(USUAL);
        let (port, route, wanted) = {
            let mut state = live.state.lock();
            state.phase.must_be(&[Phase::RouteResolved], "rdma_connect", "rdma_resolve_route")?;
            owner.is(state.context.ok_or(Errno::EINVAL)?)?;
            let (Some(port), Some(route)) = (state.link.port.clone(), state.route.clone()) else {
                return Err(Errno::EINVAL);
            };
            let wanted = if handle.is_for_datagrams() {
                Wanted::QueuePair(state.record.ok_or(Errno::EINVAL)?.traffic_class)
            } else {
                Wanted::Connection(Box::new(request(handle, &state, &route, &param)?))
            };
            state.phase = Phase::Connecting;
            (port, route, wanted)
        };
        // SAFETY: `private_data_len` is the length of the private data.
        let data = unsafe { private(param.private_data, param.private_data_len) };
        // The lock of the state is free here, because the thread that takes the events needs it. A thread
        // that fetches the answer before this call returns waits for `asking`.
        let _asking = live.asking.lock();
        let sink = link::sink(handle, &live);
        let asked = match wanted {
            Wanted::Connection(params) => port.connect(&route, &params, data, sink).map(|(connection, req)| {
                let mut state = live.state.lock();
                state.link.connection = Some(Arc::new(connection));
                state.link.req = req.map(Box::new);
            }),
            Wanted::QueuePair(traffic_class) => port.ask(&route, traffic_class, data, sink).map(|request| {
                live.state.lock().link.sidr_request = Some(Arc::new(request));
            }),
        };
        if let Err(error) = asked {
            live.state.lock().phase = Phase::RouteResolved;
            return Err(error.into());
        }
        Ok(Some(handle))
    }

    /// Answers a request: the id's queue pair, if it has one, is set up, and the peer told. ESTABLISHED tells
    /// when the peer knows; who asked for a queue pair of datagrams is told, and that is all. At the other
    /// end it completes a connection after CONNECT_RESPONSE. A cancellation point if the id is synchronous.
    pub waiting fn rdma_accept(
        id: Object<abi::rdma_cm_id>,
        conn_param: Ptr<abi::rdma_conn_param>,
    ) -> c_int = operation |owner| {
        let (handle, live) = id.opened()?;
        live.judge(Verb::Accept)?;
        if live.state.lock().phase == Phase::Answered {
            return establish(&live).map(|()| None);
        }
        let param = conn_param.lent().map(|param| param.read());
        if handle.is_for_datagrams() {
            return agree(owner, handle, &live, &param.unwrap_or(USUAL)).map(|()| None);
        }
        let given = param.unwrap_or(USUAL);
        // SAFETY: `private_data_len` is the length of the private data.
        let data = unsafe { private(given.private_data, given.private_data_len) };
        let (connection, answer, by_roce) = {
            let mut state = live.state.lock();
            state.phase.must_be(&[Phase::Requested], "rdma_accept", "RDMA_CM_EVENT_CONNECT_REQUEST")?;
            let context = state.context.ok_or(Errno::EINVAL)?;
            owner.is(context)?;
            let connection = state.link.connection.clone().ok_or(Errno::EINVAL)?;
            let asked = state.link.asked.clone();
            let (wished, served) = state.link.offered;
            let (qpn, srq, _) = queue_pair(handle, &given);
            let guid = u64::from_be_bytes(context.live()?.engine.attr().node_guid);
            let offered = asked.as_ref().map_or(Ece::default(), |asked| asked.req.ece);
            let answer = AcceptParams {
                responder_resources: depth(given.responder_resources, Some(wished))?,
                initiator_depth: depth(given.initiator_depth, Some(served))?,
                ack_delay: ACK_DELAY,
                flow_control: given.flow_control & 1 != 0,
                rnr_retry_count: given.rnr_retry_count.min(7),
                srq,
                ece: ece_of(handle, &state, || extension::answer(offered)),
                private: PrivateData::EMPTY,
                ..AcceptParams::new(guid, Qpn::new(qpn))
            };
            if let Some(asked) = &asked {
                PrivateData::<196>::new(data).map_err(|_| Errno::EINVAL)?;
                state.link.agreed = asked.attributes(&answer);
            }
            (connection, answer, asked.is_some())
        };
        // iWARP sets up the queue pair itself.
        if by_roce && !get!(handle.qp).is_null() {
            link::bring_up(handle, &live)?;
        }
        // ESTABLISHED may be fetched before this returns.
        live.state.lock().phase = Phase::Accepted;
        if let Err(error) = connection.accept(&answer, data) {
            live.state.lock().phase = if by_roce { Phase::Ended } else { Phase::Requested };
            if by_roce {
                fail_qp(handle);
            }
            return Err(error.into());
        }
        live.state.lock().accepted(handle, &live);
        Ok(Some(handle))
    }
}

/// Tells a peer which queue pair its datagrams go to.
fn agree(
    owner: &Owner,
    id: &'static IdHandle,
    live: &Arc<LiveId>,
    param: &abi::rdma_conn_param,
) -> Result<(), Errno> {
    // SAFETY: `private_data_len` is the length of the private data.
    let data = unsafe { private(param.private_data, param.private_data_len) };
    let (qpn, ..) = queue_pair(id, param);
    let (context, ece) = {
        let state = live.state.lock();
        (state.context, ece_of(id, &state, Ece::default))
    };
    owner.is(context.ok_or(Errno::EINVAL)?)?;
    let answer = SidrAnswer {
        status: SidrStatus::VALID,
        qpn: Qpn::new(qpn),
        qkey: Qkey::new(qp::qkey(get!(id.ps))),
        ece,
        private: PrivateData::new(data).map_err(|_| Errno::EINVAL)?,
    };
    let answered = take_sidr_request(live, Phase::Connected)?.answer(&answer);
    {
        let mut state = live.state.lock();
        match &answered {
            Ok(()) => state.accepted(id, live),
            Err(_) => state.phase = Phase::Ended,
        }
    }
    acknowledge_last(id);
    Ok(answered?)
}

/// A peer's SIDR request, to be answered: the id is then `to`.
fn take_sidr_request(live: &LiveId, to: Phase) -> Result<Arc<SidrRequest>, Errno> {
    let mut state = live.state.lock();
    if state.phase != Phase::Requested {
        return Err(Errno::EINVAL);
    }
    let request = state.link.sidr_request.take().ok_or(Errno::EINVAL)?;
    state.phase = to;
    Ok(request)
}

export! {
    /// Refuses a request, or a reply that the program was to complete itself.
    pub fn rdma_reject(
        id: Object<abi::rdma_cm_id>,
        private_data: *const c_void,
        private_data_len: u8,
    ) -> c_int = call::minus_one |_| {
        // SAFETY: `private_data_len` is the length of the private data.
        unsafe { reject(id, private_data, private_data_len, RejReason::CONSUMER) }
    }
}

/// Refuses; the reason of datagrams is always the same.
///
/// # Safety
///
/// `private_data` is NULL or readable for `private_data_len` octets.
pub(super) unsafe fn reject(
    id: Object<abi::rdma_cm_id>,
    private_data: *const c_void,
    private_data_len: u8,
    reason: RejReason,
) -> Result<c_int, Errno> {
    let (handle, live) = id.opened()?;
    live.judge(Verb::Reject)?;
    // SAFETY: `private_data_len` is the length of the private data.
    let data = unsafe { private(private_data, private_data_len) };
    if handle.is_for_datagrams() {
        let answer = SidrAnswer {
            status: SidrStatus::REJECTED,
            qpn: Qpn::new(0),
            qkey: Qkey::new(0),
            ece: Ece::default(),
            private: PrivateData::new(data).map_err(|_| Errno::EINVAL)?,
        };
        take_sidr_request(&live, Phase::Ended)?.answer(&answer)?;
        return Ok(0);
    }
    let connection = {
        let state = live.state.lock();
        if !matches!(state.phase, Phase::Requested | Phase::Answered) {
            return Err(Errno::EINVAL);
        }
        state.link.connection.clone().ok_or(Errno::EINVAL)?
    };
    let rejected = connection.reject(reason, data);
    if !matches!(rejected, Err(CmError::PrivateData(_))) {
        live.state.lock().phase = Phase::Ended;
    }
    rejected?;
    Ok(0)
}

/// Tells the peer that the program's own queue pair is set up.
fn establish(live: &LiveId) -> Result<(), Errno> {
    let connection = {
        let mut state = live.state.lock();
        if state.phase != Phase::Answered {
            return Err(Errno::EINVAL);
        }
        state.phase = Phase::Connected;
        state.link.connection.clone().ok_or(Errno::EINVAL)?
    };
    Ok(connection.establish()?)
}

export! {
    /// Completes a connection after CONNECT_RESPONSE, once the program has set up its own queue pair. EINVAL
    /// for ids that have one: for those it was done.
    pub fn rdma_establish(id: Object<abi::rdma_cm_id>) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        if !get!(handle.qp).is_null() {
            return Err(Errno::EINVAL);
        }
        establish(&live).map(|()| 0)
    }

    /// Tells that data came on the queue pair before the peer's last message: the connection is there.
    pub fn rdma_notify(id: Object<abi::rdma_cm_id>, event: abi::ibv_event_type) -> c_int = call::minus_one |_| {
        let (_, live) = id.opened()?;
        if event != abi::IBV_EVENT_COMM_EST {
            return Err(Errno::EINVAL);
        }
        let (phase, connection) = {
            let state = live.state.lock();
            if state.is_iwarp() && state.link.connection.is_some() {
                // TCP needs no hint (Linux 6.1, `rdma_notify`).
                return Ok(0);
            }
            (state.phase, state.link.connection.clone())
        };
        match (phase, connection) {
            (Phase::Accepted, Some(connection)) => connection.establish()?,
            (Phase::Connected, _) => {}
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    /// Ends the connection, or agrees that the peer ended it; the queue pair goes to the error state first.
    /// DISCONNECTED tells when both know. A cancellation point if the id is synchronous.
    pub waiting fn rdma_disconnect(id: Object<abi::rdma_cm_id>) -> c_int = operation |_| {
        let (handle, live) = id.opened()?;
        live.judge(Verb::Disconnect)?;
        let (phase, connection) = {
            let state = live.state.lock();
            (state.phase, state.link.connection.clone())
        };
        if handle.is_for_datagrams() && phase == Phase::Connected {
            // There is nothing to end, and no event tells of it (rxe 6.12, `rdma_disconnect`).
            return Ok(None);
        }
        let connection = connection.ok_or(Errno::EINVAL)?;
        if !matches!(phase, Phase::Accepted | Phase::Connected | Phase::Ended) {
            return Err(Errno::EINVAL);
        }
        fail_qp(handle);
        connection.disconnect()?;
        if phase == Phase::Ended {
            // The event was told already.
            return Ok(None);
        }
        Ok(Some(handle))
    }

    /// Waits for a request at a synchronous id that listens. Its id is synchronous too, and has a queue pair
    /// if the endpoint was made with attributes for one. A cancellation point.
    pub waiting fn rdma_get_request(
        listen: Object<abi::rdma_cm_id>,
        id: Ptr<*mut abi::rdma_cm_id>,
    ) -> c_int {
        let (mut settled, mut judged) = (false, false);
        wait::minus_one(|owner, woken| {
            judged_once(Verb::GetRequest, &mut judged)?;
            woken?;
            let (handle, live) = listen.opened()?;
            let id = id.some()?;
            let (channel, template) = {
                let state = live.state.lock();
                if !state.is_synchronous() || state.phase != Phase::Listening {
                    return Err(Errno::EINVAL);
                }
                (Arc::clone(&state.channel), state.template)
            };
            if !std::mem::replace(&mut settled, true) {
                acknowledge_last(handle);
            }
            event::next(&channel)?.then(|event| {
                id.write(take_request(owner, event, template)?);
                Ok(0)
            })
        })
    }
}

/// The id of a request that a synchronous id was told, with a queue pair as the endpoint wants it.
fn take_request(
    owner: &Owner,
    event: &'static EventHandle,
    template: Option<Template>,
) -> Result<*mut abi::rdma_cm_id, Errno> {
    if get!(event.event) != abi::RDMA_CM_EVENT_CONNECT_REQUEST {
        acknowledge(event)?;
        return Err(Errno::EINVAL);
    }
    let of = get!(event.id);
    let id = named!(of).handle()?;
    if let Some(Template { pd, mut init }) = template
        && let Err(errno) = qp::create_plain(owner, named!(of), pd, &mut init)
    {
        acknowledge(event)?;
        id::destroy(id)?;
        return Err(errno);
    }
    set!(id.event = event.c());
    Ok(of)
}
