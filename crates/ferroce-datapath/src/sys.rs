//! System calls without a safe crate: options of UDP sockets, batched receive and send with control messages,
//! `bpf(2)`, the rings of AF_XDP. All unsafe code of this crate.
#![allow(unsafe_code)]

mod bpf;
mod dpdk;
mod options;
mod packet;
mod recv;
mod send;
mod tap;
mod xsk;

pub(crate) use bpf::*;
pub(crate) use dpdk::*;
pub(crate) use options::*;
pub(crate) use packet::*;
pub(crate) use recv::*;
pub(crate) use send::*;
pub(crate) use tap::*;
pub(crate) use xsk::*;
