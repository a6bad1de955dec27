//! Shared receive queues.

use std::ptr;
use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::faults::Verb;
use ferroce_engine::{CompletionQueue, MAX_SRQ_WR, Srq, SrqAttr, SrqAttrMask, SrqInit, Xrcd};

use crate::attr;
use crate::call::{self, Owner};
use crate::check;
use crate::context::{Made, object};
use crate::entry::{Object, Ptr, export, named};
use crate::errno::{Errno, judged};
use crate::handle::{Handle, Pool, next_number, set};

/// A shared receive queue.
pub(crate) type SrqHandle = Handle<abi::ibv_srq, Made<Srq>>;

static POOL: Pool<abi::ibv_srq, Made<Srq>> = Pool::new();

impl SrqHandle {
    /// The program's pointer to an engine's queue: its `user` is where the handle is.
    pub(crate) fn public(srq: &Srq) -> *mut abi::ibv_srq {
        ptr::with_exposed_provenance_mut(srq.user() as usize)
    }
}

object!(abi::ibv_srq => Made<Srq>);

/// Makes a shared receive queue, of XRC if `xrc` says so, and writes the sizes it got into `attr`.
/// `srq_limit` is ignored, as the man page says.
fn create(
    owner: &Owner,
    pd: Object<abi::ibv_pd>,
    srq_context: *mut c_void,
    attr: &mut abi::ibv_srq_attr,
    xrc: Option<(Arc<Xrcd>, Arc<CompletionQueue>)>,
) -> Result<*mut abi::ibv_srq, Errno> {
    let (_, domain) = pd.enter(owner)?;
    judged(domain.engine.context().judge(Verb::CreateSrq))?;
    let srq = abi::ibv_srq {
        context: domain.context.public(),
        srq_context,
        pd: pd.as_ptr(),
        handle: next_number(),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    check::sizes("ibv_create_srq", &[("srq_wr", attr.max_wr), ("srq_sge", attr.max_sge)]);
    let handle = POOL.make(srq, |handle| {
        let user = handle.c().expose_provenance() as u64;
        let init = SrqInit { max_wr: attr::rounded(attr.max_wr, MAX_SRQ_WR), max_sge: attr.max_sge, user };
        let engine = match xrc {
            Some((xrcd, cq)) => xrcd.create_srq(&domain.engine, &cq, init),
            None => domain.engine.create_srq(init),
        }?;
        let got = engine.query();
        (attr.max_wr, attr.max_sge) = (got.max_wr, got.max_sge);
        Ok::<_, Errno>(Made { engine, context: domain.context })
    })?;
    Ok(handle.c())
}

/// Ends a queue.
pub(crate) fn destroy(owner: &Owner, srq: Object<abi::ibv_srq>) -> Result<(), Errno> {
    let (handle, _) = srq.enter(owner)?;
    POOL.end(handle, |live| Ok(live.engine.destroy()?))
}

/// Makes a shared receive queue of any kind and writes the sizes it got into `init`.
pub(crate) fn create_ex(
    owner: &Owner,
    context: Object<abi::ibv_context>,
    init: &mut abi::ibv_srq_init_attr_ex,
) -> Result<*mut abi::ibv_srq, Errno> {
    let (handle, _) = context.opened(owner)?;
    let known = abi::IBV_SRQ_INIT_ATTR_TYPE
        | abi::IBV_SRQ_INIT_ATTR_PD
        | abi::IBV_SRQ_INIT_ATTR_XRCD
        | abi::IBV_SRQ_INIT_ATTR_CQ
        | abi::IBV_SRQ_INIT_ATTR_TM;
    let has = |bit| init.comp_mask & bit != 0;
    if init.comp_mask & !known != 0 || has(abi::IBV_SRQ_INIT_ATTR_TM) {
        return Err(Errno::EOPNOTSUPP);
    }
    let srq_type = if has(abi::IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { abi::IBV_SRQT_BASIC };
    if !has(abi::IBV_SRQ_INIT_ATTR_PD) {
        return Err(Errno::EINVAL);
    }
    let xrc = match srq_type {
        abi::IBV_SRQT_BASIC => None,
        abi::IBV_SRQT_XRC if has(abi::IBV_SRQ_INIT_ATTR_XRCD) && has(abi::IBV_SRQ_INIT_ATTR_CQ) => {
            let (_, xrcd) = named!(init.xrcd).enter(owner)?;
            let (_, cq) = named!(init.cq).enter(owner)?;
            Some((Arc::clone(&xrcd.engine), Arc::clone(&cq.engine)))
        }
        abi::IBV_SRQT_TM => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    let (_, domain) = named!(init.pd).enter(owner)?;
    if !ptr::eq(domain.context, handle) {
        return Err(Errno::EINVAL);
    }
    create(owner, named!(init.pd), init.srq_context, &mut init.attr, xrc)
}

export! {
    /// Makes a shared receive queue and writes the sizes it got into `init`.
    pub fn ibv_create_srq(
        pd: Object<abi::ibv_pd>,
        init: Ptr<abi::ibv_srq_init_attr>,
    ) -> *mut abi::ibv_srq = call::pointer |owner| {
        let (to, mut init) = (init.some()?, init.read()?);
        let srq = create(owner, pd, init.srq_context, &mut init.attr, None)?;
        set!(to.attr = init.attr);
        Ok(srq)
    }

    /// The slot behind the inline `ibv_create_srq_ex`: basic queues and those of XRC; tag matching is not
    /// supported.
    pub(crate) fn create_srq_ex(
        context: Object<abi::ibv_context>,
        init: Ptr<abi::ibv_srq_init_attr_ex>,
    ) -> *mut abi::ibv_srq = call::pointer |owner| {
        // A context that cannot be used is told before a missing structure is.
        context.opened(owner)?;
        let (to, mut attr) = (init.some()?, init.read()?);
        let srq = create_ex(owner, context, &mut attr)?;
        set!(to.attr = attr.attr);
        Ok(srq)
    }

    /// Sets the size or the limit, as `srq_attr_mask` says, all or none.
    pub fn ibv_modify_srq(
        srq: Object<abi::ibv_srq>,
        srq_attr: Ptr<abi::ibv_srq_attr>,
        srq_attr_mask: c_int,
    ) -> c_int = call::code |owner| {
        let (_, live) = srq.enter(owner)?;
        let attr = srq_attr.read()?;
        let max_wr = attr::rounded(attr.max_wr, MAX_SRQ_WR);
        let attr = SrqAttr { max_wr, max_sge: attr.max_sge, limit: attr.srq_limit };
        Ok(live.engine.modify(&attr, SrqAttrMask::from_bits_retain(srq_attr_mask as u32))?)
    }

    /// The sizes, and the limit: 0 once its event was raised.
    pub fn ibv_query_srq(srq: Object<abi::ibv_srq>, srq_attr: Ptr<abi::ibv_srq_attr>) -> c_int = call::code |owner| {
        let (_, live) = srq.enter(owner)?;
        let srq_attr = srq_attr.some()?;
        let SrqAttr { max_wr, max_sge, limit } = live.engine.query();
        srq_attr.write(abi::ibv_srq_attr { max_wr, max_sge, srq_limit: limit });
        Ok(())
    }

    /// Ends the queue; EBUSY while queue pairs use it. Waits until its events are acknowledged.
    pub fn ibv_destroy_srq(srq: Object<abi::ibv_srq>) -> c_int = call::ending |owner| {
        destroy(owner, srq)
    }

    /// The slot behind the inline `ibv_get_srq_num`.
    pub(crate) fn get_srq_num(srq: Object<abi::ibv_srq>, srq_num: Ptr<u32>) -> c_int = call::code |owner| {
        let (_, live) = srq.enter(owner)?;
        let srq_num = srq_num.some()?;
        srq_num.write(live.engine.number().value());
        Ok(())
    }
}
