//! Registered memory: who may touch which bytes, and how they are touched.
//!
//! A [`MemoryTable`] has the regions and windows of a process. Every touch of the program's memory, sending
//! and receiving, goes through a [`View`] of it: the view finds the region by key, checks domain, permission
//! and range, and copies by raw pointers inside [`guard`], so that memory which was unmapped, protected or
//! truncated behind a registration becomes [`MemoryError::Fault`](ferroce_proto::MemoryError::Fault) instead
//! of the program's death. Nothing is pinned or populated. [`vectors`] lets the kernel copy between a socket
//! and registered memory.
//!
//! Registered memory is never a slice: program and peers write to it at any time.
//!
//! Memory of a GPU is reached by copies of the CUDA driver and not by the processor: how a region's bytes are
//! reached is its `backing`, and [`View`] hides the difference. Such copies take microseconds, so `staging`
//! gathers the octets of a message.
//!
//! [`publisher`] shows the table to other processes of this host, and [`direct`] copies to and from theirs.
//!
//! The crate knows no device, no packet and no thread of progress. Who uses it needs no `unsafe`: the engine
//! forbids it.
#![deny(unsafe_code)]

mod access;
mod advice;
mod backing;
pub mod direct;
mod file;
pub mod guard;
mod held;
mod key;
mod limit;
mod mappings;
mod pages;
pub mod publisher;
mod slots;
mod staging;
mod table;
pub mod vectors;
mod view;
mod window;

pub use access::{Access, PdId, RegMrError};
pub use advice::{Advice, AdviseError};
pub use ferroce_gpu::{Refusal as DeviceRefusal, is_off as gpu_is_off};
pub use file::FileMapping;
pub(crate) use held::HeldRegions;
pub(crate) use key::Secret;
pub use key::{Key, MAX_REGIONS, MAX_WINDOWS};
pub use limit::Limit;
pub use pages::{DmAccessError, PAGE, Pages};
pub use slots::MwType;
pub use table::{Change, MemoryTable};
pub use view::View;

#[cfg(test)]
mod tests;
