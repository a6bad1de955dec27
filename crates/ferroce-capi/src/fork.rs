//! The calls that programs make before they fork. The library pins no pages, so a child's copy-on-write
//! cannot take memory away from under a transfer; the engine itself closes its descriptors in the child.

use core::ffi::{c_int, c_void};

use ferroce_abi as abi;

/// Always 0: fork is safe for the parent. The child may use none of its objects.
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`, as with a kernel that copies pinned pages.
pub extern "C" fn ibv_is_fork_initialized() -> abi::ibv_fork_status {
    abi::IBV_FORK_UNNEEDED
}

/// Nothing to do, see [`ibv_is_fork_initialized`].
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Nothing to do, see [`ibv_is_fork_initialized`].
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
