//! How do I break it on purpose? Seeded clocks, networks and fabrics for tests.
//!
//! A [`Network`] carries packets of any type between numbered endpoints, in order of time and then of sending, so that a
//! run with the same seed is the same run. Rules decide what becomes of each packet. The driver of the endpoints moves
//! the clock to the next arrival or timer: nothing here waits.
//!
//! The rules can be a plan of [`ferroce_fault`], the same that `ferroce run --fault` takes ([`Network::set_judge`]). A
//! [`Fabric`](fabric::Fabric) carries packets over a topology of hosts, switches and links instead, each with its rate, delay and queue.

#![forbid(unsafe_code)]

pub mod fabric;
mod network;
mod pcap;
mod rng;
pub mod rules;

pub use network::{Datagram, Link, Network, Stats, Verdict};
pub use pcap::PcapFile;
pub use rng::{Rng, Seed};
