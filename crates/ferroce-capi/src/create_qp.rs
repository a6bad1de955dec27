//! Making queue pairs, and opening XRC targets by their number.

use std::ptr;
use std::sync::Arc;

use core::ffi::c_void;
use ferroce_abi as abi;
use ferroce_engine::faults::Verb;
use ferroce_engine::{Qp, QpCaps, QpInit, QpShare, Service, Xrcd};
use ferroce_wire::Qpn;

use crate::attr;
use crate::call::{self, Owner};
use crate::check;
use crate::context::{ContextHandle, Made};
use crate::entry::{Object, Ptr, export, named};
use crate::errno::{Errno, judged};
use crate::handle::{next_number, set};
use crate::qp::{LiveQp, POOL, service};
use crate::qp_ex;

/// The valid bits of `send_ops_flags` for an RC queue pair.
const RC_OPS: u64 = (abi::IBV_QP_EX_WITH_RDMA_WRITE
    | abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | abi::IBV_QP_EX_WITH_SEND
    | abi::IBV_QP_EX_WITH_SEND_WITH_IMM
    | abi::IBV_QP_EX_WITH_RDMA_READ
    | abi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | abi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | abi::IBV_QP_EX_WITH_LOCAL_INV
    | abi::IBV_QP_EX_WITH_BIND_MW
    | abi::IBV_QP_EX_WITH_ATOMIC_WRITE
    | abi::IBV_QP_EX_WITH_FLUSH
    | abi::IBV_QP_EX_WITH_SEND_WITH_INV) as u64;

/// Send operations of UC.
const UC_OPS: u64 = (abi::IBV_QP_EX_WITH_RDMA_WRITE
    | abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | abi::IBV_QP_EX_WITH_SEND
    | abi::IBV_QP_EX_WITH_SEND_WITH_IMM
    | abi::IBV_QP_EX_WITH_LOCAL_INV
    | abi::IBV_QP_EX_WITH_BIND_MW) as u64;

/// Send operations of UD.
const UD_OPS: u64 = (abi::IBV_QP_EX_WITH_SEND | abi::IBV_QP_EX_WITH_SEND_WITH_IMM) as u64;

/// Returns the valid bits of `send_ops_flags` for a type of queue pair; none for an unknown type.
const fn send_ops(qp_type: abi::ibv_qp_type) -> u64 {
    match qp_type {
        abi::IBV_QPT_RC | abi::IBV_QPT_XRC_SEND => RC_OPS,
        abi::IBV_QPT_UC => UC_OPS,
        abi::IBV_QPT_UD => UD_OPS,
        _ => 0,
    }
}

/// Makes a queue pair and writes the sizes it got into `init.cap`.
fn create(
    owner: &Owner,
    pd: Object<abi::ibv_pd>,
    init: &mut abi::ibv_qp_init_attr,
    extended: bool,
) -> Result<*mut abi::ibv_qp, Errno> {
    let (_, domain) = pd.enter(owner)?;
    judged(domain.engine.context().judge(Verb::CreateQp))?;
    let service = service(init.qp_type)?;
    let shared = if init.srq.is_null() {
        None
    } else {
        let (_, srq) = named!(init.srq).enter(owner)?;
        Some(Arc::clone(&srq.engine))
    };
    let (_, send_cq) = named!(init.send_cq).enter(owner)?;
    // An initiator of XRC receives nothing.
    let recv_cq = if service == Service::XrcInitiator { init.send_cq } else { init.recv_cq };
    let (_, recv_cq) = named!(recv_cq).enter(owner)?;
    owner.is(domain.context)?;
    let cap = init.cap;
    let sizes = [
        ("wr", cap.max_send_wr.max(cap.max_recv_wr)),
        ("send_sge", cap.max_send_sge),
        ("recv_sge", cap.max_recv_sge),
        ("inline_data", cap.max_inline_data),
    ];
    check::sizes("ibv_create_qp", &sizes);
    let handle = POOL.make(blank(domain.context, pd, init), |handle| {
        let engine = domain.engine.create_qp(QpInit {
            service,
            send_cq: Arc::clone(&send_cq.engine),
            recv_cq: Arc::clone(&recv_cq.engine),
            srq: shared,
            caps: attr::granted(&init.cap),
            sq_sig_all: init.sq_sig_all != 0,
            user: handle.c().addr() as u64,
        })?;
        init.cap = attr::c_caps(&engine.caps());
        set!(handle.qp_base.qp_num = engine.qpn().value());
        Ok::<_, Errno>(LiveQp { extended, ..LiveQp::of(engine, None, domain.context, *init) })
    })?;
    let live = handle.live()?;
    check::queue_pair(handle.c().addr(), domain.context.public().addr(), &live.engine, &live.init.0);
    Ok(handle.c().cast())
}

/// The C structure of a queue pair that is not there yet.
fn blank(
    context: &'static ContextHandle,
    pd: Object<abi::ibv_pd>,
    init: &abi::ibv_qp_init_attr,
) -> abi::ibv_qp_ex {
    qp_ex::empty(abi::ibv_qp {
        context: context.public(),
        qp_context: init.qp_context,
        pd: pd.as_ptr(),
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: next_number(),
        qp_num: 0,
        state: abi::IBV_QPS_RESET,
        qp_type: init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    })
}

/// An `ibv_qp_init_attr` of an XRC target: it has no queues of its own.
fn target_init(qp_context: *mut c_void) -> abi::ibv_qp_init_attr {
    abi::ibv_qp_init_attr {
        qp_context,
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        cap: attr::c_caps(&QpCaps::default()),
        qp_type: abi::IBV_QPT_XRC_RECV,
        sq_sig_all: 0,
    }
}

/// Makes an XRC target; `pd` may be NULL.
fn create_target(
    owner: &Owner,
    xrcd: &Made<Xrcd>,
    pd: Object<abi::ibv_pd>,
    qp_context: *mut c_void,
) -> Result<*mut abi::ibv_qp, Errno> {
    let domain = if pd.is_null() {
        None
    } else {
        let (_, domain) = pd.enter(owner)?;
        Some(Arc::clone(&domain.engine))
    };
    hand_out(xrcd.context, pd, qp_context, |user| {
        Ok((xrcd.engine.create_target(domain.as_ref(), user)?, None))
    })
}

/// Opens an XRC target by its number.
fn open(xrcd: &Made<Xrcd>, qpn: Qpn, qp_context: *mut c_void) -> Result<*mut abi::ibv_qp, Errno> {
    hand_out(xrcd.context, Object::NULL, qp_context, |user| {
        let share = xrcd.engine.open_qp(qpn, user)?;
        Ok((Arc::clone(share.qp()), Some(share)))
    })
}

/// The program's pointer to an XRC target, which `target` makes or opens for a handle at this address.
fn hand_out(
    context: &'static ContextHandle,
    pd: Object<abi::ibv_pd>,
    qp_context: *mut c_void,
    target: impl FnOnce(u64) -> Result<(Arc<Qp>, Option<Arc<QpShare>>), Errno>,
) -> Result<*mut abi::ibv_qp, Errno> {
    let init = target_init(qp_context);
    let handle = POOL.make(blank(context, pd, &init), |handle| {
        let (engine, share) = target(handle.c().expose_provenance() as u64)?;
        set!(handle.qp_base.qp_num = engine.qpn().value());
        handle.show_state(engine.state());
        Ok::<_, Errno>(LiveQp::of(engine, share, context, init))
    })?;
    Ok(handle.c().cast())
}

/// Makes a queue pair of any kind and writes the sizes it got into `attr`.
pub(crate) fn create_ex(
    owner: &Owner,
    context: Object<abi::ibv_context>,
    attr: &mut abi::ibv_qp_init_attr_ex,
) -> Result<*mut abi::ibv_qp, Errno> {
    let (handle, _) = context.opened(owner)?;
    let known = abi::IBV_QP_INIT_ATTR_PD
        | abi::IBV_QP_INIT_ATTR_XRCD
        | abi::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let mask = attr.comp_mask;
    let has = |bit| mask & bit != 0;
    if attr.comp_mask & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // A target of XRC is in a domain of that kind, everything else is in a protection domain.
    let target = attr.qp_type == abi::IBV_QPT_XRC_RECV;
    if target != has(abi::IBV_QP_INIT_ATTR_XRCD) || !(target || has(abi::IBV_QP_INIT_ATTR_PD)) {
        return Err(Errno::EINVAL);
    }
    if attr.comp_mask & abi::IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && attr.create_flags != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let extended = attr.comp_mask & abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    if extended && attr.send_ops_flags & !send_ops(attr.qp_type) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if target {
        let (_, xrcd) = named!(attr.xrcd).enter(owner)?;
        if !std::ptr::eq(xrcd.context, handle) {
            return Err(Errno::EINVAL);
        }
        let pd = if has(abi::IBV_QP_INIT_ATTR_PD) { named!(attr.pd) } else { Object::NULL };
        let qp = create_target(owner, &xrcd, pd, attr.qp_context)?;
        attr.cap = crate::attr::c_caps(&Default::default());
        return Ok(qp);
    }
    let (_, domain) = named!(attr.pd).enter(owner)?;
    if !std::ptr::eq(domain.context, handle) {
        return Err(Errno::EINVAL);
    }
    // The plain structure is the head of this one.
    let mut init = abi::ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    let qp = create(owner, named!(attr.pd), &mut init, extended)?;
    attr.cap = init.cap;
    Ok(qp)
}

export! {
    /// Makes a queue pair.
    pub fn ibv_create_qp(pd: Object<abi::ibv_pd>, init: Ptr<abi::ibv_qp_init_attr>) -> *mut abi::ibv_qp = call::pointer |owner| {
        let (to, mut init) = (init.some()?, init.read()?);
        let qp = create(owner, pd, &mut init, false)?;
        set!(to.cap = init.cap);
        Ok(qp)
    }

    /// The slot behind the inline `ibv_create_qp_ex`.
    pub(crate) fn create_qp_ex(
        context: Object<abi::ibv_context>,
        attr: Ptr<abi::ibv_qp_init_attr_ex>,
    ) -> *mut abi::ibv_qp = call::pointer |owner| {
        // A context that cannot be used is told before a missing structure is.
        context.opened(owner)?;
        let (to, mut init) = (attr.some()?, attr.read()?);
        let qp = create_ex(owner, context, &mut init)?;
        set!(to.cap = init.cap);
        Ok(qp)
    }

    /// The slot behind the inline `ibv_open_qp`: a target queue pair of an XRC domain once more.
    pub(crate) fn open_qp(
        context: Object<abi::ibv_context>,
        attr: Ptr<abi::ibv_qp_open_attr>,
    ) -> *mut abi::ibv_qp = call::pointer |owner| {
        let (handle, _) = context.opened(owner)?;
        let attr = attr.read()?;
        let needed = abi::IBV_QP_OPEN_ATTR_NUM | abi::IBV_QP_OPEN_ATTR_XRCD | abi::IBV_QP_OPEN_ATTR_TYPE;
        let known = needed | abi::IBV_QP_OPEN_ATTR_CONTEXT;
        if attr.comp_mask & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if attr.comp_mask & needed != needed || attr.qp_type != abi::IBV_QPT_XRC_RECV {
            return Err(Errno::EINVAL);
        }
        let (_, live) = named!(attr.xrcd).enter(owner)?;
        if !std::ptr::eq(live.context, handle) {
            return Err(Errno::EINVAL);
        }
        let has_context = attr.comp_mask & abi::IBV_QP_OPEN_ATTR_CONTEXT != 0;
        let qp_context = if has_context { attr.qp_context } else { std::ptr::null_mut() };
        open(&live, Qpn::new(attr.qp_num), qp_context)
    }
}
