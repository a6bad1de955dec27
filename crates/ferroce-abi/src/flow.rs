//! Flow steering rules, which raw packet queue pairs use.

use crate::*;
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
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: timespec,
}
layout!(ibv_values_ex, 24, {
    comp_mask: 0, raw_clock: 8,
});
