//! The devices of connection management: each opened once, and shared by all ids on it.

use std::collections::BTreeMap;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::{DeviceInfo, PerProcess, XrcdInit};
use parking_lot::Mutex;

use super::state::{IdHandle, IdState};
use crate::context::ContextHandle;
use crate::device::{DeviceHandle, c_list};
use crate::entry::{Ptr, export, named};
use crate::errno::Errno;
use crate::{call, check, log, open, origin, pd, xrcd};

/// A device that was opened for ids. It stays open, as the man page of `rdma_get_devices` says.
struct Shared {
    device: &'static DeviceHandle,
    context: &'static ContextHandle,
    /// The default protection domain, made when an id first needs one.
    pd: Option<Domain<abi::ibv_pd>>,
    /// The default XRC domain, likewise.
    xrcd: Option<Domain<abi::ibv_xrcd>>,
}

/// A domain that only its owner's threads name.
struct Domain<T>(*mut T);

// SAFETY: a handle of this library, which any thread may use; see `handle`.
unsafe impl<T> Send for Domain<T> {}

static SHARED: PerProcess<Mutex<Vec<Shared>>> = PerProcess::new();

/// Whether it can still be used: neither closed behind our back nor dead.
fn usable(shared: &Shared) -> bool {
    !shared.context.is_dead() && shared.context.live().is_ok()
}

fn with<R>(info: &DeviceInfo, look: impl FnOnce(&mut Shared) -> Result<R, Errno>) -> Result<R, Errno> {
    let device = DeviceHandle::of(info);
    let mut shared = SHARED.get().lock();
    shared.retain(usable);
    let index = match shared.iter().position(|known| std::ptr::eq(known.device, device)) {
        Some(index) => index,
        None => {
            let (command, _) = origin::command_file()?;
            let opened = open::open(device, command, gone).map_err(|(_, errno)| errno)?;
            let context = named!(opened).handle()?;
            context.live()?.engine.on_mac_change(move |ifindex| mac_changed(context, ifindex));
            shared.push(Shared { device, context, pd: None, xrcd: None });
            shared.len() - 1
        }
    };
    look(&mut shared[index])
}

/// The shared context of a device.
fn shared(info: &DeviceInfo) -> Result<&'static ContextHandle, Errno> {
    with(info, |shared| Ok(shared.context))
}

/// The shared context of a device, and its default protection domain. May ask the broker: not under an id's
/// lock, which the thread that hears the broker needs.
pub(super) fn home(info: &DeviceInfo) -> Result<Home, Errno> {
    with(info, |shared| {
        let pd = match &shared.pd {
            Some(pd) => pd.0,
            None => {
                let pd = pd::make(shared.context, shared.context.live()?.engine.alloc_pd()?);
                // No program ends it.
                check::ended(pd);
                shared.pd = Some(Domain(pd));
                pd
            }
        };
        Ok(Home { context: shared.context, pd })
    })
}

/// The XRC domain of ids that name none: the target of one meets the shared receive queue of the other there.
/// No program but this process can open the domain.
pub(super) fn default_xrcd(context: &'static ContextHandle) -> Result<*mut abi::ibv_xrcd, Errno> {
    let mut shared = SHARED.get().lock();
    let home = shared.iter_mut().find(|shared| std::ptr::eq(shared.context, context) && usable(shared));
    let home = home.ok_or(Errno::EINVAL)?;
    if let Some(xrcd) = &home.xrcd {
        return Ok(xrcd.0);
    }
    let init = XrcdInit { inode: None, create: true, exclusive: false };
    let xrcd = xrcd::open(context, &*context.live()?, &init)?;
    home.xrcd = Some(Domain(xrcd));
    Ok(xrcd)
}

/// The context and the protection domain of an id.
#[derive(Clone, Copy)]
pub(super) struct Home {
    pub(super) context: &'static ContextHandle,
    pub(super) pd: *mut abi::ibv_pd,
}

/// Ids that are bound to a device, by place.
static BOUND: PerProcess<Mutex<BTreeMap<usize, &'static IdHandle>>> = PerProcess::new();

/// The id is bound to a device, and is told if that goes.
pub(super) fn follow(id: &'static IdHandle) {
    BOUND.get().lock().insert(std::ptr::from_ref(id).addr(), id);
}

/// The id is no more.
pub(super) fn forget(id: &'static IdHandle) {
    BOUND.get().lock().remove(&std::ptr::from_ref(id).addr());
}

/// A device is gone: its ids are told, which the program then has to destroy. On any thread.
fn gone(context: &'static ContextHandle) {
    tell(context, abi::RDMA_CM_EVENT_DEVICE_REMOVAL, |_| true);
}

/// An interface that holds GIDs of a device has another hardware address: ids with an address of that
/// interface are told, which go on all the same. Synchronous ones are not: they would take it for what became
/// of their own call.
fn mac_changed(context: &'static ContextHandle, ifindex: u32) {
    let concerns = |state: &IdState| state.interface == Some(ifindex) && !state.is_synchronous();
    tell(context, abi::RDMA_CM_EVENT_ADDR_CHANGE, concerns);
}

/// Queues an event of its own for each id of a device that it concerns.
fn tell(context: &'static ContextHandle, kind: abi::rdma_cm_event_type, concerns: impl Fn(&IdState) -> bool) {
    let bound: Vec<_> = BOUND.get().lock().values().copied().collect();
    for id in bound {
        let Ok(live) = id.live() else { continue };
        let mut state = live.state.lock();
        if state.context.is_some_and(|of| std::ptr::eq(of, context)) && concerns(&state) {
            state.tell(id, &live, kind, Ok(()));
            // The port is closed as well (Linux 6.12, `ucma_removal_event_handler`), and not under the lock.
            let removed = kind == abi::RDMA_CM_EVENT_DEVICE_REMOVAL;
            let port = if removed { state.link.port.clone() } else { None };
            drop(state);
            if let Some(port) = port {
                port.close_tcp();
            }
        }
    }
}

export! {
    /// All devices, opened, in an array that ends with NULL; their count in `num_devices`, unless that is
    /// NULL. None is not an error: the array is then empty.
    pub fn rdma_get_devices(num_devices: Ptr<c_int>) -> *mut *mut abi::ibv_context = call::pointer |_| {
        log::install();
        if let Some(count) = num_devices.lent() {
            count.write(0);
        }
        let infos = ferroce_engine::devices()?;
        let contexts = infos.iter().map(|info| Ok(shared(info)?.public()));
        c_list(&contexts.collect::<Result<Vec<_>, Errno>>()?, num_devices)
    }

    /// Frees the array. The devices stay open.
    pub fn rdma_free_devices(list: Ptr<*mut abi::ibv_context>) -> () {
        // SAFETY: from calloc, or NULL, which free ignores.
        unsafe { libc::free(list.as_ptr().cast()) }
    }
}
