//! The tables of functions inside a context, for the calls that are inline in the C headers.

use ferroce_abi as abi;

use crate::{buffer, cq, cq_ex, create_qp, dm, domain, flow, mr, mw, post, query, refused, srq, xrcd};

/// A slot of whatever type that refuses: the functions of [`refused`] look at no argument.
macro_rules! refuse {
    ($function:ident) => {{
        let function = refused::$function as extern "C" fn() -> _;
        // SAFETY: a pointer to a function becomes one to a function that takes arguments. Only C calls it,
        // and by the C calling convention of every Linux target a function may leave its arguments unread.
        #[expect(clippy::missing_transmute_annotations, reason = "the type is that of the slot")]
        let slot = unsafe { std::mem::transmute(function) };
        slot
    }};
}

/// Each slot that the headers call without looking is set. The `_compat` ones served programs of libibverbs
/// 1.0.
pub(crate) const CONTEXT_OPS: abi::ibv_context_ops = abi::ibv_context_ops {
    _compat_query_device: Some(query::ibv_query_device),
    _compat_query_port: Some(query::ibv_query_port),
    _compat_alloc_pd: refuse!(null_nosys),
    _compat_dealloc_pd: refuse!(null_nosys),
    _compat_reg_mr: refuse!(null_nosys),
    _compat_rereg_mr: refuse!(null_nosys),
    _compat_dereg_mr: refuse!(null_nosys),
    alloc_mw: Some(mw::alloc_mw),
    bind_mw: Some(post::bind_mw),
    dealloc_mw: Some(mw::dealloc_mw),
    _compat_create_cq: refuse!(null_nosys),
    poll_cq: Some(cq::poll_cq),
    req_notify_cq: Some(cq::req_notify_cq),
    _compat_cq_event: refuse!(null_nosys),
    _compat_resize_cq: refuse!(null_nosys),
    _compat_destroy_cq: refuse!(null_nosys),
    _compat_create_srq: refuse!(null_nosys),
    _compat_modify_srq: refuse!(null_nosys),
    _compat_query_srq: refuse!(null_nosys),
    _compat_destroy_srq: refuse!(null_nosys),
    post_srq_recv: Some(post::post_srq_recv),
    _compat_create_qp: refuse!(null_nosys),
    _compat_query_qp: refuse!(null_nosys),
    _compat_modify_qp: refuse!(null_nosys),
    _compat_destroy_qp: refuse!(null_nosys),
    post_send: Some(post::post_send),
    post_recv: Some(post::post_recv),
    _compat_create_ah: refuse!(null_nosys),
    _compat_destroy_ah: refuse!(null_nosys),
    _compat_attach_mcast: refuse!(null_nosys),
    _compat_detach_mcast: refuse!(null_nosys),
    _compat_async_event: refuse!(null_nosys),
};

/// The newest form, with every slot set; `sz` tells programs how much of it there is.
pub(crate) fn verbs_context(context: abi::ibv_context) -> abi::verbs_context {
    abi::verbs_context {
        free_buf: Some(buffer::ibv_free_buf),
        alloc_buf: Some(buffer::ibv_alloc_buf),
        dm_export_dmabuf_fd: refuse!(minus_one_not_supported),
        reg_mr_ex: Some(mr::ibv_reg_mr_ex),
        dealloc_dmah: refuse!(errno_not_supported),
        alloc_dmah: refuse!(null_not_supported),
        query_port: Some(query::query_port),
        advise_mr: Some(mr::advise_mr),
        alloc_null_mr: Some(mr::alloc_null_mr),
        read_counters: refuse!(errno_not_supported),
        attach_counters_point_flow: refuse!(errno_not_supported),
        create_counters: refuse!(null_not_supported),
        destroy_counters: refuse!(errno_not_supported),
        reg_dm_mr: Some(mr::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        modify_flow_action_esp: refuse!(errno_not_supported),
        destroy_flow_action: refuse!(errno_not_supported),
        create_flow_action_esp: refuse!(null_not_supported),
        modify_qp_rate_limit: refuse!(errno_not_supported),
        alloc_parent_domain: Some(domain::alloc_parent_domain),
        dealloc_td: Some(domain::dealloc_td),
        alloc_td: Some(domain::alloc_td),
        modify_cq: Some(cq::modify_cq),
        post_srq_ops: refuse!(errno_not_supported),
        destroy_rwq_ind_table: refuse!(errno_not_supported),
        create_rwq_ind_table: refuse!(null_not_supported),
        destroy_wq: refuse!(errno_not_supported),
        modify_wq: refuse!(errno_not_supported),
        create_wq: refuse!(null_not_supported),
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        priv_: std::ptr::null_mut(),
        query_device_ex: Some(query::query_device_ex),
        ibv_destroy_flow: Some(flow::destroy_flow),
        ABI_placeholder2: refuse!(errno_not_supported),
        ibv_create_flow: Some(flow::create_flow),
        ABI_placeholder1: refuse!(null_not_supported),
        open_qp: Some(create_qp::open_qp),
        create_qp_ex: Some(create_qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrcd::open_xrcd),
        close_xrcd: Some(xrcd::close_xrcd),
        _ABI_placeholder3: 0,
        sz: size_of::<abi::verbs_context>(),
        context,
    }
}
