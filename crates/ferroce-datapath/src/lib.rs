//! How do packets move? UDP sockets with segmentation offload; packet sockets for raw frames.
//!
//! The crate knows addresses, slots and batches of sealed packets, and no queue pair. [`udp::Group`] is what the broker
//! holds for a local address, [`udp::RxSocket`] is a member of it in a program's hands, [`udp::TxSocket`] sends from
//! one UDP source port.
#![deny(unsafe_code)]

#[cfg(feature = "fault")]
pub mod fault;
pub mod packet;
mod sys;
pub mod udp;
