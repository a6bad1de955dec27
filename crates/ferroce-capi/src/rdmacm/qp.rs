//! Queue pairs of ids, with the completion queues that come with them.

use std::ptr;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::cm::steps;
use ferroce_engine::{MAX_INLINE, QpAccess, QpAttr, QpAttrMask, QpCaps, QpState, Service, bring_up_mask};
use ferroce_wire::Qkey;

use super::id::{self, IdHandle};
use super::{device, done, link, made, multicast};
use crate::call;
use crate::entry::named;
use crate::errno::Errno;
use crate::qp::{LiveQp, QpHandle};
use crate::{attr, channel, cq, qp, qp_ex};

/// The Q_Key of the UDP and IB port spaces (`RDMA_UDP_QKEY`).
const UDP_QKEY: u32 = 0x0123_4567;

/// A completion queue with a channel of its own, both for the program to see. Their context is the id.
///
/// # Safety
///
/// `context` is open.
unsafe fn create_cq(
    context: *mut abi::ibv_context,
    entries: u32,
    user: *mut c_void,
) -> Result<(*mut abi::ibv_comp_channel, *mut abi::ibv_cq), Errno> {
    // SAFETY: as the caller says.
    let events = made(unsafe { channel::ibv_create_comp_channel(context) })?;
    let entries = c_int::try_from(entries.max(1)).map_err(|_| Errno::EINVAL)?;
    // SAFETY: as the caller says, and the channel was just made.
    match made(unsafe { cq::ibv_create_cq(context, entries, user, events, 0) }) {
        Ok(cq) => Ok((events, cq)),
        Err(errno) => {
            // SAFETY: it was just made.
            unsafe { channel::ibv_destroy_comp_channel(events) };
            Err(errno)
        }
    }
}

/// Makes the completion queue of a shared receive queue, as [`create_cq`].
///
/// # Safety
///
/// The id is bound to a device.
pub(super) unsafe fn create_recv_cq(id: &'static IdHandle, entries: u32) -> Result<*mut abi::ibv_cq, Errno> {
    let c = id.c();
    // SAFETY: `c()` points to a whole rdma_cm_id, and the caller says that `verbs` is a context.
    let (events, cq) = unsafe { create_cq((*c).verbs, entries, c.cast()) }?;
    // SAFETY: as above.
    unsafe { ((*c).recv_cq_channel, (*c).recv_cq) = (events, cq) };
    Ok(cq)
}

/// Ends the completion queues that were made for the id.
pub(super) fn destroy_cqs(id: &'static IdHandle) {
    let c = id.c();
    // SAFETY: `c()` points to a whole rdma_cm_id.
    let send = unsafe { (&raw mut (*c).send_cq, &raw mut (*c).send_cq_channel) };
    // SAFETY: as above.
    let recv = unsafe { (&raw mut (*c).recv_cq, &raw mut (*c).recv_cq_channel) };
    for (cq, events) in [send, recv] {
        // SAFETY: a member of the id.
        let cq = unsafe { ptr::replace(cq, ptr::null_mut()) };
        // SAFETY: as above.
        let events = unsafe { ptr::replace(events, ptr::null_mut()) };
        if !cq.is_null() {
            // SAFETY: `create_cq` made it; one that the program destroyed is refused.
            unsafe { cq::ibv_destroy_cq(cq) };
        }
        if !events.is_null() {
            // SAFETY: as above.
            unsafe { channel::ibv_destroy_comp_channel(events) };
        }
    }
}

/// Completion queues for those that the program did not name.
///
/// # Safety
///
/// The id is bound to a device.
unsafe fn fill_cqs(id: &'static IdHandle, init: &mut abi::ibv_qp_init_attr_ex) -> Result<(), Errno> {
    let c = id.c();
    // A target of XRC has no queues, an initiator receives nothing.
    let sends = init.qp_type != abi::IBV_QPT_XRC_RECV;
    let receives = sends && init.qp_type != abi::IBV_QPT_XRC_SEND;
    if receives && init.recv_cq.is_null() {
        // SAFETY: `c()` points to a whole rdma_cm_id.
        let known = unsafe { (*c).recv_cq };
        init.recv_cq = if known.is_null() {
            // SAFETY: as the caller says.
            unsafe { create_recv_cq(id, init.cap.max_recv_wr) }?
        } else {
            known
        };
    }
    if sends && init.send_cq.is_null() {
        // SAFETY: as the caller says.
        let (events, cq) = unsafe { create_cq((*c).verbs, init.cap.max_send_wr, c.cast()) }?;
        // SAFETY: `c()` points to a whole rdma_cm_id.
        unsafe { ((*c).send_cq_channel, (*c).send_cq) = (events, cq) };
        init.send_cq = cq;
    }
    Ok(())
}

/// Makes the id's queue pair. `init` gets what was filled in, also when that fails later.
///
/// # Safety
///
/// `c` is NULL or an id; the pointers in `init` are NULL or objects of this library.
pub(super) unsafe fn create(
    owner: &call::Owner,
    c: *mut abi::rdma_cm_id,
    init: &mut abi::ibv_qp_init_attr_ex,
) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    let (id, live) = unsafe { id::enter(c) }?;
    let context = live.state.lock().context.ok_or(Errno::EINVAL)?;
    owner.is(context)?;
    let c = id.c();
    // SAFETY: `c()` points to a whole rdma_cm_id.
    let (verbs, own_pd, own_srq) = unsafe { ((*c).verbs, (*c).pd, (*c).srq) };
    // SAFETY: as above.
    let (own_send, own_recv, there) = unsafe { ((*c).send_cq, (*c).recv_cq, (*c).qp) };
    let differ = |own: *mut abi::ibv_cq, named: *mut abi::ibv_cq| {
        !own.is_null() && !named.is_null() && !ptr::eq(own, named)
    };
    if !there.is_null() || differ(own_send, init.send_cq) || differ(own_recv, init.recv_cq) {
        return Err(Errno::EINVAL);
    }
    if init.comp_mask & abi::IBV_QP_INIT_ATTR_PD == 0 || init.pd.is_null() {
        init.comp_mask |= abi::IBV_QP_INIT_ATTR_PD;
        init.pd = own_pd;
    } else {
        let (_, domain) = named!(init.pd).enter(owner)?;
        if !ptr::eq(domain.context, context) {
            return Err(Errno::EINVAL);
        }
    }
    if init.srq.is_null() && init.qp_type == abi::IBV_QPT_RC {
        init.srq = own_srq;
    }
    if init.qp_type == abi::IBV_QPT_XRC_RECV
        && (init.comp_mask & abi::IBV_QP_INIT_ATTR_XRCD == 0 || init.xrcd.is_null())
    {
        init.xrcd = device::default_xrcd(context)?;
        init.comp_mask |= abi::IBV_QP_INIT_ATTR_XRCD;
    }
    // As rxe and cards, whose send queue has this room anyway: programs rely on it (rdma_xclient sends 16 octets inline).
    let room = init.cap.max_send_sge.saturating_mul(size_of::<abi::ibv_sge>() as u32).min(MAX_INLINE);
    init.cap.max_inline_data = init.cap.max_inline_data.max(room);
    // SAFETY: it is bound to a device.
    let result = unsafe { fill_cqs(id, init) }.and_then(|()| {
        // SAFETY: as the caller says.
        let made = made(unsafe { qp_ex::create_qp_ex(verbs, init) })?;
        // SAFETY: it was just made.
        let handle = unsafe { QpHandle::from_c(made) }?;
        // SAFETY: `c()` points to a whole rdma_cm_id.
        let ps = unsafe { (*c).ps };
        let live = handle.live()?;
        make_ready(ps, handle, &live).inspect_err(|_| {
            // SAFETY: as above.
            unsafe { qp::ibv_destroy_qp(made) };
        })?;
        Ok(made)
    });
    match result {
        Ok(made) => {
            // SAFETY: `c()` points to a whole rdma_cm_id.
            unsafe { (*c).qp = made };
            // SAFETY: as above.
            unsafe { (*c).pd = init.pd };
            Ok(())
        }
        Err(errno) => {
            // Those of the program stay as they are: only the id's own are in its members.
            destroy_cqs_but(id, own_send, own_recv);
            Err(errno)
        }
    }
}

/// As [`destroy_cqs`], but leaves those that were there before.
fn destroy_cqs_but(id: &'static IdHandle, send: *mut abi::ibv_cq, recv: *mut abi::ibv_cq) {
    if send.is_null() && recv.is_null() {
        destroy_cqs(id);
    }
}

/// Brings a new queue pair to where it can receive, and datagrams' to where it can send.
fn make_ready(ps: abi::rdma_port_space, qp: &QpHandle, live: &LiveQp) -> Result<(), Errno> {
    let steps: &[QpState] = match live.engine.service() {
        Service::Ud => &[QpState::Init, QpState::Rtr, QpState::Rts],
        _ => &[QpState::Init],
    };
    for to in steps {
        let (attr, mask) = unconnected(ps, live.engine.service(), *to);
        qp.modify(live, &attr, mask)?;
    }
    Ok(())
}

/// The Q_Key of queue pairs of datagrams: that of groups for IPoIB, of which RoCE has none.
pub(super) fn qkey(ps: abi::rdma_port_space) -> u32 {
    if ps == abi::RDMA_PS_IPOIB { 0 } else { UDP_QKEY }
}

/// The attributes for the step to `to`, before a connection says which accesses the peer shall have.
fn unconnected(ps: abi::rdma_port_space, service: Service, to: QpState) -> (QpAttr, QpAttrMask) {
    if service == Service::Ud {
        let attr = QpAttr { qp_state: to, qkey: Qkey::new(qkey(ps)), ..QpAttr::default() };
        (attr, bring_up_mask(service, to))
    } else {
        steps::init(QpAccess::REMOTE_WRITE)
    }
}

/// The head of the extended structure, as a program of the plain one gave it.
fn extended(init: &abi::ibv_qp_init_attr, pd: *mut abi::ibv_pd) -> abi::ibv_qp_init_attr_ex {
    // SAFETY: all of it is plain data and pointers, for which zero is a value.
    let mut ex: abi::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    ex.qp_context = init.qp_context;
    ex.send_cq = init.send_cq;
    ex.recv_cq = init.recv_cq;
    ex.srq = init.srq;
    ex.cap = init.cap;
    ex.qp_type = init.qp_type;
    ex.sq_sig_all = init.sq_sig_all;
    ex.pd = pd;
    ex.comp_mask = abi::IBV_QP_INIT_ATTR_PD;
    ex
}

/// Makes the id's queue pair, ready to receive, and for datagrams to send. Without a protection domain it is in the
/// device's default one; completion queues that are NULL are made, with channels, and are the id's members.
///
/// # Safety
///
/// `id` is NULL or an id, `pd` NULL or a protection domain; `qp_init_attr` is NULL or writable, its pointers NULL or
/// objects of this library.
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut abi::rdma_cm_id,
    pd: *mut abi::ibv_pd,
    qp_init_attr: *mut abi::ibv_qp_init_attr,
) -> c_int {
    call::minus_one(|owner| {
        // SAFETY: NULL, or the program's to lend during the call.
        let init = unsafe { qp_init_attr.as_mut() }.ok_or(Errno::EINVAL)?;
        let mut ex = extended(init, pd);
        // SAFETY: as the caller says.
        unsafe { create(owner, id, &mut ex) }?;
        (init.send_cq, init.recv_cq, init.srq) = (ex.send_cq, ex.recv_cq, ex.srq);
        init.cap = ex.cap;
        Ok(0)
    })
}

/// As [`rdma_create_qp`], with the attributes of `ibv_create_qp_ex`.
///
/// # Safety
///
/// `id` is NULL or an id; `qp_init_attr` is NULL or writable, its pointers NULL or objects of this library.
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut abi::rdma_cm_id,
    qp_init_attr: *mut abi::ibv_qp_init_attr_ex,
) -> c_int {
    call::minus_one(|owner| {
        // SAFETY: NULL, or the program's to lend during the call.
        let init = unsafe { qp_init_attr.as_mut() }.ok_or(Errno::EINVAL)?;
        // On failure the program's attributes stay as they were.
        let mut ex = *init;
        // SAFETY: as the caller says.
        unsafe { create(owner, id, &mut ex) }?;
        *init = ex;
        Ok(0)
    })
}

/// Ends the id's queue pair, and the completion queues that were made with it.
///
/// # Safety
///
/// `id` is NULL or an id.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut abi::rdma_cm_id) {
    call::nothing(|_| {
        // SAFETY: as the caller says.
        let (handle, live) = unsafe { id::enter(id) }?;
        let groups = live.state.lock().memberships.clone();
        multicast::leave_all(handle, groups);
        let c = handle.c();
        // SAFETY: `c()` points to a whole rdma_cm_id.
        let qp = unsafe { ptr::replace(&raw mut (*c).qp, ptr::null_mut()) };
        if qp.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `create` made it; one that the program destroyed is refused.
        let result = done(unsafe { qp::ibv_destroy_qp(qp) });
        // SAFETY: `c()` points to a whole rdma_cm_id.
        if unsafe { (*c).srq }.is_null() {
            destroy_cqs(handle);
        }
        result
    });
}

/// The attributes that a queue pair of the program's own needs for the state in `qp_attr->qp_state`: INIT, and RTR and
/// RTS of datagrams and of a connection whose ends said enough; EINVAL before.
///
/// # Safety
///
/// `id` is NULL or an id, `qp_attr` and `qp_attr_mask` are NULL or writable.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut abi::rdma_cm_id,
    qp_attr: *mut abi::ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    call::minus_one(|owner| {
        // SAFETY: as the caller says.
        let (handle, live) = unsafe { id::enter(id) }?;
        let context = live.state.lock().context;
        if qp_attr.is_null() || qp_attr_mask.is_null() {
            return Err(Errno::EINVAL);
        }
        owner.is(context.ok_or(Errno::EINVAL)?)?;
        // SAFETY: `c()` points to a whole rdma_cm_id.
        let (ps, qp_type) = unsafe { ((*handle.c()).ps, (*handle.c()).qp_type) };
        // SAFETY: not NULL, and readable as the caller says.
        let state = unsafe { (*qp_attr).qp_state };
        let to = attr::state(state)?;
        // SAFETY: `c()` points to a whole rdma_cm_id.
        let qp = unsafe { (*handle.c()).qp };
        // SAFETY: NULL, or `create` made it.
        let qp_type = unsafe { qp.as_ref() }.map_or(qp_type, |qp| qp.qp_type);
        let service = crate::qp::service(qp_type).unwrap_or(Service::Rc);
        let state = live.state.lock();
        let (attr, mask) = match to {
            QpState::Init | QpState::Rtr | QpState::Rts if state.link.agreed.is_some() => {
                link::step(&state, service, to)?
            }
            QpState::Init => unconnected(ps, service, to),
            QpState::Rtr | QpState::Rts if service == Service::Ud => unconnected(ps, service, to),
            _ => return Err(Errno::EINVAL),
        };
        drop(state);
        let (attr, mask) = (attr::c_attr(&attr, &QpCaps::default()), mask.bits() as c_int);
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { qp_attr.write(attr) };
        // SAFETY: as above.
        unsafe { qp_attr_mask.write(mask) };
        Ok(0)
    })
}
