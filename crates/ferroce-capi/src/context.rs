//! Contexts: opened devices.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::{Context, process_epoch};

use crate::call;
use crate::device::DeviceHandle;
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

impl ContextHandle {
    /// The program's pointer.
    pub(crate) fn public(&self) -> *mut abi::ibv_context {
        // SAFETY: `c()` points to a whole verbs_context.
        unsafe { ptr::addr_of_mut!((*self.c()).context) }
    }

    /// The handle behind a program's pointer.
    ///
    /// # Safety
    ///
    /// `context` is NULL or came from [`ibv_open_device`].
    pub(crate) unsafe fn of(context: *mut abi::ibv_context) -> Result<&'static Self, Errno> {
        if context.is_null() {
            return Err(Errno::EINVAL);
        }
        let whole = context.wrapping_byte_sub(std::mem::offset_of!(abi::verbs_context, context));
        // SAFETY: the caller says that it is ours, so it is the last member of a verbs_context.
        unsafe { Self::from_c(whole) }
    }

    /// A panic came out of a call on it, or its device is gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.extra.0.load(Ordering::Relaxed) == DEAD
    }

    /// The process from which this one was forked opened it. Its descriptors are closed here, its locks may be held for ever.
    pub(crate) fn is_foreign(&self) -> bool {
        ![DEAD, process_epoch()].contains(&self.extra.0.load(Ordering::Relaxed))
    }

    /// Neither dead nor foreign.
    pub(crate) fn is_usable(&self) -> bool {
        self.extra.0.load(Ordering::Relaxed) == process_epoch()
    }

    /// Ends it after a panic: told once, and to the program as an event.
    pub(crate) fn die(&self) {
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

/// The live context behind a program's pointer, entered into `owner`.
///
/// # Safety
///
/// As for [`ContextHandle::of`].
pub(crate) unsafe fn enter(
    owner: &call::Owner,
    context: *mut abi::ibv_context,
) -> Result<(&'static ContextHandle, Live<LiveContext>), Errno> {
    // SAFETY: as the caller says.
    let handle = unsafe { ContextHandle::of(context) }?;
    owner.is(handle)?;
    Ok((handle, handle.live()?))
}

/// Opens the device.
///
/// # Safety
///
/// None: any pointer may be given.
pub unsafe extern "C" fn ibv_open_device(device: *mut abi::ibv_device) -> *mut abi::ibv_context {
    call::pointer(|_| {
        log::install();
        let device = DeviceHandle::from_c(device)?;
        let (command, _) = import::command_file()?;
        open(device, command).map_err(|(_, errno)| errno)
    })
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

/// Closes the context. Objects made in it are dead from then on.
///
/// # Safety
///
/// `context` is NULL or came from [`ibv_open_device`].
pub unsafe extern "C" fn ibv_close_device(context: *mut abi::ibv_context) -> c_int {
    call::code(|_| {
        // SAFETY: as the caller says.
        let handle = unsafe { ContextHandle::of(context) }?;
        POOL.end(handle, |live| {
            live.engine.close();
            import::closed(live.origin);
            Ok(())
        })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

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
        // SAFETY: it is a context.
        let found = unsafe { ContextHandle::of(handle.public()) };
        assert!(ptr::eq(found.expect("a context"), handle));
        assert!(handle.live().is_err());
    }
}
