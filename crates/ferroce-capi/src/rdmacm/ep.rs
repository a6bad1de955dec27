//! Endpoints: an id made from what `rdma_getaddrinfo` found.

use core::ffi::c_int;
use ferroce_abi as abi;

use super::id::{self, IdHandle, Template};
use super::{address, bind, option, qp, resolve, srq};
use crate::errno::Errno;
use crate::{call, log};

/// Result for the passive side.
pub(super) const RAI_PASSIVE: c_int = 1;

/// Makes an id that is resolved and, with `qp_init_attr`, has a queue pair: ready to be connected. On the passive side
/// it is bound, and the ids of requests get such a queue pair. It works synchronously.
///
/// # Safety
///
/// `id` is NULL or writable, `res` NULL or a result of `rdma_getaddrinfo`, `pd` NULL or a protection domain;
/// `qp_init_attr` is NULL or writable, its pointers NULL or objects of this library.
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut abi::rdma_cm_id,
    res: *mut abi::rdma_addrinfo,
    pd: *mut abi::ibv_pd,
    qp_init_attr: *mut abi::ibv_qp_init_attr,
) -> c_int {
    call::minus_one(|_| {
        log::install();
        // SAFETY: NULL, or readable as the caller says.
        let found = unsafe { res.as_ref() }.ok_or(Errno::EINVAL)?;
        if id.is_null() {
            return Err(Errno::EINVAL);
        }
        let ps = abi::rdma_port_space::try_from(found.ai_port_space).map_err(|_| Errno::EINVAL)?;
        let qp_type = abi::ibv_qp_type::try_from(found.ai_qp_type).map_err(|_| Errno::EINVAL)?;
        // SAFETY: NULL is allowed.
        let made = unsafe { id::create(std::ptr::null_mut(), std::ptr::null_mut(), ps, qp_type) }?;
        // SAFETY: as the caller says.
        let ready = unsafe { prepare(made, found, pd, qp_init_attr) };
        if let Err(errno) = ready {
            id::destroy(made)?;
            return Err(errno);
        }
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { id.write(made.c()) };
        Ok(0)
    })
}

/// Resolves what was found, and makes the queue pair.
///
/// # Safety
///
/// As for [`rdma_create_ep`].
unsafe fn prepare(
    made: &'static IdHandle,
    found: &abi::rdma_addrinfo,
    pd: *mut abi::ibv_pd,
    qp_init_attr: *mut abi::ibv_qp_init_attr,
) -> Result<(), Errno> {
    let live = made.live()?.to_arc();
    // SAFETY: as the caller says.
    let source = unsafe { address::read_optional(found.ai_src_addr) }?;
    if found.ai_flags & RAI_PASSIVE != 0 {
        bind::bind(made, &live, source.ok_or(Errno::EINVAL)?)?;
        // SAFETY: NULL, or the program's to lend during the call.
        let init = unsafe { qp_init_attr.as_ref() };
        // SAFETY: `c()` points to a whole rdma_cm_id.
        let qp_type = unsafe { (*made.c()).qp_type };
        let init = init.map(|init| abi::ibv_qp_init_attr { qp_type, ..*init });
        live.state.lock().template = init.map(|init| Template { pd, init });
        return Ok(());
    }
    // SAFETY: as the caller says.
    let destination = unsafe { address::read(found.ai_dst_addr) }?;
    resolve::resolve_address(made, &live, source, destination)?;
    id::complete(made)?;
    if found.ai_route_len > 0 {
        // SAFETY: as the caller says.
        let path = unsafe { option::whole_path(found.ai_route, found.ai_route_len) }?;
        resolve::take_path(made, &live, &path)?;
    } else {
        resolve::resolve_route(made, &live)?;
    }
    id::complete(made)?;
    // SAFETY: NULL, or the program's to lend during the call.
    let Some(init) = (unsafe { qp_init_attr.as_mut() }) else { return Ok(()) };
    // The queue pair is of the kind that was found.
    // SAFETY: `c()` points to a whole rdma_cm_id.
    init.qp_type = unsafe { (*made.c()).qp_type };
    // SAFETY: as the caller says.
    match unsafe { qp::rdma_create_qp(made.c(), pd, init) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// Ends an endpoint with its queue pair, shared receive queue and completion queues.
///
/// # Safety
///
/// `id` is NULL or came from [`rdma_create_ep`].
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut abi::rdma_cm_id) {
    call::nothing(|_| {
        // SAFETY: as the caller says.
        let (handle, _) = unsafe { id::enter(id) }?;
        // SAFETY: `c()` points to a whole rdma_cm_id.
        let (has_qp, has_srq) = unsafe { (!(*id).qp.is_null(), !(*id).srq.is_null()) };
        if has_qp {
            // SAFETY: as the caller says.
            unsafe { qp::rdma_destroy_qp(id) };
        }
        if has_srq {
            // SAFETY: as the caller says.
            unsafe { srq::rdma_destroy_srq(id) };
        }
        id::destroy(handle)
    });
}
