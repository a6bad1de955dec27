//! RDMA verbs from Rust, on any Linux machine: no RDMA card, no kernel module, no root.
//!
//! The wire protocol is RoCEv2. The other end may be a program on a RoCE card, on the Linux kernel's
//! `rdma_rxe`, or one that uses ferroce through `libibverbs`.
//!
//! ```no_run
//! use ferroce::{Access, Connection, Context, QpOptions, Status};
//!
//! # fn exchange(local: [u8; 24]) -> [u8; 24] { local }
//! # fn main() -> Result<(), ferroce::Error> {
//! let device = Context::open("fr0")?;
//! let domain = device.protection_domain()?;
//! let buffer = domain.register(vec![0; 4096], Access::LOCAL_WRITE)?;
//! let queue = device.completion_queue(16, None)?;
//!
//! let qp = domain.rc_queue_pair(&queue, &queue, QpOptions::default())?.init(Access::empty())?;
//! qp.post_recv(1, &[buffer.slice(..)])?;
//! let local = qp.address(0)?;
//! let remote = exchange(local.to_bytes()); // by any means: TCP, a file, a command line
//! let remote = ferroce::Address::from_bytes(&remote)?;
//! let qp = qp.ready_to_receive(&Connection::to(local, remote))?.ready_to_send(Default::default())?;
//!
//! qp.send(2, &[buffer.slice(..64)])?;
//! assert_eq!(queue.wait()?.status, Status::Success);
//! # Ok(())
//! # }
//! ```
//!
//! Instead of an exchange by other means, [`cm`] connects by IP address. Futures are in [`aio`].
//!
//! Dropping an object releases it. Memory is registered by value or for the length of a closure, so that the
//! device never writes to memory that was freed; see [`mr`].
//!
//! The numbers of the protocol ([`Gid`], [`Imm`], [`PathMtu`], [`Psn`], [`Qkey`], [`Qpn`], [`RejReason`],
//! [`Rkey`], [`SidrStatus`], [`SrqNumber`]) are types of the crate `ferroce-wire` and part of this API. The
//! other crates named `ferroce-…` promise nothing to programs.
//!
//! # What opening a device does to the process
//!
//! - The library looks for the broker and starts `ferroced`, from beside the program, from `PATH` or from
//!   `/usr/bin`. If it finds none, the broker runs in the program (feature `embedded`, a default), and ends
//!   with it.
//! - The library installs a handler for SIGSEGV and SIGBUS, which passes on all faults that are not its own.
//! - The library runs a background thread, which receives packets and runs timers while no thread of the
//!   program does.
#![deny(unsafe_code, rustdoc::private_intra_doc_links)]
#![warn(missing_docs, missing_debug_implementations)]

mod access;
pub mod aio;
mod attributes;
mod capacity;
pub mod cm;
mod connect_error;
mod connection;
mod cq;
mod datagram;
mod declare;
mod device;
mod device_memory;
pub mod error;
mod event;
mod handles;
mod impls;
pub mod mr;
mod multicast;
mod pd;
mod qp;
mod remote_memory;
pub mod service;
mod shared;
mod srq;
mod status;
mod window;
mod work_request;
mod xrc;
mod xrc_domain;

pub use access::Access;
pub use attributes::{DeviceAttr, DeviceInfo, GidEntry, GidType, PortAttr, PortState, Transport};
pub use connection::{Address, Connection, SendOptions};
pub use cq::{Completion, CompletionChannel, CompletionQueue, Moderation};
pub use datagram::{AddressHandle, HEADER};
pub use device::{Context, devices};
pub use device_memory::DeviceMemory;
pub use error::{Error, ErrorKind, QpError};
pub use event::{Event, EventKind, EventSource};
pub use ferroce_wire::cm::{RejReason, SidrStatus};
pub use ferroce_wire::{Gid, Imm, PathMtu, Psn, Qkey, Qpn, Rkey, SrqNumber};
pub use mr::{MemoryRegion, Slice};
pub use pd::ProtectionDomain;
pub use qp::{Init, QpOptions, QueuePair, ReadyToReceive, ReadyToSend, Reset};
pub use remote_memory::RemoteMemory;
pub use srq::{SharedReceiveQueue, SrqOptions};
pub use status::{Opcode, QpState, Status};
pub use window::MemoryWindow;
pub use work_request::WorkRequest;
pub use xrc::{XrcInitiator, XrcTarget};
pub use xrc_domain::XrcDomain;
