//! The words of the language that stand for numbers.

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
    /// The status of a work completion that a rule can cause; the words are those of `ibv_wc_status` without `IBV_WC_`.
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
    /// Whether the device is known when the call is judged. An address is resolved to find one, and a listener may be for all of them.
    pub(crate) const fn has_device(self) -> bool {
        !matches!(self, Self::ResolveAddr | Self::Listen)
    }

    /// Whether it is for a queue pair.
    pub(crate) const fn has_queue_pair(self) -> bool {
        matches!(self, Self::ModifyQp | Self::PostSend | Self::PostRecv)
    }
}

impl Moment {
    /// Whether the device and the queue pair are known. librdmacm knows neither of programs that bring a queue pair of their own.
    pub(crate) const fn has_queue_pair(self) -> bool {
        !matches!(self, Self::Established)
    }
}

/// The errors that `fail` can cause, with their numbers on Linux.
const ERRNOS: &[(&str, i32)] = &[
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

/// The number of an error; `None` for a name that this crate does not know.
pub(crate) fn errno(name: &str) -> Option<i32> {
    ERRNOS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The names that [`errno`] knows.
pub(crate) fn errno_names() -> impl Iterator<Item = &'static str> {
    ERRNOS.iter().map(|(name, _)| *name)
}

/// The name of an error, or its number.
pub fn errno_name(number: i32) -> String {
    let known = ERRNOS.iter().find(|(_, code)| *code == number);
    known.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}
