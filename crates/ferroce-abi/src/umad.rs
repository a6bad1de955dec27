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
pub struct umad_ca_pair {
    pub smi_name: [c_char; 20],
    pub smi_preferred_port: u32,
    pub gsi_name: [c_char; 20],
    pub gsi_preferred_port: u32,
}
layout!(umad_ca_pair, 48, {
    smi_name: 0, smi_preferred_port: 20, gsi_name: 24, gsi_preferred_port: 44,
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

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_hdr {
    pub base_version: u8,
    pub mgmt_class: u8,
    pub class_version: u8,
    pub method: u8,
    pub status: be16,
    pub class_specific: be16,
    pub tid: be64,
    pub attr_id: be16,
    pub resv: be16,
    pub attr_mod: be32,
}
layout!(umad_hdr, 24, {
    base_version: 0, mgmt_class: 1, class_version: 2, method: 3, status: 4, class_specific: 6, tid: 8,
    attr_id: 16, resv: 18, attr_mod: 20,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_rmpp_hdr {
    pub rmpp_version: u8,
    pub rmpp_type: u8,
    pub rmpp_rtime_flags: u8,
    pub rmpp_status: u8,
    pub seg_num: be32,
    pub paylen_newwin: be32,
}
layout!(umad_rmpp_hdr, 12, {
    rmpp_version: 0, rmpp_type: 1, rmpp_rtime_flags: 2, rmpp_status: 3, seg_num: 4, paylen_newwin: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_packet {
    pub mad_hdr: umad_hdr,
    pub data: [u8; 232],
}
layout!(umad_packet, 256, {
    mad_hdr: 0, data: 24,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_rmpp_packet {
    pub mad_hdr: umad_hdr,
    pub rmpp_hdr: umad_rmpp_hdr,
    pub data: [u8; 220],
}
layout!(umad_rmpp_packet, 256, {
    mad_hdr: 0, rmpp_hdr: 24, data: 36,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_dm_packet {
    pub mad_hdr: umad_hdr,
    pub reserved: [u8; 40],
    pub data: [u8; 192],
}
layout!(umad_dm_packet, 256, {
    mad_hdr: 0, reserved: 24, data: 64,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_vendor_packet {
    pub mad_hdr: umad_hdr,
    pub rmpp_hdr: umad_rmpp_hdr,
    pub reserved: u8,
    pub oui: [u8; 3],
    pub data: [u8; 216],
}
layout!(umad_vendor_packet, 256, {
    mad_hdr: 0, rmpp_hdr: 24, reserved: 36, oui: 37, data: 40,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct umad_class_port_info {
    pub base_ver: u8,
    pub class_ver: u8,
    pub cap_mask: be16,
    pub cap_mask2_resp_time: be32,
    pub unnamed: umad_class_port_info_unnamed,
    pub redir_tc_sl_fl: be32,
    pub redir_lid: be16,
    pub redir_pkey: be16,
    pub redir_qp: be32,
    pub redir_qkey: be32,
    pub unnamed_2: umad_class_port_info_unnamed_2,
    pub trap_tc_sl_fl: be32,
    pub trap_lid: be16,
    pub trap_pkey: be16,
    pub trap_hl_qp: be32,
    pub trap_qkey: be32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union umad_class_port_info_unnamed {
    pub redir_gid: [u8; 16],
    pub redirgid: umad_gid,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union umad_class_port_info_unnamed_2 {
    pub trap_gid: [u8; 16],
    pub trapgid: umad_gid,
}
layout!(umad_class_port_info, 72, {
    base_ver: 0, class_ver: 1, cap_mask: 2, cap_mask2_resp_time: 4, unnamed.redir_gid: 8,
    unnamed.redirgid: 8, redir_tc_sl_fl: 24, redir_lid: 28, redir_pkey: 30, redir_qp: 32, redir_qkey: 36,
    unnamed_2.trap_gid: 40, unnamed_2.trapgid: 40, trap_tc_sl_fl: 56, trap_lid: 60, trap_pkey: 62,
    trap_hl_qp: 64, trap_qkey: 68,
});
