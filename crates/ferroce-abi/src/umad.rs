//! libibumad.

use crate::*;
use core::ffi::{c_char, c_int, c_uint};

#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub union umad_gid {
    pub raw: [u8; 16],
    pub raw_be16: [be16; 8],
    pub global: umad_gid_global,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_gid_global {
    pub subnet_prefix: be64,
    pub interface_id: be64,
}
layout!(umad_gid, 16, {
    raw: 0, raw_be16: 0, global: 0, global.subnet_prefix: 0, global.interface_id: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ib_mad_addr {
    pub qpn: be32,
    pub qkey: be32,
    pub lid: be16,
    pub sl: u8,
    pub path_bits: u8,
    pub grh_present: u8,
    pub gid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub unnamed: ib_mad_addr_unnamed,
    pub flow_label: be32,
    pub pkey_index: u16,
    pub reserved: [u8; 6],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ib_mad_addr_unnamed {
    pub gid: [u8; 16],
    pub ib_gid: umad_gid,
}
layout!(ib_mad_addr, 44, {
    qpn: 0, qkey: 4, lid: 8, sl: 10, path_bits: 11, grh_present: 12, gid_index: 13, hop_limit: 14,
    traffic_class: 15, unnamed.gid: 16, unnamed.ib_gid: 16, flow_label: 32, pkey_index: 36, reserved: 38,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ib_user_mad {
    pub agent_id: u32,
    pub status: u32,
    pub timeout_ms: u32,
    pub retries: u32,
    pub length: u32,
    pub addr: ib_mad_addr,
    pub data: [u8; 0],
}
layout!(ib_user_mad, 64, {
    agent_id: 0, status: 4, timeout_ms: 8, retries: 12, length: 16, addr: 20, data: 64,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_port {
    pub ca_name: [c_char; 20],
    pub portnum: c_int,
    pub base_lid: c_uint,
    pub lmc: c_uint,
    pub sm_lid: c_uint,
    pub sm_sl: c_uint,
    pub state: c_uint,
    pub phys_state: c_uint,
    pub rate: c_uint,
    pub capmask: be32,
    pub gid_prefix: be64,
    pub port_guid: be64,
    pub pkeys_size: c_uint,
    pub pkeys: *mut u16,
    pub link_layer: [c_char; 20],
}
layout!(umad_port, 112, {
    ca_name: 0, portnum: 20, base_lid: 24, lmc: 28, sm_lid: 32, sm_sl: 36, state: 40, phys_state: 44,
    rate: 48, capmask: 52, gid_prefix: 56, port_guid: 64, pkeys_size: 72, pkeys: 80, link_layer: 88,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_ca {
    pub ca_name: [c_char; 20],
    pub node_type: c_uint,
    pub numports: c_int,
    pub fw_ver: [c_char; 20],
    pub ca_type: [c_char; 40],
    pub hw_ver: [c_char; 20],
    pub node_guid: be64,
    pub system_guid: be64,
    pub ports: [*mut umad_port; 10],
}
layout!(umad_ca, 208, {
    ca_name: 0, node_type: 20, numports: 24, fw_ver: 28, ca_type: 48, hw_ver: 88, node_guid: 112,
    system_guid: 120, ports: 128,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_device_node {
    pub next: *mut umad_device_node,
    pub ca_name: *const c_char,
}
layout!(umad_device_node, 16, {
    next: 0, ca_name: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_reg_attr {
    pub mgmt_class: u8,
    pub mgmt_class_version: u8,
    pub flags: u32,
    pub method_mask: [u64; 2],
    pub oui: u32,
    pub rmpp_version: u8,
}
layout!(umad_reg_attr, 32, {
    mgmt_class: 0, mgmt_class_version: 1, flags: 4, method_mask: 8, oui: 24, rmpp_version: 28,
});
