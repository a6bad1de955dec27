//! The RC queue pair from outside.

#![allow(dead_code, reason = "the support is shared by tests of which some follow")]

mod congestion;
mod counting;
mod crowd;
mod direct;
mod early;
mod exchange;
mod forged;
mod forged_flood;
mod goodput;
mod held;
mod huge;
mod interop;
mod lossy;
mod matrix;
mod memory_ops;
mod no_room;
mod packets;
mod probe;
mod properties;
mod recovery_events;
mod refusals;
mod requester;
mod rereads;
mod responder;
mod retries;
mod scenarios;
mod snapshot;
mod state_events;
mod states;
mod straight;
mod world;

use ferroce_sim::{ram, workload};
