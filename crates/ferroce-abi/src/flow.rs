//! Flow steering rules, which raw packet queue pairs use.

use crate::*;
use core::ffi::c_void;
use libc::timespec;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_eth_filter {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    pub ether_type: u16,
    pub vlan_tag: u16,
}
layout!(ibv_flow_eth_filter, 16, {
    dst_mac: 0, src_mac: 6, ether_type: 12, vlan_tag: 14,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_eth {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_eth_filter,
    pub mask: ibv_flow_eth_filter,
}
layout!(ibv_flow_spec_eth, 40, {
    type_: 0, size: 4, val: 6, mask: 22,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_ipv4_filter {
    pub src_ip: u32,
    pub dst_ip: u32,
}
layout!(ibv_flow_ipv4_filter, 8, {
    src_ip: 0, dst_ip: 4,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_ipv4 {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_ipv4_filter,
    pub mask: ibv_flow_ipv4_filter,
}
layout!(ibv_flow_spec_ipv4, 24, {
    type_: 0, size: 4, val: 8, mask: 16,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_ipv4_ext_filter {
    pub src_ip: u32,
    pub dst_ip: u32,
    pub proto: u8,
    pub tos: u8,
    pub ttl: u8,
    pub flags: u8,
}
layout!(ibv_flow_ipv4_ext_filter, 12, {
    src_ip: 0, dst_ip: 4, proto: 8, tos: 9, ttl: 10, flags: 11,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_ipv4_ext {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_ipv4_ext_filter,
    pub mask: ibv_flow_ipv4_ext_filter,
}
layout!(ibv_flow_spec_ipv4_ext, 32, {
    type_: 0, size: 4, val: 8, mask: 20,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_ipv6_filter {
    pub src_ip: [u8; 16],
    pub dst_ip: [u8; 16],
    pub flow_label: u32,
    pub next_hdr: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
}
layout!(ibv_flow_ipv6_filter, 40, {
    src_ip: 0, dst_ip: 16, flow_label: 32, next_hdr: 36, traffic_class: 37, hop_limit: 38,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_ipv6 {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_ipv6_filter,
    pub mask: ibv_flow_ipv6_filter,
}
layout!(ibv_flow_spec_ipv6, 88, {
    type_: 0, size: 4, val: 8, mask: 48,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_esp_filter {
    pub spi: u32,
    pub seq: u32,
}
layout!(ibv_flow_esp_filter, 8, {
    spi: 0, seq: 4,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_esp {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_esp_filter,
    pub mask: ibv_flow_esp_filter,
}
layout!(ibv_flow_spec_esp, 24, {
    type_: 0, size: 4, val: 8, mask: 16,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_tcp_udp_filter {
    pub dst_port: u16,
    pub src_port: u16,
}
layout!(ibv_flow_tcp_udp_filter, 4, {
    dst_port: 0, src_port: 2,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_tcp_udp {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_tcp_udp_filter,
    pub mask: ibv_flow_tcp_udp_filter,
}
layout!(ibv_flow_spec_tcp_udp, 16, {
    type_: 0, size: 4, val: 6, mask: 10,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_gre_filter {
    pub c_ks_res0_ver: u16,
    pub protocol: u16,
    pub key: u32,
}
layout!(ibv_flow_gre_filter, 8, {
    c_ks_res0_ver: 0, protocol: 2, key: 4,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_gre {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_gre_filter,
    pub mask: ibv_flow_gre_filter,
}
layout!(ibv_flow_spec_gre, 24, {
    type_: 0, size: 4, val: 8, mask: 16,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_mpls_filter {
    pub label: u32,
}
layout!(ibv_flow_mpls_filter, 4, {
    label: 0,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_mpls {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_mpls_filter,
    pub mask: ibv_flow_mpls_filter,
}
layout!(ibv_flow_spec_mpls, 16, {
    type_: 0, size: 4, val: 8, mask: 12,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_tunnel_filter {
    pub tunnel_id: u32,
}
layout!(ibv_flow_tunnel_filter, 4, {
    tunnel_id: 0,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_tunnel {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_tunnel_filter,
    pub mask: ibv_flow_tunnel_filter,
}
layout!(ibv_flow_spec_tunnel, 16, {
    type_: 0, size: 4, val: 8, mask: 12,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_action_tag {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub tag_id: u32,
}
layout!(ibv_flow_spec_action_tag, 12, {
    type_: 0, size: 4, tag_id: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_action_drop {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
}
layout!(ibv_flow_spec_action_drop, 8, {
    type_: 0, size: 4,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_action_handle {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub action: *const ibv_flow_action,
}
layout!(ibv_flow_spec_action_handle, 16, {
    type_: 0, size: 4, action: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_counter_action {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub counters: *mut ibv_counters,
}
layout!(ibv_flow_spec_counter_action, 16, {
    type_: 0, size: 4, counters: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec {
    pub unnamed: ibv_flow_spec_unnamed,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_flow_spec_unnamed {
    pub hdr: ibv_flow_spec_unnamed_hdr,
    pub eth: ibv_flow_spec_eth,
    pub ipv4: ibv_flow_spec_ipv4,
    pub tcp_udp: ibv_flow_spec_tcp_udp,
    pub ipv4_ext: ibv_flow_spec_ipv4_ext,
    pub ipv6: ibv_flow_spec_ipv6,
    pub esp: ibv_flow_spec_esp,
    pub tunnel: ibv_flow_spec_tunnel,
    pub gre: ibv_flow_spec_gre,
    pub mpls: ibv_flow_spec_mpls,
    pub flow_tag: ibv_flow_spec_action_tag,
    pub drop: ibv_flow_spec_action_drop,
    pub handle: ibv_flow_spec_action_handle,
    pub flow_count: ibv_flow_spec_counter_action,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_unnamed_hdr {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
}
layout!(ibv_flow_spec, 88, {
    unnamed.hdr: 0, unnamed.hdr.type_: 0, unnamed.hdr.size: 4, unnamed.eth: 0, unnamed.ipv4: 0,
    unnamed.tcp_udp: 0, unnamed.ipv4_ext: 0, unnamed.ipv6: 0, unnamed.esp: 0, unnamed.tunnel: 0,
    unnamed.gre: 0, unnamed.mpls: 0, unnamed.flow_tag: 0, unnamed.drop: 0, unnamed.handle: 0,
    unnamed.flow_count: 0,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_attr {
    pub comp_mask: u32,
    pub type_: ibv_flow_attr_type,
    pub size: u16,
    pub priority: u16,
    pub num_of_specs: u8,
    pub port: u8,
    pub flags: u32,
}
layout!(ibv_flow_attr, 20, {
    comp_mask: 0, type_: 4, size: 8, priority: 10, num_of_specs: 12, port: 13, flags: 16,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}
layout!(ibv_flow, 24, {
    comp_mask: 0, context: 8, handle: 16,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_action {
    pub context: *mut ibv_context,
}
layout!(ibv_flow_action, 8, {
    context: 0,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_action_esp_attr {
    pub esp_attr: *mut ib_uverbs_flow_action_esp,
    pub keymat_proto: ib_uverbs_flow_action_esp_keymat,
    pub keymat_len: u16,
    pub keymat_ptr: *mut c_void,
    pub replay_proto: ib_uverbs_flow_action_esp_replay,
    pub replay_len: u16,
    pub replay_ptr: *mut c_void,
    pub esp_encap: *mut ib_uverbs_flow_action_esp_encap,
    pub comp_mask: u32,
    pub esn: u32,
}
layout!(ibv_flow_action_esp_attr, 56, {
    esp_attr: 0, keymat_proto: 8, keymat_len: 12, keymat_ptr: 16, replay_proto: 24, replay_len: 28,
    replay_ptr: 32, esp_encap: 40, comp_mask: 48, esn: 52,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: timespec,
}
layout!(ibv_values_ex, 24, {
    comp_mask: 0, raw_clock: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ib_uverbs_flow_action_esp {
    pub spi: u32,
    pub seq: u32,
    pub tfc_pad: u32,
    pub flags: u32,
    pub hard_limit_pkts: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ib_uverbs_flow_action_esp_encap {
    pub unnamed: ib_uverbs_flow_action_esp_encap_unnamed,
    pub unnamed_2: ib_uverbs_flow_action_esp_encap_unnamed_2,
    pub len: u16,
    pub type_: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ib_uverbs_flow_action_esp_encap_unnamed {
    pub val_ptr: *mut c_void,
    pub val_ptr_data_u64: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ib_uverbs_flow_action_esp_encap_unnamed_2 {
    pub next_ptr: *mut ib_uverbs_flow_action_esp_encap,
    pub next_ptr_data_u64: u64,
}

pub type ib_uverbs_flow_action_esp_keymat = core::ffi::c_uint;
pub type ib_uverbs_flow_action_esp_replay = core::ffi::c_uint;
