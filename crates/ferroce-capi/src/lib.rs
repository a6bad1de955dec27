//! What does each C call do? `ibv_*`, `rdma_*` and `umad_*` over the engine.
//!
//! A module an object; each holds the exported functions and those behind the inline ones. `call` is the boundary
//! that every call crosses, [`errno`] the one place where errors become numbers, `handle` the memory behind the
//! pointers that programs hold, [`refused`] what this version does not do.
//!
//! Nothing here is `#[no_mangle]`: `ferroce-dropin` gives the functions their names and versions.

pub mod ah;
mod attr;
mod call;
pub mod channel;
pub mod context;
pub mod cq;
mod cq_ex;
pub mod device;
mod domain;
mod entry;
pub mod errno;
pub mod events;
pub mod flow;
pub mod fork;
mod handle;
pub mod import;
mod log;
pub mod mcast;
pub mod mr;
mod mw;
mod ops;
pub mod pd;
mod post;
pub mod qp;
mod qp_ex;
pub mod query;
pub mod rates;
pub mod rdmacm;
pub mod refused;
pub mod rsocket;
pub mod srq;
pub mod start;
pub mod strings;
pub mod sysfs;
pub mod umad;
mod wait;
pub(crate) mod xrcd;
