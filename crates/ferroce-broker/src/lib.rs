//! The broker owns everything that only one process can own: UDP port 4791, the devices and their GID tables,
//! connection management, and the switch of frames.
//!
//! `Broker` (in `logic`) decides and does no I/O of its own on connections; [`Server`] runs it over sockets,
//! in the process `ferroced` or in a thread of a program ([`start_embedded`]). A program's side is
//! `ferroce_client`.
//!
//! Modules use each other in one direction, lowest first:
//!
//! 1. `early_requests`, which wait for their listener; `gid_table`; `gsi`, the sockets of queue pair 1;
//!    `holder` of a port or of a name; `link_file`; `owner_file`, the users of slots; `record_key`, by which
//!    a broker knows the records of an earlier one;
//! 2. the state that the logic keeps: `devices`, `ports` and `cm`, the connection manager, and `slots`;
//!    `namespace`;
//! 3. `access`, which users may connect; `dpdk`, the ports that DPDK drives; `switch`, which carries frames
//!    on a thread of its own; `parking`, the sockets that outlive a broker; `system`, the trait by which the
//!    logic reaches the kernel and the files, with `xdp`, its part for AF_XDP;
//! 4. `groups`, the sockets of each address, and `logic`, which decides;
//! 5. `server`, the loop around them, and `embedded`, which runs it in a program.
#![deny(unsafe_code)]

mod access;
mod by_pair;
mod cm;
mod devices;
mod dpdk;
mod early_requests;
mod embedded;
#[cfg(any(test, feature = "fuzzing"))]
mod fake;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gid_table;
mod groups;
mod gsi;
mod holder;
mod keep_alive;
mod link_file;
mod logic;
mod namespace;
mod numbers;
mod owner_file;
mod parking;
mod ports;
mod privilege;
mod record_key;
mod server;
mod slots;
mod switch;
mod sys;
mod system;
mod xdp;

pub use access::Access;
pub use embedded::start as start_embedded;
pub use server::{FEWEST_DESCRIPTORS, Server, ServerError, ServerOptions, Stopper};

use ferroce_ipc::{Refusal, RefusalCode};

/// Names a connection, for the broker's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Names a process that holds connections or slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

fn refusal(code: RefusalCode, sentence: impl Into<String>) -> Refusal {
    Refusal { code, sentence: sentence.into() }
}
