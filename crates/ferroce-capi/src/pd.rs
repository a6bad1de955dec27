//! Protection domains.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::Pd;

use crate::call::{self, Owner};
use crate::context::{self, ContextHandle};
use crate::errno::Errno;
use crate::handle::{Handle, Live, Pool};
use crate::import::Registry;

/// A protection domain.
pub(crate) type PdHandle = Handle<abi::ibv_pd, LivePd>;

/// What makes a protection domain live.
pub(crate) struct LivePd {
    pub(crate) engine: Arc<Pd>,
    pub(crate) context: &'static ContextHandle,
}

static POOL: Pool<abi::ibv_pd, LivePd> = Pool::new();

/// Numbers for the `handle` members, which programs only print.
pub(crate) fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The live domain behind a program's pointer, its context entered into `owner`.
///
/// # Safety
///
/// `pd` is NULL, or came from [`ibv_alloc_pd`] or `ibv_alloc_parent_domain`.
pub(crate) unsafe fn enter(
    owner: &Owner,
    pd: *mut abi::ibv_pd,
) -> Result<(&'static PdHandle, Live<LivePd>), Errno> {
    // SAFETY: as the caller says.
    let handle = unsafe { PdHandle::from_c(pd) }?;
    let live = handle.live()?;
    owner.is(live.context)?;
    Ok((handle, live))
}

/// Makes a protection domain.
///
/// # Safety
///
/// `context` is NULL or open.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut abi::ibv_context) -> *mut abi::ibv_pd {
    call::pointer(|owner| {
        // SAFETY: as the caller says.
        let (handle, live) = unsafe { context::enter(owner, context) }?;
        Ok(make(handle, live.engine.alloc_pd()?))
    })
}

/// Domains by number, for `ibv_import_pd`.
pub(crate) static REGISTRY: Registry<Pd> = Registry::new();

/// The program's pointer to a new domain of the engine.
pub(crate) fn make(context: &'static ContextHandle, engine: Arc<Pd>) -> *mut abi::ibv_pd {
    let number = next_number();
    if let Ok(live) = context.live() {
        REGISTRY.insert(number, live.origin, &engine);
    }
    make_numbered(context, engine, number)
}

/// The same, under a number that it has already.
pub(crate) fn make_numbered(
    context: &'static ContextHandle,
    engine: Arc<Pd>,
    number: u32,
) -> *mut abi::ibv_pd {
    let pd = POOL.take(abi::ibv_pd { context: context.public(), handle: number });
    POOL.enliven(pd, LivePd { engine, context });
    pd.c()
}

/// Ends it; EBUSY while memory regions, queue pairs or parent domains are in it.
///
/// # Safety
///
/// `pd` is NULL, or came from [`ibv_alloc_pd`] or `ibv_alloc_parent_domain`.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut abi::ibv_pd) -> c_int {
    call::ending(|owner| {
        // SAFETY: as the caller says.
        let (handle, _) = unsafe { enter(owner, pd) }?;
        POOL.end(handle, |live| {
            live.engine.dealloc()?;
            // SAFETY: `c()` points to a whole ibv_pd; this member never changes.
            REGISTRY.remove(unsafe { (*handle.c()).handle });
            Ok(())
        })
    })
}

/// Ends an imported domain's handle and leaves the domain alone; EINVAL for one that is not imported.
///
/// # Safety
///
/// As for [`enter`].
pub(crate) unsafe fn forget(owner: &Owner, pd: *mut abi::ibv_pd) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    let (handle, live) = unsafe { enter(owner, pd) }?;
    if live.engine.is_imported() { POOL.end(handle, |_| Ok(())) } else { Err(Errno::EINVAL) }
}
