//! Buffers of management datagrams: `ib_user_mad`, and behind it the datagram itself.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, Ordering};
use ferroce_abi as abi;

use super::negative;
use crate::call;
use crate::errno::Errno;

/// What the library would say on standard error; ours keeps a log instead (`FERROCE_LOG`).
static LEVEL: AtomicI32 = AtomicI32::new(0);

/// Octets before the datagram.
const HEADER: usize = size_of::<abi::ib_user_mad>();

/// A program's buffer; EINVAL for NULL.
///
/// # Safety
///
/// `umad` is NULL or points to a buffer that is the caller's alone meanwhile, and of no certain alignment.
unsafe fn change(
    umad: *mut c_void,
    how: impl FnOnce(&mut abi::ib_mad_addr) -> Result<usize, Errno>,
) -> c_int {
    negative(|_| {
        let umad = umad.cast::<abi::ib_user_mad>();
        if umad.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: inside the buffer.
        let at = unsafe { &raw mut (*umad).addr };
        // SAFETY: readable as the caller says.
        let mut address = unsafe { at.read_unaligned() };
        let result = how(&mut address)?;
        // SAFETY: writable as the caller says.
        unsafe { at.write_unaligned(address) };
        Ok(result)
    })
}

/// Octets that a buffer needs besides its datagram.
pub extern "C" fn umad_size() -> usize {
    HEADER
}

/// The datagram in a buffer.
///
/// # Safety
///
/// `umad` is NULL or points to a buffer.
pub unsafe extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    call::pointer(|_| {
        // SAFETY: the caller says that it is a buffer, which is longer than its header.
        if umad.is_null() { Err(Errno::EINVAL) } else { Ok(unsafe { umad.byte_add(HEADER) }) }
    })
}

/// The address in a buffer.
///
/// # Safety
///
/// As for [`umad_get_mad`].
pub unsafe extern "C" fn umad_get_mad_addr(umad: *mut c_void) -> *mut abi::ib_mad_addr {
    call::pointer(|_| {
        let umad = umad.cast::<abi::ib_user_mad>();
        // SAFETY: inside the buffer.
        if umad.is_null() { Err(Errno::EINVAL) } else { Ok(unsafe { &raw mut (*umad).addr }) }
    })
}

/// What became of the datagram: 0, or ETIMEDOUT if nobody answered.
///
/// # Safety
///
/// As for [`umad_get_mad`].
pub unsafe extern "C" fn umad_status(umad: *mut c_void) -> c_int {
    negative(|_| {
        let umad = umad.cast::<abi::ib_user_mad>();
        if umad.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: inside the buffer.
        let status = unsafe { (&raw const (*umad).status).read_unaligned() };
        Ok(status as usize)
    })
}

/// Sets the destination, in network order.
///
/// # Safety
///
/// `umad` is NULL or points to a buffer that is the caller's alone meanwhile.
pub unsafe extern "C" fn umad_set_addr_net(
    umad: *mut c_void,
    dlid: u16,
    dqp: u32,
    sl: c_int,
    qkey: u32,
) -> c_int {
    let set = |address: &mut abi::ib_mad_addr| {
        (address.lid, address.qpn, address.qkey, address.sl) = (dlid, dqp, qkey, sl as u8);
        Ok(0)
    };
    // SAFETY: as the caller says.
    unsafe { change(umad, set) }
}

/// Sets the destination, in the host's order.
///
/// # Safety
///
/// As for [`umad_set_addr_net`].
pub unsafe extern "C" fn umad_set_addr(
    umad: *mut c_void,
    dlid: c_int,
    dqp: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let (dlid, dqp, qkey) = ((dlid as u16).to_be(), (dqp as u32).to_be(), (qkey as u32).to_be());
    // SAFETY: as the caller says.
    unsafe { umad_set_addr_net(umad, dlid, dqp, sl, qkey) }
}

/// Sets the global route, GID index apart, from an `ib_mad_addr` in the host's order; none for NULL.
///
/// # Safety
///
/// As for [`umad_set_addr_net`]; `mad_addr` is NULL or readable.
pub unsafe extern "C" fn umad_set_grh(umad: *mut c_void, mad_addr: *const c_void) -> c_int {
    let from = mad_addr.cast::<abi::ib_mad_addr>();
    let set = |address: &mut abi::ib_mad_addr| {
        address.grh_present = u8::from(!from.is_null());
        if !from.is_null() {
            // SAFETY: the caller says so.
            let from = unsafe { from.read_unaligned() };
            address.unnamed = from.unnamed;
            address.flow_label = from.flow_label.to_be();
            (address.hop_limit, address.traffic_class) = (from.hop_limit, from.traffic_class);
        }
        Ok(0)
    };
    // SAFETY: as the caller says.
    unsafe { change(umad, set) }
}

/// Sets the index of the P_Key.
///
/// # Safety
///
/// As for [`umad_set_addr_net`].
pub unsafe extern "C" fn umad_set_pkey(umad: *mut c_void, pkey_index: c_int) -> c_int {
    let set = |address: &mut abi::ib_mad_addr| {
        address.pkey_index = pkey_index as u16;
        Ok(0)
    };
    // SAFETY: as the caller says.
    unsafe { change(umad, set) }
}

/// The index of the P_Key.
///
/// # Safety
///
/// As for [`umad_get_mad`].
pub unsafe extern "C" fn umad_get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    unsafe { change(umad, |address| Ok(address.pkey_index.into())) }
}

/// Sets how much the library says, unless `level` is negative; returns how much it says. Ours keeps the number alone.
pub extern "C" fn umad_debug(level: c_int) -> c_int {
    if level >= 0 {
        LEVEL.store(level, Ordering::Relaxed);
    }
    LEVEL.load(Ordering::Relaxed)
}

/// Writes an address to standard error.
///
/// # Safety
///
/// `addr` is NULL or readable.
pub unsafe extern "C" fn umad_addr_dump(addr: *const abi::ib_mad_addr) {
    call::nothing(|_| {
        if addr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller says so.
        eprintln!("{}", address_text(&unsafe { addr.read_unaligned() }));
        Ok(())
    });
}

/// Writes a buffer's header to standard error.
///
/// # Safety
///
/// `umad` is NULL or points to a buffer.
pub unsafe extern "C" fn umad_dump(umad: *const c_void) {
    call::nothing(|_| {
        if umad.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller says so.
        let mad = unsafe { umad.cast::<abi::ib_user_mad>().read_unaligned() };
        eprintln!(
            "agent id {} status {:#x} timeout {} ms, retries {}, length {}",
            mad.agent_id, mad.status, mad.timeout_ms, mad.retries, mad.length
        );
        eprintln!("{}", address_text(&mad.addr));
        Ok(())
    });
}

fn address_text(address: &abi::ib_mad_addr) -> String {
    // SAFETY: every octet pattern is a GID.
    let gid = unsafe { address.unnamed.gid };
    let path = format!(
        "qpn {} qkey {:#x} lid {:#x} sl {} pkey index {}",
        u32::from_be(address.qpn),
        u32::from_be(address.qkey),
        u16::from_be(address.lid),
        address.sl,
        address.pkey_index
    );
    match address.grh_present {
        0 => path,
        _ => format!(
            "{path}, gid index {} to {} flow label {:#x} hop limit {} traffic class {}",
            address.gid_index,
            std::net::Ipv6Addr::from(gid),
            u32::from_be(address.flow_label),
            address.hop_limit,
            address.traffic_class
        ),
    }
}
