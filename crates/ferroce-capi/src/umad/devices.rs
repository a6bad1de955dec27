//! Devices and their ports, as the broker knows them: no sysfs, and no file that only root may open.

use std::ffi::CString;
use std::{ptr, slice};

use core::ffi::{CStr, c_char, c_int};
use ferroce_abi as abi;
use ferroce_engine::{DeviceInfo, PortAttr};

use super::negative;
use crate::call;
use crate::device::c_text;
use crate::errno::Errno;
use crate::log;
use crate::query::gigabits;

/// A port's P_Key table.
static PKEYS: [u16; 1] = [0xffff];
/// Prefix of link-local GIDs.
const LINK_LOCAL: u64 = 0xfe80 << 48;

/// Nothing to prepare.
pub extern "C" fn umad_init() -> c_int {
    log::install();
    0
}

/// Nothing to give back.
pub extern "C" fn umad_done() -> c_int {
    0
}

/// Names the devices, `max` at most, and returns how many.
///
/// # Safety
///
/// `cas` is NULL or has room for `max` names of 20 octets.
pub unsafe extern "C" fn umad_get_cas_names(cas: *mut [c_char; 20], max: c_int) -> c_int {
    negative(|_| {
        let max = usize::try_from(max).map_err(|_| Errno::EINVAL)?;
        if cas.is_null() {
            return Err(Errno::EINVAL);
        }
        let infos = ferroce_engine::devices()?;
        for (index, info) in infos.iter().take(max).enumerate() {
            // SAFETY: the caller gives room for `max`.
            unsafe { cas.add(index).write(c_text(&info.name)) };
        }
        Ok(infos.len().min(max))
    })
}

/// The device of that name; without one, that of the first port that is up, or else the first.
///
/// # Safety
///
/// `ca_name` is NULL or a C string.
pub(super) unsafe fn find(ca_name: *const c_char) -> Result<DeviceInfo, Errno> {
    if !ca_name.is_null() {
        // SAFETY: as the caller says.
        let name = unsafe { CStr::from_ptr(ca_name) };
        let name = name.to_str().map_err(|_| Errno::ENODEV)?;
        return ferroce_engine::device_named(name)?.ok_or(Errno::ENODEV);
    }
    let mut infos = ferroce_engine::devices()?;
    let index = infos.iter().position(|info| info.port_active).unwrap_or(0);
    if index < infos.len() { Ok(infos.swap_remove(index)) } else { Err(Errno::ENODEV) }
}

/// The GUIDs of a device's ports, `max` at most: 0 for port 0, which only switches have, then that of port 1.
///
/// # Safety
///
/// `ca_name` is NULL or a C string; `portguids` is NULL or has room for `max` of them.
pub unsafe extern "C" fn umad_get_ca_portguids(
    ca_name: *const c_char,
    portguids: *mut u64,
    max: c_int,
) -> c_int {
    negative(|_| {
        // SAFETY: as the caller says.
        let info = unsafe { find(ca_name) }?;
        let guids = [0, u64::from_ne_bytes(info.node_guid)];
        let max = usize::try_from(max).map_err(|_| Errno::EINVAL)?;
        if portguids.is_null() {
            return Ok(0);
        }
        if max < guids.len() {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: room for `max`, as the caller says.
        unsafe { slice::from_raw_parts_mut(portguids, guids.len()) }.copy_from_slice(&guids);
        Ok(guids.len())
    })
}

/// The one port of a device.
fn port_of(info: &DeviceInfo) -> abi::umad_port {
    let attr = PortAttr::of(info);
    abi::umad_port {
        ca_name: c_text(&info.name),
        portnum: 1,
        base_lid: 0,
        lmc: 0,
        sm_lid: 0,
        sm_sl: 0,
        state: attr.state as u32,
        phys_state: attr.phys_state as u32,
        rate: gigabits(attr.speed),
        capmask: abi::IBV_PORT_CM_SUP.to_be(),
        gid_prefix: LINK_LOCAL.to_be(),
        port_guid: u64::from_ne_bytes(info.node_guid),
        pkeys_size: PKEYS.len() as u32,
        pkeys: PKEYS.as_ptr().cast_mut(),
        link_layer: c_text("Ethernet"),
    }
}

/// Describes a device and its ports. ENODEV if there is none of that name. Give it back by [`umad_release_ca`].
///
/// # Safety
///
/// `ca_name` is NULL or a C string, `ca` NULL or writable.
pub unsafe extern "C" fn umad_get_ca(ca_name: *const c_char, ca: *mut abi::umad_ca) -> c_int {
    negative(|_| {
        // SAFETY: as the caller says.
        let info = unsafe { find(ca_name) }?;
        if ca.is_null() {
            return Err(Errno::EINVAL);
        }
        let guid = u64::from_ne_bytes(info.node_guid);
        let mut ports = [ptr::null_mut(); 10];
        ports[1] = Box::into_raw(Box::new(port_of(&info)));
        let described = abi::umad_ca {
            ca_name: c_text(&info.name),
            node_type: abi::IBV_NODE_CA as u32,
            numports: 1,
            fw_ver: c_text(env!("CARGO_PKG_VERSION")),
            ca_type: c_text("ferroce"),
            hw_ver: c_text(""),
            node_guid: guid,
            system_guid: guid,
            ports,
        };
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { ca.write(described) };
        Ok(0)
    })
}

/// Frees what [`umad_get_ca`] filled in; a second time does nothing.
///
/// # Safety
///
/// `ca` is NULL or from [`umad_get_ca`].
pub unsafe extern "C" fn umad_release_ca(ca: *mut abi::umad_ca) -> c_int {
    negative(|_| {
        // SAFETY: as the caller says.
        let ca = unsafe { ca.as_mut() }.ok_or(Errno::ENODEV)?;
        for port in ca.ports.iter_mut().filter(|port| !port.is_null()) {
            // SAFETY: from `Box::into_raw`, and forgotten here.
            drop(unsafe { Box::from_raw(std::mem::replace(port, ptr::null_mut())) });
        }
        Ok(0)
    })
}

/// Describes a port: 1, or 0 for any. ENODEV if there is no such device, EINVAL if it has no such port.
///
/// # Safety
///
/// `ca_name` is NULL or a C string, `port` NULL or writable.
pub unsafe extern "C" fn umad_get_port(
    ca_name: *const c_char,
    portnum: c_int,
    port: *mut abi::umad_port,
) -> c_int {
    negative(|_| {
        // SAFETY: as the caller says.
        let info = unsafe { find(ca_name) }?;
        if port.is_null() || !(0..=1).contains(&portnum) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { port.write(port_of(&info)) };
        Ok(0)
    })
}

/// Forgets what [`umad_get_port`] filled in.
///
/// # Safety
///
/// `port` is NULL or from [`umad_get_port`].
pub unsafe extern "C" fn umad_release_port(port: *mut abi::umad_port) -> c_int {
    negative(|_| {
        // SAFETY: as the caller says.
        let port = unsafe { port.as_mut() }.ok_or(Errno::ENODEV)?;
        (port.pkeys, port.pkeys_size) = (ptr::null_mut(), 0);
        Ok(0)
    })
}

/// The file by which a subnet manager says that it is one. RoCE has no subnet manager: ENODEV or EINVAL.
///
/// # Safety
///
/// `ca_name` is NULL or a C string.
pub unsafe extern "C" fn umad_get_issm_path(
    ca_name: *const c_char,
    _portnum: c_int,
    _path: *mut c_char,
    _max: c_int,
) -> c_int {
    negative(|_| {
        // SAFETY: as the caller says.
        unsafe { find(ca_name) }?;
        Err(Errno::EINVAL)
    })
}

/// The devices as a list. NULL and errno if there is none.
pub extern "C" fn umad_get_ca_device_list() -> *mut abi::umad_device_node {
    call::pointer(|_| {
        let mut next: *mut abi::umad_device_node = ptr::null_mut();
        let infos = ferroce_engine::devices()?;
        for info in infos.iter().rev() {
            let name = CString::new(info.name.as_str()).map_err(|_| Errno::EINVAL)?;
            let node = abi::umad_device_node { next, ca_name: name.into_raw() };
            next = Box::into_raw(Box::new(node));
        }
        if next.is_null() { Err(Errno::ENODEV) } else { Ok(next) }
    })
}

/// Frees the list.
///
/// # Safety
///
/// `head` is NULL or from [`umad_get_ca_device_list`], once.
pub unsafe extern "C" fn umad_free_ca_device_list(head: *mut abi::umad_device_node) {
    call::nothing(|_| {
        let mut at = head;
        while !at.is_null() {
            // SAFETY: from `Box::into_raw`, as the caller says.
            let node = unsafe { Box::from_raw(at) };
            // SAFETY: from `CString::into_raw`.
            drop(unsafe { CString::from_raw(node.ca_name.cast_mut()) });
            at = node.next;
        }
        Ok(())
    });
}

/// Sorts the first `size` devices of a list by name, all for 0. Returns 0 or an errno.
///
/// # Safety
///
/// `head` is NULL or points to NULL or to a list from [`umad_get_ca_device_list`].
pub unsafe extern "C" fn umad_sort_ca_device_list(
    head: *mut *mut abi::umad_device_node,
    size: usize,
) -> c_int {
    call::code(|_| {
        // SAFETY: as the caller says.
        let head = unsafe { head.as_mut() }.ok_or(Errno::EINVAL)?;
        let mut nodes = Vec::new();
        let mut rest = *head;
        while !rest.is_null() && (size == 0 || nodes.len() < size) {
            nodes.push(rest);
            // SAFETY: a whole node of the list.
            rest = unsafe { (*rest).next };
        }
        // SAFETY: the names of the nodes are C strings.
        nodes.sort_by_key(|node| unsafe { CStr::from_ptr((**node).ca_name) });
        for node in nodes.into_iter().rev() {
            // SAFETY: a whole node of the list, which is the caller's alone meanwhile.
            unsafe { (*node).next = std::mem::replace(&mut rest, node) };
        }
        *head = rest;
        Ok(())
    })
}
