//! UC and UD queue pairs from outside.

#![allow(dead_code, reason = "the support has more than is used here")]

mod packets;
mod probe;
mod sending;
mod snapshot;
mod state_events;
mod uc;
mod ud;
mod whole;
#[path = "../rc/world.rs"]
mod world;

use ferroce_sim::ram;
