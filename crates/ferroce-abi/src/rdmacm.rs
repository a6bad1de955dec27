//! librdmacm.

use crate::*;
use core::ffi::{c_char, c_int, c_void};
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

structure!(rdma_ib_addr, 40, {
    sgid: ibv_gid = 0,
    dgid: ibv_gid = 16,
    pkey: be16 = 32,
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

structure!(rdma_route, 312, {
    addr: rdma_addr = 0,
    path_rec: *mut ibv_sa_path_rec = 296,
    num_paths: c_int = 304,
});

structure!(rdma_event_channel, 4, {
    fd: c_int = 0,
});

structure!(rdma_cm_id, 416, {
    verbs: *mut ibv_context = 0,
    channel: *mut rdma_event_channel = 8,
    context: *mut c_void = 16,
    qp: *mut ibv_qp = 24,
    route: rdma_route = 32,
    ps: rdma_port_space = 344,
    port_num: u8 = 348,
    event: *mut rdma_cm_event = 352,
    send_cq_channel: *mut ibv_comp_channel = 360,
    send_cq: *mut ibv_cq = 368,
    recv_cq_channel: *mut ibv_comp_channel = 376,
    recv_cq: *mut ibv_cq = 384,
    srq: *mut ibv_srq = 392,
    pd: *mut ibv_pd = 400,
    qp_type: ibv_qp_type = 408,
});

structure!(rdma_conn_param, 24, {
    private_data: *const c_void = 0,
    private_data_len: u8 = 8,
    responder_resources: u8 = 9,
    initiator_depth: u8 = 10,
    flow_control: u8 = 11,
    retry_count: u8 = 12,
    rnr_retry_count: u8 = 13,
    srq: u8 = 14,
    qp_num: u32 = 16,
});

structure!(rdma_ud_param, 56, {
    private_data: *const c_void = 0,
    private_data_len: u8 = 8,
    ah_attr: ibv_ah_attr = 16,
    qp_num: u32 = 48,
    qkey: u32 = 52,
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

structure!(rdma_addrinfo, 96, {
    ai_flags: c_int = 0,
    ai_family: c_int = 4,
    ai_qp_type: c_int = 8,
    ai_port_space: c_int = 12,
    ai_src_len: socklen_t = 16,
    ai_dst_len: socklen_t = 20,
    ai_src_addr: *mut sockaddr = 24,
    ai_dst_addr: *mut sockaddr = 32,
    ai_src_canonname: *mut c_char = 40,
    ai_dst_canonname: *mut c_char = 48,
    ai_route_len: usize = 56,
    ai_route: *mut c_void = 64,
    ai_connect_len: usize = 72,
    ai_connect: *mut c_void = 80,
    ai_next: *mut rdma_addrinfo = 88,
});

structure!(rdma_cm_join_mc_attr_ex, 16, {
    comp_mask: u32 = 0,
    join_flags: u32 = 4,
    addr: *mut sockaddr = 8,
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

structure!(sockaddr_ib, 48, {
    sib_family: u16 = 0,
    sib_pkey: be16 = 2,
    sib_flowinfo: be32 = 4,
    sib_addr: ib_addr = 8,
    sib_sid: be64 = 24,
    sib_sid_mask: be64 = 32,
    sib_scope_id: u64 = 40,
});
