//! Transport of packets: UDP sockets with segmentation offload, AF_XDP sockets, and packet sockets for raw
//! frames.
//!
//! The crate knows addresses, slots and batches of sealed packets, and no queue pair. The broker holds a
//! [`udp::Group`] for each local address; a program receives from one member of it, a [`udp::RxSocket`]; a
//! [`udp::TxSocket`] sends from one UDP source port. [`xdp`] gives programs a way past the kernel's network
//! stack, if the broker has the privileges. A [`dpdk::Port`] and a [`tap::Tap`] are for interfaces that the
//! broker drives itself.
#![deny(unsafe_code)]

pub mod dpdk;
pub mod packet;
mod sys;
pub mod tap;
pub mod udp;
pub mod xdp;
