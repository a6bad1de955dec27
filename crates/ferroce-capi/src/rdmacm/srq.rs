//! Shared receive queues of ids.

use std::ptr;

use core::ffi::c_int;
use ferroce_abi as abi;

use super::{device, id, made, qp};
use crate::call;
use crate::errno::Errno;
use crate::srq;

/// Makes the id's shared receive queue.
///
/// # Safety
///
/// `c` is NULL or an id; the pointers in `init` are NULL or objects of this library.
unsafe fn create(
    owner: &call::Owner,
    c: *mut abi::rdma_cm_id,
    init: &mut abi::ibv_srq_init_attr_ex,
) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    let (id, live) = unsafe { id::enter(c) }?;
    let context = live.state.lock().context.ok_or(Errno::EINVAL)?;
    owner.is(context)?;
    let c = id.c();
    // SAFETY: `c()` points to a whole rdma_cm_id.
    let (verbs, own_pd, there) = unsafe { ((*c).verbs, (*c).pd, (*c).srq) };
    if !there.is_null() {
        return Err(Errno::EINVAL);
    }
    let has = |mask: u32, bit: u32| mask & bit != 0;
    if !has(init.comp_mask, abi::IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() {
        init.comp_mask |= abi::IBV_SRQ_INIT_ATTR_PD;
        init.pd = own_pd;
    }
    let mut made_cq = false;
    if has(init.comp_mask, abi::IBV_SRQ_INIT_ATTR_TYPE) && init.srq_type == abi::IBV_SRQT_XRC {
        if !has(init.comp_mask, abi::IBV_SRQ_INIT_ATTR_XRCD) || init.xrcd.is_null() {
            init.xrcd = device::default_xrcd(context)?;
            init.comp_mask |= abi::IBV_SRQ_INIT_ATTR_XRCD;
        }
        if !has(init.comp_mask, abi::IBV_SRQ_INIT_ATTR_CQ) || init.cq.is_null() {
            // SAFETY: it is bound to a device.
            init.cq = unsafe { qp::create_recv_cq(id, init.attr.max_wr) }?;
            init.comp_mask |= abi::IBV_SRQ_INIT_ATTR_CQ;
            made_cq = true;
        }
    }
    // SAFETY: as the caller says.
    match made(unsafe { srq::create_srq_ex(verbs, init) }) {
        Ok(made) => {
            // SAFETY: `c()` points to a whole rdma_cm_id.
            unsafe { ((*c).srq, (*c).pd) = (made, init.pd) };
            Ok(())
        }
        Err(errno) => {
            if made_cq {
                qp::destroy_cqs(id);
            }
            Err(errno)
        }
    }
}

/// Makes the id's shared receive queue, in the device's default protection domain if `pd` is NULL. An id that receives
/// by XRC gets one of that kind.
///
/// # Safety
///
/// `id` is NULL or an id, `pd` NULL or a protection domain, `attr` NULL or writable.
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut abi::rdma_cm_id,
    pd: *mut abi::ibv_pd,
    attr: *mut abi::ibv_srq_init_attr,
) -> c_int {
    call::minus_one(|owner| {
        // SAFETY: as the caller says.
        let (handle, _) = unsafe { id::enter(id) }?;
        // SAFETY: NULL, or the program's to lend during the call.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: `c()` points to a whole rdma_cm_id.
        let xrc = unsafe { (*handle.c()).qp_type } == abi::IBV_QPT_XRC_RECV;
        let mut init = abi::ibv_srq_init_attr_ex {
            srq_context: attr.srq_context,
            attr: attr.attr,
            comp_mask: abi::IBV_SRQ_INIT_ATTR_TYPE | abi::IBV_SRQ_INIT_ATTR_PD,
            srq_type: if xrc { abi::IBV_SRQT_XRC } else { abi::IBV_SRQT_BASIC },
            pd,
            xrcd: ptr::null_mut(),
            cq: ptr::null_mut(),
            tm_cap: abi::ibv_tm_cap { max_num_tags: 0, max_ops: 0 },
        };
        // SAFETY: as the caller says.
        unsafe { create(owner, id, &mut init) }?;
        attr.attr = init.attr;
        Ok(0)
    })
}

/// As [`rdma_create_srq`], with the attributes of `ibv_create_srq_ex`.
///
/// # Safety
///
/// `id` is NULL or an id; `attr` is NULL or writable, its pointers NULL or objects of this library.
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut abi::rdma_cm_id,
    attr: *mut abi::ibv_srq_init_attr_ex,
) -> c_int {
    call::minus_one(|owner| {
        // SAFETY: NULL, or the program's to lend during the call.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::EINVAL)?;
        let mut init = *attr;
        // SAFETY: as the caller says.
        unsafe { create(owner, id, &mut init) }?;
        *attr = init;
        Ok(0)
    })
}

/// Ends the id's shared receive queue, and the completion queue that was made with it.
///
/// # Safety
///
/// `id` is NULL or an id.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut abi::rdma_cm_id) {
    call::nothing(|_| {
        // SAFETY: as the caller says.
        let (handle, _) = unsafe { id::enter(id) }?;
        let c = handle.c();
        // SAFETY: `c()` points to a whole rdma_cm_id.
        let srq = unsafe { ptr::replace(&raw mut (*c).srq, ptr::null_mut()) };
        if srq.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `create` made it; one that the program destroyed is refused.
        let result = super::done(unsafe { srq::ibv_destroy_srq(srq) });
        // SAFETY: `c()` points to a whole rdma_cm_id.
        if unsafe { (*c).qp }.is_null() {
            qp::destroy_cqs(handle);
        }
        result
    });
}
