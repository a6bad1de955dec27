//! Completions and events of a queue pair.

use crate::SendOp;
use ferroce_wire::{Flow, Imm, Qpn, Rkey, RoceVersion, SrqNumber};

/// Status of a completion; discriminants are those of `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_wc_status")]
#[repr(u8)]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

/// The operation that completed; discriminants are those of `ibv_wc_opcode`. Valid on success only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_wc_opcode")]
#[repr(u8)]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

impl WcOpcode {
    /// The opcode in the completion of a send work request.
    pub(crate) const fn of(op: &SendOp) -> Self {
        match op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => Self::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => Self::RdmaWrite,
            SendOp::Read { .. } => Self::RdmaRead,
            SendOp::CompareSwap { .. } => Self::CompSwap,
            SendOp::FetchAdd { .. } => Self::FetchAdd,
            SendOp::AtomicWrite { .. } => Self::AtomicWrite,
            SendOp::Flush { .. } => Self::Flush,
            SendOp::LocalInvalidate(_) => Self::LocalInv,
            SendOp::BindMw(_) => Self::BindMw,
        }
    }
}

/// The network header that a packet came behind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NetworkHeader {
    /// A GRH: RoCE v1.
    Grh,
    /// IPv6: RoCE v2.
    Ipv6,
    /// IPv4: RoCE v2.
    Ipv4,
}

impl NetworkHeader {
    /// The header of packets along `flow`.
    pub const fn of(flow: &Flow) -> Self {
        match flow.link.version {
            RoceVersion::V1 => Self::Grh,
            RoceVersion::V2 if flow.is_ipv4() => Self::Ipv4,
            RoceVersion::V2 => Self::Ipv6,
        }
    }
}

/// A completion (`ibv_wc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_wc")]
pub struct WorkCompletion {
    pub wr_id: u64,
    pub status: WcStatus,
    /// The operation that completed, on errors too.
    pub opcode: WcOpcode,
    /// Length of the message in octets; on errors 0.
    pub byte_len: u32,
    /// Immediate data of a received message.
    pub imm: Option<Imm>,
    /// Key that a received message ended.
    pub invalidated: Option<Rkey>,
    /// The queue pair it completed on.
    pub qpn: Qpn,
    /// The sender (UD); on RC the connected peer.
    pub src_qp: Qpn,
    /// The message asked for a solicited event. Errors are to be treated as solicited whatever this says.
    pub solicited: bool,
    /// A message was received, and its packets had a network header: RC, UC, XRC and UD (rxe 6.12 rxe_resp.c
    /// `do_complete`). The buffer begins with the [`Flow::grh_area`] of a datagram alone.
    pub grh: bool,
    /// The kind of a received datagram's network header; `None` for everything else.
    pub header: Option<NetworkHeader>,
    /// More about an error: 0, or the AETH syndrome that the peer sent.
    pub vendor_err: u32,
}

impl WorkCompletion {
    /// Room for one that is yet to be polled.
    pub const BLANK: Self = Self {
        wr_id: 0,
        status: WcStatus::GeneralErr,
        opcode: WcOpcode::Send,
        byte_len: 0,
        imm: None,
        invalidated: None,
        qpn: Qpn::new(0),
        src_qp: Qpn::new(0),
        solicited: false,
        grh: false,
        header: None,
        vendor_err: 0,
    };
}

/// The kind of an asynchronous event; discriminants are those of `ibv_event_type`. Queue pairs and shared
/// receive queues raise their own here, and the engine the rest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_event_type")]
#[repr(u8)]
pub enum AsyncEventKind {
    /// A completion was lost because the queue was full.
    CqErr = 0,
    /// The queue pair cannot go on, as after an overrun of its completion queue.
    QpFatal = 1,
    /// The peer asked what it may not (NAK 0x61), and no receive WQE could report it.
    QpReqErr = 2,
    /// The peer used a bad key or range (NAK 0x62), and no receive WQE could report it.
    QpAccessErr = 3,
    /// First request processed in RTR.
    CommEst = 4,
    /// SQD reached: everything that had started has completed.
    SqDrained = 5,
    /// The device is gone.
    DeviceFatal = 8,
    /// The netdev came up.
    PortActive = 9,
    /// The netdev went down.
    PortErr = 10,
    /// A shared receive queue failed: nothing is taken from it any more.
    SrqErr = 14,
    /// Fewer work requests than the limit are left in a shared receive queue. The limit is 0 from then on.
    SrqLimitReached = 15,
    /// No more WQE will be taken from the shared receive queue.
    QpLastWqeReached = 16,
    /// The GID table changed.
    GidChange = 18,
}

/// The result of [`crate::QueuePair::poll_event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpEvent {
    /// For the send completion queue.
    Send(WorkCompletion),
    /// For the receive completion queue.
    Recv(WorkCompletion),
    /// For the completion queue of the shared receive queue with this number: XRC.
    RecvXrc(SrqNumber, WorkCompletion),
    /// For the context's event queue.
    Async(AsyncEventKind),
}
