//! Shared receive queues of ids.

use std::ptr;

use core::ffi::c_int;
use ferroce_abi as abi;

use super::state::IdHandle;
use super::{device, qp};
use crate::call::{self, Owner};
use crate::entry::{Object, Ptr, export, named};
use crate::errno::Errno;
use crate::handle::{get, set, take};
use crate::srq;

/// Makes the id's shared receive queue.
fn create(
    owner: &Owner,
    id: Object<abi::rdma_cm_id>,
    init: &mut abi::ibv_srq_init_attr_ex,
) -> Result<(), Errno> {
    let (id, live) = id.opened()?;
    let context = live.state.lock().context.ok_or(Errno::EINVAL)?;
    owner.is(context)?;
    let (verbs, own_pd, there) = (get!(id.verbs), get!(id.pd), get!(id.srq));
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
            init.cq = qp::create_recv_cq(owner, id, init.attr.max_wr)?;
            init.comp_mask |= abi::IBV_SRQ_INIT_ATTR_CQ;
            made_cq = true;
        }
    }
    match srq::create_ex(owner, named!(verbs), init) {
        Ok(made) => {
            set!(id.srq = made);
            set!(id.pd = init.pd);
            Ok(())
        }
        Err(errno) => {
            if made_cq {
                qp::destroy_cqs(owner, id);
            }
            Err(errno)
        }
    }
}

/// Ends the id's shared receive queue, and the completion queue that was made with it.
pub(super) fn destroy(owner: &Owner, id: &'static IdHandle) -> Result<(), Errno> {
    let srq = take!(id.srq);
    if srq.is_null() {
        return Err(Errno::EINVAL);
    }
    let result = owner.ended(srq::destroy(owner, named!(srq)));
    if get!(id.qp).is_null() {
        qp::destroy_cqs(owner, id);
    }
    result
}

export! {
    /// Makes the id's shared receive queue, in the device's default protection domain if `pd` is NULL. An id
    /// that receives by XRC gets one of that kind.
    pub fn rdma_create_srq(
        id: Object<abi::rdma_cm_id>,
        pd: Object<abi::ibv_pd>,
        attr: Ptr<abi::ibv_srq_init_attr>,
    ) -> c_int = call::minus_one |owner| {
        let (handle, _) = id.opened()?;
        let (to, attr) = (attr.some()?, attr.read()?);
        let xrc = get!(handle.qp_type) == abi::IBV_QPT_XRC_RECV;
        let mut init = abi::ibv_srq_init_attr_ex {
            srq_context: attr.srq_context,
            attr: attr.attr,
            comp_mask: abi::IBV_SRQ_INIT_ATTR_TYPE | abi::IBV_SRQ_INIT_ATTR_PD,
            srq_type: if xrc { abi::IBV_SRQT_XRC } else { abi::IBV_SRQT_BASIC },
            pd: pd.as_ptr(),
            xrcd: ptr::null_mut(),
            cq: ptr::null_mut(),
            tm_cap: abi::ibv_tm_cap { max_num_tags: 0, max_ops: 0 },
        };
        create(owner, id, &mut init)?;
        set!(to.attr = init.attr);
        Ok(0)
    }

    /// As [`rdma_create_srq`], with the attributes of `ibv_create_srq_ex`.
    pub fn rdma_create_srq_ex(
        id: Object<abi::rdma_cm_id>,
        attr: Ptr<abi::ibv_srq_init_attr_ex>,
    ) -> c_int = call::minus_one |owner| {
        let (to, mut init) = (attr.some()?, attr.read()?);
        create(owner, id, &mut init)?;
        to.write(init);
        Ok(0)
    }

    /// Ends the id's shared receive queue, and the completion queue that was made with it.
    pub fn rdma_destroy_srq(id: Object<abi::rdma_cm_id>) -> () = call::nothing |owner| {
        let (handle, _) = id.opened()?;
        destroy(owner, handle)
    }
}
