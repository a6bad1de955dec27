//! Queue pairs of ids, with the completion queues that come with them.

use std::ptr;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::cm::steps;
use ferroce_engine::{CqInit, QpAccess, QpAttr, QpAttrMask, QpCaps, QpState, Service, bring_up_mask};
use ferroce_wire::Qkey;

use super::queue_pair::leave_all;
use super::state::{IdHandle, LiveId};
use super::{device, link};
use crate::call::{self, Owner};
use crate::context::ContextHandle;
use crate::entry::{Object, Ptr, export, named};
use crate::errno::Errno;
use crate::handle::{get, set, take};
use crate::qp::{LiveQp, QpHandle};
use crate::{attr, channel, check, cq, cq_ex, create_qp, qp};

/// The Q_Key of the UDP and IB port spaces (`RDMA_UDP_QKEY`).
const UDP_QKEY: u32 = 0x0123_4567;

/// A completion queue with a channel of its own, both for the program to see. Their context is the id.
fn create_cq(
    owner: &Owner,
    id: &'static IdHandle,
    entries: u32,
) -> Result<(*mut abi::ibv_comp_channel, *mut abi::ibv_cq), Errno> {
    let context = get!(id.verbs);
    let context = named!(context);
    let events = channel::create(context.opened(owner)?)?;
    let channel = named!(events);
    let init = CqInit { entries: entries.max(1), ..CqInit::default() };
    let wanted = cq_ex::Wanted { init, cq_context: id.c().cast(), channel };
    match cq_ex::create(owner, context, wanted) {
        Ok(cq) => {
            // The program does not end them: the id does.
            check::ended(events);
            check::ended(cq);
            Ok((events, cq.cast()))
        }
        Err(errno) => {
            let _ = channel::destroy(owner, channel);
            Err(errno)
        }
    }
}

/// Makes the completion queue of a shared receive queue, as [`create_cq`].
pub(super) fn create_recv_cq(
    owner: &Owner,
    id: &'static IdHandle,
    entries: u32,
) -> Result<*mut abi::ibv_cq, Errno> {
    let (events, cq) = create_cq(owner, id, entries)?;
    set!(id.recv_cq_channel = events);
    set!(id.recv_cq = cq);
    Ok(cq)
}

/// Ends the completion queues that were made for the id, unless the program did.
pub(super) fn destroy_cqs(owner: &Owner, id: &'static IdHandle) {
    let send = (take!(id.send_cq), take!(id.send_cq_channel));
    let recv = (take!(id.recv_cq), take!(id.recv_cq_channel));
    for (cq, events) in [send, recv] {
        let _ = cq::destroy(owner, named!(cq));
        let _ = channel::destroy(owner, named!(events));
    }
}

/// Makes the completion queues that the program did not name.
fn fill_cqs(owner: &Owner, id: &'static IdHandle, init: &mut abi::ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // A target of XRC has no queues, an initiator receives nothing.
    let sends = init.qp_type != abi::IBV_QPT_XRC_RECV;
    let receives = sends && init.qp_type != abi::IBV_QPT_XRC_SEND;
    if receives && init.recv_cq.is_null() {
        let known = get!(id.recv_cq);
        init.recv_cq = if known.is_null() { create_recv_cq(owner, id, init.cap.max_recv_wr)? } else { known };
    }
    if sends && init.send_cq.is_null() {
        let (events, cq) = create_cq(owner, id, init.cap.max_send_wr)?;
        set!(id.send_cq_channel = events);
        set!(id.send_cq = cq);
        init.send_cq = cq;
    }
    Ok(())
}

/// Makes the id's queue pair. `init` gets what was filled in, also when that fails later.
pub(super) fn create(
    owner: &Owner,
    id: Object<abi::rdma_cm_id>,
    init: &mut abi::ibv_qp_init_attr_ex,
) -> Result<(), Errno> {
    let (id, live) = id.opened()?;
    let context = live.state.lock().context.ok_or(Errno::EINVAL)?;
    owner.is(context)?;
    let (verbs, own_pd, own_srq) = (get!(id.verbs), get!(id.pd), get!(id.srq));
    let (own_send, own_recv, there) = (get!(id.send_cq), get!(id.recv_cq), get!(id.qp));
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
    let result = fill_cqs(owner, id, init).and_then(|()| {
        let made = create_qp::create_ex(owner, named!(verbs), init)?;
        let qp = named!(made);
        let (handle, live) = qp.enter(owner)?;
        make_ready(get!(id.ps), handle, &live).inspect_err(|_| {
            let _ = qp::destroy(owner, qp);
        })?;
        Ok(made)
    });
    match result {
        Ok(made) => {
            set!(id.qp = made);
            set!(id.pd = init.pd);
            Ok(())
        }
        Err(errno) => {
            // Completion queues of the program stay as they are: only the id's own are in its members.
            if own_send.is_null() && own_recv.is_null() {
                destroy_cqs(owner, id);
            }
            Err(errno)
        }
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
    if service == Service::Iwarp {
        let attr =
            QpAttr { state: to, access: QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ, ..QpAttr::default() };
        (attr, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS)
    } else if service == Service::Ud {
        let attr = QpAttr { state: to, qkey: Qkey::new(qkey(ps)), ..QpAttr::default() };
        (attr, bring_up_mask(service, to))
    } else {
        steps::init(QpAccess::empty())
    }
}

/// Whether a context is of an iWARP device.
fn is_iwarp(context: &ContextHandle) -> bool {
    context.live().is_ok_and(|live| live.engine.is_iwarp())
}

/// The attributes of a queue pair of the program's own for the step to `to`, as Linux gives them (6.1,
/// `iw_cm_init_qp_attr`): the connection itself takes the queue pair to RTS.
fn iwarp_step(to: QpState) -> Result<(QpAttr, QpAttrMask), Errno> {
    match to {
        QpState::Init | QpState::Rtr => {
            let access = QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ;
            let attr = QpAttr { state: QpState::Init, access, port_num: 1, ..QpAttr::default() };
            Ok((attr, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS | QpAttrMask::PORT))
        }
        QpState::Rts => Ok((QpAttr { state: QpState::Rts, ..QpAttr::default() }, QpAttrMask::empty())),
        _ => Err(Errno::EINVAL),
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

/// Makes the id's queue pair from the attributes of `ibv_create_qp`.
pub(super) fn create_plain(
    owner: &Owner,
    id: Object<abi::rdma_cm_id>,
    pd: *mut abi::ibv_pd,
    init: &mut abi::ibv_qp_init_attr,
) -> Result<(), Errno> {
    let mut ex = extended(init, pd);
    create(owner, id, &mut ex)?;
    (init.send_cq, init.recv_cq, init.srq, init.cap) = (ex.send_cq, ex.recv_cq, ex.srq, ex.cap);
    Ok(())
}

/// Ends the id's queue pair, and the completion queues that were made with it.
pub(super) fn destroy(owner: &Owner, id: &'static IdHandle, live: &LiveId) -> Result<(), Errno> {
    let groups = live.state.lock().memberships.clone();
    leave_all(id, groups);
    let qp = take!(id.qp);
    if qp.is_null() {
        return Err(Errno::EINVAL);
    }
    let result = owner.ended(qp::destroy(owner, named!(qp)));
    if get!(id.srq).is_null() {
        destroy_cqs(owner, id);
    }
    result
}

export! {
    /// Makes the id's queue pair, ready to receive, and for datagrams to send. Without a protection domain it
    /// is in the device's default one; completion queues that are NULL are made, with channels, and are the
    /// id's members.
    pub fn rdma_create_qp(
        id: Object<abi::rdma_cm_id>,
        pd: Object<abi::ibv_pd>,
        qp_init_attr: Ptr<abi::ibv_qp_init_attr>,
    ) -> c_int = call::minus_one |owner| {
        let (to, mut init) = (qp_init_attr.some()?, qp_init_attr.read()?);
        create_plain(owner, id, pd.as_ptr(), &mut init)?;
        to.write(init);
        Ok(0)
    }

    /// As [`rdma_create_qp`], with the attributes of `ibv_create_qp_ex`.
    pub fn rdma_create_qp_ex(
        id: Object<abi::rdma_cm_id>,
        qp_init_attr: Ptr<abi::ibv_qp_init_attr_ex>,
    ) -> c_int = call::minus_one |owner| {
        // On failure the program's attributes stay as they were.
        let (to, mut init) = (qp_init_attr.some()?, qp_init_attr.read()?);
        create(owner, id, &mut init)?;
        to.write(init);
        Ok(0)
    }

    /// Ends the id's queue pair, and the completion queues that were made with it.
    pub fn rdma_destroy_qp(id: Object<abi::rdma_cm_id>) -> () = call::nothing |owner| {
        let (handle, live) = id.opened()?;
        destroy(owner, handle, &live)
    }

    /// The attributes that a queue pair of the program's own needs for the state in `qp_attr->qp_state`:
    /// INIT, and RTR and RTS of datagrams and of a connection whose ends said enough; EINVAL before.
    pub fn rdma_init_qp_attr(
        id: Object<abi::rdma_cm_id>,
        qp_attr: Ptr<abi::ibv_qp_attr>,
        qp_attr_mask: Ptr<c_int>,
    ) -> c_int = call::minus_one |owner| {
        let (handle, live) = id.opened()?;
        let context = live.state.lock().context;
        let (qp_attr, qp_attr_mask) = (qp_attr.some()?, qp_attr_mask.some()?);
        owner.is(context.ok_or(Errno::EINVAL)?)?;
        let (ps, qp_type) = (get!(handle.ps), get!(handle.qp_type));
        let to = attr::state(get!(qp_attr.qp_state))?;
        let qp = get!(handle.qp);
        let qp_type = named!(qp).handle().map_or(qp_type, |qp| get!(qp.qp_base.qp_type));
        let service = crate::qp::service(qp_type).unwrap_or(Service::Rc);
        let state = live.state.lock();
        let (attr, mask) = match to {
            to if context.is_some_and(is_iwarp) => iwarp_step(to)?,
            QpState::Init | QpState::Rtr | QpState::Rts if state.link.agreed.is_some() => {
                link::step(&state, service, to)?
            }
            QpState::Init => unconnected(ps, service, to),
            QpState::Rtr | QpState::Rts if service == Service::Ud => unconnected(ps, service, to),
            _ => return Err(Errno::EINVAL),
        };
        drop(state);
        let (attr, mask) = (attr::c_attr(&attr, &QpCaps::default()), mask.bits() as c_int);
        qp_attr.write(attr);
        qp_attr_mask.write(mask);
        Ok(0)
    }
}
