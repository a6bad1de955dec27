//! Queue pairs that take from shared receive queues, and XRC's, from outside.

#![allow(dead_code, reason = "the support has more than is used here")]

mod model;
mod probe;
#[path = "../rc/ram.rs"]
mod ram;
mod srq;
mod state_events;
mod xrc;
