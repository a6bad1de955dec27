//! Flow steering rules, which raw packet queue pairs use.

use crate::*;
use libc::timespec;

structure!(ibv_flow_eth_filter, 16, {
    dst_mac: [u8; 6] = 0,
    src_mac: [u8; 6] = 6,
    ether_type: u16 = 12,
    vlan_tag: u16 = 14,
});

structure!(ibv_flow_spec_eth, 40, {
    type_: ibv_flow_spec_type = 0,
    size: u16 = 4,
    val: ibv_flow_eth_filter = 6,
    mask: ibv_flow_eth_filter = 22,
});

structure!(ibv_flow_ipv6_filter, 40, {
    src_ip: [u8; 16] = 0,
    dst_ip: [u8; 16] = 16,
    flow_label: u32 = 32,
    next_hdr: u8 = 36,
    traffic_class: u8 = 37,
    hop_limit: u8 = 38,
});

structure!(ibv_flow_spec_ipv6, 88, {
    type_: ibv_flow_spec_type = 0,
    size: u16 = 4,
    val: ibv_flow_ipv6_filter = 8,
    mask: ibv_flow_ipv6_filter = 48,
});

structure!(ibv_flow_attr, 20, {
    comp_mask: u32 = 0,
    type_: ibv_flow_attr_type = 4,
    size: u16 = 8,
    priority: u16 = 10,
    num_of_specs: u8 = 12,
    port: u8 = 13,
    flags: u32 = 16,
});

structure!(ibv_flow, 24, {
    comp_mask: u32 = 0,
    context: *mut ibv_context = 8,
    handle: u32 = 16,
});

structure!(ibv_values_ex, 24, {
    comp_mask: u32 = 0,
    raw_clock: timespec = 8,
});
