//! How do I break it on purpose? Seeded clocks, networks and fabrics for tests.
//!
//! A [`Network`] carries packets of any type between numbered endpoints, in order of time and then of
//! sending, so that a run with the same seed is the same run. Rules decide what becomes of each packet. The
//! driver of the endpoints moves the clock to the next arrival or timer: nothing here waits.
//!
//! A [`Fabric`](fabric::Fabric) carries packets over a topology of hosts, switches and links instead, each
//! with its rate, delay and queue. There a plan of [`ferroce_fault`], the same that `ferroce run --fault`
//! takes, may decide too.
//!
//! [`Hosts`](hosts::Hosts) are hosts with real queue pairs of `ferroce-proto` on a fabric: a driver posts
//! work requests, moves the clock from event to event, and reads completions. The example `two_hosts` is a
//! whole driver. A [scenario] is a file with hosts, links, flows and faults, which `ferroce sim` runs. A
//! [soak] has hosts exchange messages of all kinds on a bad network and checks each; [congestion] measures
//! how flows share a link or a receiver.
//!
//! The types of work requests and completions are those of [`verbs`], numbers and times those of [`wire`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod congestion;
mod datagram;
mod end;
pub mod fabric;
mod faults;
mod frame;
pub mod hosts;
mod network;
pub mod ram;
mod rng;
pub mod rules;
pub mod scenario;
pub mod soak;
mod tcp;
pub mod trace;
pub mod workload;

pub use datagram::{Datagram, Stats, Verdict};
pub use end::End;
pub use ferroce_proto as verbs;
pub use ferroce_wire as wire;
pub use frame::Frame;
pub use network::{Link, Network};
pub use rng::{Rng, Seed};
