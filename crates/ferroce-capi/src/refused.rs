//! Calls that the library does not implement: each fails as its man page specifies. One function serves all
//! calls of one return convention; the table in `ferroce-dropin` gives the reason of each.

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::errno::{self, Errno};

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident -> $result:ty = $errno:ident => $value:expr;)*) => {
        $(
            $(#[$doc])*
            pub extern "C" fn $name() -> $result {
                errno::set(Errno::$errno);
                $value
            }
        )*
    };
}

refusals! {
    /// For calls that return 0 or an errno.
    errno_not_supported -> c_int = EOPNOTSUPP => Errno::EOPNOTSUPP.code();
    /// For calls of the first libibverbs that return 0 or an errno.
    errno_nosys -> c_int = ENOSYS => Errno::ENOSYS.code();
    /// For calls that return -1 and set errno.
    minus_one_not_supported -> isize = EOPNOTSUPP => -1;
    /// For calls of the first libibverbs that return -1 and set errno.
    minus_one_nosys -> isize = ENOSYS => -1;
    /// For calls that return a negative errno.
    negative_not_supported -> isize = EOPNOTSUPP => -(Errno::EOPNOTSUPP.code() as isize);
    /// For calls that return a pointer.
    null_not_supported -> *mut c_void = EOPNOTSUPP => ptr::null_mut();
    /// For calls of the first libibverbs that return a pointer.
    null_nosys -> *mut c_void = ENOSYS => ptr::null_mut();
    /// For calls whose 0 means "none" or "unknown".
    zero -> usize = EOPNOTSUPP => 0;
}

/// For calls that return nothing; provider libraries call some from their constructors, so this touches not
/// even errno.
pub extern "C" fn nothing() {}
