//! Contexts: opened devices.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_abi as abi;
use ferroce_engine::{Context, process_epoch};

use crate::call::{Owner, Scope};
use crate::entry::{CObject, InContext, Object};
use crate::errno::Errno;
use crate::handle::{Handle, Live, Pool, next_number};
use crate::origin::{Origin, Registry};

/// A context. Programs hold the address of its last member, `verbs_context.context`, since the structure
/// grows at its front.
pub(crate) type ContextHandle = Handle<abi::verbs_context, LiveContext, Life>;

pub(crate) struct LiveContext {
    pub(crate) engine: Arc<Context>,
    /// Origin that a context shares with those imported from it.
    pub(crate) origin: Origin,
    /// For programs that duplicate it, to import the device by.
    pub(crate) _command: OwnedFd,
}

/// The process that a context belongs to, as [`process_epoch`] counts; [`DEAD`] after a panic came out of a
/// call on it, or its device was removed.
#[derive(Default)]
pub(crate) struct Life(AtomicU64);

const DEAD: u64 = u64::MAX;

pub(crate) static POOL: Pool<abi::verbs_context, LiveContext, Life> = Pool::new();

impl CObject for abi::ibv_context {
    type Whole = abi::verbs_context;
    type Live = LiveContext;
    type Extra = Life;
    const OFFSET: usize = std::mem::offset_of!(abi::verbs_context, context);
}

/// The live part of most objects: the engine's object, and the context that a program made it in.
pub(crate) struct Made<E> {
    pub(crate) engine: Arc<E>,
    pub(crate) context: &'static ContextHandle,
}

impl<E: 'static> InContext for Made<E> {
    type Context = ContextHandle;

    #[inline(always)]
    fn context(&self) -> &'static ContextHandle {
        self.context
    }
}

/// `object!(T as W => L, X)`: a `T`, the head of a `W`, is an object in a context; `L` makes it live, and `X`
/// is kept with its handle. `object!(T => L)`: a `T` alone, with which nothing is kept.
macro_rules! object {
    ($c:ty => $live:ty) => {
        $crate::context::object!($c as $c => $live, ());
    };
    ($c:ty as $whole:ty => $live:ty, $extra:ty) => {
        impl $crate::entry::CObject for $c {
            type Whole = $whole;
            type Live = $live;
            type Extra = $extra;
        }
    };
}
pub(crate) use object;

impl ContextHandle {
    /// The program's pointer.
    pub(crate) fn public(&self) -> *mut abi::ibv_context {
        self.c().wrapping_byte_add(abi::ibv_context::OFFSET).cast()
    }

    /// A number for an object of the context, by which it can be imported.
    pub(crate) fn number<T: Send + Sync>(&self, registry: &Registry<T>, object: &Arc<T>) -> u32 {
        let number = next_number();
        if let Ok(live) = self.live() {
            registry.insert(number, live.origin, object);
        }
        number
    }

    /// Marks the context as opened by this process.
    pub(crate) fn begin(&self) {
        self.extra.0.store(process_epoch(), Ordering::Relaxed);
    }

    /// Marks the context as dead, because its device is gone.
    pub(crate) fn lose(&self) {
        self.extra.0.store(DEAD, Ordering::Relaxed);
    }

    /// A panic came out of a call on it, or its device is gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.extra.0.load(Ordering::Relaxed) == DEAD
    }
}

impl Scope for ContextHandle {
    fn is_foreign(&self) -> bool {
        ![DEAD, process_epoch()].contains(&self.extra.0.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn is_usable(&self) -> bool {
        self.extra.0.load(Ordering::Relaxed) == process_epoch()
    }

    /// Told once, and to the program as an event.
    fn die(&self) {
        if self.is_foreign() || self.extra.0.swap(DEAD, Ordering::Relaxed) == DEAD {
            return;
        }
        tracing::error!(
            "a bug in ferroce stopped a call; the device is dead for this program, its calls fail with EIO"
        );
        if let Ok(live) = self.live() {
            live.engine.report_fatal();
        }
    }
}

impl Object<abi::ibv_context> {
    /// The live context and its handle, entered into `owner`.
    pub(crate) fn opened(self, owner: &Owner) -> Result<(&'static ContextHandle, Live<LiveContext>), Errno> {
        let handle = self.handle()?;
        owner.is(handle)?;
        Ok((handle, handle.live()?))
    }

    /// As [`Self::opened`], for calls that a forked child may make in its parent's context, see
    /// [`Owner::was`].
    pub(crate) fn once_opened(
        self,
        owner: &Owner,
    ) -> Result<(&'static ContextHandle, Live<LiveContext>), Errno> {
        let handle = self.handle()?;
        owner.was(handle)?;
        Ok((handle, handle.live()?))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::entry::named;

    /// A context that was never opened.
    pub(crate) fn blank() -> &'static ContextHandle {
        // SAFETY: plain data, pointers and optional functions, for which zero is a value.
        POOL.take(unsafe { std::mem::zeroed() })
    }

    #[test]
    fn the_program_s_pointer_leads_back() {
        let handle = blank();
        let public = handle.public();
        let found = named!(public).handle();
        assert!(std::ptr::eq(found.expect("a context"), handle));
        assert!(handle.live().is_err());
    }
}
