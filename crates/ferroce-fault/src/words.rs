//! The words of the language that stand for numbers.

use ferroce_wire::NakCode;

/// Declares an enum with its words.
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        $vis enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them with their words.
            pub const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant),)*];

            /// The word in plans.
            pub fn word(self) -> &'static str {
                Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| *word)
            }
        }
    };
}
pub(crate) use words;

words! {
    /// A call of the verbs or of librdmacm that a rule can fail or delay.
    pub enum Verb {
        /// `ibv_alloc_pd`.
        AllocPd = "alloc_pd",
        /// `ibv_reg_mr` and its relatives.
        RegMr = "reg_mr",
        /// `ibv_dereg_mr`.
        DeregMr = "dereg_mr",
        /// `ibv_create_comp_channel`.
        CreateChannel = "create_comp_channel",
        /// `ibv_create_cq` and `ibv_create_cq_ex`.
        CreateCq = "create_cq",
        /// `ibv_req_notify_cq`.
        ReqNotifyCq = "req_notify_cq",
        /// `ibv_create_srq` and `ibv_create_srq_ex`.
        CreateSrq = "create_srq",
        /// `ibv_create_qp` and `ibv_create_qp_ex`.
        CreateQp = "create_qp",
        /// `ibv_create_ah`.
        CreateAh = "create_ah",
        /// `ibv_modify_qp`.
        ModifyQp = "modify_qp",
        /// `ibv_post_send`.
        PostSend = "post_send",
        /// `ibv_post_recv`.
        PostRecv = "post_recv",
        /// `rdma_resolve_addr`.
        ResolveAddr = "resolve_addr",
        /// `rdma_resolve_route`.
        ResolveRoute = "resolve_route",
        /// `rdma_connect`.
        Connect = "connect",
        /// `rdma_listen`.
        Listen = "listen",
        /// `rdma_accept`.
        Accept = "accept",
        /// `rdma_reject` and `rdma_reject_ece`.
        Reject = "reject",
        /// `rdma_disconnect`.
        Disconnect = "disconnect",
        /// `ibv_open_device`.
        OpenDevice = "open_device",
        /// `ibv_query_device` and `ibv_query_device_ex`.
        QueryDevice = "query_device",
        /// `ibv_query_port`.
        QueryPort = "query_port",
        /// `ibv_query_gid`, `ibv_query_gid_ex` and `ibv_query_gid_type`.
        QueryGid = "query_gid",
        /// `ibv_query_qp`.
        QueryQp = "query_qp",
        /// `ibv_poll_cq` and `ibv_start_poll`.
        PollCq = "poll_cq",
        /// `ibv_resize_cq`.
        ResizeCq = "resize_cq",
        /// `ibv_alloc_mw`.
        AllocMw = "alloc_mw",
        /// `ibv_get_device_list`.
        GetDeviceList = "get_device_list",
        /// `ibv_close_device`.
        CloseDevice = "close_device",
        /// `ibv_import_device`.
        ImportDevice = "import_device",
        /// `ibv_import_pd`.
        ImportPd = "import_pd",
        /// `ibv_import_mr`.
        ImportMr = "import_mr",
        /// `ibv_import_dm`.
        ImportDm = "import_dm",
        /// `ibv_dealloc_pd`.
        DeallocPd = "dealloc_pd",
        /// `ibv_destroy_comp_channel`.
        DestroyCompChannel = "destroy_comp_channel",
        /// `ibv_destroy_cq`.
        DestroyCq = "destroy_cq",
        /// `ibv_modify_cq`.
        ModifyCq = "modify_cq",
        /// `ibv_destroy_srq`.
        DestroySrq = "destroy_srq",
        /// `ibv_modify_srq`.
        ModifySrq = "modify_srq",
        /// `ibv_query_srq`.
        QuerySrq = "query_srq",
        /// `ibv_get_srq_num`.
        GetSrqNum = "get_srq_num",
        /// `ibv_destroy_qp`.
        DestroyQp = "destroy_qp",
        /// `ibv_open_qp`.
        OpenQp = "open_qp",
        /// `ibv_attach_mcast`.
        AttachMcast = "attach_mcast",
        /// `ibv_detach_mcast`.
        DetachMcast = "detach_mcast",
        /// `ibv_destroy_ah`.
        DestroyAh = "destroy_ah",
        /// `ibv_init_ah_from_wc`.
        InitAhFromWc = "init_ah_from_wc",
        /// `ibv_get_async_event`.
        GetAsyncEvent = "get_async_event",
        /// `ibv_get_cq_event`.
        GetCqEvent = "get_cq_event",
        /// `ibv_query_pkey`.
        QueryPkey = "query_pkey",
        /// `ibv_get_pkey_index`.
        GetPkeyIndex = "get_pkey_index",
        /// `ibv_query_port_speed`.
        QueryPortSpeed = "query_port_speed",
        /// `ibv_query_gid_table`.
        QueryGidTable = "query_gid_table",
        /// `ibv_query_rt_values_ex`.
        QueryRtValues = "query_rt_values",
        /// `ibv_rereg_mr`.
        ReregMr = "rereg_mr",
        /// `ibv_advise_mr`.
        AdviseMr = "advise_mr",
        /// `ibv_dealloc_mw`.
        DeallocMw = "dealloc_mw",
        /// `ibv_bind_mw`.
        BindMw = "bind_mw",
        /// `ibv_post_srq_recv`.
        PostSrqRecv = "post_srq_recv",
        /// `ibv_alloc_dm`.
        AllocDm = "alloc_dm",
        /// `ibv_free_dm`.
        FreeDm = "free_dm",
        /// `ibv_memcpy_to_dm`.
        MemcpyToDm = "memcpy_to_dm",
        /// `ibv_memcpy_from_dm`.
        MemcpyFromDm = "memcpy_from_dm",
        /// `ibv_alloc_td`.
        AllocTd = "alloc_td",
        /// `ibv_dealloc_td`.
        DeallocTd = "dealloc_td",
        /// `ibv_alloc_parent_domain`.
        AllocParentDomain = "alloc_parent_domain",
        /// `ibv_open_xrcd`.
        OpenXrcd = "open_xrcd",
        /// `ibv_close_xrcd`.
        CloseXrcd = "close_xrcd",
        /// `ibv_create_flow`.
        CreateFlow = "create_flow",
        /// `ibv_destroy_flow`.
        DestroyFlow = "destroy_flow",
        /// `ibv_read_sysfs_file`.
        ReadSysfsFile = "read_sysfs_file",
        /// `rdma_create_event_channel`.
        CreateEventChannel = "create_event_channel",
        /// `rdma_create_id`.
        CreateId = "create_id",
        /// `rdma_destroy_id`.
        DestroyId = "destroy_id",
        /// `rdma_migrate_id`.
        MigrateId = "migrate_id",
        /// `rdma_bind_addr`.
        BindAddr = "bind_addr",
        /// `rdma_get_cm_event`.
        GetCmEvent = "get_cm_event",
        /// `rdma_ack_cm_event`.
        AckCmEvent = "ack_cm_event",
        /// `rdma_get_request`.
        GetRequest = "get_request",
        /// `rdma_establish`.
        Establish = "establish",
        /// `rdma_notify`.
        Notify = "notify",
        /// `rdma_set_option`.
        SetOption = "set_option",
        /// `rdma_init_qp_attr`.
        InitQpAttr = "init_qp_attr",
        /// `rdma_create_ep`.
        CreateEp = "create_ep",
        /// `rdma_getaddrinfo`.
        Getaddrinfo = "getaddrinfo",
        /// `rdma_resolve_addrinfo`.
        ResolveAddrinfo = "resolve_addrinfo",
        /// `rdma_query_addrinfo`.
        QueryAddrinfo = "query_addrinfo",
        /// `rdma_join_multicast` and `rdma_join_multicast_ex`.
        JoinMulticast = "join_multicast",
        /// `rdma_leave_multicast`.
        LeaveMulticast = "leave_multicast",
        /// `rdma_set_local_ece`.
        SetLocalEce = "set_local_ece",
        /// `rdma_get_remote_ece`.
        GetRemoteEce = "get_remote_ece",
        /// `rdma_write_cm_event`.
        WriteCmEvent = "write_cm_event",
        /// `rdma_get_devices`.
        GetDevices = "get_devices",
        /// `ibv_query_comp_cntr_caps`.
        QueryCompCntrCaps = "query_comp_cntr_caps",
        /// `ibv_create_comp_cntr`.
        CreateCompCntr = "create_comp_cntr",
        /// `ibv_destroy_comp_cntr`.
        DestroyCompCntr = "destroy_comp_cntr",
        /// `ibv_set_comp_cntr` and `ibv_set_err_comp_cntr`.
        SetCompCntr = "set_comp_cntr",
        /// `ibv_inc_comp_cntr` and `ibv_inc_err_comp_cntr`.
        IncCompCntr = "inc_comp_cntr",
        /// `ibv_read_comp_cntr` and `ibv_read_err_comp_cntr`.
        ReadCompCntr = "read_comp_cntr",
        /// `ibv_qp_attach_comp_cntr`.
        QpAttachCompCntr = "qp_attach_comp_cntr",
        /// `ibv_alloc_buf`.
        AllocBuf = "alloc_buf",
        /// `ibv_export_buf_dmabuf_fd`.
        ExportBufDmabufFd = "export_buf_dmabuf_fd",
    }
}

words! {
    /// A moment at which `kill` can act.
    pub enum Moment {
        /// The work completion of a send work request is handed to its completion queue.
        Completion = "completion",
        /// A queue pair becomes ready to receive.
        Rtr = "rtr",
        /// A queue pair becomes ready to send.
        Rts = "rts",
        /// librdmacm reports `RDMA_CM_EVENT_ESTABLISHED`.
        Established = "established",
        /// The work completion of a receive work request is handed to its completion queue.
        Received = "received",
    }
}

words! {
    /// The status of a work completion that a rule can cause; the words are those of `ibv_wc_status` without
    /// `IBV_WC_`.
    pub enum WcError {
        /// IBV_WC_LOC_LEN_ERR.
        LocLen = "LOC_LEN_ERR",
        /// IBV_WC_LOC_QP_OP_ERR.
        LocQpOp = "LOC_QP_OP_ERR",
        /// IBV_WC_LOC_PROT_ERR.
        LocProt = "LOC_PROT_ERR",
        /// IBV_WC_MW_BIND_ERR.
        MwBind = "MW_BIND_ERR",
        /// IBV_WC_REM_INV_REQ_ERR.
        RemInvReq = "REM_INV_REQ_ERR",
        /// IBV_WC_REM_ACCESS_ERR.
        RemAccess = "REM_ACCESS_ERR",
        /// IBV_WC_REM_OP_ERR.
        RemOp = "REM_OP_ERR",
        /// IBV_WC_RETRY_EXC_ERR.
        RetryExc = "RETRY_EXC_ERR",
        /// IBV_WC_RNR_RETRY_EXC_ERR.
        RnrRetryExc = "RNR_RETRY_EXC_ERR",
    }
}

impl Verb {
    /// Whether the device is known when the call is judged. An address is resolved to find one, and a
    /// listener may be for all of them. Many calls are judged before they look at an argument.
    pub const fn has_device(self) -> bool {
        (self as usize) <= Self::AllocMw as usize && !matches!(self, Self::ResolveAddr | Self::Listen)
    }

    /// The call that is judged at the entry of the C function `name`, before it looks at an argument.
    pub const fn at_entry(name: &str) -> Option<Self> {
        let name = match name.as_bytes() {
            [b'_', b'i', b'b', b'v', b'_', rest @ ..] => rest,
            [b'i', b'b', b'v', b'_', rest @ ..] => rest,
            [b'r', b'd', b'm', b'a', b'_', rest @ ..] => rest,
            rest => rest,
        };
        let mut index = Self::AllocMw as usize + 1;
        while let Some((_, rest)) = Self::WORDS.split_at_checked(index)
            && let Some((word, verb)) = rest.first()
        {
            if same(word.as_bytes(), name) {
                return Some(*verb);
            }
            index += 1;
        }
        None
    }

    /// Whether it is for a queue pair.
    pub(crate) const fn has_queue_pair(self) -> bool {
        matches!(self, Self::ModifyQp | Self::PostSend | Self::PostRecv | Self::QueryQp)
    }
}

impl Moment {
    /// Whether the device and the queue pair are known. librdmacm knows neither of programs that bring a
    /// queue pair of their own.
    pub(crate) const fn has_queue_pair(self) -> bool {
        !matches!(self, Self::Established)
    }
}

/// `==`, for constants.
const fn same(mut a: &[u8], mut b: &[u8]) -> bool {
    while let ([first, rest @ ..], [other, others @ ..]) = (a, b) {
        if *first != *other {
            return false;
        }
        (a, b) = (rest, others);
    }
    a.is_empty() && b.is_empty()
}

/// The errors that `fail` can cause, with their numbers on Linux.
pub(crate) const ERRNOS: &[(&str, i32)] = &[
    ("EPERM", 1),
    ("ENOENT", 2),
    ("EINTR", 4),
    ("EIO", 5),
    ("EBADF", 9),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("EBUSY", 16),
    ("ENODEV", 19),
    ("EINVAL", 22),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOSPC", 28),
    ("ERANGE", 34),
    ("ENOSYS", 38),
    ("EOPNOTSUPP", 95),
    ("EADDRINUSE", 98),
    ("EADDRNOTAVAIL", 99),
    ("ENETDOWN", 100),
    ("ENETUNREACH", 101),
    ("ECONNRESET", 104),
    ("ETIMEDOUT", 110),
    ("ECONNREFUSED", 111),
    ("EHOSTUNREACH", 113),
];

/// The reasons of a NAK that `nak` can give.
pub(crate) const NAKS: &[(&str, NakCode)] = &[
    ("psn", NakCode::PsnSequenceError),
    ("request", NakCode::InvalidRequest),
    ("access", NakCode::RemoteAccessError),
    ("operation", NakCode::RemoteOperationalError),
];

/// The name of an error, or its number.
pub fn errno_name(number: i32) -> String {
    let known = ERRNOS.iter().find(|(_, code)| *code == number);
    known.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}
