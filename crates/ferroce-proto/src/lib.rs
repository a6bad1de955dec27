//! The RDMA transport's state machines, without I/O.
//!
//! The caller gives a [`QueuePair`] the application's work requests, the packets that arrived and the time.
//! The queue pair returns packets to send, completions, and the time of the next call. It reads no clock,
//! opens no socket and touches memory only through [`Memory`]. Rules are cited as `IBTA 9.7.5.1.2` or
//! `IBTA C9-92` (InfiniBand Architecture Specification volume 1).

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

extern crate alloc;

mod attr;
mod budget;
mod completion;
mod counters;
mod counting;
mod error;
pub mod history;
mod hold;
pub mod iwarp;
mod memory;
mod qp;
mod receive;
mod ring;
mod sg;
mod srq;
mod work_request;

pub use attr::{
    AhAttr, CongestionControl, QpAccess, QpAttr, QpAttrMask, QpCaps, QpConfig, QpState, SelectiveRepeat,
    Service,
};
pub use budget::Budget;
pub use completion::{AsyncEventKind, NetworkHeader, QpEvent, WcOpcode, WcStatus, WorkCompletion};
pub use counters::Counters;
pub use counting::{COUNTED_OPS, CompletionCounter, CounterUnit};
pub use error::{
    AttachCounterError, CreateQpError, DropReason, ModifyQpError, ModifySrqError, PostRecvError,
    PostSendError,
};
pub use memory::{Domain, Memory, MemoryError, RemoteAccess};
pub use qp::{Backlog, MAX_FRAME, QueuePair, SqMark, StreamState, bring_up_mask};
pub use receive::{NoSharedQueue, ReceiveSource, RecvWqe, SharedReceives, Taken};
pub use srq::{SharedReceiveQueue, SrqAttr, SrqAttrMask};
pub use work_request::{
    Bind, DirectKind, DirectLocal, DirectRequest, DirectTarget, RecvWr, Remote, SendOp, SendTo, SendWr, Sge,
    WindowAccess,
};
