//! Streams of iWARP, from outside.

#![allow(dead_code, reason = "the support has more than is used here")]

mod exchange;
mod properties;
#[path = "../rc/ram.rs"]
mod ram;
mod refusals;
mod world;
