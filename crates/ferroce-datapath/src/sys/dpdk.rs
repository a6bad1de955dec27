//! The library `libferroce-dpdk.so` (shim/ferroce_dpdk.c), which is loaded at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The version of the library's interface, as in shim/ferroce_dpdk.c.
const INTERFACE: c_int = 1;
/// Octets of the library's message.
const MESSAGE: usize = 512;

/// Frames of one burst at most, as in shim/ferroce_dpdk.c.
pub(crate) const BURST: usize = 64;

/// The properties of a started port.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Info {
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u16,
}

type Init = unsafe extern "C" fn(c_int, *mut *mut c_char) -> c_int;
type Burst = unsafe extern "C" fn(u16, *mut u8, u32, *mut u32, u16) -> c_int;
type ConstBurst = unsafe extern "C" fn(u16, *const u8, u32, *const u32, u16) -> c_int;

/// The loaded library. It stays in the process, because DPDK cannot be unloaded.
#[derive(Debug)]
pub(crate) struct Library {
    init: Init,
    message: unsafe extern "C" fn(*mut c_char, usize),
    thread: unsafe extern "C" fn(),
    probe: unsafe extern "C" fn(*const c_char) -> c_int,
    start: unsafe extern "C" fn(u16, u16, *mut Info) -> c_int,
    rx: Burst,
    tx: ConstBurst,
    link: unsafe extern "C" fn(u16) -> c_int,
    close: unsafe extern "C" fn(u16) -> c_int,
}

impl Library {
    /// Loads the library. The error is the loader's sentence, which names the file that is missing.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| "a path with a zero octet".to_owned())?;
        // SAFETY: `name` is a C string that outlives the call. The constructors that run are DPDK's own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(loader_error());
        }
        // SAFETY: the symbol has this type in every version of the library.
        let interface =
            unsafe { function::<unsafe extern "C" fn() -> c_int>(handle, c"ferroce_dpdk_interface") }?;
        // SAFETY: the function takes nothing and touches no memory.
        let interface = unsafe { interface() };
        if interface != INTERFACE {
            return Err(format!(
                "{}: interface {interface}, this ferroced needs {INTERFACE}",
                path.display()
            ));
        }
        // SAFETY: each symbol has the type of its field in this version of the interface.
        unsafe {
            Ok(Self {
                init: function(handle, c"ferroce_dpdk_init")?,
                message: function(handle, c"ferroce_dpdk_message")?,
                thread: function(handle, c"ferroce_dpdk_thread")?,
                probe: function(handle, c"ferroce_dpdk_probe")?,
                start: function(handle, c"ferroce_dpdk_start")?,
                rx: function(handle, c"ferroce_dpdk_rx")?,
                tx: function(handle, c"ferroce_dpdk_tx")?,
                link: function(handle, c"ferroce_dpdk_link")?,
                close: function(handle, c"ferroce_dpdk_close")?,
            })
        }
    }

    /// Starts DPDK; once in a process. The error is a negative errno.
    pub(crate) fn init(&self, arguments: &[CString]) -> Result<(), c_int> {
        // DPDK permutes the list and may keep its texts: both live as long as the process.
        let texts = arguments.iter().map(|argument| argument.clone().into_raw());
        let list: &mut [*mut c_char] = texts.chain([std::ptr::null_mut()]).collect::<Vec<_>>().leak();
        // SAFETY: the list has `arguments.len()` C strings that can be written to, and a null pointer behind
        // them.
        check(unsafe { (self.init)(arguments.len() as c_int, list.as_mut_ptr()) }).map(drop)
    }

    /// Returns the lines that DPDK logged since the last call.
    pub(crate) fn message(&self) -> String {
        let mut text = [0_u8; MESSAGE];
        // SAFETY: the pointer and the size are those of `text`; the library writes a C string into it.
        unsafe { (self.message)(text.as_mut_ptr().cast(), text.len()) };
        CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Makes DPDK know the calling thread.
    pub(crate) fn know_thread(&self) {
        // SAFETY: the function takes nothing; a thread may call it more than once.
        unsafe { (self.thread)() };
    }

    /// Returns the port of a device.
    pub(crate) fn probe(&self, devargs: &CStr) -> Result<u16, c_int> {
        // SAFETY: the pointer is a C string that outlives the call.
        let port = check(unsafe { (self.probe)(devargs.as_ptr()) })?;
        u16::try_from(port).map_err(|_| -libc::ENODEV)
    }

    pub(crate) fn start(&self, port: u16, mtu: u16) -> Result<Info, c_int> {
        let mut info = Info::default();
        // SAFETY: the library writes an `Info`, which has the same layout in C.
        check(unsafe { (self.start)(port, mtu, &raw mut info) })?;
        Ok(info)
    }

    /// Fills `bytes` and `lengths`; returns the number of frames. One thread at a time receives from a port
    /// that was started and not closed.
    pub(crate) fn rx(&self, port: u16, bytes: &mut [u8], stride: usize, lengths: &mut [u32; BURST]) -> usize {
        let most = bytes.len().checked_div(stride).unwrap_or(0).min(BURST);
        // SAFETY: the library writes at most `most` lengths, and as many frames of at most `stride` octets
        // each.
        let got =
            unsafe { (self.rx)(port, bytes.as_mut_ptr(), stride as u32, lengths.as_mut_ptr(), most as u16) };
        usize::try_from(got).unwrap_or(0).min(most)
    }

    /// Returns how many of the frames the port took. One thread at a time sends by a port that was started
    /// and not closed.
    pub(crate) fn tx(&self, port: u16, bytes: &[u8], stride: usize, lengths: &[u32]) -> usize {
        let count = bytes.len().checked_div(stride).unwrap_or(0).min(lengths.len()).min(BURST);
        if lengths.iter().take(count).any(|len| *len as usize > stride) {
            return 0;
        }
        // SAFETY: the library reads `count` lengths, and as many frames, each of which lies within its
        // stride.
        let sent = unsafe { (self.tx)(port, bytes.as_ptr(), stride as u32, lengths.as_ptr(), count as u16) };
        usize::try_from(sent).unwrap_or(0).min(count)
    }

    /// Returns whether the link is up; `None` if the driver does not say.
    pub(crate) fn link(&self, port: u16) -> Option<bool> {
        // SAFETY: the function takes a number alone, and refuses one that is no port.
        match unsafe { (self.link)(port) } {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Closes a port that no thread uses any more.
    pub(crate) fn close(&self, port: u16) -> Result<(), c_int> {
        // SAFETY: the caller has given up both directions of the port.
        check(unsafe { (self.close)(port) }).map(drop)
    }
}

fn check(result: c_int) -> Result<c_int, c_int> {
    if result < 0 { Err(result) } else { Ok(result) }
}

/// Returns the function `name` of a loaded library.
///
/// # Safety
/// `T` is the function pointer type of that symbol.
unsafe fn function<T: Copy>(handle: *mut c_void, name: &CStr) -> Result<T, String> {
    // SAFETY: the handle is of a library that stays loaded, and the name is a C string.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if symbol.is_null() {
        return Err(loader_error());
    }
    assert_eq!(size_of::<T>(), size_of::<*mut c_void>());
    // SAFETY: the symbol is a function of type `T`, as the caller promises, and both have the size of a
    // pointer.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, T>(&symbol) })
}

/// The loader's last error.
fn loader_error() -> String {
    // SAFETY: dlerror returns null, or a C string that lives until this thread's next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader says no reason".to_owned();
    }
    // SAFETY: as above; the text is copied at once.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
