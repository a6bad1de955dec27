//! Transport of packets: UDP sockets with segmentation offload, and packet sockets for raw frames.
//!
//! The crate knows addresses, slots and batches of sealed packets, and no queue pair. The broker holds a [`udp::Group`]
//! for each local address; a program receives from one member of it, a [`udp::RxSocket`]; a [`udp::TxSocket`] sends
//! from one UDP source port.
#![deny(unsafe_code)]

#[cfg(feature = "fault")]
pub mod fault;
pub mod packet;
mod sys;
pub mod udp;
