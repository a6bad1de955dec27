//! CUDA's driver, as the program has loaded it.
//!
//! The names and numbers are those of `cuda.h`, whose interface is stable: a function with another signature
//! gets another name (`_v2`).
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_host::{PerProcess, fork};

use crate::Gone;

/// `CUcontext`, `CUstream` and `CUevent`: handles of the driver, as addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handle(usize);

type Result<T> = std::result::Result<T, Gone>;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions of the driver that copies need.
        #[derive(Clone, Copy)]
        struct Functions {
            $($(#[$doc])* $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// `None` if the library lacks a function.
            fn of(library: &Library) -> Option<Self> {
                Some(Self {
                    $($name: {
                        let found = library.symbol($symbol)?;
                        // SAFETY: the driver's function of this name has this signature for ever.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(
                                found.as_ptr(),
                            )
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    pointer_get_attributes = c"cuPointerGetAttributes" (c_uint, *mut c_int, *mut *mut c_void, u64);
    device_get = c"cuDeviceGet" (*mut c_int, c_int);
    device_get_attribute = c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain" (*mut usize, c_int);
    primary_release = c"cuDevicePrimaryCtxRelease_v2" (c_int);
    push_current = c"cuCtxPushCurrent_v2" (usize);
    pop_current = c"cuCtxPopCurrent_v2" (*mut usize);
    stream_create = c"cuStreamCreate" (*mut usize, c_uint);
    stream_synchronize = c"cuStreamSynchronize" (usize);
    event_create = c"cuEventCreate" (*mut usize, c_uint);
    event_record = c"cuEventRecord" (usize, usize);
    event_synchronize = c"cuEventSynchronize" (usize);
    host_register = c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    to_device = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, usize);
    to_host = c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, usize);
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode" (*mut c_int);
}

/// `cuCtxGetId`, which drivers before CUDA 12 lack.
type ContextId = unsafe extern "C" fn(usize, *mut u64) -> c_int;

/// The driver of this process. Most calls are made inside an [`Entered`] context.
pub(crate) struct Driver {
    functions: Functions,
    context_id: Option<ContextId>,
}

/// The driver's answer about an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described {
    /// `CUmemorytype`.
    pub(crate) kind: u32,
    /// The context that the memory was made in; none for memory of a pool and for mapped memory.
    pub(crate) context: Option<Handle>,
    /// Number of the device among those that the process sees.
    pub(crate) ordinal: c_int,
    /// Number of the allocation, unique for the life of the process; 0 if it has none.
    pub(crate) allocation: u64,
    pub(crate) managed: bool,
    /// The first octet of the allocation, or of the mapping that the address lies in.
    pub(crate) start: u64,
    /// Octets of it.
    pub(crate) len: u64,
}

/// `CU_MEMORYTYPE_DEVICE`.
pub(crate) const KIND_DEVICE: u32 = 2;
/// `CU_MEMORYTYPE_ARRAY`.
pub(crate) const KIND_ARRAY: u32 = 3;
/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
pub(crate) const CONCURRENT_MANAGED_ACCESS: c_int = 89;

/// The attributes that [`Driver::describe`] asks for: `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `_CONTEXT`,
/// `_DEVICE_ORDINAL`, `_BUFFER_ID`, `_IS_MANAGED`, `_RANGE_START_ADDR` and `_RANGE_SIZE`.
const ATTRIBUTES: [c_int; 7] = [2, 1, 9, 7, 8, 11, 12];

/// The state of the search for the driver.
#[derive(Default)]
struct Search {
    driver: OnceLock<Driver>,
    /// How many libraries the process had loaded, ever, at the last search that found none.
    loads: AtomicU64,
}

static SEARCH: PerProcess<Search> = PerProcess::new();

/// The driver, if the program has loaded it. Costs some 50 ns while it has not, and the reading of a list of
/// mappings in a forked child.
pub(crate) fn loaded() -> Option<&'static Driver> {
    // Miri loads no libraries.
    if cfg!(miri) {
        return None;
    }
    let search = SEARCH.get();
    if let Some(driver) = search.driver.get() {
        return Some(driver);
    }
    if fork::epoch() > 0 && !is_mapped() {
        return None;
    }
    let loads = loads();
    if search.loads.load(Ordering::Relaxed) == loads {
        return None;
    }
    let library = Library::find();
    if let Some(library) = &library {
        if let Some(functions) = Functions::of(library) {
            // SAFETY: as for the other functions.
            let context_id = library
                .symbol(c"cuCtxGetId")
                .map(|found| unsafe { std::mem::transmute::<*mut c_void, ContextId>(found.as_ptr()) });
            return Some(search.driver.get_or_init(|| Driver { functions, context_id }));
        }
        tracing::debug!("libcuda.so.1 lacks a function: memory of its GPUs cannot be registered");
    }
    search.loads.store(loads, Ordering::Relaxed);
    None
}

/// Whether a file of the driver is mapped. A forked child asks the kernel first: the loader's lock may be
/// held for ever there, by a thread that only the parent has. CUDA itself does not work in a child whose
/// parent has used it.
#[cold]
fn is_mapped() -> bool {
    let name = b"/libcuda.so";
    std::fs::read("/proc/self/maps").is_ok_and(|maps| maps.windows(name.len()).any(|octets| octets == name))
}

/// How many libraries the process has loaded, ever.
fn loads() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, loads: *mut c_void) -> c_int {
        // SAFETY: the C library passes a valid structure, and the pointer that it was given below.
        unsafe { *loads.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut loads = 0_u64;
    // SAFETY: the function reads the structure and writes the number that lives here.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loads).cast()) };
    loads
}

/// The library of the driver, which stays loaded.
struct Library(std::ptr::NonNull<c_void>);

impl Library {
    /// Looks for it among the loaded libraries.
    fn find() -> Option<Self> {
        unsafe extern "C" fn named(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
            // SAFETY: the C library passes a valid structure.
            let name: *const c_char = unsafe { (*info).dlpi_name };
            if name.is_null() {
                return 0;
            }
            // SAFETY: a name in the structure is a string that lives as long as this call.
            let name = unsafe { CStr::from_ptr(name) };
            let file = name.to_bytes().rsplit(|&octet| octet == b'/').next().unwrap_or_default();
            if !file.starts_with(b"libcuda.so") {
                return 0;
            }
            // SAFETY: the pointer that `find` passes.
            unsafe { *found.cast::<Option<CString>>() = Some(name.to_owned()) };
            1
        }
        let mut found = None::<CString>;
        // SAFETY: the function reads names and writes to `found`, which lives here.
        unsafe { libc::dl_iterate_phdr(Some(named), (&raw mut found).cast()) };
        let name = found?;
        // SAFETY: a valid string; the library is loaded already, so no code of it runs.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        std::ptr::NonNull::new(handle).map(Self)
    }

    fn symbol(&self, name: &CStr) -> Option<std::ptr::NonNull<c_void>> {
        // SAFETY: the handle is open for ever, the name a string.
        let found = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        std::ptr::NonNull::new(found)
    }
}

fn checked(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Gone { call, code }) }
}

impl Driver {
    /// The driver's knowledge of an address; `None` if it has none, or is not initialised.
    pub(crate) fn describe(&self, addr: u64) -> Option<Described> {
        let mut values = [0_u64; ATTRIBUTES.len()];
        let mut places = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        let mut attributes = ATTRIBUTES;
        // SAFETY: as many attributes as places, each of which takes eight octets, the most that an attribute
        // of these has. The driver does not touch the memory at the address.
        let code = unsafe {
            (self.functions.pointer_get_attributes)(
                ATTRIBUTES.len() as c_uint,
                attributes.as_mut_ptr(),
                places.as_mut_ptr(),
                addr,
            )
        };
        let [kind, context, ordinal, allocation, managed, start, len] = values;
        (code == 0 && kind != 0).then_some(Described {
            kind: kind as u32,
            context: (context != 0).then_some(Handle(context as usize)),
            ordinal: ordinal as c_int,
            allocation,
            managed: managed as u32 != 0,
            start,
            len,
        })
    }

    /// An attribute of the device with this ordinal.
    pub(crate) fn attribute(&self, attribute: c_int, ordinal: c_int) -> Result<c_int> {
        let device = self.device(ordinal)?;
        let mut value = 0;
        // SAFETY: writes one integer.
        let code = unsafe { (self.functions.device_get_attribute)(&raw mut value, attribute, device) };
        checked("cuDeviceGetAttribute", code).map(|()| value)
    }

    fn device(&self, ordinal: c_int) -> Result<c_int> {
        let mut device = 0;
        // SAFETY: writes one integer.
        checked("cuDeviceGet", unsafe { (self.functions.device_get)(&raw mut device, ordinal) })?;
        Ok(device)
    }

    /// A number that no other context of the process has or had; 0 if the driver has none. The driver uses
    /// handles again.
    pub(crate) fn context_id(&self, context: Handle) -> u64 {
        let mut id = 0;
        if let Some(call) = self.context_id {
            // SAFETY: writes one number; the driver refuses a handle without a context.
            let code = unsafe { call(context.0, &raw mut id) };
            if code != 0 {
                return 0;
            }
        }
        id
    }

    /// The context that CUDA's runtime uses on a device. Without a reset by the program it stays until
    /// [`Self::release_primary`] is called as often as this.
    pub(crate) fn primary(&self, ordinal: c_int) -> Result<Handle> {
        let device = self.device(ordinal)?;
        let mut context = 0;
        // SAFETY: writes one handle.
        let code = unsafe { (self.functions.primary_retain)(&raw mut context, device) };
        checked("cuDevicePrimaryCtxRetain", code).map(|()| Handle(context))
    }

    /// Takes one call of [`Self::primary`] back.
    pub(crate) fn release_primary(&self, ordinal: c_int) {
        if let Ok(device) = self.device(ordinal) {
            // SAFETY: takes a number. A failure changes nothing.
            unsafe { (self.functions.primary_release)(device) };
        }
    }

    /// Makes a context that of this thread until the result is dropped. Calls in it may be made while the
    /// program captures a stream: they concern none of its streams.
    fn enter(&self, context: Handle) -> Result<Entered<'_>> {
        /// `CU_STREAM_CAPTURE_MODE_RELAXED`.
        const RELAXED: c_int = 2;
        // SAFETY: the driver refuses a handle without a context.
        checked("cuCtxPushCurrent", unsafe { (self.functions.push_current)(context.0) })?;
        let mut mode = RELAXED;
        // SAFETY: reads and writes one integer.
        let code = unsafe { (self.functions.exchange_capture_mode)(&raw mut mode) };
        Ok(Entered { functions: &self.functions, mode: (code == 0).then_some(mode) })
    }
}

/// A context, which a thread may enter.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    pub(crate) handle: Handle,
}

impl Context {
    /// Makes it that of this thread until the result is dropped.
    pub(crate) fn enter(self) -> Result<Entered<'static>> {
        self.driver.enter(self.handle)
    }
}

/// A context that is this thread's.
pub(crate) struct Entered<'a> {
    functions: &'a Functions,
    /// The capture mode before.
    mode: Option<c_int>,
}

impl Entered<'_> {
    /// A stream that waits for no other one.
    pub(crate) fn stream(&self) -> Result<Handle> {
        /// `CU_STREAM_NON_BLOCKING`.
        const NON_BLOCKING: c_uint = 1;
        let mut stream = 0;
        // SAFETY: writes one handle.
        let code = unsafe { (self.functions.stream_create)(&raw mut stream, NON_BLOCKING) };
        checked("cuStreamCreate", code).map(|()| Handle(stream))
    }

    /// An event, without its time.
    pub(crate) fn event(&self) -> Result<Handle> {
        /// `CU_EVENT_DISABLE_TIMING`.
        const DISABLE_TIMING: c_uint = 2;
        let mut event = 0;
        // SAFETY: writes one handle.
        let code = unsafe { (self.functions.event_create)(&raw mut event, DISABLE_TIMING) };
        checked("cuEventCreate", code).map(|()| Handle(event))
    }

    /// Pins memory of the process, for all contexts.
    pub(crate) fn pin(&self, start: *mut c_void, len: usize) -> Result<()> {
        /// `CU_MEMHOSTREGISTER_PORTABLE`.
        const PORTABLE: c_uint = 1;
        // SAFETY: the driver refuses a range that is not mapped, and changes none of its octets.
        checked("cuMemHostRegister", unsafe { (self.functions.host_register)(start, len, PORTABLE) })
    }

    /// Begins a copy to the device. The driver refuses an address that is not the device's.
    ///
    /// # Safety
    ///
    /// The `len` octets at `from` are mapped and not written until the copy has ended.
    pub(crate) unsafe fn to_device(
        &self,
        to: u64,
        from: *const c_void,
        len: usize,
        stream: Handle,
    ) -> Result<()> {
        // SAFETY: the caller's.
        checked("cuMemcpyHtoDAsync", unsafe { (self.functions.to_device)(to, from, len, stream.0) })
    }

    /// Begins a copy from the device.
    ///
    /// # Safety
    ///
    /// The `len` octets at `to` are mapped and neither read nor written until the copy has ended.
    pub(crate) unsafe fn to_host(
        &self,
        to: *mut c_void,
        from: u64,
        len: usize,
        stream: Handle,
    ) -> Result<()> {
        // SAFETY: the caller's.
        checked("cuMemcpyDtoHAsync", unsafe { (self.functions.to_host)(to, from, len, stream.0) })
    }

    /// Lets an event tell of the end of what the stream has now.
    pub(crate) fn record(&self, event: Handle, stream: Handle) -> Result<()> {
        // SAFETY: handles that the driver made; both are refused after the end of their context.
        checked("cuEventRecord", unsafe { (self.functions.event_record)(event.0, stream.0) })
    }

    /// Waits for an event.
    pub(crate) fn wait(&self, event: Handle) -> Result<()> {
        // SAFETY: as in `record`.
        checked("cuEventSynchronize", unsafe { (self.functions.event_synchronize)(event.0) })
    }

    /// Waits for all that a stream has now.
    pub(crate) fn wait_for_stream(&self, stream: Handle) -> Result<()> {
        // SAFETY: as in `record`.
        checked("cuStreamSynchronize", unsafe { (self.functions.stream_synchronize)(stream.0) })
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.mode {
            // SAFETY: reads and writes one integer.
            unsafe { (self.functions.exchange_capture_mode)(&raw mut mode) };
        }
        let mut context = 0;
        // SAFETY: writes one handle.
        unsafe { (self.functions.pop_current)(&raw mut context) };
    }
}
