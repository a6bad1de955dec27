//! Codes in completions, and states of queue pairs.

use std::fmt;

use crate::declare::mirror;

mirror! {
    /// Status of a completion. Discriminants are those of `ibv_wc_status`.
    #[doc(alias = "ibv_wc_status")]
    pub enum Status of WcStatus {
        /// The work request succeeded.
        Success = 0,
        /// A received message is longer than the receive's memory, or a sent one than 2^31 octets.
        LocLenErr = 1,
        /// The queue pair cannot execute the work request.
        LocQpOpErr = 2,
        /// The end-to-end context cannot execute the work request. ferroce never reports it.
        LocEecOpErr = 3,
        /// A slice is not inside registered memory with the needed rights, or its region was dropped.
        LocProtErr = 4,
        /// The queue pair moved to the error state before the work request was executed.
        WrFlushErr = 5,
        /// A memory window could not be bound.
        MwBindErr = 6,
        /// The peer sent an invalid response.
        BadRespErr = 7,
        /// A WRITE with immediate data failed at the receiver: its memory does not permit the access.
        LocAccessErr = 8,
        /// The peer refused the request as invalid: for example, its receive is too small.
        RemInvReqErr = 9,
        /// The peer's memory does not permit the access: key, range or rights are wrong.
        RemAccessErr = 10,
        /// The peer could not execute the request.
        RemOpErr = 11,
        /// The peer did not acknowledge, after all retries.
        RetryExcErr = 12,
        /// The peer had no receive posted, after all retries.
        RnrRetryExcErr = 13,
        /// A reliable datagram domain is wrong. ferroce never reports it.
        LocRddViolErr = 14,
        /// The peer refused a reliable datagram. ferroce never reports it.
        RemInvRdReqErr = 15,
        /// The peer aborted the operation.
        RemAbortErr = 16,
        /// The number of an end-to-end context is wrong. ferroce never reports it.
        InvEecnErr = 17,
        /// The state of an end-to-end context is wrong. ferroce never reports it.
        InvEecStateErr = 18,
        /// The device failed.
        FatalErr = 19,
        /// The peer did not respond in time.
        RespTimeoutErr = 20,
        /// Another error.
        GeneralErr = 21,
    }
}

mirror! {
    /// The completed operation, valid if the work request succeeded. Discriminants are those of
    /// `ibv_wc_opcode`.
    #[doc(alias = "ibv_wc_opcode")]
    pub enum Opcode of WcOpcode {
        /// A message was sent.
        Send = 0,
        /// A WRITE, with or without immediate data, was executed.
        RdmaWrite = 1,
        /// A READ was executed.
        RdmaRead = 2,
        /// A compare-and-swap was executed.
        CompSwap = 3,
        /// A fetch-and-add was executed.
        FetchAdd = 4,
        /// A memory window was bound.
        BindMw = 5,
        /// A key of this process was invalidated.
        LocalInv = 6,
        /// A flush of the peer's memory was executed.
        Flush = 8,
        /// An atomic write was executed.
        AtomicWrite = 9,
        /// A message was received.
        Recv = 128,
        /// A WRITE with immediate data of the peer was received.
        RecvRdmaWithImm = 129,
    }
}

mirror! {
    /// State of a queue pair. Discriminants are those of `ibv_qp_state`.
    #[doc(alias = "ibv_qp_state")]
    pub enum QpState of QpState {
        /// The queue pair was created, or reset.
        Reset = 0,
        /// The queue pair accepts receives, but no packets.
        Init = 1,
        /// Ready to receive: the queue pair receives, but does not send.
        Rtr = 2,
        /// Ready to send: the queue pair sends and receives.
        Rts = 3,
        /// The send queue is drained: started work requests complete, and others wait.
        Sqd = 4,
        /// A send failed, and the send queue stopped; receives go on.
        Sqe = 5,
        /// An error ended the queue pair, and its work requests complete as flushed.
        Error = 6,
    }
}

impl fmt::Display for QpState {
    /// Writes the name in `ibv_qp_state` without `IBV_QPS_`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERR",
        })
    }
}
