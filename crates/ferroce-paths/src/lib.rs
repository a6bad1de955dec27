//! The ways by which packets leave a program and arrive: UDP sockets, shared memory to other programs of this
//! host, rings to the broker, AF_XDP, the TCP connections of iWARP, and the frames of raw packets.
//!
//! The crate knows queue pairs only as the state machines of `ferroce-proto` that have packets to send.
//! Lanes, endpoints and all tables of objects are the engine's, above.
//!
//! Modules know each other in one direction, lowest first:
//!
//! 1. [`clock`], [`devices`], which the broker told of, and [`permitted`], the ways that the user chose;
//!    [`neighbour`], the next hop to a peer; [`rx`], packets as they arrive; [`delayed_ack`], when an ACK
//!    leaves;
//! 2. the ways: [`rings`], [`pipes`], [`frames`], [`tx`] and [`xdp`];
//! 3. [`tx_path`], which has one of them for each connection;
//! 4. [`faults`]: packets and calls are harmed by plan;
//! 5. [`transmit`], which drains a queue pair into its path, and [`streams`].
#![forbid(unsafe_code)]

pub mod clock;
pub mod counters;
pub mod delayed_ack;
pub mod devices;
pub mod faults;
pub mod frames;
pub mod neighbour;
pub mod permitted;
pub mod pipes;
pub mod rings;
pub mod rx;
pub mod streams;
pub mod transmit;
pub mod tx;
pub mod tx_path;
pub mod xdp;
