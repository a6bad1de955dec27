//! Attribute structures of calls.

use crate::*;
use core::ffi::{c_int, c_uint, c_void};

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_alloc_dm_attr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}
layout!(ibv_alloc_dm_attr, 16, {
    length: 0, log_align_req: 8, comp_mask: 12,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}
layout!(ibv_td_init_attr, 4, {
    comp_mask: 0,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}
layout!(ibv_xrcd_init_attr, 12, {
    comp_mask: 0, fd: 4, oflags: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut ibv_dmah,
    pub buf: *mut ibv_buf,
}
layout!(ibv_mr_init_attr, 72, {
    length: 0, access: 8, comp_mask: 16, iova: 24, addr: 32, fd: 40, fd_offset: 48, dmah: 56, buf: 64,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
layout!(ibv_global_route, 24, {
    dgid: 0, flow_label: 16, sgid_index: 20, hop_limit: 21, traffic_class: 22,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
layout!(ibv_ah_attr, 32, {
    grh: 0, dlid: 24, sl: 26, src_path_bits: 27, static_rate: 28, is_global: 29, port_num: 30,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
layout!(ibv_srq_attr, 12, {
    max_wr: 0, max_sge: 4, srq_limit: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}
layout!(ibv_srq_init_attr, 24, {
    srq_context: 0, attr: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_tm_cap {
    pub max_num_tags: u32,
    pub max_ops: u32,
}
layout!(ibv_tm_cap, 8, {
    max_num_tags: 0, max_ops: 4,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: ibv_srq_type,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: ibv_tm_cap,
}
layout!(ibv_srq_init_attr_ex, 64, {
    srq_context: 0, attr: 8, comp_mask: 20, srq_type: 24, pd: 32, xrcd: 40, cq: 48, tm_cap: 56,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
layout!(ibv_qp_cap, 20, {
    max_send_wr: 0, max_recv_wr: 4, max_send_sge: 8, max_recv_sge: 12, max_inline_data: 16,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: c_int,
}
layout!(ibv_qp_init_attr, 64, {
    qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_rx_hash_conf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}
layout!(ibv_rx_hash_conf, 24, {
    rx_hash_function: 0, rx_hash_key_len: 1, rx_hash_key: 8, rx_hash_fields_mask: 16,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
    pub rx_hash_conf: ibv_rx_hash_conf,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}
layout!(ibv_qp_init_attr_ex, 136, {
    qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56, comp_mask: 60,
    pd: 64, xrcd: 72, create_flags: 80, max_tso_header: 84, rwq_ind_tbl: 88, rx_hash_conf: 96,
    source_qpn: 120, send_ops_flags: 128,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_qp_open_attr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut ibv_xrcd,
    pub qp_context: *mut c_void,
    pub qp_type: ibv_qp_type,
}
layout!(ibv_qp_open_attr, 32, {
    comp_mask: 0, qp_num: 4, xrcd: 8, qp_context: 16, qp_type: 24,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state,
    pub cur_qp_state: ibv_qp_state,
    pub path_mtu: ibv_mtu,
    pub path_mig_state: ibv_mig_state,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
layout!(ibv_qp_attr, 144, {
    qp_state: 0, cur_qp_state: 4, path_mtu: 8, path_mig_state: 12, qkey: 16, rq_psn: 20, sq_psn: 24,
    dest_qp_num: 28, qp_access_flags: 32, cap: 36, ah_attr: 56, alt_ah_attr: 88, pkey_index: 120,
    alt_pkey_index: 122, en_sqd_async_notify: 124, sq_draining: 125, max_rd_atomic: 126,
    max_dest_rd_atomic: 127, min_rnr_timer: 128, port_num: 129, timeout: 130, retry_cnt: 131,
    rnr_retry: 132, alt_port_num: 133, alt_timeout: 134, rate_limit: 136,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}
layout!(ibv_ece, 12, {
    vendor_id: 0, options: 4, comp_mask: 8,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}
layout!(ibv_poll_cq_attr, 4, {
    comp_mask: 0,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_moderate_cq {
    pub cq_count: u16,
    pub cq_period: u16,
}
layout!(ibv_moderate_cq, 4, {
    cq_count: 0, cq_period: 2,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub moderate: ibv_moderate_cq,
}
layout!(ibv_modify_cq_attr, 8, {
    attr_mask: 0, moderate: 4,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}
layout!(ibv_cq_init_attr_ex, 56, {
    cqe: 0, cq_context: 8, channel: 16, comp_vector: 24, wc_flags: 32, comp_mask: 40, flags: 44,
    parent_domain: 48,
});

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut c_void,
            size: usize,
            alignment: usize,
            resource_type: u64,
        ) -> *mut c_void,
    >,
    pub free: Option<
        unsafe extern "C" fn(pd: *mut ibv_pd, pd_context: *mut c_void, ptr: *mut c_void, resource_type: u64),
    >,
    pub pd_context: *mut c_void,
}
layout!(ibv_parent_domain_init_attr, 48, {
    pd: 0, td: 8, comp_mask: 16, alloc: 24, free: 32, pd_context: 40,
});

pub type ibv_advise_mr_advice = core::ffi::c_uint;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH: ibv_advise_mr_advice = 0;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: ibv_advise_mr_advice = 1;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ibv_advise_mr_advice = 2;

/// Access flags that a device may ignore.
pub const IBV_ACCESS_OPTIONAL_RANGE: ibv_access_flags = 0x3ff0_0000;
