//! Multicast groups.

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_wire::Gid;

use crate::call;
use crate::entry::{ConstPtr, Object, export};

export! {
    /// Attaches a UD queue pair to a multicast group; EOPNOTSUPP on iWARP, which has none. The LID means
    /// nothing on RoCE and is ignored (RoCEv2 A17, as the kernel).
    pub fn ibv_attach_mcast(qp: Object<abi::ibv_qp>, gid: ConstPtr<[u8; 16]>, _lid: u16) -> c_int = call::code |owner| {
        let (_, live) = qp.enter(owner)?;
        Ok(live.engine.attach(Gid(gid.read()?))?)
    }

    /// Detaches a queue pair from a multicast group; EINVAL if it is not attached.
    pub fn ibv_detach_mcast(qp: Object<abi::ibv_qp>, gid: ConstPtr<[u8; 16]>, _lid: u16) -> c_int = call::code |owner| {
        let (_, live) = qp.enter(owner)?;
        Ok(live.engine.detach(Gid(gid.read()?))?)
    }
}
