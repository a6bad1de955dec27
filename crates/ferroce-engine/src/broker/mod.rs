//! Who owns what programs share: the broker's logic, its server, and the program's client of it.
//!
//! `Broker` (in `logic`) decides and does no I/O of its own on connections; [`Server`] runs it over sockets, in the process
//! `ferroced` or in a thread of a program. [`client::BrokerClient`] is a program's side: it finds or starts the broker,
//! leases slots, follows news, and after the broker's death finds or starts the next one and hands back what it holds.

pub mod client;
mod cm;
mod daemon;
mod devices;
mod early;
#[cfg(any(test, feature = "fuzzing"))]
mod fake;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gid_table;
mod groups;
mod gsi;
mod holder;
mod link_file;
mod logic;
mod namespace;
mod netdev;
mod parking;
mod ports;
mod rtnetlink;
mod runtime_dir;
mod server;
mod slots;
mod spawn;
mod switch;
mod sys;
mod world;

pub use client::{BrokerClient, BrokerError, BrokerEvent, BrokerMode, Lease, LeasedAddress};
pub(crate) use rtnetlink::{Monitor, has_virtual_wire};
pub use runtime_dir::RuntimeDir;
pub use server::{FEWEST_DESCRIPTORS, Server, ServerError, ServerOptions};
pub(crate) use switch::{ring, silence};

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
