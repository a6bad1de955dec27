//! Multicast groups.

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_wire::Gid;

use crate::call;
use crate::errno::Errno;
use crate::qp;

/// The group's GID.
///
/// # Safety
///
/// `gid` is NULL or readable.
unsafe fn group(gid: *const abi::ibv_gid) -> Result<Gid, Errno> {
    // SAFETY: NULL, or 16 readable octets as the caller says; octets need no alignment.
    let raw = unsafe { gid.cast::<[u8; 16]>().as_ref() };
    raw.copied().map(Gid).ok_or(Errno::EINVAL)
}

/// Attaches a UD queue pair to a multicast group. The LID means nothing on RoCE and is ignored (RoCEv2 A17, as the kernel).
///
/// # Safety
///
/// `qp` is NULL or a queue pair, `gid` NULL or readable.
pub unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut abi::ibv_qp,
    gid: *const abi::ibv_gid,
    _lid: u16,
) -> c_int {
    call::code(|owner| {
        // SAFETY: as the caller says.
        let (_, live) = unsafe { qp::enter(owner, qp) }?;
        // SAFETY: as the caller says.
        let mgid = unsafe { group(gid) }?;
        Ok(live.engine.attach(mgid)?)
    })
}

/// Detaches a queue pair from a multicast group; EINVAL if it is not attached.
///
/// # Safety
///
/// `qp` is NULL or a queue pair, `gid` NULL or readable.
pub unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut abi::ibv_qp,
    gid: *const abi::ibv_gid,
    _lid: u16,
) -> c_int {
    call::code(|owner| {
        // SAFETY: as the caller says.
        let (_, live) = unsafe { qp::enter(owner, qp) }?;
        // SAFETY: as the caller says.
        let mgid = unsafe { group(gid) }?;
        Ok(live.engine.detach(mgid)?)
    })
}
