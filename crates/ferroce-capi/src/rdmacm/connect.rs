//! Asking for connections, and answering.

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::cm::attributes::ConnectedAttr;
use ferroce_engine::cm::{
    self, AcceptParams, ConnectParams, Connection, SidrAnswer, SidrParams, SidrRequest,
};
use ferroce_engine::cm::{attributes, extension};
use ferroce_engine::faults::Verb;
use ferroce_engine::iwarp;
use ferroce_wire::cm::{
    CmTime, Ece, Info, IpCmHeader, PortSpace, PrivateData, RejReason, ServiceId, SidrStatus, Transport,
};
use ferroce_wire::{PathMtu, Qkey, Qpn};

use super::link::{self, ACK_DELAY, DEPTH};
use super::operation::operation;
use super::program_event::{EventHandle, NOTHING, acknowledge, acknowledge_last};
use super::queue_pair::fail_qp;
use super::state::{IdHandle, LiveId, Phase, State, Template};
use super::{event, id, qp, stream};
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

/// Between whom, at which service, and how the private data begin.
fn whom(
    id: &'static IdHandle,
    state: &State,
) -> Result<(cm::Route, ServiceId, [u8; IpCmHeader::LEN]), Errno> {
    let (Some(route), Some(port)) = (&state.route, &state.link.ports.broker) else {
        return Err(Errno::EINVAL);
    };
    let code = u16::try_from(get!(id.ps)).map_err(|_| Errno::EINVAL)?;
    let space = PortSpace::from_code(code).ok_or(Errno::EINVAL)?;
    let (local, remote) = (route.source.ip(), route.destination.ip());
    let header = IpCmHeader { source_port: port.number(), source: local, destination: remote };
    Ok((route.on(), space.service_id(route.destination.port()), header.emit()))
}

/// Makes the parameters of the request to the peer.
fn request(
    id: &'static IdHandle,
    state: &State,
    param: &abi::rdma_conn_param,
) -> Result<ConnectParams, Errno> {
    let (Some(record), Some(context)) = (&state.record, state.context) else { return Err(Errno::EINVAL) };
    let (on, service, header) = whom(id, state)?;
    // SAFETY: `private_data_len` is the length of the private data.
    let data = unsafe { private(param.private_data, param.private_data_len) };
    let (qpn, srq, qp_type) = queue_pair(id, param);
    let guid = u64::from_be_bytes(context.live()?.engine.attr().node_guid);
    Ok(ConnectParams {
        transport: transport(qp_type),
        responder_resources: depth(param.responder_resources, None)?,
        initiator_depth: depth(param.initiator_depth, None)?,
        flow_control: param.flow_control & 1 != 0,
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        srq,
        path_mtu: PathMtu::try_from(record.mtu).map_err(|_| Errno::EINVAL)?,
        packet_life: CmTime::saturating(record.packet_life_time),
        ack_delay: ACK_DELAY,
        traffic_class: record.traffic_class,
        hop_limit: record.hop_limit,
        flow_label: u32::from_be(record.flow_label),
        sl: record.sl,
        ece: ece_of(id, state, extension::offer),
        private: PrivateData::concat(&header, data).map_err(|_| Errno::EINVAL)?,
        ..ConnectParams::new(on, service, guid, Qpn::new(qpn))
    })
}

/// Parameters of a SIDR request, for datagrams: the program gives only the private data.
fn question(id: &'static IdHandle, state: &State, param: &abi::rdma_conn_param) -> Result<SidrParams, Errno> {
    let record = state.record.as_ref().ok_or(Errno::EINVAL)?;
    let (route, service_id, header) = whom(id, state)?;
    // SAFETY: `private_data_len` is the length of the private data.
    let data = unsafe { private(param.private_data, param.private_data_len) };
    Ok(SidrParams {
        route,
        service_id,
        response_timeout: RESPONSE_TIMEOUT,
        max_cm_retries: RETRIES,
        traffic_class: record.traffic_class,
        private: PrivateData::concat(&header, data).map_err(|_| Errno::EINVAL)?,
    })
}

/// How soon a question is answered, 4.3 seconds, before it is repeated (rxe 6.12, `CMA_CM_RESPONSE_TIMEOUT`).
const RESPONSE_TIMEOUT: CmTime = CmTime::saturating(20);
/// How often it is repeated (rxe 6.12, `CMA_MAX_CM_RETRIES`).
const RETRIES: u8 = 15;

/// The request to the broker.
enum Wanted {
    Connection(Box<ConnectParams>),
    QueuePair(Box<SidrParams>),
    /// A connection of TCP, from a port of the program's own.
    Stream(Arc<iwarp::Port>, SocketAddr),
}

/// The parameters of a program go with queue pairs of its own; for librdmacm's they offer selective repeat or
/// agree to it.
fn ece_of(id: &'static IdHandle, state: &State, ours: impl FnOnce() -> Ece) -> Ece {
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
        let wanted = {
            let mut state = live.state.lock();
            if state.phase != Phase::RouteResolved {
                return Err(Errno::EINVAL);
            }
            owner.is(state.context.ok_or(Errno::EINVAL)?)?;
            let by_stream = state.route.as_ref().filter(|route| route.is_iwarp());
            let wanted = if let Some(route) = by_stream {
                Wanted::Stream(state.link.ports.tcp.clone().ok_or(Errno::EINVAL)?, route.destination)
            } else if handle.is_for_datagrams() {
                Wanted::QueuePair(Box::new(question(handle, &state, &param)?))
            } else {
                Wanted::Connection(Box::new(request(handle, &state, &param)?))
            };
            state.phase = Phase::Connecting;
            wanted
        };
        // The lock of the state is free here, because the thread that takes the broker's events needs it. A
        // thread that fetches the answer before this call returns waits for `asking`.
        if let Wanted::Stream(port, destination) = wanted {
            let asked = request_stream(handle, &live, &param, &port, destination);
            if let Err(errno) = asked {
                live.state.lock().phase = Phase::RouteResolved;
                return Err(errno);
            }
        } else {
            let _asking = live.asking.lock();
            let sink = link::sink(handle, &live);
            let asked = match wanted {
                Wanted::Connection(params) => Connection::connect(&params, sink).map(|(connection, req)| {
                    let mut state = live.state.lock();
                    state.link.connection = Some(Arc::new(connection));
                    state.link.req = Some(Box::new(req));
                }),
                Wanted::QueuePair(params) => SidrRequest::send(&params, sink).map(|request| {
                    live.state.lock().link.sidr_request = Some(Arc::new(request));
                }),
                Wanted::Stream(..) => Ok(()),
            };
            if let Err(error) = asked {
                live.state.lock().phase = Phase::RouteResolved;
                return Err(error.into());
            }
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
        if live.state.lock().link.stream.is_some() {
            return agree_to_stream(owner, handle, &live, &param.unwrap_or(USUAL)).map(|()| Some(handle));
        }
        let (connection, answer) = {
            let mut state = live.state.lock();
            if state.phase != Phase::Requested {
                return Err(Errno::EINVAL);
            }
            let context = state.context.ok_or(Errno::EINVAL)?;
            owner.is(context)?;
            let connection = state.link.connection.clone().ok_or(Errno::EINVAL)?;
            let req = state.link.req.clone().ok_or(Errno::EINVAL)?;
            let given = param.unwrap_or(USUAL);
            // SAFETY: `private_data_len` is the length of the private data.
            let data = unsafe { private(given.private_data, given.private_data_len) };
            let (qpn, srq, _) = queue_pair(handle, &given);
            let guid = u64::from_be_bytes(context.live()?.engine.attr().node_guid);
            let answer = AcceptParams {
                responder_resources: depth(given.responder_resources, Some(req.initiator_depth))?,
                initiator_depth: depth(given.initiator_depth, Some(req.responder_resources))?,
                ack_delay: ACK_DELAY,
                flow_control: given.flow_control & 1 != 0,
                rnr_retry_count: given.rnr_retry_count.min(7),
                srq,
                ece: ece_of(handle, &state, || extension::answer(req.ece)),
                private: PrivateData::new(data).map_err(|_| Errno::EINVAL)?,
                ..AcceptParams::new(guid, Qpn::new(qpn))
            };
            let psn = state.link.psn;
            let agreed =
                attributes::passive(&req, psn, answer.initiator_depth, answer.responder_resources);
            let selective_repeat = extension::is_agreed(req.ece, answer.ece);
            state.link.agreed = agreed.map(|agreed| ConnectedAttr { selective_repeat, ..agreed });
            (connection, answer)
        };
        if !get!(handle.qp).is_null() {
            link::bring_up(handle, &live)?;
        }
        live.state.lock().phase = Phase::Accepted;
        if let Err(error) = connection.accept(&answer) {
            live.state.lock().phase = Phase::Ended;
            fail_qp(handle);
            return Err(error.into());
        }
        live.state.lock().accepted(handle, &live);
        Ok(Some(handle))
    }
}

/// Asks an iWARP peer for a connection.
fn request_stream(
    id: &'static IdHandle,
    live: &Arc<LiveId>,
    param: &abi::rdma_conn_param,
    port: &iwarp::Port,
    destination: SocketAddr,
) -> Result<(), Errno> {
    // SAFETY: `private_data_len` is the length of the private data.
    let private = unsafe { private(param.private_data, param.private_data_len) };
    let (qpn, ..) = queue_pair(id, param);
    let (ird, ord) = stream::depths(param, None)?;
    let params = iwarp::ConnectParams { destination, qpn: Qpn::new(qpn), ird, ord, private };
    stream::connect(id, live, port, &params)
}

/// Agrees to the request of an iWARP peer.
fn agree_to_stream(
    owner: &Owner,
    id: &'static IdHandle,
    live: &Arc<LiveId>,
    param: &abi::rdma_conn_param,
) -> Result<(), Errno> {
    let (connection, offered) = {
        let state = live.state.lock();
        owner.is(state.context.ok_or(Errno::EINVAL)?)?;
        if state.phase != Phase::Requested {
            return Err(Errno::EINVAL);
        }
        (state.link.stream.clone().ok_or(Errno::EINVAL)?, state.link.offered)
    };
    // SAFETY: `private_data_len` is the length of the private data.
    let private = unsafe { private(param.private_data, param.private_data_len) };
    let (qpn, ..) = queue_pair(id, param);
    let (ird, ord) = stream::depths(param, offered)?;
    stream::accept(live, &connection, &iwarp::AcceptParams { qpn: Qpn::new(qpn), ird, ord, private })?;
    live.state.lock().accepted(id, live);
    Ok(())
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
    let stream = live.state.lock().link.stream.clone();
    if let Some(stream) = stream {
        stream.reject(data)?;
        live.state.lock().phase = Phase::Ended;
        return Ok(0);
    }
    let data = PrivateData::new(data).map_err(|_| Errno::EINVAL)?;
    let connection = {
        let mut state = live.state.lock();
        if !matches!(state.phase, Phase::Requested | Phase::Answered) {
            return Err(Errno::EINVAL);
        }
        state.phase = Phase::Ended;
        state.link.connection.clone().ok_or(Errno::EINVAL)?
    };
    connection.reject(reason, Info::NONE, data)?;
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
            if state.link.stream.is_some() {
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
        let (phase, connection, stream) = {
            let state = live.state.lock();
            (state.phase, state.link.connection.clone(), state.link.stream.clone())
        };
        if let Some(stream) = stream {
            return Ok(stream::disconnect(handle, phase, &stream)?.then_some(handle));
        }
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
                (Arc::clone(state.channel()), state.template)
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
