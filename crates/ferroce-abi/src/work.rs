//! Work requests, completions and headers.

use crate::*;
use core::ffi::{c_int, c_uint, c_void};

structure!(ibv_mw_bind_info, 32, {
    mr: *mut ibv_mr = 0,
    addr: u64 = 8,
    length: u64 = 16,
    mw_access_flags: c_uint = 24,
});

structure!(ibv_data_buf, 16, {
    addr: *mut c_void = 0,
    length: usize = 8,
});

structure!(ibv_sge, 16, {
    addr: u64 = 0,
    length: u32 = 8,
    lkey: u32 = 12,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: ibv_wr_opcode,
    pub send_flags: c_uint,
    pub unnamed: ibv_send_wr_unnamed,
    pub wr: ibv_send_wr_wr,
    pub qp_type: ibv_send_wr_qp_type,
    pub unnamed_2: ibv_send_wr_unnamed_2,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_send_wr_unnamed {
    pub imm_data: be32,
    pub invalidate_rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_send_wr_wr {
    pub rdma: ibv_send_wr_wr_rdma,
    pub atomic: ibv_send_wr_wr_atomic,
    pub ud: ibv_send_wr_wr_ud,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_send_wr_qp_type {
    pub xrc: ibv_send_wr_qp_type_xrc,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_send_wr_unnamed_2 {
    pub bind_mw: ibv_send_wr_unnamed_2_bind_mw,
    pub tso: ibv_send_wr_unnamed_2_tso,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_wr_ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_qp_type_xrc {
    pub remote_srqn: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_unnamed_2_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_unnamed_2_tso {
    pub hdr: *mut c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}
layout!(ibv_send_wr, 128, {
    wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, unnamed.imm_data: 36,
    unnamed.invalidate_rkey: 36, wr: 40, wr.rdma: 40, wr.rdma.remote_addr: 40, wr.rdma.rkey: 48,
    wr.atomic: 40, wr.atomic.remote_addr: 40, wr.atomic.compare_add: 48, wr.atomic.swap: 56,
    wr.atomic.rkey: 64, wr.ud: 40, wr.ud.ah: 40, wr.ud.remote_qpn: 48, wr.ud.remote_qkey: 52, qp_type: 72,
    qp_type.xrc: 72, qp_type.xrc.remote_srqn: 72, unnamed_2.bind_mw: 80, unnamed_2.bind_mw.mw: 80,
    unnamed_2.bind_mw.rkey: 88, unnamed_2.bind_mw.bind_info: 96, unnamed_2.tso: 80, unnamed_2.tso.hdr: 80,
    unnamed_2.tso.hdr_sz: 88, unnamed_2.tso.mss: 90,
});

structure!(ibv_recv_wr, 32, {
    wr_id: u64 = 0,
    next: *mut ibv_recv_wr = 8,
    sg_list: *mut ibv_sge = 16,
    num_sge: c_int = 24,
});

structure!(ibv_mw_bind, 48, {
    wr_id: u64 = 0,
    send_flags: c_uint = 8,
    bind_info: ibv_mw_bind_info = 16,
});

structure!(ibv_wc_tm_info, 16, {
    tag: u64 = 0,
    priv_: u32 = 8,
});
