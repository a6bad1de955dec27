//! Opening and closing devices.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::Context;
use ferroce_engine::faults::{self, Verb, VerbFacts};

use crate::call;
use crate::context::{ContextHandle, LiveContext, POOL};
use crate::device::DeviceHandle;
use crate::entry::{Object, export};
use crate::errno::{Errno, judged};
use crate::log;
use crate::ops;
use crate::origin::{self, Origin};

/// A context of `device` whose `cmd_fd` is `command`, which comes back on failure. `on_gone` is called, on
/// any thread, when the device is gone.
pub(crate) fn open(
    device: &'static DeviceHandle,
    command: OwnedFd,
    on_gone: fn(&'static ContextHandle),
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
    handle.begin();
    // The device may be gone at any time from here on.
    engine.on_fatal(move || {
        handle.lose();
        on_gone(handle);
    });
    origin::opened(origin, device);
    POOL.make_live(handle, LiveContext { engine, origin, _command: command });
    Ok(handle.public())
}

export! {
    /// Opens the device.
    pub fn ibv_open_device(device: *mut abi::ibv_device) -> *mut abi::ibv_context = call::pointer |_| {
        log::install();
        let device = DeviceHandle::from_c(device)?;
        judged(faults::verb(|| VerbFacts { verb: Verb::OpenDevice, dev: Some(&device.name), qp: None }))?;
        let (command, _) = origin::command_file()?;
        open(device, command, |_| {}).map_err(|(_, errno)| errno)
    }

    /// Closes the context. Objects made in it are dead from then on.
    pub fn ibv_close_device(context: Object<abi::ibv_context>) -> c_int = call::code |_| {
        let handle = context.handle()?;
        POOL.end(handle, |live| {
            live.engine.close();
            origin::closed(live.origin);
            Ok(())
        })
    }
}
