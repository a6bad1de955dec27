//! How do I break it on purpose? A seeded clock and network for tests.
//!
//! A [`Network`] carries packets of any type between numbered endpoints, in order of time and then of sending, so that a
//! run with the same seed is the same run. Rules decide what becomes of each packet. Whoever drives the endpoints moves
//! the clock to the next arrival or timer: nothing here waits.

#![forbid(unsafe_code)]

mod network;
mod pcap;
mod rng;
pub mod rules;

pub use network::{Datagram, Link, Network, Stats, Verdict};
pub use pcap::PcapFile;
pub use rng::{Rng, Seed};
