//! Endpoints: an id made from what `rdma_getaddrinfo` found.

use std::time::Duration;

use core::ffi::c_int;
use ferroce_abi as abi;

use super::addrinfo::RAI_PASSIVE;
use super::state::{IdHandle, Template};
use super::{address, bind, id, operation, option, qp, resolve, srq};
use crate::call::{self, Owner};
use crate::entry::{Object, Ptr, export, named};
use crate::errno::Errno;
use crate::handle::{get, set};
use crate::log;

/// Longest wait for an address, as rdma-core has it (2 s).
const RESOLVE_LIMIT: Duration = Duration::from_secs(2);

export! {
    /// Makes an id that is resolved and, with `qp_init_attr`, has a queue pair: ready to be connected. On the
    /// passive side it is bound, and the ids of requests get such a queue pair. It works synchronously.
    pub fn rdma_create_ep(
        id: Ptr<*mut abi::rdma_cm_id>,
        res: Ptr<abi::rdma_addrinfo>,
        pd: Object<abi::ibv_pd>,
        qp_init_attr: Ptr<abi::ibv_qp_init_attr>,
    ) -> c_int = call::minus_one |owner| {
        log::install();
        let found = res.read()?;
        let id = id.some()?;
        let ps = abi::rdma_port_space::try_from(found.ai_port_space).map_err(|_| Errno::EINVAL)?;
        let qp_type = abi::ibv_qp_type::try_from(found.ai_qp_type).map_err(|_| Errno::EINVAL)?;
        let made = id::create(Object::NULL, std::ptr::null_mut(), ps, qp_type)?;
        if let Err(errno) = prepare(owner, made, &found, pd, qp_init_attr) {
            id::destroy(made)?;
            return Err(errno);
        }
        id.write(made.c());
        Ok(0)
    }
}

/// Resolves what was found, and makes the queue pair.
fn prepare(
    owner: &Owner,
    made: &'static IdHandle,
    found: &abi::rdma_addrinfo,
    pd: Object<abi::ibv_pd>,
    qp_init_attr: Ptr<abi::ibv_qp_init_attr>,
) -> Result<(), Errno> {
    let live = made.live()?;
    let source = address::read_optional(named!(const found.ai_src_addr))?;
    if found.ai_flags & RAI_PASSIVE != 0 {
        bind::bind(made, &live, source.ok_or(Errno::EINVAL)?)?;
        let qp_type = get!(made.qp_type);
        let init = qp_init_attr.lent().map(|init| abi::ibv_qp_init_attr { qp_type, ..init.read() });
        live.state.lock().template = init.map(|init| Template { pd: pd.as_ptr(), init });
        return Ok(());
    }
    let destination = address::read(named!(const found.ai_dst_addr))?;
    resolve::resolve_address(made, &live, source, destination, RESOLVE_LIMIT)?;
    operation::complete(made)?;
    if found.ai_route_len > 0 {
        // SAFETY: `ai_route_len` is the length of `ai_route`.
        let path = unsafe { option::whole_path(found.ai_route, found.ai_route_len) }?;
        resolve::take_path(made, &live, &path)?;
    } else {
        resolve::resolve_route(made, &live)?;
    }
    operation::complete(made)?;
    let Some(to) = qp_init_attr.lent() else { return Ok(()) };
    // The queue pair is of the kind that was found.
    set!(to.qp_type = get!(made.qp_type));
    let (c, mut init) = (made.c(), to.read());
    qp::create_plain(owner, named!(c), pd.as_ptr(), &mut init)?;
    to.write(init);
    Ok(())
}

export! {
    /// Ends an endpoint with its queue pair, shared receive queue and completion queues.
    pub fn rdma_destroy_ep(id: Object<abi::rdma_cm_id>) -> () = call::nothing |owner| {
        let (handle, live) = id.opened()?;
        let has_srq = !get!(handle.srq).is_null();
        if !get!(handle.qp).is_null() {
            let _ = qp::destroy(owner, handle, &live);
        }
        if has_srq {
            let _ = srq::destroy(owner, handle);
        }
        id::destroy(handle)
    }
}
