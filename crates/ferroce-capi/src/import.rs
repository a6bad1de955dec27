//! Importing: a second context, domain, device memory or region over what another context of this process
//! made.
//!
//! The data path lives in the process that opened the device, so only that process can import from it; what
//! comes from another one is refused with EOPNOTSUPP.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use core::ffi::c_int;
use ferroce_abi as abi;

use crate::call;
use crate::dm;
use crate::entry::{Object, export};
use crate::errno::Errno;
use crate::mr;
use crate::open;
use crate::origin::{OPEN, Origin};
use crate::pd;

export! {
    /// Opens the device of another context of this process by a duplicate of its `cmd_fd`, which closing it
    /// closes.
    pub fn ibv_import_device(cmd_fd: c_int) -> *mut abi::ibv_context = call::pointer |_| {
        let origin = Origin::of(cmd_fd)?;
        let device = OPEN.get().lock().get(&origin).map(|(device, _)| *device);
        let Some(device) = device else {
            tracing::error!("ibv_import_device: descriptor {cmd_fd} is of no context of this process");
            return Err(Errno::EOPNOTSUPP);
        };
        // SAFETY: it is open, and the caller's to give away.
        let command = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        open::open(device, command, |_| {}).map_err(|(command, errno)| {
            // Nothing was taken over.
            let _ = std::os::fd::IntoRawFd::into_raw_fd(command);
            errno
        })
    }

    /// A domain of the same origin under another pointer. It ends with `ibv_unimport_pd`, or by
    /// `ibv_dealloc_pd` together with the domain itself.
    pub fn ibv_import_pd(context: Object<abi::ibv_context>, pd_handle: u32) -> *mut abi::ibv_pd = call::pointer |owner| {
        let (handle, live) = context.opened(owner)?;
        let original = pd::REGISTRY.find(pd_handle, live.origin)?;
        Ok(pd::make_numbered(handle, original.import(&live.engine), pd_handle))
    }

    /// Ends an import; the domain itself stays. EINVAL for one that is not imported.
    pub fn ibv_unimport_pd(pd: Object<abi::ibv_pd>) -> () = call::nothing |owner| {
        let (handle, live) = pd.enter(owner)?;
        if live.engine.is_imported() { pd::POOL.end(handle, |_| Ok(())) } else { Err(Errno::EINVAL) }
    }

    /// Device memory of the same origin under another pointer. It ends with `ibv_unimport_dm`, or by
    /// `ibv_free_dm` together with the memory itself.
    pub fn ibv_import_dm(context: Object<abi::ibv_context>, dm_handle: u32) -> *mut abi::ibv_dm = call::pointer |owner| {
        let (handle, live) = context.opened(owner)?;
        let engine = dm::REGISTRY.find(dm_handle, live.origin)?;
        Ok(dm::publish(handle, engine, dm_handle))
    }

    /// Ends an import; the memory itself stays.
    pub fn ibv_unimport_dm(dm: Object<abi::ibv_dm>) -> () = call::nothing |owner| {
        dm::POOL.end(dm.enter(owner)?.0, |_| Ok(()))
    }

    /// A region of the same origin under another pointer, whose `addr` is NULL. It ends with
    /// `ibv_unimport_mr`, or by `ibv_dereg_mr` together with the region itself.
    pub fn ibv_import_mr(pd: Object<abi::ibv_pd>, mr_handle: u32) -> *mut abi::ibv_mr = call::pointer |owner| {
        let (_, domain) = pd.enter(owner)?;
        let engine = mr::REGISTRY.find(mr_handle, domain.context.live()?.origin)?;
        Ok(mr::publish_numbered(pd, domain.context, engine, ptr::null_mut(), mr_handle))
    }

    /// Ends an import; the region itself stays.
    pub fn ibv_unimport_mr(mr: Object<abi::ibv_mr>) -> () = call::nothing |owner| {
        mr::POOL.end(mr.enter(owner)?.0, |_| Ok(()))
    }
}
