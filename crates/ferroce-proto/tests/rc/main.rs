//! The RC queue pair from outside.

#![allow(dead_code, reason = "the support is shared by tests of which some follow")]

mod a_packets;
mod b_refusals;
mod b_responder;
mod c_requester;
mod c_retries;
mod crowd;
mod d_states;
mod e_interop;
mod early;
mod exchange;
mod goodput;
mod huge;
mod lossy;
mod memory_ops;
mod probe;
mod properties;
mod ram;
mod snapshot;
mod state_events;
mod workload;
mod world;
