//! Attribute structures of calls.

use crate::*;
use core::ffi::{c_int, c_uint, c_void};

structure!(ibv_alloc_dm_attr, 16, {
    length: usize = 0,
    log_align_req: u32 = 8,
    comp_mask: u32 = 12,
});

structure!(ibv_td_init_attr, 4, {
    comp_mask: u32 = 0,
});

structure!(ibv_xrcd_init_attr, 12, {
    comp_mask: u32 = 0,
    fd: c_int = 4,
    oflags: c_int = 8,
});

structure!(ibv_mr_init_attr, 72, {
    length: usize = 0,
    access: c_int = 8,
    comp_mask: u64 = 16,
    iova: u64 = 24,
    addr: *mut c_void = 32,
    fd: c_int = 40,
    fd_offset: u64 = 48,
    dmah: *mut ibv_dmah = 56,
    buf: *mut ibv_buf = 64,
});

structure!(ibv_global_route, 24, {
    dgid: ibv_gid = 0,
    flow_label: u32 = 16,
    sgid_index: u8 = 20,
    hop_limit: u8 = 21,
    traffic_class: u8 = 22,
});

structure!(ibv_ah_attr, 32, {
    grh: ibv_global_route = 0,
    dlid: u16 = 24,
    sl: u8 = 26,
    src_path_bits: u8 = 27,
    static_rate: u8 = 28,
    is_global: u8 = 29,
    port_num: u8 = 30,
});

structure!(ibv_srq_attr, 12, {
    max_wr: u32 = 0,
    max_sge: u32 = 4,
    srq_limit: u32 = 8,
});

structure!(ibv_srq_init_attr, 24, {
    srq_context: *mut c_void = 0,
    attr: ibv_srq_attr = 8,
});

structure!(ibv_tm_cap, 8, {
    max_num_tags: u32 = 0,
    max_ops: u32 = 4,
});

structure!(ibv_srq_init_attr_ex, 64, {
    srq_context: *mut c_void = 0,
    attr: ibv_srq_attr = 8,
    comp_mask: u32 = 20,
    srq_type: ibv_srq_type = 24,
    pd: *mut ibv_pd = 32,
    xrcd: *mut ibv_xrcd = 40,
    cq: *mut ibv_cq = 48,
    tm_cap: ibv_tm_cap = 56,
});

structure!(ibv_qp_cap, 20, {
    max_send_wr: u32 = 0,
    max_recv_wr: u32 = 4,
    max_send_sge: u32 = 8,
    max_recv_sge: u32 = 12,
    max_inline_data: u32 = 16,
});

structure!(ibv_qp_init_attr, 64, {
    qp_context: *mut c_void = 0,
    send_cq: *mut ibv_cq = 8,
    recv_cq: *mut ibv_cq = 16,
    srq: *mut ibv_srq = 24,
    cap: ibv_qp_cap = 32,
    qp_type: ibv_qp_type = 52,
    sq_sig_all: c_int = 56,
});

structure!(ibv_rx_hash_conf, 24, {
    rx_hash_function: u8 = 0,
    rx_hash_key_len: u8 = 1,
    rx_hash_key: *mut u8 = 8,
    rx_hash_fields_mask: u64 = 16,
});

structure!(ibv_qp_init_attr_ex, 136, {
    qp_context: *mut c_void = 0,
    send_cq: *mut ibv_cq = 8,
    recv_cq: *mut ibv_cq = 16,
    srq: *mut ibv_srq = 24,
    cap: ibv_qp_cap = 32,
    qp_type: ibv_qp_type = 52,
    sq_sig_all: c_int = 56,
    comp_mask: u32 = 60,
    pd: *mut ibv_pd = 64,
    xrcd: *mut ibv_xrcd = 72,
    create_flags: u32 = 80,
    max_tso_header: u16 = 84,
    rwq_ind_tbl: *mut ibv_rwq_ind_table = 88,
    rx_hash_conf: ibv_rx_hash_conf = 96,
    source_qpn: u32 = 120,
    send_ops_flags: u64 = 128,
});

structure!(ibv_qp_open_attr, 32, {
    comp_mask: u32 = 0,
    qp_num: u32 = 4,
    xrcd: *mut ibv_xrcd = 8,
    qp_context: *mut c_void = 16,
    qp_type: ibv_qp_type = 24,
});

structure!(ibv_qp_attr, 144, {
    qp_state: ibv_qp_state = 0,
    cur_qp_state: ibv_qp_state = 4,
    path_mtu: ibv_mtu = 8,
    path_mig_state: ibv_mig_state = 12,
    qkey: u32 = 16,
    rq_psn: u32 = 20,
    sq_psn: u32 = 24,
    dest_qp_num: u32 = 28,
    qp_access_flags: c_uint = 32,
    cap: ibv_qp_cap = 36,
    ah_attr: ibv_ah_attr = 56,
    alt_ah_attr: ibv_ah_attr = 88,
    pkey_index: u16 = 120,
    alt_pkey_index: u16 = 122,
    en_sqd_async_notify: u8 = 124,
    sq_draining: u8 = 125,
    max_rd_atomic: u8 = 126,
    max_dest_rd_atomic: u8 = 127,
    min_rnr_timer: u8 = 128,
    port_num: u8 = 129,
    timeout: u8 = 130,
    retry_cnt: u8 = 131,
    rnr_retry: u8 = 132,
    alt_port_num: u8 = 133,
    alt_timeout: u8 = 134,
    rate_limit: u32 = 136,
});

structure!(ibv_ece, 12, {
    vendor_id: u32 = 0,
    options: u32 = 4,
    comp_mask: u32 = 8,
});

structure!(ibv_poll_cq_attr, 4, {
    comp_mask: u32 = 0,
});

structure!(ibv_moderate_cq, 4, {
    cq_count: u16 = 0,
    cq_period: u16 = 2,
});

structure!(ibv_modify_cq_attr, 8, {
    attr_mask: u32 = 0,
    moderate: ibv_moderate_cq = 4,
});

structure!(ibv_cq_init_attr_ex, 56, {
    cqe: u32 = 0,
    cq_context: *mut c_void = 8,
    channel: *mut ibv_comp_channel = 16,
    comp_vector: u32 = 24,
    wc_flags: u64 = 32,
    comp_mask: u32 = 40,
    flags: u32 = 44,
    parent_domain: *mut ibv_pd = 48,
});

structure!(ibv_parent_domain_init_attr, 48, {
    pd: *mut ibv_pd = 0,
    td: *mut ibv_td = 8,
    comp_mask: u32 = 16,
    alloc: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut c_void,
            size: usize,
            alignment: usize,
            resource_type: u64,
        ) -> *mut c_void,
    > = 24,
    free: Option<
        unsafe extern "C" fn(pd: *mut ibv_pd, pd_context: *mut c_void, ptr: *mut c_void, resource_type: u64),
    > = 32,
    pd_context: *mut c_void = 40,
});

structure!(ibv_comp_cntr_caps, 16, {
    max_value: u64 = 0,
    max_counters: u32 = 8,
    supported_qp_attach_ops: u32 = 12,
});

pub type ibv_comp_cntr_type = core::ffi::c_uint;
pub const IBV_COMP_CNTR_TYPE_WRS: ibv_comp_cntr_type = 0;
pub const IBV_COMP_CNTR_TYPE_BYTES: ibv_comp_cntr_type = 1;

structure!(ibv_comp_cntr_init_attr, 12, {
    comp_mask: u32 = 0,
    type_: ibv_comp_cntr_type = 4,
    flags: u32 = 8,
});

structure!(ibv_qp_attach_comp_cntr_attr, 8, {
    comp_mask: u32 = 0,
    op_mask: u32 = 4,
});

pub type ibv_advise_mr_advice = core::ffi::c_uint;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH: ibv_advise_mr_advice = 0;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: ibv_advise_mr_advice = 1;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ibv_advise_mr_advice = 2;

/// Access flags that a device may ignore.
pub const IBV_ACCESS_OPTIONAL_RANGE: ibv_access_flags = 0x3ff0_0000;
