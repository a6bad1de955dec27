//! Streams of iWARP, from outside.

#![allow(dead_code, reason = "the support has more than is used here")]

mod counting;
mod exchange;
mod in_place;
mod properties;
mod refusals;
mod waits;
mod world;

use ferroce_sim::ram;
