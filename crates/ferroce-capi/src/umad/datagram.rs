//! Buffers of management datagrams: `ib_user_mad`, and behind it the datagram itself.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, Ordering};
use ferroce_abi as abi;
use ferroce_host::output;

use super::negative;
use crate::call;
use crate::entry::{ConstPtr, Ptr, export};
use crate::errno::Errno;
use crate::handle::{get, set};

/// The debug level of rdma-core's library, which prints to standard error; this library keeps a log instead
/// (`FERROCE_LOG`).
static LEVEL: AtomicI32 = AtomicI32::new(0);

/// Octets before the datagram.
const HEADER: usize = size_of::<abi::ib_user_mad>();

/// A program's buffer; EINVAL for NULL.
fn change(
    umad: Ptr<abi::ib_user_mad>,
    how: impl FnOnce(&mut abi::ib_mad_addr) -> Result<usize, Errno>,
) -> c_int {
    negative(|_| {
        let umad = umad.some()?;
        let mut address = get!(umad.addr);
        let result = how(&mut address)?;
        set!(umad.addr = address);
        Ok(result)
    })
}

/// Sets the destination, in network order.
fn set_address(umad: Ptr<abi::ib_user_mad>, dlid: u16, dqp: u32, sl: c_int, qkey: u32) -> c_int {
    change(umad, |address| {
        (address.lid, address.qpn, address.qkey, address.sl) = (dlid, dqp, qkey, sl as u8);
        Ok(0)
    })
}

/// Octets that a buffer needs besides its datagram.
pub extern "C" fn umad_size() -> usize {
    HEADER
}

export! {
    /// The datagram in a buffer.
    pub fn umad_get_mad(umad: Ptr<abi::ib_user_mad>) -> *mut c_void = call::pointer |_| {
        umad.some()?;
        Ok(umad.as_ptr().wrapping_add(1).cast())
    }

    /// The address in a buffer.
    pub fn umad_get_mad_addr(umad: Ptr<abi::ib_user_mad>) -> *mut abi::ib_mad_addr = call::pointer |_| {
        umad.some()?;
        Ok(umad.as_ptr().wrapping_byte_add(offset_of!(abi::ib_user_mad, addr)).cast())
    }

    /// Returns the datagram's status: 0, or ETIMEDOUT if no peer answered.
    pub fn umad_status(umad: Ptr<abi::ib_user_mad>) -> c_int = negative |_| {
        let umad = umad.some()?;
        Ok(get!(umad.status) as usize)
    }

    /// Sets the destination, in network order.
    pub fn umad_set_addr_net(umad: Ptr<abi::ib_user_mad>, dlid: u16, dqp: u32, sl: c_int, qkey: u32) -> c_int {
        set_address(umad, dlid, dqp, sl, qkey)
    }

    /// Sets the destination, in the host's order.
    pub fn umad_set_addr(umad: Ptr<abi::ib_user_mad>, dlid: c_int, dqp: c_int, sl: c_int, qkey: c_int) -> c_int {
        set_address(umad, (dlid as u16).to_be(), (dqp as u32).to_be(), sl, (qkey as u32).to_be())
    }

    /// Sets the global route, GID index apart, from an `ib_mad_addr` in the host's order; none for NULL.
    pub fn umad_set_grh(umad: Ptr<abi::ib_user_mad>, mad_addr: ConstPtr<abi::ib_mad_addr>) -> c_int {
        let set = |address: &mut abi::ib_mad_addr| {
            address.grh_present = u8::from(!mad_addr.is_null());
            if let Ok(from) = mad_addr.read() {
                address.unnamed = from.unnamed;
                address.flow_label = from.flow_label.to_be();
                (address.hop_limit, address.traffic_class) = (from.hop_limit, from.traffic_class);
            }
            Ok(0)
        };
        change(umad, set)
    }

    /// Sets the index of the P_Key.
    pub fn umad_set_pkey(umad: Ptr<abi::ib_user_mad>, pkey_index: c_int) -> c_int {
        let set = |address: &mut abi::ib_mad_addr| {
            address.pkey_index = pkey_index as u16;
            Ok(0)
        };
        change(umad, set)
    }

    /// The index of the P_Key.
    pub fn umad_get_pkey(umad: Ptr<abi::ib_user_mad>) -> c_int {
        change(umad, |address| Ok(address.pkey_index.into()))
    }
}

/// Sets how much the library says, unless `level` is negative; returns how much it says. Ours keeps the
/// number alone.
pub extern "C" fn umad_debug(level: c_int) -> c_int {
    if level >= 0 {
        LEVEL.store(level, Ordering::Relaxed);
    }
    LEVEL.load(Ordering::Relaxed)
}

export! {
    /// Writes an address to standard error.
    pub fn umad_addr_dump(addr: ConstPtr<abi::ib_mad_addr>) -> () = call::nothing |_| {
        output::line_of(address_text(&addr.read()?));
        Ok(())
    }

    /// Writes a buffer's header to standard error.
    pub fn umad_dump(umad: ConstPtr<abi::ib_user_mad>) -> () = call::nothing |_| {
        let mad = umad.read()?;
        output::line_of(format_args!(
            "agent id {} status {:#x} timeout {} ms, retries {}, length {}",
            mad.agent_id, mad.status, mad.timeout_ms, mad.retries, mad.length
        ));
        output::line_of(address_text(&mad.addr));
        Ok(())
    }
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
