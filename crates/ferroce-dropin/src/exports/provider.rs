// libibverbs, private: symbols that provider libraries (libmlx5, libefa, the *-rdmav plugins) need at load. A
// row has the releases of rdma-core whose private nodes hold the symbol, first that of the default.
macro_rules! private {
    (
        { $($name:literal $default:literal $($compat:literal)* = $module:ident :: $function:ident ;)* }
        failing as $reason:literal {
            $($refused:literal $first:literal $($other:literal)* = $part:ident :: $result:ident ;)*
        }
    ) => {
        exports! {
            $(
                default $name "IBVERBS_PRIVATE_" $default = $module::$function;
                $(compat $name "IBVERBS_PRIVATE_" $compat = $module::$function;)*
            )*
            $(
                default $refused "IBVERBS_PRIVATE_" $first = $part::$result, $reason;
                $(compat $refused "IBVERBS_PRIVATE_" $other = $part::$result, $reason;)*
            )*
        }
    };
}

private! {
    {
        "ibv_query_gid_type" 34 57 59 64 65 = query::ibv_query_gid_type;
        "ibv_wr_opcode_str" 65 57 59 64 = strings::ibv_wr_opcode_str;
    }
    failing as "provider interface" {
        "__ioctl_final_num_attrs" 34 57 59 64 65 = refused::zero;
        "__verbs_log" 34 57 59 64 65 = refused::nothing;
        "_verbs_init_and_alloc_context" 34 57 59 64 65 = refused::null_not_supported;
        "execute_ioctl" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_advise_mr" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_alloc_dm" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_alloc_dmah" 65 59 64 = refused::errno_not_supported;
        "ibv_cmd_alloc_mw" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_alloc_pd" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_attach_mcast" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_close_xrcd" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_ah" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_comp_cntr" 65 = refused::errno_not_supported;
        "ibv_cmd_create_counters" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_cq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_cq_ex" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_cq_ex2" 65 57 59 64 = refused::errno_not_supported;
        "ibv_cmd_create_flow" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_flow_action_esp" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_qp" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_qp_ex" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_qp_ex2" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_rwq_ind_table" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_srq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_srq_ex" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_create_wq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_dealloc_mw" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_dealloc_pd" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_dereg_mr" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_destroy_ah" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_destroy_comp_cntr" 65 = refused::errno_not_supported;
        "ibv_cmd_destroy_counters" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_destroy_cq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_destroy_flow" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_destroy_flow_action" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_destroy_qp" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_destroy_rwq_ind_table" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_destroy_srq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_destroy_wq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_detach_mcast" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_export_dmabuf_fd" 65 59 64 = refused::minus_one_not_supported;
        "ibv_cmd_free_dm" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_free_dmah" 65 59 64 = refused::errno_not_supported;
        "ibv_cmd_get_context" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_inc_comp_cntr" 65 = refused::errno_not_supported;
        "ibv_cmd_inc_err_comp_cntr" 65 = refused::errno_not_supported;
        "ibv_cmd_modify_cq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_modify_flow_action_esp" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_modify_qp" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_modify_qp_ex" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_modify_srq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_modify_wq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_open_qp" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_open_xrcd" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_poll_cq" 34 57 59 64 65 = refused::minus_one_not_supported;
        "ibv_cmd_post_recv" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_post_send" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_post_srq_recv" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_qp_attach_comp_cntr" 65 = refused::errno_not_supported;
        "ibv_cmd_query_comp_cntr_caps" 65 = refused::errno_not_supported;
        "ibv_cmd_query_context" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_query_device_any" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_query_mr" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_query_port" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_query_port_speed" 65 59 64 = refused::errno_not_supported;
        "ibv_cmd_query_qp" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_query_srq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_read_comp_cntr" 65 = refused::errno_not_supported;
        "ibv_cmd_read_counters" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_read_err_comp_cntr" 65 = refused::errno_not_supported;
        "ibv_cmd_reg_dm_mr" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_reg_dmabuf_mr" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_reg_mr" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_reg_mr_ex" 65 59 64 = refused::errno_not_supported;
        "ibv_cmd_req_notify_cq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_rereg_mr" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_resize_cq" 34 57 59 64 65 = refused::errno_not_supported;
        "ibv_cmd_set_comp_cntr" 65 = refused::errno_not_supported;
        "ibv_cmd_set_err_comp_cntr" 65 = refused::errno_not_supported;
        "ibv_dmabuf_heap_alloc" 65 64 = refused::null_not_supported;
        "ibv_dmabuf_heap_cc_shared_init" 65 64 = refused::null_not_supported;
        "ibv_dmabuf_heap_destroy" 65 64 = refused::nothing;
        "ibv_dmabuf_heap_free" 65 64 = refused::nothing;
        "ibv_read_ibdev_sysfs_file" 34 57 59 64 65 = refused::minus_one_not_supported;
        "verbs_allow_disassociate_destroy" 34 57 59 64 65 = data::ALLOW_DISASSOCIATE_DESTROY;
        "verbs_init_cq" 34 57 59 64 65 = refused::nothing;
        "verbs_open_device" 34 57 59 64 65 = refused::null_not_supported;
        "verbs_register_driver_34" 34 = refused::nothing;
        "verbs_register_driver_57" 57 = refused::nothing;
        "verbs_register_driver_59" 59 = refused::nothing;
        "verbs_register_driver_64" 64 = refused::nothing;
        "verbs_register_driver_65" 65 = refused::nothing;
        "verbs_set_ops" 34 57 59 64 65 = refused::nothing;
        "verbs_uninit_context" 34 57 59 64 65 = refused::nothing;
    }
}
