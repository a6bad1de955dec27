//! The device and its context, which programs access by pointer arithmetic and function pointers.

use crate::*;
use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::pthread_mutex_t;

structure!(_ibv_device_ops, 16, {
    _dummy1: Option<unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: c_int) -> *mut ibv_context> = 0,
    _dummy2: Option<unsafe extern "C" fn(context: *mut ibv_context)> = 8,
});

#[repr(C)]
pub struct ibv_device {
    pub _ops: _ibv_device_ops,
    pub node_type: ibv_node_type,
    pub transport_type: ibv_transport_type,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}
layout!(ibv_device, 664, {
    _ops: 0, node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152, ibdev_path: 408,
});

structure!(ibv_context_ops, 256, {
    _compat_query_device: Option<
        unsafe extern "C" fn(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int,
    > = 0,
    _compat_query_port: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut _compat_ibv_port_attr,
        ) -> c_int,
    > = 8,
    _compat_alloc_pd: Option<unsafe extern "C" fn() -> *mut c_void> = 16,
    _compat_dealloc_pd: Option<unsafe extern "C" fn() -> *mut c_void> = 24,
    _compat_reg_mr: Option<unsafe extern "C" fn() -> *mut c_void> = 32,
    _compat_rereg_mr: Option<unsafe extern "C" fn() -> *mut c_void> = 40,
    _compat_dereg_mr: Option<unsafe extern "C" fn() -> *mut c_void> = 48,
    alloc_mw: Option<unsafe extern "C" fn(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw> = 56,
    bind_mw: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int,
    > = 64,
    dealloc_mw: Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> c_int> = 72,
    _compat_create_cq: Option<unsafe extern "C" fn() -> *mut c_void> = 80,
    poll_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int> = 88,
    req_notify_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int> = 96,
    _compat_cq_event: Option<unsafe extern "C" fn() -> *mut c_void> = 104,
    _compat_resize_cq: Option<unsafe extern "C" fn() -> *mut c_void> = 112,
    _compat_destroy_cq: Option<unsafe extern "C" fn() -> *mut c_void> = 120,
    _compat_create_srq: Option<unsafe extern "C" fn() -> *mut c_void> = 128,
    _compat_modify_srq: Option<unsafe extern "C" fn() -> *mut c_void> = 136,
    _compat_query_srq: Option<unsafe extern "C" fn() -> *mut c_void> = 144,
    _compat_destroy_srq: Option<unsafe extern "C" fn() -> *mut c_void> = 152,
    post_srq_recv: Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> c_int,
    > = 160,
    _compat_create_qp: Option<unsafe extern "C" fn() -> *mut c_void> = 168,
    _compat_query_qp: Option<unsafe extern "C" fn() -> *mut c_void> = 176,
    _compat_modify_qp: Option<unsafe extern "C" fn() -> *mut c_void> = 184,
    _compat_destroy_qp: Option<unsafe extern "C" fn() -> *mut c_void> = 192,
    post_send: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int,
    > = 200,
    post_recv: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int,
    > = 208,
    _compat_create_ah: Option<unsafe extern "C" fn() -> *mut c_void> = 216,
    _compat_destroy_ah: Option<unsafe extern "C" fn() -> *mut c_void> = 224,
    _compat_attach_mcast: Option<unsafe extern "C" fn() -> *mut c_void> = 232,
    _compat_detach_mcast: Option<unsafe extern "C" fn() -> *mut c_void> = 240,
    _compat_async_event: Option<unsafe extern "C" fn() -> *mut c_void> = 248,
});

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut c_void,
}
layout!(ibv_context, 328, {
    device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320,
});

/// A slot of a call that no device here offers: programs get a function that refuses and reads no argument,
/// so the C types of the arguments matter to nobody.
pub type refused_call = Option<unsafe extern "C" fn()>;

#[repr(C)]
pub struct verbs_context {
    pub free_buf: Option<unsafe extern "C" fn(buf: *mut ibv_buf)>,
    pub alloc_buf:
        Option<unsafe extern "C" fn(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void>,
    pub dm_export_dmabuf_fd: refused_call,
    pub reg_mr_ex:
        Option<unsafe extern "C" fn(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr>,
    pub dealloc_dmah: refused_call,
    pub alloc_dmah: refused_call,
    pub query_port: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut ibv_port_attr,
            port_attr_len: usize,
        ) -> c_int,
    >,
    pub advise_mr: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            advice: ibv_advise_mr_advice,
            flags: u32,
            sg_list: *mut ibv_sge,
            num_sges: u32,
        ) -> c_int,
    >,
    pub alloc_null_mr: Option<unsafe extern "C" fn(pd: *mut ibv_pd) -> *mut ibv_mr>,
    pub read_counters: refused_call,
    pub attach_counters_point_flow: refused_call,
    pub create_counters: refused_call,
    pub destroy_counters: refused_call,
    pub reg_dm_mr: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
            access: c_uint,
        ) -> *mut ibv_mr,
    >,
    pub alloc_dm:
        Option<unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
    pub free_dm: Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> c_int>,
    pub modify_flow_action_esp: refused_call,
    pub destroy_flow_action: refused_call,
    pub create_flow_action_esp: refused_call,
    pub modify_qp_rate_limit: refused_call,
    pub alloc_parent_domain: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_parent_domain_init_attr,
        ) -> *mut ibv_pd,
    >,
    pub dealloc_td: Option<unsafe extern "C" fn(td: *mut ibv_td) -> c_int>,
    pub alloc_td: Option<
        unsafe extern "C" fn(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td,
    >,
    pub modify_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int>,
    pub post_srq_ops: refused_call,
    pub destroy_rwq_ind_table: refused_call,
    pub create_rwq_ind_table: refused_call,
    pub destroy_wq: refused_call,
    pub modify_wq: refused_call,
    pub create_wq: refused_call,
    pub query_rt_values:
        Option<unsafe extern "C" fn(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_cq_init_attr_ex,
        ) -> *mut ibv_cq_ex,
    >,
    pub priv_: *mut verbs_ex_private,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            input: *const ibv_query_device_ex_input,
            attr: *mut ibv_device_attr_ex,
            attr_size: usize,
        ) -> c_int,
    >,
    pub ibv_destroy_flow: Option<unsafe extern "C" fn(flow: *mut ibv_flow) -> c_int>,
    pub ABI_placeholder2: Option<unsafe extern "C" fn()>,
    pub ibv_create_flow:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow>,
    pub ABI_placeholder1: Option<unsafe extern "C" fn()>,
    pub open_qp:
        Option<unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub create_qp_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
        ) -> *mut ibv_qp,
    >,
    pub get_srq_num: Option<unsafe extern "C" fn(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int>,
    pub create_srq_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
        ) -> *mut ibv_srq,
    >,
    pub open_xrcd: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            xrcd_init_attr: *mut ibv_xrcd_init_attr,
        ) -> *mut ibv_xrcd,
    >,
    pub close_xrcd: Option<unsafe extern "C" fn(xrcd: *mut ibv_xrcd) -> c_int>,
    pub _ABI_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
layout!(verbs_context, 696, {
    query_port: 48, advise_mr: 56, alloc_null_mr: 64, read_counters: 72, attach_counters_point_flow: 80,
    create_counters: 88, destroy_counters: 96, reg_dm_mr: 104, alloc_dm: 112, free_dm: 120,
    modify_flow_action_esp: 128, destroy_flow_action: 136, create_flow_action_esp: 144,
    modify_qp_rate_limit: 152, alloc_parent_domain: 160, dealloc_td: 168, alloc_td: 176, modify_cq: 184,
    post_srq_ops: 192, destroy_rwq_ind_table: 200, create_rwq_ind_table: 208, destroy_wq: 216,
    modify_wq: 224, create_wq: 232, query_rt_values: 240, create_cq_ex: 248, priv_: 256,
    query_device_ex: 264, ibv_destroy_flow: 272, ABI_placeholder2: 280, ibv_create_flow: 288,
    ABI_placeholder1: 296, open_qp: 304, create_qp_ex: 312, get_srq_num: 320, create_srq_ex: 328,
    open_xrcd: 336, close_xrcd: 344, _ABI_placeholder3: 352, sz: 360, context: 368, free_buf: 0,
    alloc_buf: 8, dm_export_dmabuf_fd: 16, reg_mr_ex: 24, dealloc_dmah: 32, alloc_dmah: 40,
});

/// Opaque: only pointers to it exist.
#[repr(C)]
pub struct _compat_ibv_port_attr {
    _unseen: [u8; 0],
}

/// The library's private part of a `verbs_context`.
#[repr(C)]
pub struct verbs_ex_private {
    _unseen: [u8; 0],
}
