//! RoCE wire format: headers, opcodes and the ICRC.
//!
//! A received datagram is parsed once into a [`Packet`]; the code above does not read its bytes again. On the
//! send side a `Packet` writes its own headers. This crate does not allocate, do I/O or read a clock.
//!
//! Layout facts are cited as `IBTA 9.2` (InfiniBand Architecture Specification volume 1) and `RoCEv2 A17`
//! (its annex).

#![no_std]
#![warn(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod aeth;
mod batch;
mod bits;
pub mod cm;
mod error;
mod flow;
mod frame;
mod gid;
mod grh;
mod header;
pub mod icrc;
pub mod iwarp;
pub mod mad;
mod mix;
mod num;
mod opcode;
mod out;
mod packet;
mod time;
pub mod view;

pub use aeth::{Aeth, CreditCode, NakCode, Syndrome};
pub use batch::{BatchLimits, PushError, Sink, Slot, TxBatch};
pub use error::WireError;
pub use flow::{Flow, IpHeader, LinkLayer, ROCE_UDP_PORT, RoceVersion};
pub use frame::{ETHERTYPE_ROCE, Encapsulation, Ethernet, Frame, FrameError};
pub use gid::Gid;
pub use grh::Grh;
pub use header::{AtomicEth, Bth, Deth, Feth, Reth};
pub use icrc::{Icrc, IcrcChecker, IdSolver};
pub use mix::{MIX_STEP, mix};
pub use num::{
    AckTimeout, Imm, InvalidPathMtu, Lkey, Msn, PathMtu, Pkey, Psn, Qkey, Qpn, Rkey, RnrTimer, SrqNumber, Ssn,
};
pub use opcode::{Headers, OpcodeInfo, PayloadRule, RcOpcode, Service, WireOpcode};
pub use packet::{IcrcStatus, Operation, Packet, RcPacket, Request, Response, SendTail, UdPacket};
pub use time::{Due, Instant, Span};
