//! Enhanced connection establishment: vendor options of queue pairs that the program makes itself. They are carried, and
//! mean nothing to queue pairs of this library.

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_wire::cm::{Ece, RejReason};

use super::{connect, id};
use crate::call;
use crate::errno::Errno;

/// Says what the peer is to be told with the request or its answer. EINVAL for an id that has a queue pair, whose own
/// options count, and for options of no vendor.
///
/// # Safety
///
/// `id` is NULL or an id, `ece` NULL or readable.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut abi::rdma_cm_id, ece: *mut abi::ibv_ece) -> c_int {
    call::minus_one(|_| {
        // SAFETY: as the caller says.
        let (handle, live) = unsafe { id::enter(id) }?;
        // SAFETY: NULL, or readable as the caller says.
        let given = unsafe { ece.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: `c()` points to a whole rdma_cm_id.
        let has_qp = unsafe { !(*handle.c()).qp.is_null() };
        // 24 bits, as in the messages.
        if has_qp || given.vendor_id == 0 || given.vendor_id >= 1 << 24 || given.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        live.state.lock().link.local_ece = Ece { vendor_id: given.vendor_id, options: given.options };
        Ok(0)
    })
}

/// What the peer said; zero before it said something. EINVAL for an id that has a queue pair.
///
/// # Safety
///
/// `id` is NULL or an id, `ece` NULL or writable.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut abi::rdma_cm_id, ece: *mut abi::ibv_ece) -> c_int {
    call::minus_one(|_| {
        // SAFETY: as the caller says.
        let (handle, live) = unsafe { id::enter(id) }?;
        // SAFETY: `c()` points to a whole rdma_cm_id.
        if ece.is_null() || unsafe { !(*handle.c()).qp.is_null() } {
            return Err(Errno::EINVAL);
        }
        let Ece { vendor_id, options } = live.state.lock().link.remote_ece;
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { ece.write(abi::ibv_ece { vendor_id, options, comp_mask: 0 }) };
        Ok(0)
    })
}

/// As `rdma_reject`, because of the peer's vendor options.
///
/// # Safety
///
/// `id` is NULL or an id, `private_data` NULL or readable for `private_data_len` octets.
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut abi::rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: as the caller says.
    call::minus_one(|_| unsafe {
        connect::reject(id, private_data, private_data_len, RejReason::VENDOR_OPTION)
    })
}
