//! Subnet administration records, which describe the path of a connection in librdmacm.

use crate::*;
use core::ffi::c_int;

structure!(ibv_sa_path_rec, 64, {
    dgid: ibv_gid = 0,
    sgid: ibv_gid = 16,
    dlid: be16 = 32,
    slid: be16 = 34,
    raw_traffic: c_int = 36,
    flow_label: be32 = 40,
    hop_limit: u8 = 44,
    traffic_class: u8 = 45,
    reversible: c_int = 48,
    numb_path: u8 = 52,
    pkey: be16 = 54,
    sl: u8 = 56,
    mtu_selector: u8 = 57,
    mtu: u8 = 58,
    rate_selector: u8 = 59,
    rate: u8 = 60,
    packet_life_time_selector: u8 = 61,
    packet_life_time: u8 = 62,
    preference: u8 = 63,
});

structure!(ibv_path_record, 64, {
    service_id: be64 = 0,
    dgid: ibv_gid = 8,
    sgid: ibv_gid = 24,
    dlid: be16 = 40,
    slid: be16 = 42,
    flowlabel_hoplimit: be32 = 44,
    tclass: u8 = 48,
    reversible_numpath: u8 = 49,
    pkey: be16 = 50,
    qosclass_sl: be16 = 52,
    mtu: u8 = 54,
    rate: u8 = 55,
    packetlifetime: u8 = 56,
    preference: u8 = 57,
    reserved: [u8; 6] = 58,
});

structure!(ibv_path_data, 72, {
    flags: u32 = 0,
    reserved: u32 = 4,
    path: ibv_path_record = 8,
});
