//! Registered memory: who may touch which bytes, and how they are touched.
//!
//! Every touch of the program's memory, sending and receiving, goes through a [`View`]: it finds the region by key,
//! checks domain, permission and range, and copies by raw pointers inside [`guard`], so that memory which was unmapped,
//! protected or truncated behind a registration becomes [`MemoryError::Fault`](ferroce_proto::MemoryError::Fault)
//! instead of the program's death. Nothing is pinned or populated.
//!
//! Registered memory is never a slice: program and peers write to it at any time.
#![allow(unsafe_code)]

mod access;
mod advice;
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
mod table;
mod view;
mod window;

pub use access::{Access, PdId, RegMrError};
pub use advice::{Advice, AdviseError};
pub use file::FileMapping;
pub use held::Held;
pub(crate) use key::Secret;
pub use key::{Key, MAX_REGIONS, MAX_WINDOWS};
pub use limit::Limit;
pub use pages::{DmAccessError, PAGE, Pages};
pub use slots::MwType;
pub use table::{Change, MemoryTable};
pub use view::View;

#[cfg(test)]
mod tests;
