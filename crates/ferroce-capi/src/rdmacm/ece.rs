//! Enhanced connection establishment: vendor options of queue pairs that the program makes itself. They are
//! carried, and mean nothing to queue pairs of this library.

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_wire::cm::{Ece, RejReason};

use super::connect;
use crate::call;
use crate::entry::{Object, Ptr, export};
use crate::errno::Errno;
use crate::handle::get;

export! {
    /// Says what the peer is to be told with the request or its answer. EINVAL for an id that has a queue
    /// pair, whose own options count, and for options of no vendor.
    pub fn rdma_set_local_ece(id: Object<abi::rdma_cm_id>, ece: Ptr<abi::ibv_ece>) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        let given = ece.read()?;
        let has_qp = !get!(handle.qp).is_null();
        // 24 bits, as in the messages.
        if has_qp || given.vendor_id == 0 || given.vendor_id >= 1 << 24 || given.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        live.state.lock().link.local_ece = Ece { vendor_id: given.vendor_id, options: given.options };
        Ok(0)
    }

    /// Returns the peer's vendor options; zero before the peer sent any. EINVAL for an id that has a queue
    /// pair.
    pub fn rdma_get_remote_ece(id: Object<abi::rdma_cm_id>, ece: Ptr<abi::ibv_ece>) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        let ece = ece.some()?;
        if !get!(handle.qp).is_null() {
            return Err(Errno::EINVAL);
        }
        let Ece { vendor_id, options } = live.state.lock().link.remote_ece;
        ece.write(abi::ibv_ece { vendor_id, options, comp_mask: 0 });
        Ok(0)
    }

    /// As `rdma_reject`, because of the peer's vendor options.
    pub fn rdma_reject_ece(
        id: Object<abi::rdma_cm_id>,
        private_data: *const c_void,
        private_data_len: u8,
    ) -> c_int = call::minus_one |_| {
        // SAFETY: `private_data_len` is the length of the private data.
        unsafe { connect::reject(id, private_data, private_data_len, RejReason::VENDOR_OPTION) }
    }
}
