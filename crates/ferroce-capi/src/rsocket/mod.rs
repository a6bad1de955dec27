//! Rsockets: `rsocket(7)`.
//!
//! Each call does what the socket call without the `r` does. A program's number is that of a descriptor that
//! is the socket's alone, in a table of this process; a forked child has an empty one. Where rdma-core
//! differs from the socket call and `librspreload` depends on it, we are as rdma-core: unknown options are
//! EOPNOTSUPP, and a second `rconnect` succeeds.
//!
//! The calls that may block are cancellation points, as those of sockets are; `rshutdown` and `rclose` are
//! none.

mod address;
mod connection;
mod data;
mod mapping;
mod option;
mod poll;
mod repoll;
mod table;

pub use connection::{
    raccept, rbind, rclose, rconnect, rfcntl, rgetpeername, rgetsockname, rlisten, rshutdown, rsocket,
};
pub use data::{rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rwrite, rwritev};
pub use mapping::{riomap, riounmap, riowrite};
pub use option::{rgetsockopt, rsetsockopt};
pub use poll::{rpoll, rselect};
pub use repoll::{repoll_create, repoll_ctl, repoll_wait};

use ferroce_rsocket::RsocketError;

use crate::errno::Errno;
use crate::wait::Step;

/// An attempt of a call that may have to wait.
fn attempt<T>(result: Result<T, RsocketError>) -> Result<Step<T>, Errno> {
    match result {
        Ok(value) => Ok(Step::Done(value)),
        Err(RsocketError::Suspended(sleep)) => Ok(Step::Sleep(*sleep, -1)),
        Err(error) => Err(error.into()),
    }
}
