//! Attributes of a device, a port and a GID table.

use crate::*;
use core::ffi::{c_char, c_int, c_uint};

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_gid {
    pub raw: [u8; 16],
    pub global: ibv_gid_global,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_gid_global {
    pub subnet_prefix: be64,
    pub interface_id: be64,
}
layout!(ibv_gid, 16, {
    raw: 0, global: 0, global.subnet_prefix: 0, global.interface_id: 8,
});

structure!(ibv_gid_entry, 32, {
    gid: ibv_gid = 0,
    gid_index: u32 = 16,
    port_num: u32 = 20,
    gid_type: u32 = 24,
    ndev_ifindex: u32 = 28,
});

structure!(ibv_device_attr, 232, {
    fw_ver: [c_char; 64] = 0,
    node_guid: be64 = 64,
    sys_image_guid: be64 = 72,
    max_mr_size: u64 = 80,
    page_size_cap: u64 = 88,
    vendor_id: u32 = 96,
    vendor_part_id: u32 = 100,
    hw_ver: u32 = 104,
    max_qp: c_int = 108,
    max_qp_wr: c_int = 112,
    device_cap_flags: c_uint = 116,
    max_sge: c_int = 120,
    max_sge_rd: c_int = 124,
    max_cq: c_int = 128,
    max_cqe: c_int = 132,
    max_mr: c_int = 136,
    max_pd: c_int = 140,
    max_qp_rd_atom: c_int = 144,
    max_ee_rd_atom: c_int = 148,
    max_res_rd_atom: c_int = 152,
    max_qp_init_rd_atom: c_int = 156,
    max_ee_init_rd_atom: c_int = 160,
    atomic_cap: ibv_atomic_cap = 164,
    max_ee: c_int = 168,
    max_rdd: c_int = 172,
    max_mw: c_int = 176,
    max_raw_ipv6_qp: c_int = 180,
    max_raw_ethy_qp: c_int = 184,
    max_mcast_grp: c_int = 188,
    max_mcast_qp_attach: c_int = 192,
    max_total_mcast_qp_attach: c_int = 196,
    max_ah: c_int = 200,
    max_fmr: c_int = 204,
    max_map_per_fmr: c_int = 208,
    max_srq: c_int = 212,
    max_srq_wr: c_int = 216,
    max_srq_sge: c_int = 220,
    max_pkeys: u16 = 224,
    local_ca_ack_delay: u8 = 226,
    phys_port_cnt: u8 = 227,
});

structure!(ibv_query_device_ex_input, 4, {
    comp_mask: u32 = 0,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub per_transport_caps: ibv_odp_caps_per_transport_caps,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_odp_caps_per_transport_caps {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}
layout!(ibv_odp_caps, 24, {
    general_caps: 0, per_transport_caps: 8, per_transport_caps.rc_odp_caps: 8,
    per_transport_caps.uc_odp_caps: 12, per_transport_caps.ud_odp_caps: 16,
});

structure!(ibv_tso_caps, 8, {
    max_tso: u32 = 0,
    supported_qpts: u32 = 4,
});

structure!(ibv_rss_caps, 32, {
    supported_qpts: u32 = 0,
    max_rwq_indirection_tables: u32 = 4,
    max_rwq_indirection_table_size: u32 = 8,
    rx_hash_fields_mask: u64 = 16,
    rx_hash_function: u8 = 24,
});

structure!(ibv_packet_pacing_caps, 12, {
    qp_rate_limit_min: u32 = 0,
    qp_rate_limit_max: u32 = 4,
    supported_qpts: u32 = 8,
});

structure!(ibv_tm_caps, 20, {
    max_rndv_hdr_size: u32 = 0,
    max_num_tags: u32 = 4,
    flags: u32 = 8,
    max_ops: u32 = 12,
    max_sge: u32 = 16,
});

structure!(ibv_cq_moderation_caps, 4, {
    max_cq_count: u16 = 0,
    max_cq_period: u16 = 2,
});

structure!(ibv_pci_atomic_caps, 6, {
    fetch_add: u16 = 0,
    swap: u16 = 2,
    compare_swap: u16 = 4,
});

structure!(ibv_device_attr_ex, 400, {
    orig_attr: ibv_device_attr = 0,
    comp_mask: u32 = 232,
    odp_caps: ibv_odp_caps = 240,
    completion_timestamp_mask: u64 = 264,
    hca_core_clock: u64 = 272,
    device_cap_flags_ex: u64 = 280,
    tso_caps: ibv_tso_caps = 288,
    rss_caps: ibv_rss_caps = 296,
    max_wq_type_rq: u32 = 328,
    packet_pacing_caps: ibv_packet_pacing_caps = 332,
    raw_packet_caps: u32 = 344,
    tm_caps: ibv_tm_caps = 348,
    cq_mod_caps: ibv_cq_moderation_caps = 368,
    max_dm_size: u64 = 376,
    pci_atomic_caps: ibv_pci_atomic_caps = 384,
    xrc_odp_caps: u32 = 392,
    phys_port_cnt_ex: u32 = 396,
});

structure!(ibv_port_attr, 56, {
    state: ibv_port_state = 0,
    max_mtu: ibv_mtu = 4,
    active_mtu: ibv_mtu = 8,
    gid_tbl_len: c_int = 12,
    port_cap_flags: u32 = 16,
    max_msg_sz: u32 = 20,
    bad_pkey_cntr: u32 = 24,
    qkey_viol_cntr: u32 = 28,
    pkey_tbl_len: u16 = 32,
    lid: u16 = 34,
    sm_lid: u16 = 36,
    lmc: u8 = 38,
    max_vl_num: u8 = 39,
    sm_sl: u8 = 40,
    subnet_timeout: u8 = 41,
    init_type_reply: u8 = 42,
    active_width: u8 = 43,
    active_speed: u8 = 44,
    phys_state: u8 = 45,
    link_layer: u8 = 46,
    flags: u8 = 47,
    port_cap_flags2: u16 = 48,
    active_speed_ex: u32 = 52,
});

/// `ibv_port_attr.flags`: packets always carry a GRH, as on RoCE.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;
