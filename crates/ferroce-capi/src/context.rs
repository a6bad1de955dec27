//! Contexts: opened devices.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::{Context, process_epoch};

use crate::call::{self, Owner, Scope};
use crate::device::DeviceHandle;
use crate::entry::{CObject, Object, export};
use crate::errno::Errno;
use crate::handle::{Handle, Live, Pool};
use crate::import::{self, Origin};
use crate::log;
use crate::ops;
use crate::rdmacm;

/// A context. Programs hold the address of its last member, `verbs_context.context`, since the structure grows at
/// its front.
pub(crate) type ContextHandle = Handle<abi::verbs_context, LiveContext, Life>;

/// What makes a context live.
pub(crate) struct LiveContext {
    pub(crate) engine: Arc<Context>,
    /// The same for a context and those imported from it.
    pub(crate) origin: Origin,
    /// For programs that duplicate it, to import the device by.
    _command: OwnedFd,
}

/// Of which process a context is, as [`process_epoch`] counts; [`DEAD`] after a panic came out of a call on it, or its device
/// was removed.
#[derive(Default)]
pub(crate) struct Life(AtomicU64);

const DEAD: u64 = u64::MAX;

static POOL: Pool<abi::verbs_context, LiveContext, Life> = Pool::new();

impl CObject for abi::ibv_context {
    type Whole = abi::verbs_context;
    type Live = LiveContext;
    type Extra = Life;
    const OFFSET: usize = std::mem::offset_of!(abi::verbs_context, context);
}

/// `object!(T as W => L, X)`: a `T`, the head of a `W`, is an object in a context; `L` makes it live, and `X` is kept with its handle.
macro_rules! object {
    ($c:ty => $live:ty $(, $extra:ty)?) => {
        $crate::context::object!($c as $c => $live $(, $extra)?);
        impl $crate::entry::InContext for $live {
            type Context = $crate::context::ContextHandle;

            #[inline(always)]
            fn context(&self) -> &'static Self::Context {
                self.context
            }
        }
    };
    ($c:ty as $whole:ty => $live:ty) => {
        $crate::context::object!($c as $whole => $live, ());
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
}

export! {
    /// Opens the device.
    pub fn ibv_open_device(device: *mut abi::ibv_device) -> *mut abi::ibv_context = call::pointer |_| {
        log::install();
        let device = DeviceHandle::from_c(device)?;
        let (command, _) = import::command_file()?;
        open(device, command).map_err(|(_, errno)| errno)
    }
}

/// A context of `device` whose `cmd_fd` is `command`, which comes back if there is none to be had.
pub(crate) fn open(
    device: &'static DeviceHandle,
    command: OwnedFd,
) -> Result<*mut abi::ibv_context, (OwnedFd, Errno)> {
    let opened = Origin::of(command.as_raw_fd())
        .and_then(|origin| Context::open(&device.name).map(|engine| (origin, engine)).map_err(Errno::from));
    let (origin, engine) = match opened {
        Ok(opened) => opened,
        Err(errno) => return Err((command, errno)),
    };
    let context = abi::ibv_context {
        device: device.c(),
        ops: ops::CONTEXT_OPS,
        cmd_fd: command.as_raw_fd(),
        async_fd: engine.async_events().fd().as_raw_fd(),
        num_comp_vectors: c_int::try_from(engine.num_comp_vectors()).unwrap_or(c_int::MAX),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        abi_compat: ptr::without_provenance_mut::<c_void>(usize::MAX),
    };
    let handle = POOL.take(ops::verbs_context(context));
    handle.extra.0.store(process_epoch(), Ordering::Relaxed);
    // The device may be gone at any time from here on.
    engine.on_fatal(|| {
        handle.extra.0.store(DEAD, Ordering::Relaxed);
        rdmacm::device_gone(handle);
    });
    engine.on_mac_change(|ifindex| rdmacm::mac_changed(handle, ifindex));
    import::opened(origin, device);
    POOL.enliven(handle, LiveContext { engine, origin, _command: command });
    Ok(handle.public())
}

export! {
    /// Closes the context. Objects made in it are dead from then on.
    pub fn ibv_close_device(context: Object<abi::ibv_context>) -> c_int = call::code |_| {
        let handle = context.handle()?;
        POOL.end(handle, |live| {
            live.engine.close();
            import::closed(live.origin);
            Ok(())
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::entry::named;

    /// A context that was never opened.
    pub(crate) fn blank() -> &'static ContextHandle {
        POOL.take(ops::verbs_context(abi::ibv_context {
            device: ptr::null_mut(),
            ops: ops::CONTEXT_OPS,
            cmd_fd: -1,
            async_fd: -1,
            num_comp_vectors: 0,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: ptr::null_mut(),
        }))
    }

    #[test]
    fn the_program_s_pointer_leads_back() {
        let handle = blank();
        let public = handle.public();
        let found = named!(public).handle();
        assert!(ptr::eq(found.expect("a context"), handle));
        assert!(handle.live().is_err());
    }
}
