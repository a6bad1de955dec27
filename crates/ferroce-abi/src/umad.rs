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

structure!(ib_user_mad, 64, {
    agent_id: u32 = 0,
    status: u32 = 4,
    timeout_ms: u32 = 8,
    retries: u32 = 12,
    length: u32 = 16,
    addr: ib_mad_addr = 20,
    data: [u8; 0] = 64,
});

structure!(umad_port, 112, {
    ca_name: [c_char; 20] = 0,
    portnum: c_int = 20,
    base_lid: c_uint = 24,
    lmc: c_uint = 28,
    sm_lid: c_uint = 32,
    sm_sl: c_uint = 36,
    state: c_uint = 40,
    phys_state: c_uint = 44,
    rate: c_uint = 48,
    capmask: be32 = 52,
    gid_prefix: be64 = 56,
    port_guid: be64 = 64,
    pkeys_size: c_uint = 72,
    pkeys: *mut u16 = 80,
    link_layer: [c_char; 20] = 88,
});

structure!(umad_ca, 208, {
    ca_name: [c_char; 20] = 0,
    node_type: c_uint = 20,
    numports: c_int = 24,
    fw_ver: [c_char; 20] = 28,
    ca_type: [c_char; 40] = 48,
    hw_ver: [c_char; 20] = 88,
    node_guid: be64 = 112,
    system_guid: be64 = 120,
    ports: [*mut umad_port; 10] = 128,
});

structure!(umad_device_node, 16, {
    next: *mut umad_device_node = 0,
    ca_name: *const c_char = 8,
});

structure!(umad_reg_attr, 32, {
    mgmt_class: u8 = 0,
    mgmt_class_version: u8 = 1,
    flags: u32 = 4,
    method_mask: [u64; 2] = 8,
    oui: u32 = 24,
    rmpp_version: u8 = 28,
});
