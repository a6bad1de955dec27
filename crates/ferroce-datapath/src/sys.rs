//! System calls without a safe crate: options of UDP sockets, batched receive and send with control messages. All
//! unsafe code of this crate.
#![allow(unsafe_code)]

mod options;
mod packet;
mod recv;
mod send;

pub(crate) use options::*;
pub(crate) use packet::*;
pub(crate) use recv::*;
pub(crate) use send::*;
