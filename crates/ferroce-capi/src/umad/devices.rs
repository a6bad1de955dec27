//! Devices and their ports, as the broker knows them: no sysfs, and no file that only root may open.

use std::ffi::CString;
use std::{ptr, slice};

use core::ffi::{CStr, c_char, c_int};
use ferroce_abi as abi;
use ferroce_engine::{DeviceInfo, PortAttr};

use super::negative;
use crate::call;
use crate::device::c_text;
use crate::entry::{Ptr, Text, export};
use crate::errno::Errno;
use crate::handle::{get, set};
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

/// The devices that have management datagrams: those of RoCE.
fn devices() -> Result<Vec<DeviceInfo>, Errno> {
    let mut infos = ferroce_engine::devices()?;
    infos.retain(|info| !info.is_iwarp());
    Ok(infos)
}

export! {
    /// Names the devices, `max` at most, and returns how many.
    pub fn umad_get_cas_names(cas: Ptr<[c_char; 20]>, max: c_int) -> c_int = negative |_| {
        let max = usize::try_from(max).map_err(|_| Errno::EINVAL)?;
        // SAFETY: there is room for `max` names.
        let cas = unsafe { cas.some().and(cas.array(max)) }?;
        let infos = devices()?;
        for (index, info) in infos.iter().take(max).enumerate() {
            cas.write(index, c_text(&info.name));
        }
        Ok(infos.len().min(max))
    }
}

/// The device of that name; without one, that of the first port that is up, or else the first.
pub(super) fn find(ca_name: Text) -> Result<DeviceInfo, Errno> {
    if let Some(name) = ca_name.get() {
        let name = name.to_str().map_err(|_| Errno::ENODEV)?;
        let named = ferroce_engine::device_named(name)?;
        return named.filter(|info| !info.is_iwarp()).ok_or(Errno::ENODEV);
    }
    let mut infos = devices()?;
    let index = infos.iter().position(|info| info.port_active).unwrap_or(0);
    if index < infos.len() { Ok(infos.swap_remove(index)) } else { Err(Errno::ENODEV) }
}

export! {
    /// The GUIDs of a device's ports, `max` at most: 0 for port 0, which only switches have, then that of
    /// port 1.
    pub fn umad_get_ca_portguids(ca_name: Text, portguids: Ptr<u64>, max: c_int) -> c_int = negative |_| {
        let info = find(ca_name)?;
        let guids = [0, u64::from_ne_bytes(info.node_guid)];
        if portguids.is_null() {
            return Ok(0);
        }
        let max = usize::try_from(max).map_err(|_| Errno::EINVAL)?;
        if max < guids.len() {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: there is room for `max`.
        unsafe { slice::from_raw_parts_mut(portguids.as_ptr(), guids.len()) }.copy_from_slice(&guids);
        Ok(guids.len())
    }
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

export! {
    /// Describes a device and its ports. ENODEV if no device has that name. Give it back by
    /// [`umad_release_ca`].
    pub fn umad_get_ca(ca_name: Text, ca: Ptr<abi::umad_ca>) -> c_int = negative |_| {
        let info = find(ca_name)?;
        let ca = ca.some()?;
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
        ca.write(described);
        Ok(0)
    }

    /// Frees what [`umad_get_ca`] filled in; a second time does nothing.
    pub fn umad_release_ca(ca: Ptr<abi::umad_ca>) -> c_int = negative |_| {
        let ca = ca.lent().ok_or(Errno::ENODEV)?;
        let ports = get!(ca.ports);
        set!(ca.ports = [ptr::null_mut(); 10]);
        for port in ports.into_iter().filter(|port| !port.is_null()) {
            // SAFETY: from `Box::into_raw`, and forgotten here.
            drop(unsafe { Box::from_raw(port) });
        }
        Ok(0)
    }

    /// Describes a port: 1, or 0 for any. ENODEV if there is no such device, EINVAL if it has no such port.
    pub fn umad_get_port(ca_name: Text, portnum: c_int, port: Ptr<abi::umad_port>) -> c_int = negative |_| {
        let info = find(ca_name)?;
        let port = port.some()?;
        if !(0..=1).contains(&portnum) {
            return Err(Errno::EINVAL);
        }
        port.write(port_of(&info));
        Ok(0)
    }

    /// Forgets what [`umad_get_port`] filled in.
    pub fn umad_release_port(port: Ptr<abi::umad_port>) -> c_int = negative |_| {
        let port = port.lent().ok_or(Errno::ENODEV)?;
        set!(port.pkeys = ptr::null_mut());
        set!(port.pkeys_size = 0);
        Ok(0)
    }

    /// The file by which a subnet manager says that it is one. RoCE has no subnet manager: ENODEV or EINVAL.
    pub fn umad_get_issm_path(ca_name: Text, _portnum: c_int, _path: Ptr<c_char>, _max: c_int) -> c_int = negative |_| {
        find(ca_name)?;
        Err(Errno::EINVAL)
    }
}

/// The devices as a list. NULL and errno without devices.
pub extern "C" fn umad_get_ca_device_list() -> *mut abi::umad_device_node {
    call::pointer(|_| {
        let mut next: *mut abi::umad_device_node = ptr::null_mut();
        let infos = devices()?;
        for info in infos.iter().rev() {
            let name = CString::new(info.name.as_str()).map_err(|_| Errno::EINVAL)?;
            let node = abi::umad_device_node { next, ca_name: name.into_raw() };
            next = Box::into_raw(Box::new(node));
        }
        if next.is_null() { Err(Errno::ENODEV) } else { Ok(next) }
    })
}

export! {
    /// Frees the list.
    pub fn umad_free_ca_device_list(head: Ptr<abi::umad_device_node>) -> () = call::nothing |_| {
        let mut at = head.as_ptr();
        while !at.is_null() {
            // SAFETY: from `Box::into_raw`: the program frees a list once.
            let node = unsafe { Box::from_raw(at) };
            // SAFETY: from `CString::into_raw`.
            drop(unsafe { CString::from_raw(node.ca_name.cast_mut()) });
            at = node.next;
        }
        Ok(())
    }

    /// Sorts the first `size` devices of a list by name, all for 0. Returns 0 or an errno.
    pub fn umad_sort_ca_device_list(head: Ptr<*mut abi::umad_device_node>, size: usize) -> c_int = call::code |_| {
        let head = head.some()?;
        let mut nodes = Vec::new();
        let mut rest = head.read();
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
        head.write(rest);
        Ok(())
    }
}
