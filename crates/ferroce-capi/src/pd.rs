//! Protection domains.

use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::Pd;
use ferroce_engine::faults::Verb;

use crate::call::{self, Owner};
use crate::context::ContextHandle;
use crate::context::object;
use crate::entry::{Object, export};
use crate::errno::{Errno, judged};
use crate::handle::{Pool, get, next_number};
use crate::origin::Registry;

pub(crate) struct LivePd {
    pub(crate) engine: Arc<Pd>,
    pub(crate) context: &'static ContextHandle,
}

static POOL: Pool<abi::ibv_pd, LivePd> = Pool::new();

object!(abi::ibv_pd => LivePd);

export! {
    /// Makes a protection domain.
    pub fn ibv_alloc_pd(context: Object<abi::ibv_context>) -> *mut abi::ibv_pd = call::pointer |owner| {
        let (handle, live) = context.opened(owner)?;
        judged(live.engine.judge(Verb::AllocPd))?;
        Ok(make(handle, live.engine.alloc_pd()?))
    }
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

/// Makes a protection domain under a given number.
pub(crate) fn make_numbered(
    context: &'static ContextHandle,
    engine: Arc<Pd>,
    number: u32,
) -> *mut abi::ibv_pd {
    let pd = POOL.take(abi::ibv_pd { context: context.public(), handle: number });
    POOL.make_live(pd, LivePd { engine, context });
    pd.c()
}

export! {
    /// Ends it; EBUSY while memory regions, queue pairs or parent domains are in it.
    pub fn ibv_dealloc_pd(pd: Object<abi::ibv_pd>) -> c_int = call::ending |owner| {
        let (handle, _) = pd.enter(owner)?;
        POOL.end(handle, |live| {
            live.engine.dealloc()?;
            REGISTRY.remove(get!(handle.handle));
            Ok(())
        })
    }
}

/// Ends an imported domain's handle and leaves the domain alone; EINVAL for one that is not imported.
pub(crate) fn forget(owner: &Owner, pd: Object<abi::ibv_pd>) -> Result<(), Errno> {
    let (handle, live) = pd.enter(owner)?;
    if live.engine.is_imported() { POOL.end(handle, |_| Ok(())) } else { Err(Errno::EINVAL) }
}
