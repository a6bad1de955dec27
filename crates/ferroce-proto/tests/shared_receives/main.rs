//! Queue pairs that take from shared receive queues, and XRC's, from outside.

#![allow(dead_code, reason = "the support has more than is used here")]

mod model;
mod probe;
mod srq;
mod state_events;
mod xrc;

use ferroce_sim::ram;
