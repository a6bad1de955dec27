//! Devices: the list, and what can be asked of one that is not open.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use core::ffi::{c_char, c_int};
use ferroce_abi as abi;
use ferroce_engine::{DeviceInfo, LinkKind};

use crate::call;
use crate::entry::{Ptr, export};
use crate::errno::Errno;
use crate::log;

/// An `ibv_device` and what lies behind it.
///
/// libmlx5 and libefa ask any device whether it is theirs by comparing the word right behind `ibv_device` (in
/// rdma-core the provider's operations) with their own, so it names something of ours.
#[repr(C)]
pub(crate) struct DeviceHandle {
    c: UnsafeCell<abi::ibv_device>,
    provider: &'static [usize; 32],
    /// rdma-core's own structure reaches to 712.
    rest: [usize; 5],
    pub(crate) name: String,
    guid: [u8; 8],
    /// The one that was listed before.
    before: AtomicPtr<Self>,
}

const _: () = assert!(std::mem::offset_of!(DeviceHandle, provider) == 664);
const _: () = assert!(size_of::<abi::ibv_device>() + size_of::<usize>() * 6 >= 712);

// SAFETY: the C part is written before the handle is shared, and never again by us.
unsafe impl Sync for DeviceHandle {}
// SAFETY: only ever shared by reference.
unsafe impl Send for DeviceHandle {}

/// The operations of no provider.
static NO_PROVIDER: [usize; 32] = [0; 32];

/// Every device ever listed. They are few and their pointers stay valid, so a program may keep one longer
/// than the man page allows. The last one is first. A list without a lock, because a forked child may open
/// what its parent listed.
static DEVICES: AtomicPtr<DeviceHandle> = AtomicPtr::new(ptr::null_mut());

/// `last` and those listed before it.
fn listed(last: *mut DeviceHandle) -> impl Iterator<Item = &'static DeviceHandle> {
    // SAFETY: NULL, or a device that was listed whole; they are never freed.
    let device = |at: *mut DeviceHandle| unsafe { at.as_ref() };
    std::iter::successors(device(last), move |handle| device(handle.before.load(Ordering::Acquire)))
}

impl DeviceHandle {
    /// The program's pointer.
    pub(crate) fn c(&self) -> *mut abi::ibv_device {
        self.c.get()
    }

    /// The device behind a program's pointer; EINVAL for any other address.
    pub(crate) fn from_c(device: *const abi::ibv_device) -> Result<&'static Self, Errno> {
        let mut devices = listed(DEVICES.load(Ordering::Acquire));
        devices.find(|handle| ptr::eq(handle.c().cast_const(), device)).ok_or(Errno::EINVAL)
    }

    /// The device of that description, listed from now on.
    pub(crate) fn of(info: &DeviceInfo) -> &'static Self {
        let mut made = None::<&'static Self>;
        loop {
            let last = DEVICES.load(Ordering::Acquire);
            if let Some(found) = listed(last).find(|handle| handle.is(info)) {
                return found;
            }
            let handle = *made.get_or_insert_with(|| Box::leak(Box::new(Self::new(info))));
            handle.before.store(last, Ordering::Relaxed);
            let new = ptr::from_ref(handle).cast_mut();
            if DEVICES.compare_exchange(last, new, Ordering::Release, Ordering::Relaxed).is_ok() {
                return handle;
            }
        }
    }

    fn is(&self, info: &DeviceInfo) -> bool {
        // SAFETY: the name was written before the handle was shared.
        let dev_name = unsafe { &(*self.c()).dev_name };
        // SAFETY: as above.
        let iwarp = unsafe { (*self.c()).transport_type } == abi::IBV_TRANSPORT_IWARP;
        iwarp == info.is_iwarp()
            && self.name == info.name
            && self.guid == info.node_guid
            && text(dev_name) == info.dev_name.as_bytes()
    }

    fn new(info: &DeviceInfo) -> Self {
        let (node_type, transport_type) = match info.kind {
            LinkKind::Rxe => (abi::IBV_NODE_CA, abi::IBV_TRANSPORT_IB),
            LinkKind::Siw => (abi::IBV_NODE_RNIC, abi::IBV_TRANSPORT_IWARP),
        };
        let handle = Self {
            c: UnsafeCell::new(abi::ibv_device {
                _ops: abi::_ibv_device_ops { _dummy1: None, _dummy2: None },
                node_type,
                transport_type,
                name: c_text(&info.name),
                dev_name: c_text(&info.dev_name),
                dev_path: c_text(&format!("/sys/class/infiniband_verbs/{}", info.dev_name)),
                ibdev_path: c_text(&format!("/sys/class/infiniband/{}", info.name)),
            }),
            provider: &NO_PROVIDER,
            rest: [0; 5],
            name: info.name.clone(),
            guid: info.node_guid,
            before: AtomicPtr::new(ptr::null_mut()),
        };
        debug_assert!(ptr::eq(handle.provider, &NO_PROVIDER) && handle.rest == [0; 5]);
        handle
    }
}

/// A C string in an array, cut where it does not fit.
pub(crate) fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from as c_char;
    }
    array
}

fn text(array: &[c_char]) -> Vec<u8> {
    array.iter().map(|octet| *octet as u8).take_while(|octet| *octet != 0).collect()
}

export! {
    /// The devices, in an array that ends with NULL; their count in `num_devices`, unless that is NULL. No
    /// device is not an error: the array is then empty.
    pub fn ibv_get_device_list(num_devices: Ptr<c_int>) -> *mut *mut abi::ibv_device = call::pointer |_| {
        log::install();
        if let Some(count) = num_devices.lent() {
            count.write(0);
        }
        let infos = ferroce_engine::devices()?;
        let devices: Vec<_> = infos.iter().map(|info| DeviceHandle::of(info).c()).collect();
        c_list(&devices, num_devices)
    }
}

/// An array that ends with NULL, and its count in `number`, unless that is NULL. It is from `calloc`, because
/// some programs give it to `free`.
pub(crate) fn c_list<T>(objects: &[*mut T], number: Ptr<c_int>) -> Result<*mut *mut T, Errno> {
    // SAFETY: calloc has no preconditions.
    let array = unsafe { libc::calloc(objects.len() + 1, size_of::<*mut T>()) }.cast::<*mut T>();
    if array.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: the array was just made, with room for all and one more, which is NULL.
    unsafe { array.copy_from_nonoverlapping(objects.as_ptr(), objects.len()) };
    if let Some(number) = number.lent() {
        number.write(c_int::try_from(objects.len()).unwrap_or(c_int::MAX));
    }
    Ok(array)
}

export! {
    /// Frees the array. The devices in it stay valid.
    pub fn ibv_free_device_list(list: Ptr<*mut abi::ibv_device>) -> () {
        // SAFETY: from calloc, or NULL, which free ignores.
        unsafe { libc::free(list.as_ptr().cast()) }
    }

    /// The device's name: a member of the public structure, so a device that a program made for itself has
    /// one too (sideway's tests do). NULL for NULL.
    pub fn ibv_get_device_name(device: *mut abi::ibv_device) -> *const c_char {
        call::pointer(|_| {
            if device.is_null() {
                return Err(Errno::EINVAL);
            }
            Ok(device.wrapping_byte_add(std::mem::offset_of!(abi::ibv_device, name)).cast::<c_char>())
        })
        .cast_const()
    }

    /// The node GUID in network order, 0 for a device of another library.
    pub fn ibv_get_device_guid(device: *mut abi::ibv_device) -> abi::be64 {
        call::value(0, |_| Ok(u64::from_ne_bytes(DeviceHandle::from_c(device)?.guid)))
    }
}

/// -1: an index is what the kernel gives a device, and it knows none of ours.
pub extern "C" fn ibv_get_device_index(_device: *mut abi::ibv_device) -> c_int {
    -1
}
