//! The one place where errors become errno.

use core::ffi::c_int;

/// An errno value that a call of ours returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(c_int);

impl Errno {
    /// The call or an option of it does not exist on this device.
    pub const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// The call itself does not exist.
    pub const ENOSYS: Self = Self(libc::ENOSYS);

    /// The positive number.
    pub const fn code(self) -> c_int {
        self.0
    }
}

/// Sets the calling thread's errno.
pub fn set(errno: Errno) {
    // SAFETY: glibc gives a valid pointer to the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno.code() }
}
