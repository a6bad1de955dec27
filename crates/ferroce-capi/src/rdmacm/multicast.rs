//! Multicast groups of ids. There is no subnet administrator to ask on RoCE: the group is the address, and
//! joining it is local. The queue pair is attached by the thread that fetches the event, as in rdma-core.

use std::net::SocketAddr;
use std::sync::Arc;

use core::ffi::{c_int, c_uint, c_void};
use ferroce_abi as abi;
use ferroce_engine::cm::attributes;
use ferroce_engine::faults::Verb;
use ferroce_wire::Gid;
use libc::sockaddr;

use super::operation;
use super::program_event::{NO_DATAGRAMS, ProgramEvent};
use super::queue_pair::{detach, queue_pair};
use super::state::{IdHandle, LiveId, Membership, Phase, What};
use super::{address, qp};
use crate::call;
use crate::entry::{ConstPtr, Object, Ptr, export, named};
use crate::errno::{Errno, judged_without_device};
use crate::handle::get;

/// Datagrams to a group go to this queue pair (IBTA 10.5.2).
const EVERYBODY: u32 = 0xff_ffff;
/// Time to live of what goes to a group (rxe 6.12, `cma_iboe_join_multicast`).
const HOP_LIMIT: u8 = 64;

/// Joins a group and queues the event that tells of it.
fn join(
    id: &'static IdHandle,
    live: &Arc<LiveId>,
    address: SocketAddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<(), Errno> {
    let mgid = Gid::from_ip(address.ip());
    if !id.is_for_datagrams() || !mgid.is_multicast() {
        return Err(Errno::EINVAL);
    }
    let membership = Arc::new(Membership { address, mgid, send_only, context });
    let mut state = live.state.lock();
    if state.context.is_none() || state.phase == Phase::Listening {
        return Err(Errno::EINVAL);
    }
    state.memberships.push(Arc::clone(&membership));
    state.queue(id, live, What::Joined(membership));
    Ok(())
}

/// The event of a group is fetched: attaches the queue pair.
pub(super) fn joined(id: &'static IdHandle, live: &LiveId, membership: &Arc<Membership>) -> ProgramEvent {
    let attached = if get!(id.qp).is_null() || membership.send_only {
        Ok(())
    } else {
        queue_pair(id).and_then(|(_, qp)| Ok(qp.engine.attach(membership.mgid)?))
    };
    let mut state = live.state.lock();
    let tos = match &state.route {
        Some(route) => route.type_of_service(state.options.tos),
        None => state.options.tos.unwrap_or(0),
    };
    let grh = abi::ibv_global_route {
        dgid: abi::ibv_gid { raw: membership.mgid.0 },
        flow_label: 0,
        sgid_index: state.gid_index.unwrap_or(0),
        hop_limit: HOP_LIMIT,
        traffic_class: tos,
    };
    let ud = abi::rdma_ud_param {
        private_data: membership.context,
        ah_attr: abi::ibv_ah_attr {
            grh,
            is_global: 1,
            port_num: 1,
            sl: attributes::service_level(tos),
            ..NO_DATAGRAMS.ah_attr
        },
        qp_num: EVERYBODY,
        qkey: qp::qkey(get!(id.ps)),
        ..NO_DATAGRAMS
    };
    let (kind, status) = match attached {
        Ok(()) => (abi::RDMA_CM_EVENT_MULTICAST_JOIN, 0),
        Err(errno) => {
            state.memberships.retain(|known| !Arc::ptr_eq(known, membership));
            (abi::RDMA_CM_EVENT_MULTICAST_ERROR, -errno.code())
        }
    };
    ProgramEvent { param: abi::rdma_cm_event_param { ud }, ..ProgramEvent::plain(id, kind, status) }
}

/// Leaves a group; EADDRNOTAVAIL if it is not one of the id's.
fn leave(id: &'static IdHandle, live: &Arc<LiveId>, address: SocketAddr) -> Result<(), Errno> {
    let mut state = live.state.lock();
    let place = state.memberships.iter().position(|known| known.address == address);
    let membership = state.memberships.remove(place.ok_or(Errno::EADDRNOTAVAIL)?);
    let mut untold = false;
    state.channel.events.purge(|queued| {
        let is = matches!(&queued.what, What::Joined(of) if Arc::ptr_eq(of, &membership));
        untold |= is;
        is
    });
    // Another membership may be in the same group.
    let needed = state.memberships.iter().any(|other| other.mgid == membership.mgid && !other.send_only);
    drop(state);
    if get!(id.qp).is_null() || membership.send_only || untold || needed {
        return Ok(());
    }
    match detach(id, &membership) {
        // The queue pair was made after the event, or the program detached it.
        Err(Errno::EINVAL) => Ok(()),
        result => result,
    }
}

/// Joins a group, as [`rdma_join_multicast`] and the other say.
fn enter(
    id: Object<abi::rdma_cm_id>,
    addr: ConstPtr<sockaddr>,
    send_only: bool,
    context: *mut c_void,
) -> Result<c_int, Errno> {
    judged_without_device(Verb::JoinMulticast)?;
    let (handle, live) = id.opened()?;
    let group = address::read_group(addr)?;
    join(handle, &live, group, send_only, context)?;
    operation::complete(handle).map(|()| 0)
}

export! {
    /// Joins a group for sending and receiving, once the id is bound to a device. MULTICAST_JOIN tells of it:
    /// its `param.ud` is what datagrams to the group need, and the queue pair, if there is one, is attached.
    /// `context` is its `private_data`.
    pub fn rdma_join_multicast(
        id: Object<abi::rdma_cm_id>,
        addr: ConstPtr<sockaddr>,
        context: *mut c_void,
    ) -> c_int {
        call::minus_one(|_| enter(id, addr, false, context))
    }

    /// As [`rdma_join_multicast`], perhaps only for sending: the queue pair is then not attached. EINVAL
    /// without address or flags, ENOTSUP for what is not known.
    pub fn rdma_join_multicast_ex(
        id: Object<abi::rdma_cm_id>,
        attr: Ptr<abi::rdma_cm_join_mc_attr_ex>,
        context: *mut c_void,
    ) -> c_int = call::minus_one |_| {
        let attr = attr.read()?;
        let all: c_uint = abi::RDMA_CM_JOIN_MC_ATTR_ADDRESS | abi::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask & !all != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if attr.comp_mask != all {
            return Err(Errno::EINVAL);
        }
        let send_only = match attr.join_flags {
            abi::RDMA_MC_JOIN_FLAG_FULLMEMBER => false,
            abi::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => true,
            _ => return Err(Errno::EINVAL),
        };
        enter(id, named!(const attr.addr), send_only, context)
    }

    /// Leaves a group, and detaches the queue pair. An event of the group that was not fetched vanishes.
    pub fn rdma_leave_multicast(id: Object<abi::rdma_cm_id>, addr: ConstPtr<sockaddr>) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        let group = address::read_group(addr)?;
        leave(handle, &live, group).map(|()| 0)
    }
}
