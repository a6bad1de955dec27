//! Thread domains and parent domains.
//!
//! A parent domain is an `ibv_pd` like any other: [`crate::pd`] ends it and finds what is behind its pointer.

use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::ThreadDomain;

use crate::call;
use crate::context::{self, ContextHandle};
use crate::errno::Errno;
use crate::handle::{Handle, Pool};
use crate::pd;

/// A thread domain.
type TdHandle = Handle<abi::ibv_td, LiveTd>;

/// What makes a thread domain live.
struct LiveTd {
    engine: Arc<ThreadDomain>,
    context: &'static ContextHandle,
}

static POOL: Pool<abi::ibv_td, LiveTd> = Pool::new();

/// The slot behind the inline `ibv_alloc_td`. EOPNOTSUPP for bits of `comp_mask`, of which there are none yet.
///
/// # Safety
///
/// `context` is NULL or open, `init` NULL or readable.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut abi::ibv_context,
    init: *mut abi::ibv_td_init_attr,
) -> *mut abi::ibv_td {
    call::pointer(|owner| {
        // SAFETY: as the caller says.
        let (handle, live) = unsafe { context::enter(owner, context) }?;
        // SAFETY: NULL, or readable as the caller says.
        let init = unsafe { init.as_ref() }.ok_or(Errno::EINVAL)?;
        if init.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let td = POOL.take(abi::ibv_td { context: handle.public() });
        POOL.enliven(td, LiveTd { engine: live.engine.alloc_td(), context: handle });
        Ok(td.c())
    })
}

/// The slot behind the inline `ibv_dealloc_td`; EBUSY while parent domains have it.
///
/// # Safety
///
/// `td` is NULL or came from [`alloc_td`].
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut abi::ibv_td) -> c_int {
    call::ending(|owner| {
        // SAFETY: as the caller says.
        let handle = unsafe { TdHandle::from_c(td) }?;
        owner.is(handle.live()?.context)?;
        POOL.end(handle, |live| Ok(live.engine.dealloc()?))
    })
}

/// The slot behind the inline `ibv_alloc_parent_domain`. Functions for allocation are checked and never called: what a
/// card shares with its driver in such memory does not exist here.
///
/// # Safety
///
/// `context` is NULL or open; `attr` is NULL or readable, its pointers NULL or objects of this library.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut abi::ibv_context,
    attr: *mut abi::ibv_parent_domain_init_attr,
) -> *mut abi::ibv_pd {
    const ALLOCATORS: u32 = abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    const KNOWN: u32 = ALLOCATORS | abi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    call::pointer(|owner| {
        // SAFETY: as the caller says.
        let (handle, _) = unsafe { context::enter(owner, context) }?;
        // SAFETY: NULL, or readable as the caller says.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        if attr.comp_mask & !KNOWN != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if attr.comp_mask & ALLOCATORS != 0 && (attr.alloc.is_none() || attr.free.is_none()) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as the caller says.
        let (_, base) = unsafe { pd::enter(owner, attr.pd) }?;
        let td = if attr.td.is_null() {
            None
        } else {
            // SAFETY: as the caller says.
            let td = unsafe { TdHandle::from_c(attr.td) }?.live()?;
            Some(Arc::clone(&td.engine))
        };
        if !std::ptr::eq(base.context, handle) {
            return Err(Errno::EINVAL);
        }
        let engine = base.engine.parent_domain(td.as_ref()).ok_or(Errno::EINVAL)?;
        Ok(pd::make(handle, engine))
    })
}
