//! Protection domains.

use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::Pd;
use ferroce_engine::faults::Verb;

use crate::call;
use crate::context::{ContextHandle, Made, object};
use crate::entry::{Object, export};
use crate::errno::judged;
use crate::handle::{Pool, get};
use crate::origin::Registry;

pub(crate) static POOL: Pool<abi::ibv_pd, Made<Pd>> = Pool::new();

object!(abi::ibv_pd => Made<Pd>);

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
    let number = context.number(&REGISTRY, &engine);
    make_numbered(context, engine, number)
}

/// Makes a protection domain under a given number.
pub(crate) fn make_numbered(
    context: &'static ContextHandle,
    engine: Arc<Pd>,
    number: u32,
) -> *mut abi::ibv_pd {
    POOL.put(abi::ibv_pd { context: context.public(), handle: number }, Made { engine, context }).c()
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
