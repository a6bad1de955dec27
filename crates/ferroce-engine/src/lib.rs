//! Devices with their tables and progress. How packets move is the crate below,
//! [`ferroce_paths`]; registered memory is [`ferroce_memory`].
//!
//! [`devices`] lists, [`Context::open`] opens, and everything else is made from a [`Context`]:
//!
//! ```text
//! Context ─┬─ Pd ─┬─ Mr
//!          │      ├─ Srq
//!          │      └─ Qp ── uses two CompletionQueues, perhaps a Srq
//!          ├─ CompletionQueue ── may report to a CompletionChannel
//!          ├─ CompletionChannel
//!          └─ AsyncQueue
//! ```
//!
//! All objects are `Arc`, `Send` and `Sync`; any call may be made from any thread at any time.
//! Ending one is explicit (`destroy`, `dealloc`, `dereg`, `close`) and refused with [`error::Busy`]
//! while others use it. [`lane`] tells who receives packets on whose thread.
//!
//! Modules know each other in one direction, lowest first:
//!
//! 1. errors, counters, `handover`, device descriptions, the table of queue pair numbers;
//! 2. [`lane`]: receives, and delivers to endpoints, the half of a queue pair that packets need; `mcast`;
//! 3. `engine`: what a process has once, with the background thread and the broker's events;
//! 4. `notify`, `async_queue`, `context`, and the objects: `pd`, `mr`, `mw`, `ah`, `channel`, `cq`, `srq`,
//!    `xrc`, `qp`;
//! 5. `async_event`, which names all objects, [`sysfs`] and [`cm`].
//!
//! A lower module reaches a higher one by a trait that it defines: `lane::Outputs`, `engine::OpenDevice`,
//! `moderation::Moderate`, `async_queue::EventSource`. A constructor stands with what it makes.
#![forbid(unsafe_code)]

mod ah;
mod async_event;
mod async_queue;
mod channel;
pub mod cm;
mod congestion;
mod context;

mod cq;
mod device;
mod device_memory;
mod engine;
pub mod error;
pub mod half_open;
mod handover;
pub mod lane;
mod mcast;
mod moderation;
mod mr;
mod mw;
mod notify;
mod pd;
mod qp;
mod qpn;
mod selective_repeat;
mod sleep;
mod srq;
pub mod sysfs;
mod wall_clock;
mod xrc;

/// The faults that a program's calls meet.
pub mod faults {
    pub use ferroce_paths::faults::{Moment, Verb, VerbFacts, WcError, established, verb, verbs};
}

/// The atomics of [`handover`]; its test puts loom's in their place.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}

pub use ah::Ah;
pub use async_event::{AsyncElement, AsyncEvent};
pub use async_queue::{AckCount, AsyncQueue};
pub use channel::CompletionChannel;
pub use context::Context;
pub use cq::{CompletionQueue, CqInit, CqPoll};
pub use device::{
    DEFAULT_SPEED, DeviceAttr, DeviceInfo, GID_TABLE_LEN, GidEntry, GidType, LinkKind, LinkSettings, MAX_AH,
    MAX_CQ, MAX_CQE, MAX_DM_SIZE, MAX_INLINE, MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH, MAX_MR, MAX_MW, MAX_PD,
    MAX_QP, MAX_QP_WR, MAX_RD_ATOM, MAX_SGE, MAX_SRQ, MAX_SRQ_SGE, MAX_SRQ_WR, MAX_TOTAL_MCAST_QP_ATTACH,
    Origin, PhysState, PortAttr, PortState, width_and_speed,
};
pub use device_memory::DeviceMemory;
pub use engine::{RemovalWatch, device_named, device_statistics, devices};
pub use ferroce_datapath::packet::{Layer, Pattern, Rule};
pub use ferroce_host::PerProcess;
pub use ferroce_host::fork::epoch as process_epoch;
pub use ferroce_host::idle::Look;
pub use ferroce_host::thread::Uncancellable;
pub use ferroce_ipc::ledger::DeviceCounters;
pub use ferroce_ipc::ledger::port_counters;
pub use ferroce_memory::{Access, Advice, AdviseError, MwType, RegMrError};
pub use ferroce_paths::frames::FlowId;
pub use ferroce_paths::neighbour;
pub use ferroce_proto::{
    AhAttr, AsyncEventKind, Bind, COUNTED_OPS, CompletionCounter, CounterUnit, NetworkHeader, QpAccess,
    QpAttr, QpAttrMask, QpCaps, QpState, RecvWr, Remote, SendOp, SendTo, SendWr, Service, Sge, SrqAttr,
    SrqAttrMask, WcOpcode, WcStatus, WindowAccess, WorkCompletion, bring_up_mask,
};
pub use moderation::Moderation;
pub use mr::{Mr, MrChange};
pub use mw::Mw;
pub use notify::NotifyQueue;
pub use pd::{Pd, ThreadDomain};
pub use qp::{Qp, QpInit, QpShare, Receives, SendBatch, Sends};
pub use sleep::{Held, Sleep};
pub use srq::{Srq, SrqInit};
pub use wall_clock::WallClock;
pub use xrc::{Inode, Xrcd, XrcdInit};
