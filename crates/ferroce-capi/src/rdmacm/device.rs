//! The devices of connection management: each opened once, and shared by all ids on it.

use std::collections::BTreeMap;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::{DeviceInfo, PerProcess};
use parking_lot::Mutex;

use super::id::{IdHandle, State};
use super::made;
use crate::context::{self, ContextHandle};
use crate::device::DeviceHandle;
use crate::entry::named;
use crate::errno::Errno;
use crate::{call, import, log, pd, xrcd};

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
            let (command, _) = import::command_file()?;
            let opened = context::open(device, command).map_err(|(_, errno)| errno)?;
            let context = named!(opened).handle()?;
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

/// The shared context of a device, and its default protection domain. May ask the broker: not under an id's lock,
/// which the thread that hears the broker needs.
pub(super) fn home(info: &DeviceInfo) -> Result<Home, Errno> {
    with(info, |shared| {
        let pd = match &shared.pd {
            Some(pd) => pd.0,
            None => {
                // SAFETY: the context is open.
                let pd = made(unsafe { pd::ibv_alloc_pd(shared.context.public()) })?;
                shared.pd = Some(Domain(pd));
                pd
            }
        };
        Ok(Home { context: shared.context, pd })
    })
}

/// The XRC domain of ids that name none: the target of one meets the shared receive queue of the other there. Nobody else
/// can open it.
pub(super) fn default_xrcd(context: &'static ContextHandle) -> Result<*mut abi::ibv_xrcd, Errno> {
    let mut shared = SHARED.get().lock();
    let home = shared.iter_mut().find(|shared| std::ptr::eq(shared.context, context) && usable(shared));
    let home = home.ok_or(Errno::EINVAL)?;
    if let Some(xrcd) = &home.xrcd {
        return Ok(xrcd.0);
    }
    let mut init = abi::ibv_xrcd_init_attr {
        comp_mask: abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: the context is open.
    let xrcd = made(unsafe { xrcd::open_xrcd(context.public(), &mut init) })?;
    home.xrcd = Some(Domain(xrcd));
    Ok(xrcd)
}

/// Where an id lives.
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
pub(crate) fn gone(context: &'static ContextHandle) {
    tell(context, abi::RDMA_CM_EVENT_DEVICE_REMOVAL, |_| true);
}

/// An interface that holds GIDs of a device has another hardware address: ids with an address of that interface are told,
/// which go on all the same. Synchronous ones are not: they would take it for what became of their own call.
pub(crate) fn mac_changed(context: &'static ContextHandle, ifindex: u32) {
    let concerns = |state: &State| state.interface == Some(ifindex) && !state.is_synchronous();
    tell(context, abi::RDMA_CM_EVENT_ADDR_CHANGE, concerns);
}

/// Queues an event of its own for each id of a device that it concerns.
fn tell(context: &'static ContextHandle, kind: abi::rdma_cm_event_type, concerns: impl Fn(&State) -> bool) {
    let bound: Vec<_> = BOUND.get().lock().values().copied().collect();
    for id in bound {
        let Ok(live) = id.live() else { continue };
        let live = live.to_arc();
        let state = live.state.lock();
        if state.context.is_some_and(|of| std::ptr::eq(of, context)) && concerns(&state) {
            state.tell(id, &live, kind, Ok(()));
        }
    }
}

/// All devices, opened, in an array that ends with NULL; their count in `num_devices`, unless that is NULL. None is not
/// an error: the array is then empty.
///
/// # Safety
///
/// `num_devices` is NULL or writable.
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut abi::ibv_context {
    call::pointer(|_| {
        log::install();
        if !num_devices.is_null() {
            // SAFETY: not NULL, and the caller says it may be written to.
            unsafe { num_devices.write(0) };
        }
        let infos = ferroce_engine::devices()?;
        let contexts = infos.iter().map(shared).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: calloc has no preconditions.
        let array = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut abi::ibv_context>()) };
        let array = array.cast::<*mut abi::ibv_context>();
        if array.is_null() {
            return Err(Errno::ENOMEM);
        }
        for (index, context) in contexts.iter().enumerate() {
            // SAFETY: the array has a place for each and one more.
            unsafe { array.add(index).write(context.public()) };
        }
        if !num_devices.is_null() {
            let count = c_int::try_from(contexts.len()).unwrap_or(c_int::MAX);
            // SAFETY: as above.
            unsafe { num_devices.write(count) };
        }
        Ok(array)
    })
}

/// Frees the array. The devices stay open.
///
/// # Safety
///
/// `list` is NULL or came from [`rdma_get_devices`], once.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut abi::ibv_context) {
    // SAFETY: from calloc, or NULL, which free ignores.
    unsafe { libc::free(list.cast()) }
}
