//! Thread domains and parent domains.
//!
//! A parent domain is an `ibv_pd` like any other: [`crate::pd`] ends it and finds what is behind its pointer.

use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::ThreadDomain;
use ferroce_engine::faults::Verb;

use crate::call;
use crate::context::{Made, object};
use crate::entry::{Object, Ptr, export, named};
use crate::errno::{Errno, judged_without_device};
use crate::handle::Pool;
use crate::pd;

static POOL: Pool<abi::ibv_td, Made<ThreadDomain>> = Pool::new();

object!(abi::ibv_td => Made<ThreadDomain>);

export! {
    /// The slot behind the inline `ibv_alloc_td`. EOPNOTSUPP for bits of `comp_mask`, of which there are none
    /// yet.
    pub(crate) fn alloc_td(
        context: Object<abi::ibv_context>,
        init: Ptr<abi::ibv_td_init_attr>,
    ) -> *mut abi::ibv_td = call::pointer |owner| {
        let (handle, live) = context.opened(owner)?;
        let init = init.read()?;
        if init.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let made = Made { engine: live.engine.alloc_td(), context: handle };
        Ok(POOL.put(abi::ibv_td { context: handle.public() }, made).c())
    }

    /// The slot behind the inline `ibv_dealloc_td`; EBUSY while parent domains have it.
    pub(crate) fn dealloc_td(td: Object<abi::ibv_td>) -> c_int = call::ending |owner| {
        let (handle, _) = td.enter(owner)?;
        POOL.end(handle, |live| Ok(live.engine.dealloc()?))
    }

    /// The slot behind the inline `ibv_alloc_parent_domain`. Functions for allocation are checked and never
    /// called: what a card shares with its driver in such memory does not exist here. Permission for memory
    /// that a confidential guest shares with its host is not needed either, as no card reads memory.
    pub(crate) fn alloc_parent_domain(
        context: Object<abi::ibv_context>,
        attr: Ptr<abi::ibv_parent_domain_init_attr>,
    ) -> *mut abi::ibv_pd {
        const ALLOCATORS: u32 = abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
        const KNOWN: u32 = ALLOCATORS
            | abi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
            | abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
        call::pointer(|owner| {
            judged_without_device(Verb::AllocParentDomain)?;
            let (handle, _) = context.opened(owner)?;
            let attr = attr.read()?;
            if attr.comp_mask & !KNOWN != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            if attr.comp_mask & ALLOCATORS != 0 && (attr.alloc.is_none() || attr.free.is_none()) {
                return Err(Errno::EINVAL);
            }
            let (_, base) = named!(attr.pd).enter(owner)?;
            let td = if attr.td.is_null() {
                None
            } else {
                let td = named!(attr.td).handle()?.live()?;
                Some(Arc::clone(&td.engine))
            };
            if !std::ptr::eq(base.context, handle) {
                return Err(Errno::EINVAL);
            }
            let engine = base.engine.parent_domain(td.as_ref()).ok_or(Errno::EINVAL)?;
            Ok(pd::make(handle, engine))
        })
    }
}
