//! librdmacm.

use crate::*;
use core::ffi::{c_char, c_int, c_void};
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: be16,
}
layout!(rdma_ib_addr, 40, {
    sgid: 0, dgid: 16, pkey: 32,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_addr {
    pub unnamed: rdma_addr_unnamed,
    pub unnamed_2: rdma_addr_unnamed_2,
    pub addr: rdma_addr_addr,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union rdma_addr_unnamed {
    pub src_addr: sockaddr,
    pub src_sin: sockaddr_in,
    pub src_sin6: sockaddr_in6,
    pub src_storage: sockaddr_storage,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union rdma_addr_unnamed_2 {
    pub dst_addr: sockaddr,
    pub dst_sin: sockaddr_in,
    pub dst_sin6: sockaddr_in6,
    pub dst_storage: sockaddr_storage,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union rdma_addr_addr {
    pub ibaddr: rdma_ib_addr,
}
layout!(rdma_addr, 296, {
    unnamed.src_addr: 0, unnamed.src_sin: 0, unnamed.src_sin6: 0, unnamed.src_storage: 0,
    unnamed_2.dst_addr: 128, unnamed_2.dst_sin: 128, unnamed_2.dst_sin6: 128, unnamed_2.dst_storage: 128,
    addr: 256, addr.ibaddr: 256,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}
layout!(rdma_route, 312, {
    addr: 0, path_rec: 296, num_paths: 304,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}
layout!(rdma_event_channel, 4, {
    fd: 0,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: ibv_qp_type,
}
layout!(rdma_cm_id, 416, {
    verbs: 0, channel: 8, context: 16, qp: 24, route: 32, ps: 344, port_num: 348, event: 352,
    send_cq_channel: 360, send_cq: 368, recv_cq_channel: 376, recv_cq: 384, srq: 392, pd: 400,
    qp_type: 408,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}
layout!(rdma_conn_param, 24, {
    private_data: 0, private_data_len: 8, responder_resources: 9, initiator_depth: 10, flow_control: 11,
    retry_count: 12, rnr_retry_count: 13, srq: 14, qp_num: 16,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}
layout!(rdma_ud_param, 56, {
    private_data: 0, private_data_len: 8, ah_attr: 16, qp_num: 48, qkey: 52,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type,
    pub status: c_int,
    pub param: rdma_cm_event_param,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    pub arg: u64,
}
layout!(rdma_cm_event, 80, {
    id: 0, listen_id: 8, event: 16, status: 20, param: 24, param.conn: 24, param.ud: 24, param.arg: 24,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut rdma_addrinfo,
}
layout!(rdma_addrinfo, 96, {
    ai_flags: 0, ai_family: 4, ai_qp_type: 8, ai_port_space: 12, ai_src_len: 16, ai_dst_len: 20,
    ai_src_addr: 24, ai_dst_addr: 32, ai_src_canonname: 40, ai_dst_canonname: 48, ai_route_len: 56,
    ai_route: 64, ai_connect_len: 72, ai_connect: 80, ai_next: 88,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut sockaddr,
}
layout!(rdma_cm_join_mc_attr_ex, 16, {
    comp_mask: 0, join_flags: 4, addr: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ib_addr {
    pub ib_u: ib_addr_ib_u,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ib_addr_ib_u {
    pub uib_addr8: [u8; 16],
    pub uib_addr16: [be16; 8],
    pub uib_addr32: [be32; 4],
    pub uib_addr64: [be64; 2],
}
layout!(ib_addr, 16, {
    ib_u: 0, ib_u.uib_addr8: 0, ib_u.uib_addr16: 0, ib_u.uib_addr32: 0, ib_u.uib_addr64: 0,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct sockaddr_ib {
    pub sib_family: u16,
    pub sib_pkey: be16,
    pub sib_flowinfo: be32,
    pub sib_addr: ib_addr,
    pub sib_sid: be64,
    pub sib_sid_mask: be64,
    pub sib_scope_id: u64,
}
layout!(sockaddr_ib, 48, {
    sib_family: 0, sib_pkey: 2, sib_flowinfo: 4, sib_addr: 8, sib_sid: 24, sib_sid_mask: 32,
    sib_scope_id: 40,
});
