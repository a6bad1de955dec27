//! Shared receive queues.

use std::ptr;
use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::{CompletionQueue, Srq, SrqAttr, SrqAttrMask, SrqInit, Xrcd};

use crate::call::{self, Owner};
use crate::context::{self, ContextHandle};
use crate::errno::Errno;
use crate::handle::{Handle, Live, Pool};
use crate::pd;
use crate::{cq, xrcd};

/// A shared receive queue.
pub(crate) type SrqHandle = Handle<abi::ibv_srq, LiveSrq>;

/// What makes a shared receive queue live.
pub(crate) struct LiveSrq {
    pub(crate) engine: Arc<Srq>,
    pub(crate) context: &'static ContextHandle,
}

static POOL: Pool<abi::ibv_srq, LiveSrq> = Pool::new();

impl SrqHandle {
    /// The program's pointer to an engine's queue: its `user` is where the handle is.
    pub(crate) fn public(srq: &Srq) -> *mut abi::ibv_srq {
        ptr::with_exposed_provenance_mut(srq.user() as usize)
    }
}

/// The live queue behind a program's pointer, its context entered into `owner`.
///
/// # Safety
///
/// `srq` is NULL or came from [`create`].
pub(crate) unsafe fn enter(
    owner: &Owner,
    srq: *mut abi::ibv_srq,
) -> Result<(&'static SrqHandle, Live<LiveSrq>), Errno> {
    // SAFETY: as the caller says.
    let handle = unsafe { SrqHandle::from_c(srq) }?;
    let live = handle.live()?;
    owner.is(live.context)?;
    Ok((handle, live))
}

/// Makes a shared receive queue, of XRC if `xrc` says so, and writes the sizes it got into `attr`. `srq_limit` is
/// ignored, as the man page says.
///
/// # Safety
///
/// `pd` is NULL or a protection domain.
unsafe fn create(
    owner: &Owner,
    pd: *mut abi::ibv_pd,
    srq_context: *mut core::ffi::c_void,
    attr: &mut abi::ibv_srq_attr,
    xrc: Option<(Arc<Xrcd>, Arc<CompletionQueue>)>,
) -> Result<*mut abi::ibv_srq, Errno> {
    // SAFETY: as the caller says.
    let (_, domain) = unsafe { pd::enter(owner, pd) }?;
    let handle = POOL.take(abi::ibv_srq {
        context: domain.context.public(),
        srq_context,
        pd,
        handle: pd::next_number(),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    });
    let user = handle.c().expose_provenance() as u64;
    let init = SrqInit { max_wr: attr.max_wr, max_sge: attr.max_sge, user };
    let made = match xrc {
        Some((xrcd, cq)) => xrcd.create_srq(&domain.engine, &cq, init),
        None => domain.engine.create_srq(init),
    };
    let engine = match made {
        Ok(engine) => engine,
        Err(error) => {
            POOL.put_back(handle);
            return Err(error.into());
        }
    };
    let got = engine.query();
    (attr.max_wr, attr.max_sge) = (got.max_wr, got.max_sge);
    POOL.enliven(handle, LiveSrq { engine, context: domain.context });
    Ok(handle.c())
}

/// Makes a shared receive queue and writes the sizes it got into `init`.
///
/// # Safety
///
/// `pd` is NULL or a protection domain, `init` NULL or writable.
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut abi::ibv_pd,
    init: *mut abi::ibv_srq_init_attr,
) -> *mut abi::ibv_srq {
    call::pointer(|owner| {
        // SAFETY: NULL, or the program's to lend during the call.
        let init = unsafe { init.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: as the caller says.
        unsafe { create(owner, pd, init.srq_context, &mut init.attr, None) }
    })
}

/// The slot behind the inline `ibv_create_srq_ex`: basic queues and those of XRC; tag matching is not supported.
///
/// # Safety
///
/// `context` is NULL or open; `init` is NULL or writable, its pointers NULL or objects of this library.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut abi::ibv_context,
    init: *mut abi::ibv_srq_init_attr_ex,
) -> *mut abi::ibv_srq {
    call::pointer(|owner| {
        // SAFETY: as the caller says.
        let (handle, _) = unsafe { context::enter(owner, context) }?;
        // SAFETY: NULL, or the program's to lend during the call.
        let init = unsafe { init.as_mut() }.ok_or(Errno::EINVAL)?;
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
                // SAFETY: as the caller says.
                let (_, xrcd) = unsafe { xrcd::enter(owner, init.xrcd) }?;
                // SAFETY: as the caller says.
                let (_, cq) = unsafe { cq::enter(owner, init.cq) }?;
                Some((Arc::clone(&xrcd.engine), Arc::clone(&cq.engine)))
            }
            abi::IBV_SRQT_TM => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EINVAL),
        };
        // SAFETY: as the caller says.
        let (_, domain) = unsafe { pd::enter(owner, init.pd) }?;
        if !ptr::eq(domain.context, handle) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as the caller says.
        unsafe { create(owner, init.pd, init.srq_context, &mut init.attr, xrc) }
    })
}

/// Sets the size or the limit, as `srq_attr_mask` says, all or none.
///
/// # Safety
///
/// `srq` is NULL or a shared receive queue, `srq_attr` NULL or readable.
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut abi::ibv_srq,
    srq_attr: *mut abi::ibv_srq_attr,
    srq_attr_mask: c_int,
) -> c_int {
    call::code(|owner| {
        // SAFETY: as the caller says.
        let (_, live) = unsafe { enter(owner, srq) }?;
        // SAFETY: NULL, or readable as the caller says.
        let attr = unsafe { srq_attr.as_ref() }.ok_or(Errno::EINVAL)?;
        let attr = SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: attr.srq_limit };
        Ok(live.engine.modify(&attr, SrqAttrMask::from_bits_retain(srq_attr_mask as u32))?)
    })
}

/// The sizes, and the limit: 0 once its event was raised.
///
/// # Safety
///
/// `srq` is NULL or a shared receive queue, `srq_attr` NULL or writable.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut abi::ibv_srq, srq_attr: *mut abi::ibv_srq_attr) -> c_int {
    call::code(|owner| {
        // SAFETY: as the caller says.
        let (_, live) = unsafe { enter(owner, srq) }?;
        if srq_attr.is_null() {
            return Err(Errno::EINVAL);
        }
        let SrqAttr { max_wr, max_sge, limit } = live.engine.query();
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { srq_attr.write(abi::ibv_srq_attr { max_wr, max_sge, srq_limit: limit }) };
        Ok(())
    })
}

/// Ends the queue; EBUSY while queue pairs use it. Waits until its events are acknowledged.
///
/// # Safety
///
/// `srq` is NULL or a shared receive queue.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut abi::ibv_srq) -> c_int {
    call::ending(|owner| {
        // SAFETY: as the caller says.
        let (handle, _) = unsafe { enter(owner, srq) }?;
        POOL.end(handle, |live| Ok(live.engine.destroy()?))
    })
}

/// The slot behind the inline `ibv_get_srq_num`.
///
/// # Safety
///
/// `srq` is NULL or a shared receive queue, `srq_num` NULL or writable.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut abi::ibv_srq, srq_num: *mut u32) -> c_int {
    call::code(|owner| {
        // SAFETY: as the caller says.
        let (_, live) = unsafe { enter(owner, srq) }?;
        if srq_num.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { srq_num.write(live.engine.number().value()) };
        Ok(())
    })
}
