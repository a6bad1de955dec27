//! Addresses and routes of ids. An address takes as long as the kernel needs to find the next hop's link
//! address. A route is known at once: there is no subnet administrator to ask on RoCE.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::cm::Port;
use ferroce_engine::cm::resolve::{self, Route};
use ferroce_engine::faults::Verb;
use ferroce_engine::neighbour::{self, Unreached};
use ferroce_wire::PathMtu;
use libc::sockaddr;

use super::address;
use super::bind;
use super::device;
use super::operation;
use super::route::{path_record, take_route};
use super::state::{IdHandle, LiveId, Options, Phase};
use crate::call;
use crate::entry::{ConstPtr, Object, export};
use crate::errno::{Errno, judged_without_device};
use crate::handle::get;
use crate::reason;

/// Resolves `destination`, from `source` if that is given, and queues the event that tells of it, after at
/// most `limit`. Takes a port, unless the id has one.
pub(super) fn resolve_address(
    id: &'static IdHandle,
    live: &Arc<LiveId>,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    limit: Duration,
) -> Result<(), Errno> {
    let (before, bound, options, waits) = {
        let mut state = live.state.lock();
        state.phase.must_be(&[Phase::Idle, Phase::Bound], "rdma_resolve_addr", "rdma_create_id")?;
        // Another thread cannot resolve meanwhile.
        let before = std::mem::replace(&mut state.phase, Phase::Resolving);
        let bound = state.link.port.as_ref().map(|port| port.number());
        (before, bound, state.options, state.is_synchronous())
    };
    let found = match find(id, source, destination, bound, &options) {
        Ok(found) => found,
        Err(failure) => {
            let mut state = live.state.lock();
            state.phase = before;
            return match failure {
                Failure::OfCall(errno) => Err(errno),
                Failure::OfWay(errno) => {
                    state.tell(id, live, abi::RDMA_CM_EVENT_ADDR_ERROR, Err(errno));
                    Ok(())
                }
            };
        }
    };
    let (from, to) = (found.0.source, found.0.destination);
    if waits {
        let reached = neighbour::reach(from, to, limit);
        finish(id, live, before, found, reached);
        return Ok(());
    }
    if let reached @ Ok(_) = neighbour::reach(from, to, Duration::ZERO) {
        finish(id, live, before, found, reached);
        return Ok(());
    }
    let (asked, ended) = (Arc::clone(live), Arc::clone(live));
    let is_over = move || ended.state.lock().ended;
    let then = move |reached| finish(id, &asked, before, found, reached);
    neighbour::when_reached(from, to, limit, is_over, then).map_err(|error| {
        live.state.lock().phase = before;
        error.into()
    })
}

/// Takes the route and tells of it, or tells why nothing can be sent there.
fn finish(
    id: &'static IdHandle,
    live: &Arc<LiveId>,
    before: Phase,
    (route, port): (Route, Option<Port>),
    reached: Result<u8, Unreached>,
) {
    let reached = reached.map_err(|why| match why {
        Unreached::Unanswered => {
            let why = format!("no host answers at {}", route.destination.ip());
            reason::tell("rdma_resolve_addr", &io::Error::new(io::ErrorKind::TimedOut, why));
            Errno::ETIMEDOUT
        }
        Unreached::NoRoute(errno) => io::Error::from_raw_os_error(errno).into(),
    });
    let home = reached.and_then(|_| device::home(&route.local.device));
    let mut state = live.state.lock();
    // The id may be destroyed, and its handle another's.
    if state.ended || state.phase != Phase::Resolving {
        return;
    }
    let home = match home {
        Ok(home) => home,
        Err(errno) => {
            state.phase = before;
            state.tell(id, live, abi::RDMA_CM_EVENT_ADDR_ERROR, Err(errno));
            return;
        }
    };
    state.phase = Phase::AddressResolved;
    if let Some(port) = port {
        state.link.port = Some(Arc::new(port));
    }
    take_route(id, &mut state, route, home);
    state.tell(id, live, abi::RDMA_CM_EVENT_ADDR_RESOLVED, Ok(()));
}

/// Why an address was not resolved.
enum Failure {
    /// The call was wrong, or its port is taken: the call says so.
    OfCall(Errno),
    /// There is no way: an event says so.
    OfWay(Errno),
}

/// The way, and a new port if none is `bound`.
fn find(
    id: &'static IdHandle,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    bound: Option<u16>,
    options: &Options,
) -> Result<(Route, Option<Port>), Failure> {
    // Without an address of its own, the family is refused.
    let own = address::of_storage(&get!(id.route.addr.unnamed.src_storage)).ok();
    let source = source.or(own.filter(|_| bound.is_some()));
    if source.is_some_and(|source| source.is_ipv4() != destination.is_ipv4()) {
        return Err(Failure::OfCall(Errno::EINVAL));
    }
    let route = resolve::route_by(bind::transports(id), source, destination);
    let mut route = route.map_err(|error| Failure::OfWay(error.into()))?;
    if let Some(number) = bound {
        route.source.set_port(number);
        return Ok((route, None));
    }
    route.source.set_port(source.map_or(0, |source| source.port()));
    let wanted = bind::wanted(id, route.transports(), route.source, options);
    let port = wanted.and_then(|wanted| Ok(Port::bind(&wanted)?)).map_err(Failure::OfCall)?;
    route.source.set_port(port.number());
    Ok((route, Some(port)))
}

/// Resolves the route to the address that was resolved, and queues the event that tells of it.
pub(super) fn resolve_route(id: &'static IdHandle, live: &Arc<LiveId>) -> Result<(), Errno> {
    let mut state = live.state.lock();
    state.phase.must_be(&[Phase::AddressResolved], "rdma_resolve_route", "rdma_resolve_addr")?;
    let record = match &state.route {
        // There is no path record on iWARP: `num_paths` stays 0, and `path_rec` NULL.
        Some(route) if route.is_iwarp() => None,
        Some(route) => Some(path_record(route, &state.options)),
        None => return Err(Errno::EINVAL),
    };
    if let Some(record) = record {
        state.set_path(id, record);
    }
    state.phase = Phase::RouteResolved;
    state.tell(id, live, abi::RDMA_CM_EVENT_ROUTE_RESOLVED, Ok(()));
    Ok(())
}

/// Takes a path of the program's in the place of [`resolve_route`]. Addresses stay those that were resolved.
pub(super) fn take_path(
    id: &'static IdHandle,
    live: &Arc<LiveId>,
    path: &abi::ibv_path_record,
) -> Result<(), Errno> {
    let mut state = live.state.lock();
    if state.phase != Phase::AddressResolved {
        return Err(Errno::EINVAL);
    }
    let state = &mut *state;
    let Some(route) = state.route.as_mut().filter(|route| !route.is_iwarp()) else {
        return Err(Errno::EINVAL);
    };
    let label_and_hops = u32::from_be(path.flowlabel_hoplimit);
    let mtu = PathMtu::try_from(path.mtu & 0x3f).map_err(|_| Errno::EINVAL)?;
    route.mtu = mtu.min(route.mtu);
    route.hop_limit = label_and_hops as u8;
    let record = abi::ibv_sa_path_rec {
        flow_label: (label_and_hops >> 8 & 0xf_ffff).to_be(),
        traffic_class: path.tclass,
        reversible: c_int::from(path.reversible_numpath >> 7),
        numb_path: path.reversible_numpath & 0x7f,
        sl: (u16::from_be(path.qosclass_sl) & 0xf) as u8,
        rate: path.rate & 0x3f,
        packet_life_time: path.packetlifetime & 0x3f,
        preference: path.preference,
        ..path_record(route, &state.options)
    };
    state.set_path(id, record);
    state.phase = Phase::RouteResolved;
    state.tell(id, live, abi::RDMA_CM_EVENT_ROUTE_RESOLVED, Ok(()));
    Ok(())
}

export! {
    /// Finds the device that reaches `dst_addr`, from `src_addr` unless that is NULL or the wildcard, and
    /// binds the id to it. ADDR_RESOLVED tells when the kernel knows the link address of the next hop,
    /// ADDR_ERROR with -ETIMEDOUT if no host answers within `timeout_ms`.
    pub fn rdma_resolve_addr(
        id: Object<abi::rdma_cm_id>,
        src_addr: ConstPtr<sockaddr>,
        dst_addr: ConstPtr<sockaddr>,
        timeout_ms: c_int,
    ) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        judged_without_device(Verb::ResolveAddr)?;
        let source = address::read_optional(src_addr)?;
        let destination = address::read_group(dst_addr)?;
        // The kernel reads the time as an unsigned number.
        let limit = Duration::from_millis(u64::from(timeout_ms as u32));
        resolve_address(handle, &live, source, destination, limit)?;
        operation::complete(handle).map(|()| 0)
    }

    /// Finds the path to the address that was resolved: local knowledge on RoCE. ROUTE_RESOLVED tells of it.
    pub fn rdma_resolve_route(id: Object<abi::rdma_cm_id>, _timeout_ms: c_int) -> c_int = call::minus_one |owner| {
        let (handle, live) = id.opened()?;
        let context = live.state.lock().context;
        if let Some(context) = context {
            owner.is(context)?;
        }
        live.judge(Verb::ResolveRoute)?;
        resolve_route(handle, &live)?;
        operation::complete(handle).map(|()| 0)
    }
}
