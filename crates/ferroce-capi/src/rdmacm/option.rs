//! Options of ids.

use core::ffi::{c_int, c_uint, c_void};
use ferroce_abi as abi;

use super::resolve;
use super::state::{IdState, Phase};
use crate::call;
use crate::entry::{Object, export};
use crate::errno::Errno;
use crate::handle::get;

/// Flags of `ibv_path_data`: a path for both directions and for all uses, as the kernel asks for.
const WHOLE_PATH: u32 = 1 | 2 | 8 | 32;

/// The value of an option; EINVAL unless its size is that of `T`.
///
/// # Safety
///
/// `value` is NULL or readable for `length` octets, which may be any value of `T`.
unsafe fn value<T: Copy>(value: *const c_void, length: usize) -> Result<T, Errno> {
    if value.is_null() || length != size_of::<T>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: `value` has `length` octets, which are as many as `T` has.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Sets an option of the id itself.
///
/// # Safety
///
/// `optval` is NULL or readable for `length` octets.
unsafe fn set_of_id(
    state: &mut IdState,
    qp_type: abi::ibv_qp_type,
    option: c_uint,
    optval: *const c_void,
    length: usize,
) -> Result<(), Errno> {
    match option {
        // SAFETY: `optval` has `length` octets.
        abi::RDMA_OPTION_ID_TOS => state.options.tos = Some(unsafe { value::<u8>(optval, length) }?),
        abi::RDMA_OPTION_ID_REUSEADDR => {
            // SAFETY: `optval` has `length` octets.
            state.options.reuse_address = unsafe { value::<c_int>(optval, length) }? != 0;
        }
        abi::RDMA_OPTION_ID_AFONLY => {
            // SAFETY: `optval` has `length` octets.
            let only = unsafe { value::<c_int>(optval, length) }? != 0;
            // Afterwards its address is already taken one way or the other.
            if !matches!(state.phase, Phase::Idle | Phase::Bound) {
                return Err(Errno::EINVAL);
            }
            state.options.family_only = Some(only);
        }
        abi::RDMA_OPTION_ID_ACK_TIMEOUT => {
            // SAFETY: `optval` has `length` octets.
            let timeout = unsafe { value::<u8>(optval, length) }?;
            // Datagrams have none; and it is five bits.
            if qp_type == abi::IBV_QPT_UD || timeout > 31 {
                return Err(Errno::EINVAL);
            }
            state.options.ack_timeout = Some(timeout);
        }
        _ => return Err(Errno::ENOSYS),
    }
    Ok(())
}

/// The path for both directions in an array of paths, as its wire format.
///
/// # Safety
///
/// `optval` is NULL or readable for `length` octets.
pub(super) unsafe fn whole_path(optval: *const c_void, length: usize) -> Result<abi::ibv_path_record, Errno> {
    let count = length / size_of::<abi::ibv_path_data>();
    if optval.is_null() || !length.is_multiple_of(size_of::<abi::ibv_path_data>()) {
        return Err(Errno::EINVAL);
    }
    for index in 0..count {
        let place = optval.cast::<abi::ibv_path_data>().wrapping_add(index);
        // SAFETY: within the `length` octets of `optval`.
        let data = unsafe { place.read_unaligned() };
        if data.flags == WHOLE_PATH {
            return Ok(data.path);
        }
    }
    Err(Errno::EINVAL)
}

export! {
    /// Sets an option: `RDMA_OPTION_ID` with TOS, REUSEADDR, AFONLY and ACK_TIMEOUT, `RDMA_OPTION_IB` with
    /// PATH, which takes the place of `rdma_resolve_route`. EINVAL for a wrong size or value, ENOSYS for
    /// others.
    pub fn rdma_set_option(
        id: Object<abi::rdma_cm_id>,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: usize,
    ) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        let option = optname as c_uint;
        match level as c_uint {
            abi::RDMA_OPTION_ID => {
                let qp_type = get!(handle.qp_type);
                // SAFETY: `optlen` is the length of `optval`.
                unsafe { set_of_id(&mut live.state.lock(), qp_type, option, optval, optlen) }?;
            }
            abi::RDMA_OPTION_IB if option == abi::RDMA_OPTION_IB_PATH => {
                // SAFETY: `optlen` is the length of `optval`.
                let path = unsafe { whole_path(optval, optlen) }?;
                resolve::take_path(handle, &live, &path)?;
            }
            _ => return Err(Errno::ENOSYS),
        }
        Ok(0)
    }
}
