//! The behaviour of each C call: `ibv_*`, `rdma_*` and `umad_*` over the engine.
//!
//! The modules, lowest first; each uses only those before it:
//!
//! - [`errno`] is the one place where errors become numbers, `log` where log lines go, [`refused`] what this
//!   version does not do, [`strings`] and [`rates`] are tables, [`fork`] and [`start`] answer without an
//!   engine, `attr` converts attributes;
//! - `stack` gives a call room, `call` is the boundary that every call crosses, `handle` the memory behind
//!   the pointers that programs hold, `wait` the calls that may be cancelled, `entry` makes exported
//!   functions from safe bodies;
//! - `device`, `origin`, `sysfs` and `context` are devices and what was opened of them;
//! - a module for each kind of object: `pd`, `domain`, `buffer`, `channel`, `counter`, `cursor`, `cq`,
//!   `cq_ex`, `xrcd`, `srq`, `mr`, `mw`, `ah`, `batch`, `qp`, `post`, `qp_ex`, `create_qp`, `flow`, `mcast`;
//!   each holds the exported functions and those behind the inline ones;
//! - `check` looks for faults of the program, for all that posts, polls, makes and ends;
//! - `query` and `events` look at them, `ops` is the table of functions in a context, `open` and `import`
//!   make contexts;
//! - [`rdmacm`], [`rsocket`] and [`umad`] are the other libraries.
//!
//! Nothing here is `#[no_mangle]`: `ferroce-dropin` gives the functions their names and versions.

pub mod ah;
mod attr;
mod batch;
pub mod buffer;
mod call;
pub mod channel;
mod check;
mod context;
pub mod counter;
pub mod cq;
pub mod cq_ex;
pub mod create_qp;
mod cursor;
pub mod device;
mod dm;
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
pub mod open;
mod ops;
mod origin;
pub mod pd;
mod post;
pub mod qp;
mod qp_ex;
pub mod query;
pub mod rates;
pub mod rdmacm;
mod reason;
pub mod refused;
pub mod rsocket;
pub mod srq;
mod stack;
pub mod start;
pub mod strings;
pub mod sysfs;
pub mod umad;
mod wait;
pub(crate) mod xrcd;
