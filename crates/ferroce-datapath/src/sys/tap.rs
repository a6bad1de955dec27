//! The system calls of taps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, c_short};

const TUNSETIFF: libc::Ioctl = 0x4004_54ca_u32 as libc::Ioctl;
const TUNSETPERSIST: libc::Ioctl = 0x4004_54cb_u32 as libc::Ioctl;
/// Linux 5.0.
const TUNSETCARRIER: libc::Ioctl = 0x4004_54e2_u32 as libc::Ioctl;

/// Opens `/dev/net/tun`, and makes or takes the tap `name`.
pub(crate) fn open_tap(name: &str) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::open(c"/dev/net/tun".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, so it is open and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as c_short;
    // SAFETY: the request reads and writes an ifreq, which outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if result == 0 { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// A persistent tap stays when its descriptor is closed.
pub(crate) fn set_persistent(fd: &impl AsFd, persistent: bool) -> io::Result<()> {
    // SAFETY: this request takes a number instead of a pointer.
    let result =
        unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), TUNSETPERSIST, libc::c_ulong::from(persistent)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives a tap its carrier, or takes it.
pub(crate) fn set_carrier(fd: &impl AsFd, carrier: bool) -> io::Result<()> {
    let value = c_int::from(carrier);
    // SAFETY: the kernel reads an int from the pointer, which outlives the call.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), TUNSETCARRIER, &raw const value) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an ifreq of zeros is valid: it has numbers and octets alone.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() || name.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}
