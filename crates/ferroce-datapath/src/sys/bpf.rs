//! `bpf(2)`: maps, programs and links.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;

/// Types of maps; the numbers are those of `enum bpf_map_type`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum MapKind {
    Hash = 1,
    Array = 2,
    DevMap = 14,
    XskMap = 17,
}

/// The type and the attach type of XDP programs.
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;

/// The licence that the programs declare. The kernel offers `bpf_fib_lookup` only to programs of licences on
/// its list of those that agree with the GPL. `MIT` alone is not on that list, although it allows its
/// licensees to pass a program on under the GPL.
const LICENSE: &CStr = c"Dual MIT/GPL";

/// Octets for the verifier's reasons.
const LOG: usize = 1 << 20;
/// Lines of them in an error.
const LOG_LINES: usize = 6;

#[repr(u32)]
enum Command {
    MapCreate = 0,
    Lookup = 1,
    Update = 2,
    Delete = 3,
    Load = 5,
    LinkCreate = 28,
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
}

#[repr(C)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    at: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// # Safety
///
/// The pointers in `attributes` lead to memory of the sizes that the kernel expects for this command.
unsafe fn bpf<T>(command: Command, attributes: &T) -> io::Result<c_int> {
    // SAFETY: the kernel reads `size_of::<T>()` octets of the attributes; the caller answers for the pointers
    // in it.
    let rc = unsafe {
        libc::syscall(libc::SYS_bpf, command as c_int, std::ptr::from_ref(attributes), size_of::<T>() as u32)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc as c_int) }
}

fn number(fd: &impl AsFd) -> u32 {
    // An open descriptor is not negative.
    fd.as_fd().as_raw_fd() as u32
}

fn name_field(name: &str) -> [u8; 16] {
    let mut field = [0; 16];
    // The last octet stays zero.
    field.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    field
}

/// A map with keys of `K` octets and values of `V`.
#[derive(Debug)]
pub(crate) struct Map<const K: usize, const V: usize> {
    fd: OwnedFd,
}

impl<const K: usize, const V: usize> Map<K, V> {
    /// Creates a map; `name` has letters, digits and `_`, of which the kernel keeps 15.
    pub(crate) fn new(kind: MapKind, entries: u32, name: &str) -> io::Result<Self> {
        let attributes = MapCreate {
            kind: kind as u32,
            key_size: K as u32,
            value_size: V as u32,
            max_entries: entries,
            flags: 0,
            inner_map: 0,
            numa_node: 0,
            name: name_field(name),
        };
        // SAFETY: the attributes have no pointer.
        let fd = unsafe { bpf(Command::MapCreate, &attributes) }?;
        // SAFETY: the kernel has just returned this descriptor, so it is open and has no other owner.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Adds or replaces an element.
    pub(crate) fn update(&self, key: &[u8; K], value: &[u8; V]) -> io::Result<()> {
        let element = self.element(key, value.as_ptr());
        // SAFETY: the kernel reads a key and a value of the sizes that the map was created with, which are
        // those of the arrays.
        unsafe { bpf(Command::Update, &element) }.map(drop)
    }

    /// Removes an element; one that does not exist is no error.
    pub(crate) fn remove(&self, key: &[u8; K]) -> io::Result<()> {
        let element = self.element(key, std::ptr::null());
        // SAFETY: the kernel reads a key of the size that the map was created with, which is that of the
        // array.
        match unsafe { bpf(Command::Delete, &element) } {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Returns the value of an element.
    pub(crate) fn get(&self, key: &[u8; K]) -> io::Result<Option<[u8; V]>> {
        let mut value = [0u8; V];
        let element = self.element(key, value.as_mut_ptr());
        // SAFETY: as in `update`; the kernel writes one value of that size, because no kind of map here is
        // per CPU.
        match unsafe { bpf(Command::Lookup, &element) } {
            Ok(_) => Ok(Some(value)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn element(&self, key: &[u8; K], value: *const u8) -> Element {
        Element { map: number(&self.fd), pad: 0, key: key.as_ptr() as u64, value: value as u64, flags: 0 }
    }
}

impl<const K: usize, const V: usize> AsFd for Map<K, V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Loads an XDP program. `multi_buffer` promises that the program copes with packets whose end lies
/// elsewhere.
///
/// An error has the last words of the kernel's verifier.
pub(crate) fn load_xdp(instructions: &[u64], name: &str, multi_buffer: bool) -> io::Result<OwnedFd> {
    /// Linux 5.18.
    const XDP_HAS_FRAGS: u32 = 1 << 5;
    let mut attributes = Load {
        kind: PROG_TYPE_XDP,
        instructions: u32::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        at: instructions.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: if multi_buffer { XDP_HAS_FRAGS } else { 0 },
        name: name_field(name),
        ifindex: 0,
        attach_type: ATTACH_XDP,
    };
    // SAFETY: the pointers lead to that many instructions of 8 octets, and to a string that ends with a zero.
    let loaded = unsafe { bpf(Command::Load, &attributes) };
    let error = match loaded {
        // SAFETY: the kernel has just returned this descriptor, so it is open and has no other owner.
        Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => return Err(e),
        Err(e) => e,
    };
    let mut log = vec![0u8; LOG];
    (attributes.log_level, attributes.log_size, attributes.log) = (1, LOG as u32, log.as_mut_ptr() as u64);
    // SAFETY: as above, and the log has that many octets.
    match unsafe { bpf(Command::Load, &attributes) } {
        // SAFETY: the kernel has just returned this descriptor, so it is open and has no other owner.
        Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(_) => log.truncate(log.iter().position(|octet| *octet == 0).unwrap_or(LOG)),
    }
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<_> = log.lines().collect();
    let last = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default();
    if last.is_empty() {
        return Err(error);
    }
    Err(io::Error::new(
        error.kind(),
        format!("the kernel refuses an XDP program: {error}: {}", last.join(" / ")),
    ))
}

/// Ways to attach an XDP program; the numbers are the `XDP_FLAGS_…_MODE`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum XdpMode {
    Generic = 2,
    Native = 4,
}

/// Attaches an XDP program to an interface until the returned link is closed.
pub(crate) fn link_xdp(program: &impl AsFd, ifindex: u32, mode: XdpMode) -> io::Result<OwnedFd> {
    let attributes =
        LinkCreate { program: number(program), ifindex, attach_type: ATTACH_XDP, flags: mode as u32 };
    // SAFETY: the attributes have no pointer.
    let fd = unsafe { bpf(Command::LinkCreate, &attributes) }?;
    // SAFETY: the kernel has just returned this descriptor, so it is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
