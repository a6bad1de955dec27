//! Subnet administration records, which describe the path of a connection in librdmacm.

use crate::*;
use core::ffi::c_int;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_sa_path_rec {
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: be16,
    pub slid: be16,
    pub raw_traffic: c_int,
    pub flow_label: be32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: be16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
layout!(ibv_sa_path_rec, 64, {
    dgid: 0, sgid: 16, dlid: 32, slid: 34, raw_traffic: 36, flow_label: 40, hop_limit: 44,
    traffic_class: 45, reversible: 48, numb_path: 52, pkey: 54, sl: 56, mtu_selector: 57, mtu: 58,
    rate_selector: 59, rate: 60, packet_life_time_selector: 61, packet_life_time: 62, preference: 63,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_path_record {
    pub service_id: be64,
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: be16,
    pub slid: be16,
    pub flowlabel_hoplimit: be32,
    pub tclass: u8,
    pub reversible_numpath: u8,
    pub pkey: be16,
    pub qosclass_sl: be16,
    pub mtu: u8,
    pub rate: u8,
    pub packetlifetime: u8,
    pub preference: u8,
    pub reserved: [u8; 6],
}
layout!(ibv_path_record, 64, {
    service_id: 0, dgid: 8, sgid: 24, dlid: 40, slid: 42, flowlabel_hoplimit: 44, tclass: 48,
    reversible_numpath: 49, pkey: 50, qosclass_sl: 52, mtu: 54, rate: 55, packetlifetime: 56,
    preference: 57, reserved: 58,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_path_data {
    pub flags: u32,
    pub reserved: u32,
    pub path: ibv_path_record,
}
layout!(ibv_path_data, 72, {
    flags: 0, reserved: 4, path: 8,
});
